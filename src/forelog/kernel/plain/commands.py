"""Commands of a job server to columns, in plain Python: the twin of the compiled kernel's `commands.pxi`.

A command is the payload of one record. Numbers are unsigned LEB128 in at most ten bytes, priority zigzag::

    1 add, 2 schedule   | type 1 | id 16 | length | name | ttr | ttl | priority | max attempts | max fails |
                        | length | payload | time 15 | created 15 |
    3 complete, 4 fail  | type 1 | id 16 | length | result |        or without a result: | type 1 | id 16 |
    5 delete, 6 expire, 7 start-attempt, 8 timeout-attempt          | type 1 | id 16 |

    time                | 1 | seconds since the year 1, 8 | nanoseconds 4 | zone 2 |           big-endian

Nothing here raises for what a command says: a row that can't be read has type 0 and an error code.

>>> delete = bytes([5]) + bytes(16)
>>> commands = commands_decode(delete + b"?", array("q", [0, 0]), array("q", [17, 18]), 0, 2)
>>> list(commands.types), [ERROR_WORDS[code] for code in commands.errors]
([5, 0], [None, 'trailing'])
"""

from __future__ import annotations

import struct
from array import array
from binascii import Error as NoHex
from binascii import unhexlify
from typing import Any, NamedTuple

from forelog.kernel.types import varint

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
UNIX_EPOCH_SECONDS = 62_135_596_800  # from 0001-01-01T00:00:00Z, where the seconds of times start
_INT64_MAX = 2**63 - 1
SECOND_NS = 1_000_000_000
_TIME = struct.Struct(">Bqih")
_ZONE_UTC = -1
ZERO_TIME = _TIME.pack(1, 0, 0, _ZONE_UTC)

Bounds = tuple[int, int]
NOWHERE: Bounds = (0, 0)  # of a field that isn't there: none can start at a buffer's first byte


class Commands(NamedTuple):
    """Commands as columns. Where a row has no value the column has 0, and the bitmap a 0 bit.

    Bounds are those of the field in the buffer. Bitmaps are Arrow's: the lowest bit first.
    """

    types: bytes
    errors: bytes
    ids: bytes
    """Sixteen for each row."""
    name_starts: array[int]
    name_ends: array[int]
    ttr_ms: array[int]
    ttl_ms: array[int]
    priorities: array[int]
    max_attempts: array[int]
    max_fails: array[int]
    payload_starts: array[int]
    payload_ends: array[int]
    result_starts: array[int]
    result_ends: array[int]
    times: array[int]
    created: array[int]
    known: bytes
    """Which rows could be read."""
    jobs: bytes
    """Which ones have a job: name, payload and numbers."""
    resulted: bytes
    """Which ones have a result, be it empty."""
    timed: bytes
    """Which ones have a time that isn't the zero time and that fits."""
    dated: bytes
    """Which ones have such a time of creation."""


class Fields(NamedTuple):
    """One command, its variable parts as bounds in the buffer, its times as seconds and nanoseconds."""

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
    """Why a command can't be read, and the place in the buffer of the field that is to blame."""

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
    """The command in these bytes, or Malformed."""
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


def commands_decode(
    buffer: Any, starts: array[int], ends: array[int], first: int, last: int, ticks_per_second: int = SECOND_NS
) -> Commands:
    """The commands in these ranges of the buffer. Times count ticks since 1970, nanoseconds unless said."""
    view = memoryview(buffer).cast("B")
    for column in (starts, ends):
        if column.typecode != "q":
            raise TypeError("columns are arrays of type 'q'")
    if not 0 <= first <= last <= min(len(starts), len(ends)):
        raise ValueError(f"rows {first}..{last} of {min(len(starts), len(ends))}")
    if ticks_per_second < 1 or SECOND_NS % ticks_per_second:
        raise ValueError(f"{ticks_per_second} ticks per second: expected a divisor of 1,000,000,000")
    table = _Table(last - first, ticks_per_second)
    for row in range(first, last):
        start, stop = starts[row], ends[row]
        if not 0 <= start <= stop <= len(view):
            raise ValueError(f"range {row} lies outside of its buffer")
        try:
            table.put(row - first, command_fields(view, start, stop))
        except Malformed as malformed:
            table.errors[row - first] = malformed.error
    return table.commands()


class _Table:
    """Commands as they are collected."""

    def __init__(self, rows: int, ticks_per_second: int) -> None:
        self._ticks = ticks_per_second
        self._types, self.errors, self._ids = bytearray(rows), bytearray(rows), bytearray(ID_BYTES * rows)
        self._wide = [array("q", bytes(8 * rows)) for _ in range(10)]
        self._narrow = [array("i", bytes(4 * rows)) for _ in range(3)]
        self._bitmaps = [bytearray((rows + 7) // 8) for _ in range(5)]

    def put(self, row: int, fields: Fields) -> None:
        self._types[row] = fields.type
        self._ids[ID_BYTES * row : ID_BYTES * (row + 1)] = fields.id
        time, timed = self._tick(fields.time)
        created, dated = self._tick(fields.created)
        wide = (*fields.name, fields.ttr_ms, fields.ttl_ms, *fields.payload, *fields.result, time, created)
        narrow = (fields.priority, fields.max_attempts, fields.max_fails)
        for column, value in zip((*self._wide, *self._narrow), (*wide, *narrow), strict=True):
            column[row] = value
        bits = (True, fields.type <= SCHEDULE, fields.result != NOWHERE, timed, dated)
        for bitmap, bit in zip(self._bitmaps, bits, strict=True):
            bitmap[row >> 3] |= bit << (row & 7)

    def _tick(self, time: tuple[int, int]) -> tuple[int, bool]:
        seconds, nanos = time
        unix = seconds - UNIX_EPOCH_SECONDS
        reach = _INT64_MAX // self._ticks - 1
        if time == (0, 0) or not -reach <= unix <= reach:
            return 0, False
        return unix * self._ticks + nanos // (SECOND_NS // self._ticks), True

    def commands(self) -> Commands:
        name_starts, name_ends, ttr, ttl, *bounds, times, created = self._wide
        columns = (name_starts, name_ends, ttr, ttl, *self._narrow, *bounds, times, created)
        heads = (self._types, self.errors, self._ids)
        return Commands._make((*map(bytes, heads), *columns, *map(bytes, self._bitmaps)))


def uuid_texts(ids: Any) -> tuple[array[int], bytes]:
    """Ids of sixteen bytes as texts such as 61000000-0001-4000-8000-000000000001, and where each one starts."""
    view = memoryview(ids).cast("B")
    if len(view) % ID_BYTES:
        raise ValueError(f"{len(view)} bytes are no ids of {ID_BYTES}")
    count = len(view) // ID_BYTES
    if 36 * count > 2**31 - 1:
        raise ValueError(f"{count} ids are more than one column of texts can hold")
    texts = map(uuid_text, even_pieces(view, ID_BYTES))
    return array("i", range(0, 36 * count + 1, 36)), b"".join(texts)


def job_encode(job_id: bytes, head: bytes, payload: bytes, scheduled_ns: int | None, created_ns: int) -> bytes:
    """An add, or a schedule if there is a time. The head is what comes before the payload, from the name on."""
    if len(job_id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(job_id)}")
    kind, time = ADD, ZERO_TIME
    if scheduled_ns is not None:
        kind, time = SCHEDULE, _narrow_time(scheduled_ns)
    size = varint(len(payload))
    return b"".join((bytes((kind,)), job_id, head, size, payload, time, _narrow_time(created_ns)))


def time_bytes(time_ns: int) -> bytes:
    """A job's time, with the zone that workq writes."""
    seconds, nanos = divmod(time_ns, SECOND_NS)
    return _TIME.pack(1, seconds + UNIX_EPOCH_SECONDS, nanos, _ZONE_UTC)


def _narrow_time(time_ns: int) -> bytes:
    """The same for one that fits into 64 bits, as those of the compiled kernel do."""
    if not -(2**63) <= time_ns < 2**63:
        raise OverflowError(f"{time_ns} is no 64 bit number of nanoseconds")
    return time_bytes(time_ns)


def uuid_text(job_id: bytes) -> bytes:
    """An id of sixteen bytes as a text such as 61000000-0001-4000-8000-000000000001."""
    if len(job_id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(job_id)}")
    digits = job_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()


def uuid_parse(text: bytes) -> bytes | None:
    """The id of such a text, in either case, or None."""
    groups = text.split(b"-")
    if [len(group) for group in groups] != [8, 4, 4, 4, 12]:
        return None
    try:
        return unhexlify(b"".join(groups))
    except NoHex:
        return None


def next_line(data: bytes, at: int, limit: int) -> tuple[int, list[bytes] | None, bool]:
    """Where the line ends that begins at `at`, its words, and whether there is a "=" in it.

    It ends with its line feed, less than `limit` bytes on; -1 if there is none. Words are what comes before the
    first space, be it nothing, and then whatever isn't empty; None if the line doesn't end in CR LF.
    """
    if not 0 <= at <= len(data) or limit < 0:
        raise ValueError(f"{limit} bytes from {at} on lie outside of {len(data)} bytes")
    stop = data.find(b"\n", at, at + limit)
    if stop < 0 or stop == at or data[stop - 1] != 13:
        return stop, None, False
    line = data[at : stop - 1]
    first, *others = line.split(b" ")
    return stop, [first, *filter(None, others)], b"=" in line


def pieces(buffer: Any, starts: array[int], ends: array[int]) -> list[bytes]:
    """Ranges of a buffer, as bytes."""
    view = memoryview(buffer).cast("B")
    if len(starts) != len(ends):
        raise ValueError(f"{len(starts)} starts and {len(ends)} ends")
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"range {i} lies outside of its buffer")
    return [bytes(view[start:end]) for start, end in zip(starts, ends, strict=True)]


def pieces_after(
    buffer: Any, starts: array[int], ends: array[int], first: int, last: int, head: bytes
) -> list[bytes]:
    """What comes after a head in each range from `first` on, up to one that doesn't begin with it, or `last`."""
    view = memoryview(buffer).cast("B")
    rows = min(len(starts), len(ends))
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    found = []
    for i in range(first, last):
        start, end = starts[i], ends[i]
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"range {i} lies outside of its buffer")
        data = bytes(view[start:end])
        if not data.startswith(head):
            break
        found.append(data[len(head) :])
    return found


def even_pieces(buffer: Any, size: int) -> list[bytes]:
    """A buffer in pieces of one size."""
    view = memoryview(buffer).cast("B")
    if size < 1 or len(view) % size:
        raise ValueError(f"{len(view)} bytes are no pieces of {size}")
    return [bytes(view[at : at + size]) for at in range(0, len(view), size)]
