"""Keep an in-memory program's state through crashes: every change is an event in a log before it is made.

events.py        from and to bytes
log.py           StateLog: updates, restoring, and snapshots by asking the app to enumerate itself
replaying.py     from a log's records to its events and generations
mapping.py       PersistentDict: a dict that does all of this by itself
reading.py       a log without its app: generations, and events as far as their bytes tell
restoring.py     a new log with the state at a time

and copies of it elsewhere, each kept up by a thread that reads the log:

identity.py      whose log it is, and which of its primaries writes it
lineage.py       the openings that a log's history consists of
claim.py         whether a primary may write to a copy
shipping.py      from a log to a copy of it; sent.py remembers what was sent
mirror.py        a copy in a directory; copies.py has a place for two, of which one is whole
targets.py       what a copy can be in: a directory, a replica server, or (remote.py) anything that fsspec reaches
remote.py        a copy on object storage: storage.py reaches it, manifest.py says what it consists of, register.py
                 who writes it, merging.py keeps it short, fetching.py makes it a log again
sources.py       whatever a state can be restored from, as a directory
destinations.py  all copies of a log, and how they are doing
wire.py          frames over a connection; receiving.py is its other end
replica.py       ReplicaServer: keeps copies, and passes them on
follower.py      Follower: the same state in another process, which can take over
"""

from __future__ import annotations

from forelog.copies.destinations import DestinationHealth, Health
from forelog.copies.identity import Identity
from forelog.copies.server.server import ReplicaServer
from forelog.state.events import BadEvent, Codec, EventCodec
from forelog.state.follower import Follower
from forelog.state.log import Enumeration, StateLog, StateStats
from forelog.state.mapping import PersistentDict
from forelog.state.restoration import restore

__all__ = [
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
