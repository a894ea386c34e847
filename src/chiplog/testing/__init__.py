"""A disk that crashes, lies, tears and fills up: for chiplog's tests, and for yours.

`CrashDisk` stands in for the filesystem. It keeps files in memory, remembers which writes, truncations
and directory changes have been synced, and can tell every state in which a real disk could be found after
losing power at any moment. It also fails on demand: EIO, ENOSPC, EMFILE, short writes, failing syncs.

>>> from chiplog import Stream
>>> from chiplog.testing import CrashDisk
>>> disk = CrashDisk()
>>> with Stream("log", files=disk).appender(sync="always") as log:
...     position = log.append(b"precious")
>>> lost = 0
>>> for state in disk.states_everywhere(limit=50):
...     with Stream("log", files=state.disk).appender():
...         pass  # every state opens
...     with Stream("log", files=state.disk).cursor() as cursor:
...         found = [record.payload for record in cursor]
...     lost += state.events == len(disk.events) and found != [b"precious"]
>>> lost
0

    model.py    what a disk may hold after a crash: sectors, sizes, directory entries
    disk.py     CrashDisk, the files protocol over that model, and faults
    states.py   going through the states of a crash, all of them or a sample
"""

from chiplog.testing.disk import CrashDisk, Fault, Operation
from chiplog.testing.states import CrashState

__all__ = ["CrashDisk", "CrashState", "Fault", "Operation"]
