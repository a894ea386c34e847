"""What both kernels share: the shape of a scan, why one stops, and what a payload is."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1  # a time column's value for a time that int64 ns can't hold
NEED_MAX = 2**63 - 1

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
