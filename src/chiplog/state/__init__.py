"""Keep an in-memory program's state through crashes: every change is an event in a log before it is made.

events.py      from and to bytes
log.py         StateLog: updates, restoring, and snapshots by asking the app to enumerate itself
mapping.py     PersistentDict: a dict that does all of this by itself
reading.py     a log without its app: generations, and events as far as their bytes tell
restoring.py   a new log with the state at a time
"""

from __future__ import annotations

from chiplog.state.events import BadEvent, Codec, EventCodec
from chiplog.state.log import Enumeration, StateLog, StateStats
from chiplog.state.mapping import PersistentDict

__all__ = ["BadEvent", "Codec", "Enumeration", "EventCodec", "PersistentDict", "StateLog", "StateStats"]
