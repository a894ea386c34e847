"""The commit log: a bounded queue in front of a log, one writer behind it, rotation by hot swap.

log.py          CommitLog: producers, the writer, rotation
writes.py       what is in the queue, and when a write returns
failure.py      what happens when the disk fails
aio.py          AsyncCommitLog: a commit log for tasks
entries.py      a log in M3's format, entry by entry or as Arrow columns
check.py        reading all its entries, to count them and to find what can't be read
"""

from forelog.commitlog.aio import AsyncCommitLog
from forelog.commitlog.entries import read_entries, scan_datapoints
from forelog.commitlog.failure import FailurePolicy
from forelog.commitlog.log import CommitLog
from forelog.commitlog.writes import Strategy

__all__ = ["AsyncCommitLog", "CommitLog", "FailurePolicy", "Strategy", "read_entries", "scan_datapoints"]
