"""What an option may be: checked when something is made, and reported in one way everywhere.

>>> check_whole("segment_bytes", 0)
Traceback (most recent call last):
ValueError: segment_bytes is 0: expected at least 1
>>> check_number("timeout", float("nan"), or_none="to wait for ever")
Traceback (most recent call last):
ValueError: timeout is nan: expected a number, or None to wait for ever
>>> check_number("timeout", None, or_none="to wait for ever")
"""

from __future__ import annotations

import math

BYTES_MAX = 1 << 48
"""256 TiB. No segment is larger: a repair gives out positions from here on."""
COUNT_MAX = 2**31 - 1
TIMER_MS_MAX = 2**31 - 1
"""24 days. Some of the system's timers run no longer, and a thread that waits on one would end with an error."""
TIMER_SECONDS_MAX = TIMER_MS_MAX // 1000
AGE_SECONDS_MAX = 9_000_000_000
"""285 years: in nanoseconds that is still a 64 bit number."""


def check_whole(
    name: str, value: object, *, least: int = 1, most: int = BYTES_MAX, or_none: str | None = None
) -> None:
    """Raise unless it is a whole number from `least` to `most`, or None where `or_none` says what None is for."""
    if value is None and or_none is not None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        such = ", such as 64 << 20 for 64 MiB" if "bytes" in name else ""
        raise TypeError(f"{name} is {value!r}: expected a whole number{such}{_none(or_none)}")
    _check_range(name, value, least, most, or_none)


def check_number(
    name: str,
    value: object,
    *,
    least: float = 0,
    above: bool = False,
    most: float = TIMER_SECONDS_MAX,
    or_none: str | None = None,
) -> None:
    """check_whole() for any number; with `above` it must be more than `least`."""
    if value is None and or_none is not None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: expected a number{_none(or_none)}")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name} is {value!r}: expected a number{_none(or_none)}")
    if above and value <= least:
        raise ValueError(f"{name} is {value!r}: expected more than {least}{_none(or_none)}")
    _check_range(name, value, least, most, or_none)


def _check_range(name: str, value: float, least: float, most: float, or_none: str | None) -> None:
    if value < least:
        raise ValueError(f"{name} is {value!r}: expected at least {least}{_none(or_none)}")
    if value > most:
        raise ValueError(f"{name} is {value!r}: expected at most {most}{_none(or_none)}")


def _none(meaning: str | None) -> str:
    return "" if meaning is None else f", or None {meaning}"
