"""forelog: a write-ahead log for Python. Write ahead, replay, forget.

    from forelog import Stream

    stream = Stream("orders.log")
    with stream.appender(sync="always") as log:
        position = log.append(b"one")
    with stream.cursor(start=position) as cursor:
        for record in cursor:
            print(record.position, record.time, record.payload)

What is where, each importing only from those before it:

    forelog.errors     every error, as one tree under ForelogError
    forelog.kernel     loops over bytes, compiled (_kernel.pyx) or in plain Python (_kernel_py.py)
    forelog.bounds     what an option may be
    forelog.times      times as nanoseconds and as text
    forelog.serving.notices    log lines for operators, limited in number and length
    forelog.serving.shares     who holds how much of what all clients of a server share
    forelog.serving.tls        TLS for servers and clients, and hints where one side doesn't speak it
    forelog.serving.lobby      where sockets wait until their TLS handshake is done
    forelog.files.forks      what a forked child must let go of
    forelog.files.modes      who may read and write the files of a log
    forelog.files.words     words that processes share through memory
    forelog.files.watches    telling when a directory has changed
    forelog.files.locks      locks on files, which processes and threads take turns with
    forelog.files      the only module that touches the filesystem
    forelog.formats    how bytes lie in a segment
    forelog.log        the engine: Stream, Appender, Cursor, Cleaner
    forelog.commitlog  many producers, one writer: a queue in front of a log, and hot-swap rotation
    forelog.state      keep an in-memory program's state through crashes
    forelog.jobs       a job server whose memory is a command log
    forelog.broker     pub/sub over MQTT whose memory is the log
    forelog.spark      logs as Spark tables, in batch and in streaming
    forelog.testing    a disk that crashes, lies, tears and fills up, for your own tests too
    forelog.cli        the command `forelog`
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forelog.errors import (
        AppenderClosed,
        AppenderFailed,
        BadCommand,
        BadEvent,
        BadPacket,
        BadPosition,
        BadReply,
        BatchFailed,
        ConnectionLost,
        CorruptRecord,
        ForelogError,
        HeaderMismatch,
        JobError,
        JobNotFound,
        JobRefused,
        JobTimeout,
        LockTimeout,
        LogFull,
        LogNotFound,
        MissingExtra,
        QueueFull,
        RecordTooLarge,
        ServerFailed,
        ServerReadOnly,
        SkipSegment,
        TargetTaken,
        TimeOutOfRange,
        UnknownFormat,
        WriteFailed,
    )
    from forelog.log.appender import Appender, SyncPolicy
    from forelog.log.backup import Backup
    from forelog.log.cleaner import Cleaner, CleanReport
    from forelog.log.cursor import Cursor
    from forelog.log.metrics import Metrics, prometheus_collector
    from forelog.log.position import Position, Record
    from forelog.log.recovery import Recovery
    from forelog.log.repair import Repair, apply_repairs, plan_repair
    from forelog.log.rules import KeepLast, KeepLatest, OlderThan
    from forelog.log.stream import SegmentInfo, Stream
    from forelog.log.verify import VerifyReport, verify
    from forelog.log.walk import Defect

# Names are loaded when they are first used: a program that only wants `forelog.errors`, or a command that
# only prints its help, doesn't pay for the engine.
_HOMES = {
    "forelog.errors": (
        "AppenderClosed", "AppenderFailed", "BadCommand", "BadEvent", "BadPacket", "BadPosition", "BadReply",
        "BatchFailed", "ForelogError",
        "ConnectionLost", "CorruptRecord", "HeaderMismatch", "JobError", "JobNotFound", "JobRefused", "JobTimeout",
        "LockTimeout", "LogFull", "LogNotFound", "MissingExtra", "QueueFull", "RecordTooLarge", "ServerFailed",
        "ServerReadOnly", "SkipSegment", "TargetTaken", "TimeOutOfRange", "UnknownFormat", "WriteFailed",
    ),
    "forelog.log.appender": ("Appender", "SyncPolicy"),
    "forelog.log.backup": ("Backup",),
    "forelog.log.cleaner": ("CleanReport", "Cleaner"),
    "forelog.log.cursor": ("Cursor",),
    "forelog.log.metrics": ("Metrics", "prometheus_collector"),
    "forelog.log.position": ("Position", "Record"),
    "forelog.log.recovery": ("Recovery",),
    "forelog.log.repair": ("Repair", "apply_repairs", "plan_repair"),
    "forelog.log.rules": ("KeepLast", "KeepLatest", "OlderThan"),
    "forelog.log.stream": ("SegmentInfo", "Stream"),
    "forelog.log.verify": ("VerifyReport", "verify"),
    "forelog.log.walk": ("Defect",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'forelog' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__version__ = "0.1.0"

__all__ = [
    "Appender",
    "AppenderClosed",
    "AppenderFailed",
    "Backup",
    "BadCommand",
    "BadEvent",
    "BadPacket",
    "BadPosition",
    "BadReply",
    "BatchFailed",
    "CleanReport",
    "Cleaner",
    "ConnectionLost",
    "CorruptRecord",
    "Cursor",
    "Defect",
    "ForelogError",
    "HeaderMismatch",
    "JobError",
    "JobNotFound",
    "JobRefused",
    "JobTimeout",
    "KeepLast",
    "KeepLatest",
    "LockTimeout",
    "LogFull",
    "LogNotFound",
    "Metrics",
    "MissingExtra",
    "OlderThan",
    "Position",
    "QueueFull",
    "Record",
    "RecordTooLarge",
    "Recovery",
    "Repair",
    "SegmentInfo",
    "ServerFailed",
    "ServerReadOnly",
    "SkipSegment",
    "Stream",
    "SyncPolicy",
    "TargetTaken",
    "TimeOutOfRange",
    "UnknownFormat",
    "VerifyReport",
    "WriteFailed",
    "apply_repairs",
    "plan_repair",
    "prometheus_collector",
    "verify",
]
