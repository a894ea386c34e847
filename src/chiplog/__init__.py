"""chiplog: a write-ahead log for Python. Write ahead, replay, forget.

    from chiplog import Stream

    stream = Stream("orders.log")
    with stream.appender(sync="always") as log:
        position = log.append(b"one")
    with stream.cursor(start=position) as cursor:
        for record in cursor:
            print(record.position, record.time, record.payload)

What is where, each importing only from those before it:

    chiplog.kernel     loops over bytes, compiled (_kernel.pyx) or in plain Python (_kernel_py.py)
    chiplog.errors     every error, as one tree under ChiplogError
    chiplog.times      times as nanoseconds and as text
    chiplog.files      the only module that touches the filesystem
    chiplog.formats    how bytes lie in a segment
    chiplog.log        the engine: Stream, Appender, Cursor, Cleaner
    chiplog.testing    a disk that crashes, lies, tears and fills up, for your own tests too
    chiplog.cli        the command `chiplog`
"""

from chiplog.errors import (
    AppenderClosed,
    AppenderFailed,
    BadPosition,
    ChiplogError,
    CorruptRecord,
    HeaderMismatch,
    LockTimeout,
    LogFull,
    LogNotFound,
    MissingExtra,
    RecordTooLarge,
    SkipSegment,
    TimeOutOfRange,
    UnknownFormat,
    WriteFailed,
)
from chiplog.log.appender import Appender, SyncPolicy
from chiplog.log.cleaner import Cleaner, CleanReport
from chiplog.log.cursor import Cursor
from chiplog.log.metrics import Metrics, prometheus_collector
from chiplog.log.position import Position, Record
from chiplog.log.recovery import Recovery
from chiplog.log.rules import KeepLast, KeepLatest, OlderThan
from chiplog.log.stream import SegmentInfo, Stream
from chiplog.log.walk import Defect

__version__ = "0.1.0"

__all__ = [
    "Appender",
    "AppenderClosed",
    "AppenderFailed",
    "BadPosition",
    "ChiplogError",
    "CleanReport",
    "Cleaner",
    "CorruptRecord",
    "Cursor",
    "Defect",
    "HeaderMismatch",
    "KeepLast",
    "KeepLatest",
    "LockTimeout",
    "LogFull",
    "LogNotFound",
    "Metrics",
    "MissingExtra",
    "OlderThan",
    "Position",
    "Record",
    "RecordTooLarge",
    "Recovery",
    "SegmentInfo",
    "SkipSegment",
    "Stream",
    "SyncPolicy",
    "TimeOutOfRange",
    "UnknownFormat",
    "WriteFailed",
    "prometheus_collector",
]
