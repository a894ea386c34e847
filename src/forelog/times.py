"""Times as nanoseconds since 1970, and as text.

A log's times are integers: `datetime` stops at microseconds and at the year 9999, a record doesn't.

>>> parse_time("2026-11-15T18:00:00.000000001Z")
1794765600000000001
>>> format_time(1794765600000000001)
'2026-11-15T18:00:00.000000001Z'
>>> format_time(parse_time("2026-11-15"))
'2026-11-15T00:00:00Z'
>>> parse_time("-15m", now_ns=1794765600 * 10**9)
1794764700000000000
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from forelog.errors import TimeOutOfRange
from forelog.kernel.types import CLOCK_MAX, CLOCK_MIN, TIME_MAX, TIME_MIN

SECOND_NS = 1_000_000_000
_UNITS_NS = {"ms": 10**6, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS, "d": 86400 * SECOND_NS}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MIN = -62_135_596_800  # the first and last second that datetime can express
_SECONDS_MAX = 253_402_300_799

_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2}(?::\d{2})?)(?:[.,](\d{1,9}))?)?([Zz]|[+-]\d{2}:?\d{2})?"
)
_RELATIVE = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = re.compile(r"@(-?\d{1,30})(?:\.(\d{1,9}))?")
_DURATION_NS_MAX = 10**30  # past all times that a record can have

TimeLike = int | str | datetime


def parse_time(value: TimeLike, *, now_ns: int | None = None) -> int:
    """Nanoseconds since 1970 from an RFC 3339 text, an aware datetime, `-15m`, or nanoseconds themselves.

    Also from `@SECONDS`, which `format_time` writes for years that RFC 3339 can't express. A time of day needs its
    zone, because which one was meant can't be known; a plain date is its start in UTC.
    """
    if isinstance(value, bool):
        raise TypeError("a time is a text, a datetime or an integer of nanoseconds, not a bool")
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TimeOutOfRange(f"{value} has no time zone: add tzinfo=UTC, or .astimezone() for local time")
        delta = value - _EPOCH
        return (delta.days * 86400 + delta.seconds) * SECOND_NS + delta.microseconds * 1000
    if not isinstance(value, str):
        raise TypeError(f"a time is a text, a datetime or an integer of nanoseconds, not {type(value).__name__}")
    text = value.strip()
    if relative := _RELATIVE.fullmatch(text):
        now = time.time_ns() if now_ns is None else now_ns
        return now - _duration(relative[1], relative[2])
    if seconds_since := _SECONDS.fullmatch(text):
        return int(seconds_since[1]) * SECOND_NS + int((seconds_since[2] or "0").ljust(9, "0"))
    match = _RFC3339.fullmatch(text)
    if not match:
        raise TimeOutOfRange(
            f"{value!r} isn't a time: expected RFC 3339 such as 2026-11-15T18:00:00Z, or -15m for a time ago"
        )
    day, clock, fraction, zone = match.groups()
    if zone is None and clock is not None:
        raise TimeOutOfRange(f"{value!r} has no time zone: end it with Z for UTC, or with +01:00 or the like")
    try:
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00:00'}{(zone or 'Z').upper()}")
    except ValueError as error:
        raise TimeOutOfRange(f"{value!r} isn't a time: {error}") from None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * SECOND_NS + int((fraction or "0").ljust(9, "0"))


def format_time(time_ns: int, *, aligned: bool = False) -> str:
    """A time as RFC 3339 text in UTC, with as many digits of the second as needed.

    With `aligned=True` it has all nine digits, so texts sort by time. In years that RFC 3339 can't express, the
    text is `@seconds.nanos`.
    """
    seconds, nanos = divmod(time_ns, SECOND_NS)
    fraction = f".{nanos:09d}" if aligned else f".{nanos:09d}".rstrip("0").rstrip(".")
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX:
        return f"@{seconds}{fraction}"
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0") + fraction + "Z"


def to_datetime(time_ns: int) -> datetime:
    """An aware datetime, cut to microseconds."""
    seconds, nanos = divmod(time_ns, SECOND_NS)
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX:
        raise TimeOutOfRange(f"{format_time(time_ns)} lies outside of datetime's years 1 to 9999: use time_ns")
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)


def parse_duration(text: str) -> int:
    """Nanoseconds from `90s`, `15m`, `24h`, `7d` or `500ms`."""
    match = _RELATIVE.fullmatch("-" + text.strip())
    if not match:
        raise TimeOutOfRange(f"{text!r} isn't a duration: expected a number and one of ms, s, m, h, d, as in 24h")
    return _duration(match[1], match[2])


def _duration(number: str, unit: str) -> int:
    nanos = float(number) * _UNITS_NS[unit]
    if nanos > _DURATION_NS_MAX:
        raise TimeOutOfRange(f"{number}{unit} is longer than anything in a log: expected one such as 24h or 7d")
    return int(nanos)


def in_column(time_ns: int) -> int:
    """What a column of times has for a time: itself, or one end of what it holds."""
    if time_ns < CLOCK_MIN:
        return TIME_MIN
    return TIME_MAX if time_ns > CLOCK_MAX else time_ns
