"""How far a reader is behind the end of a log, without reading what lies in between."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import closing

from forelog.errors import ForelogError
from forelog.log.position import Position
from forelog.spark.planning import Log

__all__ = ["bytes_between", "seconds_between"]

_SECOND_NS = 1_000_000_000


def bytes_between(log: Log, begin: Position, end: Position) -> int:
    """The bytes of a log from one position to another; about as many where segments were rewritten."""
    directory = log.stream().directory
    numbers = directory.numbers()
    total = 0
    for number in numbers[bisect_left(numbers, begin.segment) : bisect_right(numbers, end.segment)]:
        size = directory.segment_bytes(number) or 0
        high = min(end.offset, size) if number == end.segment else size
        total += max(high - (begin.offset if number == begin.segment else 0), 0)
    return total


def seconds_between(log: Log, begin: Position, end: Position) -> float:
    """The seconds from the first record that isn't read to the last one; 0 if their times aren't known."""
    stream = log.stream()
    try:
        with closing(stream.cursor(start=begin, until=end, on_corruption="skip")) as cursor:
            first = next(cursor, None)
        with closing(stream.cursor(start=begin, until=end, reverse=True, on_corruption="skip")) as cursor:
            last = next(cursor, None)
    except (OSError, ForelogError, TypeError):
        return 0.0
    if first is None or last is None:
        return 0.0
    return max(last.time_ns - first.time_ns, 0) / _SECOND_NS
