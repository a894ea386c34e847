"""chiplog: a write-ahead log for Python. Write ahead, replay, forget.

    from chiplog import Stream

    stream = Stream("orders.log")
    with stream.appender(sync="always") as log:
        position = log.append(b"one")
    with stream.cursor(start=position) as cursor:
        for record in cursor:
            print(record.position, record.time, record.payload)

What is where, each importing only from those before it:

    chiplog.errors     every error, as one tree under ChiplogError
    chiplog.kernel     loops over bytes, compiled (_kernel.pyx) or in plain Python (_kernel_py.py)
    chiplog.bounds     what an option may be
    chiplog.times      times as nanoseconds and as text
    chiplog.notices    log lines for operators, limited in number and length
    chiplog.shares     who holds how much of what all clients of a server share
    chiplog.tls        TLS for servers and clients, and hints where one side doesn't speak it
    chiplog.lobby      where sockets wait until their TLS handshake is done
    chiplog.forks      what a forked child must let go of
    chiplog.modes      who may read and write the files of a log
    chiplog.shared     words that processes share through memory
    chiplog.watches    telling when a directory has changed
    chiplog.locks      locks on files, which processes and threads take turns with
    chiplog.files      the only module that touches the filesystem
    chiplog.formats    how bytes lie in a segment
    chiplog.log        the engine: Stream, Appender, Cursor, Cleaner
    chiplog.commitlog  many producers, one writer: a queue in front of a log, and hot-swap rotation
    chiplog.state      keep an in-memory program's state through crashes
    chiplog.jobs       a job server whose memory is a command log
    chiplog.broker     pub/sub over MQTT whose memory is the log
    chiplog.spark      logs as Spark tables, in batch and in streaming
    chiplog.testing    a disk that crashes, lies, tears and fills up, for your own tests too
    chiplog.cli        the command `chiplog`
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chiplog.errors import (
        AppenderClosed,
        AppenderFailed,
        BadCommand,
        BadEvent,
        BadPacket,
        BadPosition,
        BadReply,
        BatchFailed,
        ChiplogError,
        ConnectionLost,
        CorruptRecord,
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
    from chiplog.log.appender import Appender, SyncPolicy
    from chiplog.log.backup import Backup
    from chiplog.log.cleaner import Cleaner, CleanReport
    from chiplog.log.cursor import Cursor
    from chiplog.log.metrics import Metrics, prometheus_collector
    from chiplog.log.position import Position, Record
    from chiplog.log.recovery import Recovery
    from chiplog.log.repair import Repair, apply_repairs, plan_repair
    from chiplog.log.rules import KeepLast, KeepLatest, OlderThan
    from chiplog.log.stream import SegmentInfo, Stream
    from chiplog.log.verify import VerifyReport, verify
    from chiplog.log.walk import Defect

# Names are loaded when they are first used: a program that only wants `chiplog.errors`, or a command that
# only prints its help, doesn't pay for the engine.
_HOMES = {
    "chiplog.errors": (
        "AppenderClosed", "AppenderFailed", "BadCommand", "BadEvent", "BadPacket", "BadPosition", "BadReply",
        "BatchFailed", "ChiplogError",
        "ConnectionLost", "CorruptRecord", "HeaderMismatch", "JobError", "JobNotFound", "JobRefused", "JobTimeout",
        "LockTimeout", "LogFull", "LogNotFound", "MissingExtra", "QueueFull", "RecordTooLarge", "ServerFailed",
        "ServerReadOnly", "SkipSegment", "TargetTaken", "TimeOutOfRange", "UnknownFormat", "WriteFailed",
    ),
    "chiplog.log.appender": ("Appender", "SyncPolicy"),
    "chiplog.log.backup": ("Backup",),
    "chiplog.log.cleaner": ("CleanReport", "Cleaner"),
    "chiplog.log.cursor": ("Cursor",),
    "chiplog.log.metrics": ("Metrics", "prometheus_collector"),
    "chiplog.log.position": ("Position", "Record"),
    "chiplog.log.recovery": ("Recovery",),
    "chiplog.log.repair": ("Repair", "apply_repairs", "plan_repair"),
    "chiplog.log.rules": ("KeepLast", "KeepLatest", "OlderThan"),
    "chiplog.log.stream": ("SegmentInfo", "Stream"),
    "chiplog.log.verify": ("VerifyReport", "verify"),
    "chiplog.log.walk": ("Defect",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'chiplog' has no attribute {name!r}")
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
    "ChiplogError",
    "CleanReport",
    "Cleaner",
    "ConnectionLost",
    "CorruptRecord",
    "Cursor",
    "Defect",
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
