"""Which segments a query needs, and which parts of them.

Times are relied upon only where they never go back (`TimeOrder`). A part begins and ends at a mark of the
segment's index, so at a record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from forelog.bounds import BYTES_MAX
from forelog.log.directory.directory import Directory
from forelog.log.directory.index import SegmentIndex
from forelog.log.directory.segment import SegmentReader
from forelog.log.position import Position
from forelog.log.seek import TimeOrder, segments_between
from forelog.spark.ranges import EVERYTHING, Ranges

__all__ = ["Wanted", "wanted_segments"]

_INDEXES_MAX = 256
"""Indexes that are read to plan one log. Past that, whole segments are read."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The segments of a log that a query needs."""

    directory: Directory
    """The log's directory."""
    numbers: list[int]
    """The numbers of the segments, ascending."""
    ranges: Ranges
    """What its filters leave."""
    order: TimeOrder | None
    """Where times never go back; None if no times are asked for."""

    def part(self, number: int, first: Position, last: Position) -> tuple[Position, Position]:
        """The part of a segment that it needs, between two positions. It may be empty."""
        by_offset = self.ranges.offset != EVERYTHING.offset
        at_an_end = number in (self.numbers[0], self.numbers[-1])
        if self.order is None and not by_offset:
            return first, last
        if not at_an_end and (len(self.numbers) > _INDEXES_MAX or (not by_offset and self._ascends(number))):
            return first, last
        try:
            reader = SegmentReader(self.directory, number)
        except FileNotFoundError:  # cleaned away since it was listed
            return first, last
        try:
            index = reader.index
        finally:
            reader.close()
        if index is None or not index.records:
            return first, last
        low, high = _between(index, self.ranges, ordered=self._ascends(number))
        first = max(first, Position(number, low))
        return first, last if high is None else min(last, Position(number, high))

    def _ascends(self, number: int) -> bool:
        return self.order is None or self.order.holds(number)


def _between(index: SegmentIndex, ranges: Ranges, *, ordered: bool) -> tuple[int, int | None]:
    """The offsets in a segment between which all wanted records are. The second is None for the segment's end."""
    since, until = ranges.since_ns, ranges.until_ns
    if (since is not None and index.last_time < since) or (until is not None and index.first_time >= until):
        return 0, 0
    offsets, times = index.marks[::2], index.marks[1::2]
    low = bisect_right(offsets, ranges.offset[0])
    high = bisect_right(offsets, ranges.offset[1]) if ranges.offset[1] < BYTES_MAX else len(offsets)
    if ordered:  # of records with the same time, some may come before the mark
        low = max(low, bisect_left(times, since) if since is not None else 0)
        high = min(high, bisect_left(times, until) if until is not None else high)
    return offsets[low - 1] if low else 0, offsets[high] if high < len(offsets) else None


def wanted_segments(
    directory: Directory,
    start: Position,
    since_ns: int | None,
    until_ns: int | None,
    ranges: Ranges,
) -> Wanted:
    """The segments from a position on that a query needs, with times as its options and its filters say."""
    numbers = directory.numbers()
    low = bisect_left(numbers, max(start.segment, ranges.segment[0]))
    numbers = numbers[low : bisect_right(numbers, ranges.segment[1])]
    for since, until in ((since_ns, until_ns), (ranges.since_ns, ranges.until_ns)):
        if since is not None or until is not None:
            numbers = segments_between(directory, numbers, since, until)
    timed = ranges.since_ns is not None or ranges.until_ns is not None
    return Wanted(directory, numbers, ranges, TimeOrder(directory) if timed else None)
