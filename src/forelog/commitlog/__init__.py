"""The commit log: a bounded queue in front of a log, one writer behind it, rotation by hot swap.

log.py          CommitLog: producers, the writer, rotation
failure.py      what happens when the disk fails
aio.py          the same for tasks
entries.py      what M3's files say, entry by entry
datapoints.py   the same as Arrow columns
check.py        reading all of it, to count it and to find what can't be read
exchange.py     a datapoint as JSON, and back
convert.py      from one format to another
"""

from forelog.commitlog.aio import AsyncCommitLog
from forelog.commitlog.datapoints import scan_datapoints
from forelog.commitlog.entries import read_entries
from forelog.commitlog.failure import FailurePolicy
from forelog.commitlog.log import CommitLog, Strategy

__all__ = ["AsyncCommitLog", "CommitLog", "FailurePolicy", "Strategy", "read_entries", "scan_datapoints"]
