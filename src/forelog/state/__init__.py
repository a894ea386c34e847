"""Keep an in-memory program's state through crashes: every change is logged as an event before it is made.

    events.py        events to and from bytes
    replay.py        from a log's records to its events and generations
    enumeration.py   Enumeration: what an app gets to enumerate its state
    options.py       the options of a state log, with their types
    log.py           StateLog: updates, restoring, and snapshots by asking the app to enumerate its state
    items.py         the events of a dict
    table.py         the items of a dict in memory, and when they expire
    transaction.py   changes of several keys as one record, and the locks of writers
    unset.py         what stands for nothing where None is a value
    mapping.py       PersistentDict: a dict that does all of this by itself
    aio.py           its methods that write, for tasks
    reader.py        a state log read without its app: generations, and events as far as their bytes tell
    restoration.py   a new log with the state at a time
    follower.py      Follower: the same state in another process, which can take over

Copies of the log elsewhere are kept by `forelog.copies`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forelog.copies.destinations import DestinationHealth, Health
    from forelog.copies.identity import Identity
    from forelog.copies.server.server import ReplicaServer
    from forelog.errors import BadEvent
    from forelog.state.aio import AsyncPersistentDict
    from forelog.state.enumeration import Enumeration
    from forelog.state.events import Codec, EventCodec
    from forelog.state.follower import Follower
    from forelog.state.log import StateLog, StateStats
    from forelog.state.mapping import PersistentDict
    from forelog.state.restoration import restore
    from forelog.state.unset import ABSENT

__all__ = [
    "ABSENT",
    "AsyncPersistentDict",
    "BadEvent",
    "Codec",
    "DestinationHealth",
    "Enumeration",
    "EventCodec",
    "Follower",
    "Health",
    "Identity",
    "PersistentDict",
    "ReplicaServer",
    "StateLog",
    "StateStats",
    "restore",
]

if not TYPE_CHECKING:  # a type checker would take any name for Any
    _HOMES = {
        "ABSENT": "state.unset",
        "AsyncPersistentDict": "state.aio",
        "BadEvent": "errors",
        "Codec": "state.events",
        "DestinationHealth": "copies.destinations",
        "Enumeration": "state.enumeration",
        "EventCodec": "state.events",
        "Follower": "state.follower",
        "Health": "copies.destinations",
        "Identity": "copies.identity",
        "PersistentDict": "state.mapping",
        "ReplicaServer": "copies.server.server",
        "StateLog": "state.log",
        "StateStats": "state.log",
        "restore": "state.restoration",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'forelog.state' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"forelog.{_HOMES[name]}"), name)
        return value
