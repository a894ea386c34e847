"""What several modules of the oracle need."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from forelog.errors import TimeOutOfRange
from forelog.kernel.types import CLOCK_MAX, CLOCK_MIN

_EXPECTED_TIME = "expected a time in the years 1678 to 2261. Set it right; nothing was written"


def check_range(what: str, start: int, stop: int, size: int) -> None:
    """Refuse a range that a buffer of this size hasn't."""
    if not 0 <= start <= stop <= size:
        raise ValueError(f"{what} {start}..{stop} in a buffer of {size} bytes")


def read_clock(clock: Callable[[], Any]) -> int:
    try:
        now = operator.index(clock())
    except OverflowError:  # the system's, past the year 2262
        raise TimeOutOfRange(f"the clock says more than 64 bits hold: {_EXPECTED_TIME}") from None
    if not CLOCK_MIN <= now <= CLOCK_MAX:
        raise TimeOutOfRange(f"the clock says {now} nanoseconds since 1970: {_EXPECTED_TIME}")
    return now


def payload_bytes(payload: Any) -> bytes:
    if type(payload) is bytes:
        return payload
    if isinstance(payload, str):
        raise TypeError(f"a payload is bytes, and {payload[:40]!r} is a text: text.encode() makes bytes of it")
    return bytes(memoryview(payload))


def varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
