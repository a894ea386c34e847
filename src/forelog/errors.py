"""Every error that forelog raises, as one tree::

    ForelogError
    ├── LogNotFound             there is no log at the path (also a FileNotFoundError)
    ├── UnknownFormat           the files are of an unknown format, or of another one than was asked for
    ├── HeaderMismatch          a segment belongs to another kind of log, or its header is damaged
    ├── CorruptRecord           bytes in a segment are not what was written
    ├── WriteFailed             an append didn't reach the file; it was undone (also an OSError)
    ├── AppenderFailed          nothing more can be appended until the log is reopened (also an OSError)
    ├── AppenderClosed          append after close (also a ValueError)
    ├── ReadOnly                a dict that was opened with read_only=True can't be changed (also a TypeError)
    ├── QueueFull               the queue of writes has no room, and its time to wait is over
    ├── RecordTooLarge          a record or batch is over its limit (also a ValueError)
    ├── LogFull                 there are no segment numbers left
    ├── LockTimeout             another process or thread holds the lock (also a TimeoutError)
    ├── TimeOutOfRange          a time can't be expressed as asked, or a record can't be of it (also a ValueError)
    ├── BadPosition             a text isn't a position, or a position can't be in this log (also a ValueError)
    ├── TargetTaken             the place for a new log isn't empty (also a FileExistsError)
    ├── ConvertFailed           a log can't be converted as asked; nothing is left of the attempt
    ├── BadCommand              a record isn't a command, or a command has an impossible value (also a ValueError)
    ├── BadEvent                an event of a state log can't be written or read (also a ValueError)
    ├── RestoreFailed           a state can't be restored as asked; nothing is left of the attempt
    │   └── PlaceTaken          the place for the new log isn't empty
    ├── ReplicaError            a copy of a state log can't be updated or read (also a ConnectionError)
    │   ├── BadFrame            a frame of the replica protocol is invalid
    │   ├── NotReplicated       a copy that the update waits for didn't acknowledge it in time
    │   └── Superseded          another primary has replaced this one
    ├── BadTokens               a line of a replica server's file of tokens is invalid (also a ValueError)
    ├── BadAccessFile           a line of a broker's file of users or of rules is invalid (also a ValueError)
    ├── BadPacket               bytes aren't an MQTT packet, or a packet can't be written (also a ValueError)
    ├── JobError                a job server didn't do what was asked
    │   ├── JobRefused          it refuses the command, and says why (also a ValueError)
    │   ├── JobNotFound         it has no such job or queue (also a LookupError)
    │   ├── JobTimeout          no job or result came in time (also a TimeoutError)
    │   ├── JobFailed           a task's job has failed for good; it has the task's exception
    │   ├── ServerFailed        it failed; the command may have been executed
    │   │   └── ServerReadOnly  its command log can't be written: nothing can be changed until it can
    │   ├── ConnectionLost      no connection; the command may have been executed (also a ConnectionError)
    │   ├── BadReply            the reply isn't one of a job server
    │   └── BatchFailed         some commands of a batch failed
    ├── BadOption               an unknown option of the Spark source, or an invalid value (also a ValueError)
    ├── DataLoss                cleaning or retention has taken records that a reader hadn't read
    ├── TableDamaged            files of a table are missing, or can't be read
    ├── CatalogFailed           an Iceberg catalog can't be reached, or refuses
    ├── StorageFailed           the bucket of a table can't be reached, or refuses
    ├── TaskFailed              a task on Spark failed in every attempt
    ├── SparkFailure            Spark failed for a reason other than a log
    └── MissingExtra            an optional dependency isn't installed (also an ImportError)

`SkipSegment` isn't an error: a cleaning function raises it to leave the current segment as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

__all__ = [
    "AppenderClosed",
    "AppenderFailed",
    "BadAccessFile",
    "BadCommand",
    "BadEvent",
    "BadFrame",
    "BadOption",
    "BadPacket",
    "BadPosition",
    "BadReply",
    "BadTokens",
    "BatchFailed",
    "CatalogFailed",
    "ConnectionLost",
    "ConvertFailed",
    "CorruptRecord",
    "DataLoss",
    "ForelogError",
    "HeaderMismatch",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "JobRefused",
    "JobTimeout",
    "LockTimeout",
    "LogFull",
    "LogNotFound",
    "MissingExtra",
    "NotReplicated",
    "PlaceTaken",
    "QueueFull",
    "ReadOnly",
    "RecordTooLarge",
    "ReplicaError",
    "RestoreFailed",
    "ServerFailed",
    "ServerReadOnly",
    "SkipSegment",
    "SparkFailure",
    "StorageFailed",
    "Superseded",
    "TableDamaged",
    "TargetTaken",
    "TaskFailed",
    "TimeOutOfRange",
    "UnknownFormat",
    "WriteFailed",
]


class ForelogError(Exception):
    """The base class of all errors of forelog."""


class LogNotFound(ForelogError, FileNotFoundError):
    """There is no log at the path."""


class UnknownFormat(ForelogError):
    """The files are of an unknown format, or of another one than was asked for."""


class HeaderMismatch(ForelogError):
    """A segment belongs to another kind of log, or its header is damaged."""


class CorruptRecord(ForelogError):
    """Bytes in a segment are not what was written.

    `position` is where the damage starts, `reason` one word for what is wrong (`crc`, `length`, `time`,
    `truncated`, `header`, `map`, `missing`), `path` the segment's file, `physical_offset` the place in it, and
    `data` the first bytes found there.
    """

    def __init__(
        self, message: str, *, position: tuple[int, int], reason: str, path: str, physical_offset: int, data: bytes
    ) -> None:
        super().__init__(message)
        self.position = position
        self.reason = reason
        self.path = path
        self.physical_offset = physical_offset
        self.data = data


class WriteFailed(ForelogError, OSError):
    """A write failed and was undone: nothing was appended, and the log is as before."""


class AppenderFailed(ForelogError, OSError):
    """A sync failed, or a failed write couldn't be undone. What is on disk is unknown until the log is
    reopened."""


class AppenderClosed(ForelogError, ValueError):
    """The appender was closed, or not opened yet."""


class ReadOnly(ForelogError, TypeError):
    """A dict that was opened with `read_only=True` can't be changed."""


class QueueFull(ForelogError):
    """The queue of writes has no room, and got none within `queue_timeout`."""


class RecordTooLarge(ForelogError, ValueError):
    """A record or a batch is over its limit."""


class LogFull(ForelogError):
    """Segment names have nine digits, and this log has used the last one."""


class LockTimeout(ForelogError, TimeoutError):
    """Another process or thread holds the lock."""


class TimeOutOfRange(ForelogError, ValueError):
    """A text isn't a time, or a time, such as the clock's, is outside the range that records can have."""


class BadPosition(ForelogError, ValueError):
    """A text isn't a position, or a position can't be in this log."""


class TargetTaken(ForelogError, FileExistsError):
    """The place for a new log isn't empty."""


class ConvertFailed(ForelogError):
    """A log can't be converted as asked. Nothing is left of the attempt."""


class BadCommand(ForelogError, ValueError):
    """A record's payload isn't a command or a note of a job server, or a command has a value that can't be
    written.

    `reason` is one word (`empty`, `type`, `truncated`, `number`, `range`, `time`, `trailing`). `offset` is
    where in the payload the invalid field begins; None when writing.
    """

    def __init__(self, message: str, *, reason: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.offset = offset


class BadEvent(ForelogError, ValueError):
    """An event can't be written, or a record can't be read as one. When reading, `position` says where it is."""

    def __init__(self, message: str, *, position: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.position = position


class ReplicaError(ForelogError, ConnectionError):
    """A copy of a state log can't be updated or read."""


class RestoreFailed(ForelogError):
    """A state can't be restored as asked. Nothing is left of the attempt."""


class PlaceTaken(RestoreFailed):
    """The place for the new log isn't empty."""


class BadFrame(ReplicaError):
    """Received bytes aren't a valid frame, aren't records, or aren't the records that come next."""


class BadTokens(ForelogError, ValueError):
    """A line of a file of tokens is invalid; the message names the line."""


class NotReplicated(ReplicaError):
    """A copy that an update waits for didn't acknowledge it in time.

    With a `position`, the log has the update, so make the change in memory too; whether the copy has it is
    unknown. Without a `position`, nothing was written, because the copy is known to be away.
    """

    def __init__(self, message: str, *, position: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.position = position


class Superseded(ReplicaError):
    """Another primary has replaced this one: a newer one, or one of the same epoch. This one may not write any
    more."""


class BadAccessFile(ForelogError, ValueError):
    """A line of a broker's file of users or of rules is invalid; the message names the line."""


class BadPacket(ForelogError, ValueError):
    """Bytes aren't a valid MQTT packet, or a packet has a value that can't be written.

    `reason_code` is the code of MQTT 5 to send before the connection is closed (0x81 for a malformed packet,
    0x82 for a protocol error, ...). `why` says it in words.
    """

    def __init__(self, reason_code: int, why: str) -> None:
        super().__init__(f"{why} (0x{reason_code:02X})")
        self.reason_code = reason_code
        self.why = why

    def __reduce__(self) -> tuple[type[BadPacket], tuple[int, str]]:
        return BadPacket, (self.reason_code, self.why)


class JobError(ForelogError):
    """A job server didn't do what was asked."""


class JobRefused(JobError, ValueError):
    """The server refuses the command. `reason` is why, in its words: `Invalid TTR`, `Duplicate job`."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class JobNotFound(JobError, LookupError):
    """The server has no such job or queue. The job may never have existed, or it was deleted or has expired."""


class JobTimeout(JobError, TimeoutError):
    """No job or result came in time."""


class JobFailed(JobError):
    """A task's job has failed for good.

    `job_id` is its id. `type` is the name of the exception's class, `reason` its message, and `traceback` its
    traceback as text, as the worker had it.
    """

    def __init__(
        self,
        message: str,
        *,
        job_id: object = None,
        type: str = "",  # noqa: A002
        reason: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.type = type
        self.reason = reason
        self.traceback = traceback


class ServerFailed(JobError):
    """The server failed to do what was asked.

    `unknown` says whether the command may have been done nevertheless.
    """

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


class ServerReadOnly(ServerFailed):
    """The server's command log can't be written. Nothing was changed, and nothing can be changed until the log
    works again."""


class ConnectionLost(JobError, ConnectionError):
    """There is no connection to the server, or it broke. The next call connects again.

    `unknown` says whether the command may have been done nevertheless.
    """

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


class BadReply(JobError):
    """The reply isn't one of a job server."""


class BatchFailed(JobError):
    """Some commands of a batch failed. `outcomes` has the value or the error of each command, in order."""

    def __init__(self, message: str, *, outcomes: Sequence[object]) -> None:
        super().__init__(message)
        self.outcomes = outcomes


class BadOption(ForelogError, ValueError):
    """An unknown option of the Spark source, or an invalid value."""


class DataLoss(ForelogError):
    """Cleaning or retention has taken records that a reader hadn't read."""


class TableDamaged(ForelogError):
    """Files that a table's commits name are not there, or can't be read."""


class CatalogFailed(ForelogError):
    """An Iceberg catalog can't be reached, or refuses."""


class StorageFailed(ForelogError):
    """The bucket of a table can't be reached, or refuses."""


class TaskFailed(ForelogError):
    """A task on Spark failed in every attempt."""


class SparkFailure(ForelogError):
    """Spark failed for a reason other than a log. The message is the first line of Spark's."""


class MissingExtra(ForelogError, ImportError):
    """An optional dependency isn't installed."""

    @classmethod
    def needed(cls, package: str, *, by: str, extra: str) -> Self:
        """The error for a missing package, which says what needs it and how to install it."""
        how = f"pip install 'forelog[{extra}]', or '.[{extra}]' in forelog's folder"
        return cls(f"{package} is not installed, and {by} needs it: {how}")


class SkipSegment(Exception):
    """Raised by a cleaning function to leave the current segment as it is."""
