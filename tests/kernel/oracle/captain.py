"""Records of the captain format: the oracle for `log/captain.pxi`.

::

    | version 1 | seconds 8 | nanos 4 | zone 2 | length 1-10 | payload | crc 4 |
      '------------- TIME, 15 bytes ---------'   LEB128                  CRC-32C of all before it

>>> from tests.kernel import oracle as kernel
>>> record = kernel.captain_encode(b"hello", 1_000_000_000)
>>> scan = kernel.captain_scan(record, 0, len(record), 0, 100)
>>> list(scan.offsets), list(scan.times), record[scan.starts[0] : scan.ends[0]]
([0], [1000000000], b'hello')
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any

from forelog.formats.captain import RECORD_BYTES_MIN, UNIX_EPOCH_SECONDS
from forelog.kernel.types import (
    BAD_CRC,
    BAD_LENGTH,
    BAD_TIME,
    CLOCK_SECONDS_MAX,
    END,
    FOUND,
    LIMIT,
    NEED_MAX,
    TIME_MAX,
    TIME_MIN,
    TRUNCATED,
    Scan,
)
from tests.kernel.oracle.crc import crc32c
from tests.kernel.oracle.shared import check_range, payload_bytes, varint

TIME_BYTES = 15
CRC_BYTES = 4
_UNIX_SECONDS_MAX = CLOCK_SECONDS_MAX
_U64_MAX = 2**64 - 1


def captain_encode(payload: Any, time_ns: int) -> bytes:
    seconds, nanos = divmod(time_ns, 1_000_000_000)
    view = memoryview(payload_bytes(payload) if isinstance(payload, str) else payload).cast("B")
    head = struct.pack(">Bqih", 1, seconds + UNIX_EPOCH_SECONDS, nanos, 0) + varint(len(view))
    body = head + bytes(view)
    return body + crc32c(body).to_bytes(4, "big")


def captain_encode_many(payloads: Sequence[Any], time_ns: int) -> tuple[bytes, array[int]]:
    out = bytearray()
    starts = array("q")
    for payload in payloads:
        starts.append(len(out))
        out += captain_encode(payload, time_ns)
    return bytes(out), starts


def _time(view: memoryview, at: int) -> int:
    seconds, nanos = struct.unpack_from(">qi", view, at + 1)
    unix: int = seconds - UNIX_EPOCH_SECONDS
    if unix > _UNIX_SECONDS_MAX:
        return TIME_MAX
    if unix < -_UNIX_SECONDS_MAX:
        return TIME_MIN
    return unix * 1_000_000_000 + int(nanos)


def _head(view: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """Reason (END if fine), payload start and length of the record at `at`, from its head alone.

    For TRUNCATED the second number is how many bytes the head needs at least.
    """
    if at < stop and view[at] != 1:
        return BAD_TIME, 0, 0
    if stop - at < TIME_BYTES + 1:
        return TRUNCATED, TIME_BYTES + 1, 0
    length = 0
    for i in range(10):
        place = at + TIME_BYTES + i
        if place >= stop:
            return TRUNCATED, TIME_BYTES + i + 1, 0
        byte = view[place]
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return (END, place + 1, length) if length <= _U64_MAX else (BAD_LENGTH, 0, 0)
    return BAD_LENGTH, 0, 0


def _record(view: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """Reason (END if fine), payload start and payload end of the record at `at`, checksum checked.

    For TRUNCATED the second number is how many bytes the record needs as far as is known.
    """
    reason, start, length = _head(view, at, stop)
    if reason != END:
        return reason, start, 0
    if length > stop - start - CRC_BYTES:
        return TRUNCATED, min(start - at + length + CRC_BYTES, NEED_MAX), 0
    end = start + length
    if crc32c(view[at:end]) != int.from_bytes(view[end : end + CRC_BYTES], "big"):
        return BAD_CRC, 0, 0
    return END, start, end


def captain_scan(buffer: Any, start: int, stop: int, base: int, limit: int) -> Scan:
    view = memoryview(buffer).cast("B")
    check_range("scan of", start, stop, len(view))
    offsets, starts, ends, times = array("q"), array("q"), array("q"), array("q")
    at = start
    while True:
        if at == stop:
            return Scan(offsets, starts, ends, times, at, END, 0)
        if len(offsets) >= limit:
            return Scan(offsets, starts, ends, times, at, LIMIT, 0)
        reason, payload, end = _record(view, at, stop)
        if reason != END:
            return Scan(offsets, starts, ends, times, at, reason, payload)
        offsets.append(base + at)
        starts.append(payload)
        ends.append(end)
        times.append(_time(view, at))
        at = end + CRC_BYTES


def captain_hop(buffer: Any, start: int, stop: int, offset_min: int, time_min: int) -> tuple[int, int, int]:
    view = memoryview(buffer).cast("B")
    check_range("hop over", start, stop, len(view))
    at = start
    while at < stop:
        reason, payload, length = _head(view, at, stop)
        if reason != END:
            return at, reason, payload
        if at >= offset_min and _time(view, at) >= time_min:
            return at, FOUND, 0
        if length > NEED_MAX - payload - CRC_BYTES:
            return at, TRUNCATED, NEED_MAX
        at = payload + length + CRC_BYTES
    return at, END, 0


def captain_find(buffer: Any, start: int, stop: int, final: bool) -> int:
    view = memoryview(buffer).cast("B")
    check_range("find in", start, stop, len(view))
    budget = 64 * (stop - start) + 65_536
    raw = bytes(view[start:stop])
    at = raw.find(b"\x01")
    while at >= 0:
        place = start + at
        reason, payload, length = _head(view, place, stop)
        if reason == END and length <= stop - payload - CRC_BYTES:
            budget -= length + RECORD_BYTES_MIN
            if budget < 0:
                return -1
            reason, payload, end = _record(view, place, stop)
            if reason == END:
                after = end + CRC_BYTES
                if after == stop:
                    if final:
                        return place
                elif _record(view, after, stop)[0] == END:
                    return place
        at = raw.find(b"\x01", at + 1)
    return -1
