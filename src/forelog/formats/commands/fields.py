"""The fields of a command, from bytes and to bytes.

A command is the payload of one record. Numbers are unsigned LEB128 in at most ten bytes, priority zigzag::

    1 add, 2 schedule   | type 1 | id 16 | length | name | ttr | ttl | priority | max attempts | max fails |
                        | length | payload | time 15 | created 15 |
    3 complete, 4 fail  | type 1 | id 16 | length | result |        or without a result: | type 1 | id 16 |
    5 delete, 6 expire, 7 start-attempt, 8 timeout-attempt          | type 1 | id 16 |

    time                | 1 | seconds since the year 1, 8 | nanoseconds 4 | zone 2 |           big-endian

`forelog.formats.commands.commands` has the commands themselves. The kernel decodes many commands to columns, and
marks with a code of `ERROR_WORDS` those that can't be read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from forelog.formats.captain import UNIX_EPOCH_SECONDS
from forelog.kernel import varint
from forelog.times import SECOND_NS

ADD, SCHEDULE, COMPLETE, FAIL, DELETE, EXPIRE, START_ATTEMPT, TIMEOUT_ATTEMPT = range(1, 9)
TYPE_WORDS = (
    None, "add", "schedule", "complete", "fail", "delete", "expire", "start-attempt", "timeout-attempt",
)  # fmt: skip

RIGHT, EMPTY, BAD_TYPE, SHORT, BAD_NUMBER, BAD_RANGE, BAD_JOB_TIME, TRAILING = range(8)
ERROR_WORDS = (
    None,
    "empty",  # no byte at all
    "type",  # none of the eight
    "truncated",  # it ends before its last field does
    "number",  # a varint that is no 64 bit number
    "range",  # a number that its field hasn't
    "time",  # another version than 1, or more nanoseconds than a second has
    "trailing",  # bytes after its last field
)

ID_BYTES = 16
TTR_MS_MAX = 2**32 - 1
TTL_MS_MAX = 2**63 - 1
TRIES_MAX = 255  # of attempts and of fails
_HEAD_BYTES = 1 + ID_BYTES
_TIME_BYTES = 15
_TIME = struct.Struct(">Bqih")
_ZONE_UTC = -1
ZERO_TIME = _TIME.pack(1, 0, 0, _ZONE_UTC)

Bounds = tuple[int, int]
NOT_SCHEDULED = -(2**63)
"""Stands in for a time where a job runs at once."""
NOWHERE: Bounds = (0, 0)  # of a field that isn't there: none can start at a buffer's first byte


class Fields(NamedTuple):
    """One command: its variable parts as bounds in the buffer, its times as seconds and nanoseconds."""

    type: int
    id: bytes
    name: Bounds = NOWHERE
    ttr_ms: int = 0
    ttl_ms: int = 0
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    payload: Bounds = NOWHERE
    result: Bounds = NOWHERE
    time: tuple[int, int] = (0, 0)
    created: tuple[int, int] = (0, 0)


class Malformed(Exception):
    """Why a command can't be read, and where in the buffer its invalid field is."""

    def __init__(self, error: int, at: int) -> None:
        super().__init__(error, at)
        self.error = error
        self.at = at


def _number(view: memoryview, at: int, stop: int, most: int) -> tuple[int, int]:
    number = 0
    for i in range(10):
        if at + i >= stop:
            raise Malformed(SHORT, at)
        byte = view[at + i]
        if i == 9 and byte > 1:
            break
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if number > most:
                raise Malformed(BAD_RANGE, at)
            return number, at + i + 1
    raise Malformed(BAD_NUMBER, at)


def _bounds(view: memoryview, at: int, stop: int) -> tuple[Bounds, int]:
    length, start = _number(view, at, stop, 2**64 - 1)
    if length > stop - start:
        raise Malformed(SHORT, at)
    return (start, start + length), start + length


def _time(view: memoryview, at: int, stop: int) -> tuple[tuple[int, int], int]:
    if stop - at < _TIME_BYTES:
        raise Malformed(SHORT, at)
    version, seconds, nanos = struct.unpack_from(">BqI", view, at)
    if version != 1 or nanos >= SECOND_NS:
        raise Malformed(BAD_JOB_TIME, at)
    return (seconds, nanos), at + _TIME_BYTES


def command_fields(view: memoryview, start: int, stop: int) -> Fields:
    """Read the command in these bytes. Raises Malformed."""
    if start == stop:
        raise Malformed(EMPTY, start)
    kind, at = view[start], start + _HEAD_BYTES
    if not ADD <= kind <= TIMEOUT_ATTEMPT:
        raise Malformed(BAD_TYPE, start)
    if at > stop:
        raise Malformed(SHORT, start + 1)
    fields = Fields(kind, bytes(view[start + 1 : at]))
    if kind <= SCHEDULE:
        fields, at = _job(view, fields, at, stop)
    elif kind <= FAIL and at < stop:
        result, at = _bounds(view, at, stop)
        fields = fields._replace(result=result)
    if at != stop:
        raise Malformed(TRAILING, at)
    return fields


def _job(view: memoryview, head: Fields, at: int, stop: int) -> tuple[Fields, int]:
    name, at = _bounds(view, at, stop)
    ttr_ms, at = _number(view, at, stop, TTR_MS_MAX)
    ttl_ms, at = _number(view, at, stop, TTL_MS_MAX)
    zigzag, at = _number(view, at, stop, 2**32 - 1)
    max_attempts, at = _number(view, at, stop, TRIES_MAX)
    max_fails, at = _number(view, at, stop, TRIES_MAX)
    payload, at = _bounds(view, at, stop)
    time, at = _time(view, at, stop)
    created, at = _time(view, at, stop)
    priority = (zigzag >> 1) ^ -(zigzag & 1)
    numbers = (ttr_ms, ttl_ms, priority, max_attempts, max_fails)
    return Fields(head.type, head.id, name, *numbers, payload, NOWHERE, time, created), at


def time_bytes(time_ns: int) -> bytes:
    """A job's time, with the zone that workq writes."""
    seconds, nanos = divmod(time_ns, SECOND_NS)
    return _TIME.pack(1, seconds + UNIX_EPOCH_SECONDS, nanos, _ZONE_UTC)


def job_head(name: bytes, ttr_ms: int, ttl_ms: int, priority: int, max_attempts: int, max_fails: int) -> bytes:
    """The fields of a job from its name up to its payload."""
    zigzag = (priority << 1) ^ (priority >> 31)
    return varint(len(name)) + name + b"".join(map(varint, (ttr_ms, ttl_ms, zigzag, max_attempts, max_fails)))
