"""Keep an in-memory program's state through crashes: every change is logged as an event before it is made.

    models.py        classes that msgspec doesn't know: models of pydantic
    events.py        events to and from bytes
    replay.py        from a log's records to its events and generations
    enumeration.py   Enumeration: what an app gets to enumerate its state
    options.py       the options of a state log, with their types
    log.py           StateLog: updates, restoring, and snapshots by asking the app to enumerate its state
    items.py         the events of a dict
    table.py         the items of a dict in memory, and when they expire
    reflection.py    the items of a dict that another process writes
    transaction.py   changes of several keys as one record
    unset.py         what means "no value" and "no argument" where None is a value
    views.py         what values() and items() of a dict return
    mapping.py       PersistentDict: a dict that does all of this by itself
    aio.py           its methods that write, for tasks
    reader.py        a state log read without its app: generations, and events as far as their bytes tell
    restoration.py   a new log with the state at a time
    follower.py      Follower: the same state in another process, which can take over

Copies of the log elsewhere are kept by `forelog.copies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forelog.lazy import exports

if TYPE_CHECKING:  # a type checker reads these, and refuses any other name
    from forelog.copies.destinations import DestinationHealth as DestinationHealth
    from forelog.copies.destinations import Health as Health
    from forelog.copies.identity import Identity as Identity
    from forelog.copies.server.server import ReplicaServer as ReplicaServer
    from forelog.errors import BadEvent as BadEvent
    from forelog.state.aio import AsyncPersistentDict as AsyncPersistentDict
    from forelog.state.enumeration import Enumeration as Enumeration
    from forelog.state.events import Codec as Codec
    from forelog.state.events import EventCodec as EventCodec
    from forelog.state.follower import Follower as Follower
    from forelog.state.log import StateLog as StateLog
    from forelog.state.log import StateStats as StateStats
    from forelog.state.mapping import PersistentDict as PersistentDict
    from forelog.state.restoration import restore as restore
    from forelog.state.unset import ABSENT as ABSENT

__all__, _load = exports(
    __name__,
    {
        "forelog.copies.destinations": "DestinationHealth Health",
        "forelog.copies.identity": "Identity",
        "forelog.copies.server.server": "ReplicaServer",
        "forelog.errors": "BadEvent",
        "forelog.state.aio": "AsyncPersistentDict",
        "forelog.state.enumeration": "Enumeration",
        "forelog.state.events": "Codec EventCodec",
        "forelog.state.follower": "Follower",
        "forelog.state.log": "StateLog StateStats",
        "forelog.state.mapping": "PersistentDict",
        "forelog.state.restoration": "restore",
        "forelog.state.unset": "ABSENT",
    },
)

if not TYPE_CHECKING:
    __getattr__ = _load
