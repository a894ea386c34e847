"""A disk that crashes, lies, tears and fills up: for forelog's tests, and for yours.

`CrashDisk` stands in for the filesystem. It keeps files in memory, remembers which writes, truncations
and directory changes have been synced, and can tell every state in which a real disk could be found after
losing power at any moment. It also fails on demand: EIO, ENOSPC, EMFILE, short writes, failing syncs.

>>> from forelog import Stream
>>> from forelog.testing import CrashDisk
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

`Explorer` looks at a disk in between: it runs readers beside every step of a writer, and compares what they see
with what was acknowledged. `World` runs whole programs on machines that fail. See docs/testing.md.

    model.py                what a disk may hold after a crash: sectors, sizes, directory entries
    states.py               the possible contents of a disk after a crash: all of them, or a sample
    disk.py                 CrashDisk: the files protocol over that model, and faults
    timeline.py             a disk that keeps every moment of a writer
    ledger.py               what a writer began, and what was acknowledged, refused or left in doubt
    spare.py                a spare segment without a thread
    writer.py               what a history writes with
    schedule.py             when a reader looks, and how far the writer gets in between
    sight.py                the disk as a reader finds it, by a schedule
    judge.py                whether what a reader saw is the log
    registry.py             histories and readers by their names
    readers.py              kinds of readers
    readers_of_faces.py     those of Spark, the broker and copies
    histories.py            short histories of a writer
    histories_of_faces.py   those of messages, state and a commit log
    random_history.py       long random histories
    catalogue.py            all histories and all kinds of readers
    explorer.py             Explorer: readers beside every step of a writer
    world/                  World: machines, a network and clocks out of one seed
"""

from forelog.testing.catalogue import all_histories, all_readers
from forelog.testing.disk import CrashDisk, CrashState, Fault, Operation
from forelog.testing.explorer import Explorer, Report, Violation
from forelog.testing.random_history import random_history
from forelog.testing.sight import Sight
from forelog.testing.writer import Writer

__all__ = [
    "CrashDisk",
    "CrashState",
    "Explorer",
    "Fault",
    "Operation",
    "Report",
    "Sight",
    "Violation",
    "Writer",
    "all_histories",
    "all_readers",
    "random_history",
]
