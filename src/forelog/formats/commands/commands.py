"""The eight commands of a job server, as its command log has them: from and to bytes.

A command log is a log in the captain format with a magic number of its own, and each record's payload is one
command. The bytes are drawn in `forelog.formats.commands.fields`; they are those of workq.

>>> add = Add(parse_id("61000000-0001-4000-8000-000000000001"), "mail", ttr_ms=1000, ttl_ms=60_000, created_ns=0)
>>> payload = encode(add)
>>> decode(payload) == add
True
>>> decode(payload[:-1])
Traceback (most recent call last):
    ...
forelog.errors.BadCommand: an add of 60 bytes is truncated: its field at byte 46 needs more than there is

The values of a command aren't judged here: `forelog.jobs.log.replay` decides whether a job may have this name,
and whether there is a job to complete. Two things are not kept. A time's zone only says how to show it. It is
written as `ff ff`, as workq does, because workq treats an add with another zone as a scheduled job. And a
complete or fail without a result, which workq's documentation describes and its program refuses, is read as one
with an empty result.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from forelog.errors import BadCommand
from forelog.formats.captain import UNIX_EPOCH_SECONDS
from forelog.formats.commands.fields import (
    ADD,
    BAD_JOB_TIME,
    BAD_RANGE,
    BAD_TYPE,
    COMPLETE,
    DELETE,
    EMPTY,
    ERROR_WORDS,
    EXPIRE,
    FAIL,
    ID_BYTES,
    SCHEDULE,
    SHORT,
    START_ATTEMPT,
    TIMEOUT_ATTEMPT,
    TRAILING,
    TRIES_MAX,
    TTL_MS_MAX,
    TTR_MS_MAX,
    TYPE_WORDS,
    ZERO_TIME,
    Fields,
    Malformed,
    command_fields,
    job_head,
    time_bytes,
)
from forelog.kernel import varint
from forelog.times import SECOND_NS

MAGIC = 0x77717771  # "wqwq"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Add:
    """Add a job that can be leased at once. Its ttl runs from `created_ns`."""

    type: ClassVar[int] = ADD
    word: ClassVar[str] = "add"

    id: bytes
    """Sixteen bytes: the job's UUID."""
    name: str
    """The queue that it is in."""
    ttr_ms: int
    """How long a lease may take."""
    ttl_ms: int
    """How long the job lives."""
    created_ns: int
    """When it was made."""
    payload: bytes = b""
    """What is to be done."""
    priority: int = 0
    """Higher first."""
    max_attempts: int = 0
    """How often it may be leased; 0 for any number."""
    max_fails: int = 0
    """Failed attempts after which it has failed; 0 if the first one is final."""
    time_ns: int | None = None
    """None, which is written as the zero time. A foreign writer may have set one."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Add a job that can't be leased before its time. Its ttl runs from `time_ns`."""

    type: ClassVar[int] = SCHEDULE
    word: ClassVar[str] = "schedule"

    id: bytes
    """Sixteen bytes: the job's UUID."""
    name: str
    """The queue that it is in."""
    ttr_ms: int
    """How long a lease may take."""
    ttl_ms: int
    """How long the job lives."""
    time_ns: int
    """When it is due."""
    created_ns: int
    """When it was made."""
    payload: bytes = b""
    """What is to be done."""
    priority: int = 0
    """Higher first."""
    max_attempts: int = 0
    """How often it may be leased; 0 for any number."""
    max_fails: int = 0
    """Failed attempts after which it has failed; 0 if the first one is final."""


@dataclass(frozen=True, slots=True)
class OfJob:
    """What is about a job that is known by its id."""

    id: bytes
    """Sixteen bytes: the job's UUID."""


@dataclass(frozen=True, slots=True)
class Complete(OfJob):
    """The job was done, with this result."""

    type: ClassVar[int] = COMPLETE
    word: ClassVar[str] = "complete"

    result: bytes = b""
    """What the job came to."""


@dataclass(frozen=True, slots=True)
class Fail(OfJob):
    """The job failed, with this result."""

    type: ClassVar[int] = FAIL
    word: ClassVar[str] = "fail"

    result: bytes = b""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Delete(OfJob):
    """A client deleted the job."""

    type: ClassVar[int] = DELETE
    word: ClassVar[str] = "delete"


@dataclass(frozen=True, slots=True)
class Expire(OfJob):
    """The job's ttl is over, or the client of a `run` has its reply."""

    type: ClassVar[int] = EXPIRE
    word: ClassVar[str] = "expire"


@dataclass(frozen=True, slots=True)
class StartAttempt(OfJob):
    """A worker leased the job."""

    type: ClassVar[int] = START_ATTEMPT
    word: ClassVar[str] = "start-attempt"


@dataclass(frozen=True, slots=True)
class TimeoutAttempt(OfJob):
    """The lease's ttr is over."""

    type: ClassVar[int] = TIMEOUT_ATTEMPT
    word: ClassVar[str] = "timeout-attempt"


Command = Add | Schedule | Complete | Fail | Delete | Expire | StartAttempt | TimeoutAttempt
ID_ONLY: dict[int, type[Delete | Expire | StartAttempt | TimeoutAttempt]] = {
    kind.type: kind for kind in (Delete, Expire, StartAttempt, TimeoutAttempt)
}


def parse_id(text: str) -> bytes:
    """The sixteen bytes of an id such as 61000000-0001-4000-8000-000000000001."""
    try:
        return UUID(text).bytes
    except ValueError:
        raise BadCommand(f"{text!r} isn't an id: expected a UUID", reason="range") from None


def format_id(job_id: bytes) -> str:
    """The text of an id of sixteen bytes."""
    return str(UUID(bytes=job_id))


def encode(command: Command) -> bytes:
    """Encode a command as a record's payload. Raises BadCommand for a value that its field can't hold."""
    if len(command.id) != ID_BYTES:
        raise BadCommand(f"{command.word}: an id has {ID_BYTES} bytes, not {len(command.id)}", reason="range")
    head = bytes((command.type,)) + command.id
    if isinstance(command, Add | Schedule):
        return head + _encode_job(command)
    if isinstance(command, Complete | Fail):
        return head + varint(len(command.result)) + command.result
    return head


def _encode_job(job: Add | Schedule) -> bytes:
    if not -(2**31) <= job.priority < 2**31:
        raise BadCommand(f"{job.word}: priority is {job.priority}: expected an int32", reason="range")
    for field, number, most in (
        ("ttr_ms", job.ttr_ms, TTR_MS_MAX),
        ("ttl_ms", job.ttl_ms, TTL_MS_MAX),
        ("max_attempts", job.max_attempts, TRIES_MAX),
        ("max_fails", job.max_fails, TRIES_MAX),
    ):
        if not 0 <= number <= most:
            raise BadCommand(f"{job.word}: {field} is {number}: expected 0 to {most}", reason="range")
    name = job.name.encode("utf-8", "surrogateescape")
    return b"".join(
        (
            job_head(name, job.ttr_ms, job.ttl_ms, job.priority, job.max_attempts, job.max_fails),
            varint(len(job.payload)),
            job.payload,
            ZERO_TIME if job.time_ns is None else _time(job, "time_ns", job.time_ns),
            _time(job, "created_ns", job.created_ns),
        )
    )


def _time(job: Add | Schedule, field: str, time_ns: int) -> bytes:
    try:
        return time_bytes(time_ns)
    except struct.error:
        raise BadCommand(f"{job.word}: {field} is {time_ns}: it doesn't fit into a time", reason="time") from None


def decode(payload: bytes | bytearray | memoryview) -> Command:
    """Decode a record's payload. Raises BadCommand with the place and the reason."""
    view = memoryview(payload).cast("B")
    try:
        fields = command_fields(view, 0, len(view))
    except Malformed as malformed:
        raise _refusal(view, malformed) from None
    if fields.type <= SCHEDULE:
        return _decode_job(view, fields)
    if fields.type <= FAIL:
        result = bytes(view[slice(*fields.result)])
        return Complete(fields.id, result) if fields.type == COMPLETE else Fail(fields.id, result)
    return ID_ONLY[fields.type](fields.id)


def _decode_job(view: memoryview, fields: Fields) -> Add | Schedule:
    name = str(view[slice(*fields.name)], "utf-8", "surrogateescape")
    payload = bytes(view[slice(*fields.payload)])
    created_ns = _from_time(fields.created)
    limits = (payload, fields.priority, fields.max_attempts, fields.max_fails)
    if fields.type == SCHEDULE:
        time_ns = _from_time(fields.time)
        return Schedule(fields.id, name, fields.ttr_ms, fields.ttl_ms, time_ns, created_ns, *limits)
    set_ns = None if fields.time == (0, 0) else _from_time(fields.time)
    return Add(fields.id, name, fields.ttr_ms, fields.ttl_ms, created_ns, *limits, set_ns)


def _from_time(time: tuple[int, int]) -> int:
    return (time[0] - UNIX_EPOCH_SECONDS) * SECOND_NS + time[1]


def _refusal(view: memoryview, malformed: Malformed) -> BadCommand:
    error, at = malformed.error, malformed.at
    word = ERROR_WORDS[error] or "?"
    if error == EMPTY:
        return BadCommand("an empty record isn't a command", reason=word, offset=at)
    if error == BAD_TYPE:
        message = f"a record of {len(view)} bytes isn't a command: its type is {view[0]}, expected 1 to 8"
        return BadCommand(message, reason=word, offset=at)
    kind = TYPE_WORDS[view[0]] or "?"
    whole = f"{'an' if kind[0] in 'ae' else 'a'} {kind} of {len(view)} bytes"
    why = {
        SHORT: f"is truncated: its field at byte {at} needs more than there is",
        BAD_RANGE: f"has a number at byte {at} that its field can't hold",
        BAD_JOB_TIME: f"has no time at byte {at}: expected version 1 and nanoseconds below {SECOND_NS}",
        TRAILING: f"goes on after its end, at byte {at}",
    }.get(error, f"has no 64 bit number at byte {at}")
    return BadCommand(f"{whole} {why}", reason=word, offset=at)
