"""What both kernels share: the shape of a scan, why one stops, and what a payload is."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

from forelog.errors import TimeOutOfRange

TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1  # a time column's value for a time that it can't hold
CLOCK_SECONDS_MAX = 9_223_372_033  # before and after 1970: any int32 of nanoseconds may still be added
CLOCK_MIN, CLOCK_MAX = -CLOCK_SECONDS_MAX * 10**9, CLOCK_SECONDS_MAX * 10**9  # what it can hold, for sure
NEED_MAX = 2**63 - 1

_EXPECTED_TIME = "expected a time in the years 1678 to 2261. Set it right; nothing was written"

# Why a scan stopped.
END = 0  # at the end of the range, after a whole record
LIMIT = 1  # as many records as were asked for
TRUNCATED = 2  # the record needs more bytes than the range has
BAD_TIME = 3  # the time's version byte is not 1
BAD_LENGTH = 4  # the length is no 64 bit number, or its own checksum doesn't match
BAD_CRC = 5  # the checksum doesn't match
FOUND = 6  # a hop reached the record that it looked for


class Scan(NamedTuple):
    """The records found in a buffer, as columns, with where and why the scan stopped.

    `offsets` has the base added; `starts` and `ends` of the payloads, and `end`, count from the start of
    the buffer. `need` is, for TRUNCATED, how many bytes the record at `end` takes as far as is known.
    """

    offsets: array[int]
    starts: array[int]
    ends: array[int]
    times: array[int]
    end: int
    reason: int
    need: int


def check_range(what: str, start: int, stop: int, size: int) -> None:
    """Refuse a range that a buffer of this size hasn't."""
    if not 0 <= start <= stop <= size:
        raise ValueError(f"{what} {start}..{stop} in a buffer of {size} bytes")


def read_clock(clock: Callable[[], Any]) -> int:
    """What a clock says, in nanoseconds since 1970, if a record can be of that time."""
    try:
        now = operator.index(clock())
    except OverflowError:  # the system's, past the year 2262
        raise TimeOutOfRange(f"the clock says more than 64 bits hold: {_EXPECTED_TIME}") from None
    if not CLOCK_MIN <= now <= CLOCK_MAX:
        raise TimeOutOfRange(f"the clock says {now} nanoseconds since 1970: {_EXPECTED_TIME}")
    return now


def payload_bytes(payload: Any) -> bytes:
    """A payload as bytes, which anything with a buffer has."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, str):
        raise TypeError(f"a payload is bytes, and {payload[:40]!r} is a text: text.encode() makes bytes of it")
    return bytes(memoryview(payload))


def varint(number: int) -> bytes:
    """An unsigned number in groups of seven bits."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
