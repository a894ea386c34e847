"""Commands of a job server to columns: the oracle for `jobs/columns.pxi` and `jobs/commands.pxi`.

The bytes are drawn in `forelog.formats.commands.fields`, which reads one command; here are columns of many.

>>> delete = bytes([5]) + bytes(16)
>>> commands = commands_decode(delete + b"?", array("q", [0, 0]), array("q", [17, 18]), 0, 2)
>>> list(commands.types), [ERROR_WORDS[code] for code in commands.errors]
([5, 0], [None, 'trailing'])
"""

from __future__ import annotations

from array import array
from binascii import Error as NoHex
from binascii import unhexlify
from typing import Any

from forelog.formats.captain import UNIX_EPOCH_SECONDS
from forelog.formats.commands.fields import (
    ADD,
    ERROR_WORDS,
    ID_BYTES,
    NOWHERE,
    SCHEDULE,
    ZERO_TIME,
    Fields,
    Malformed,
    command_fields,
    time_bytes,
)
from forelog.kernel.types import Commands
from forelog.times import SECOND_NS
from tests.kernel.oracle.columns import even_pieces
from tests.kernel.oracle.shared import varint

__all__ = ["ERROR_WORDS", "commands_decode", "job_encode", "next_line", "uuid_parse", "uuid_text", "uuid_texts"]

_INT64_MAX = 2**63 - 1


def commands_decode(
    buffer: Any, starts: array[int], ends: array[int], first: int, last: int, ticks_per_second: int = SECOND_NS
) -> Commands:
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
    view = memoryview(ids).cast("B")
    if len(view) % ID_BYTES:
        raise ValueError(f"{len(view)} bytes are no ids of {ID_BYTES}")
    count = len(view) // ID_BYTES
    if 36 * count > 2**31 - 1:
        raise ValueError(f"{count} ids are more than one column of texts can hold")
    texts = map(uuid_text, even_pieces(view, ID_BYTES))
    return array("i", range(0, 36 * count + 1, 36)), b"".join(texts)


def job_encode(job_id: bytes, head: bytes, payload: bytes, scheduled_ns: int | None, created_ns: int) -> bytes:
    if len(job_id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(job_id)}")
    kind, time = ADD, ZERO_TIME
    if scheduled_ns is not None:
        kind, time = SCHEDULE, _narrow_time(scheduled_ns)
    size = varint(len(payload))
    return b"".join((bytes((kind,)), job_id, head, size, payload, time, _narrow_time(created_ns)))


def _narrow_time(time_ns: int) -> bytes:
    """The same for one that fits into 64 bits, as those of the compiled kernel do."""
    if not -(2**63) <= time_ns < 2**63:
        raise OverflowError(f"{time_ns} is no 64 bit number of nanoseconds")
    return time_bytes(time_ns)


def uuid_text(job_id: bytes) -> bytes:
    if len(job_id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(job_id)}")
    digits = job_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()


def uuid_parse(text: bytes) -> bytes | None:
    groups = text.split(b"-")
    if [len(group) for group in groups] != [8, 4, 4, 4, 12]:
        return None
    try:
        return unhexlify(b"".join(groups))
    except NoHex:
        return None


def next_line(data: bytes, at: int, limit: int) -> tuple[int, list[bytes] | None, bool]:
    if not 0 <= at <= len(data) or limit < 0:
        raise ValueError(f"{limit} bytes from {at} on lie outside of {len(data)} bytes")
    stop = data.find(b"\n", at, at + limit)
    if stop < 0 or stop == at or data[stop - 1] != 13:
        return stop, None, False
    line = data[at : stop - 1]
    first, *others = line.split(b" ")
    return stop, [first, *filter(None, others)], b"=" in line
