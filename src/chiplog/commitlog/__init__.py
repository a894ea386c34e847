"""The commit log: a bounded queue in front of a log, one writer behind it, rotation by hot swap.

log.py          CommitLog: producers, the writer, rotation
failure.py      what happens when the disk fails
aio.py          the same for tasks
datapoints.py   what M3's files say, as entries and as Arrow columns
"""

from chiplog.commitlog.aio import AsyncCommitLog
from chiplog.commitlog.failure import FailurePolicy
from chiplog.commitlog.log import CommitLog, Strategy

__all__ = ["AsyncCommitLog", "CommitLog", "FailurePolicy", "Strategy"]
