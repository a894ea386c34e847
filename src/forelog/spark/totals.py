"""What a query needs of a whole segment, if the segment's index has it: then the segment isn't read.

A query that asks for nothing but the number of rows, or the least and greatest position or time, is answered from
the indexes of sealed segments. The other segments are read, and Spark adds the two together. `limit` reads the
index, too: to plan no more segments than have enough records.

>>> totals = Totals.of_json('[["count", null], ["max", "segment"], ["min", "time"]]')
>>> totals.add([3, 1, 1500]), totals.add([2, 7, None]), totals.known
(None, None, [5, 7, 1500])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from forelog.errors import ForelogError
from forelog.kernel.types import CLOCK_MAX, CLOCK_MIN
from forelog.log.directory.directory import Directory
from forelog.log.directory.index import SegmentIndex
from forelog.log.directory.segment import SegmentReader

__all__ = ["Totals", "Values", "enough", "index_of"]

_MICROSECOND_NS = 1000
Values = Sequence[int | None]


@dataclass(slots=True)
class Totals:
    """The aggregates of a query, and what they are for the segments whose indexes were read."""

    asked: tuple[tuple[str, str | None], ...]
    """Pairs of `count`, `min` or `max`, and a column; without one, rows are counted."""
    known: list[int | None] = field(default_factory=list)
    """The value of each, of all segments that were added; empty if there were none. Times are microseconds."""

    @classmethod
    def of_json(cls, text: str) -> Totals:
        """What the part in Java says."""
        return cls(tuple((kind, column) for kind, column in json.loads(text)))

    def take(self, directory: Directory, numbers: Sequence[int]) -> list[int]:
        """Add what the indexes of these segments tell. Returns the segments that must be read."""
        rest = []
        for number in numbers:
            index = index_of(directory, number)
            values = None if index is None else self._of(number, index)
            if values is None:
                rest.append(number)
            else:
                self.add(values)
        return rest

    def add(self, values: Values) -> None:
        """Add the values of one segment."""
        if not self.known:
            self.known = list(values)
            return
        for place, ((kind, _), value) in enumerate(zip(self.asked, values, strict=True)):
            before = self.known[place]
            if before is None or value is None:
                self.known[place] = value if before is None else before
            else:
                self.known[place] = {"count": before + value, "min": min(before, value)}.get(
                    kind, max(before, value)
                )

    def _of(self, number: int, index: SegmentIndex) -> list[int | None] | None:
        values: list[int | None] = []
        for kind, column in self.asked:
            if kind == "count" and column in (None, "segment", "offset"):
                values.append(index.records)
            elif column == "segment":
                values.append(number)
            elif column == "offset" and kind == "min" and index.marks:
                values.append(index.marks[0])  # which is that of the first record
            elif column == "time" and kind != "count" and _clocked(index):
                values.append(_micros(index.first_time if kind == "min" else index.last_time))
            else:
                return None
        return values


def index_of(directory: Directory, number: int) -> SegmentIndex | None:
    """The index of a segment that has records, if it can be relied on."""
    try:
        with closing(SegmentReader(directory, number)) as reader:
            index = None if reader.map_damaged or reader.header_defect else reader.index
    except (OSError, ForelogError):
        return None  # reading it raises what is wrong
    return index if index is not None and index.records and not index.foreign_end else None


def enough(directory: Directory, numbers: Sequence[int], limit: int) -> tuple[list[int], int]:
    """The first segments that have as many records as a limit, and how many are still lacking."""
    for count, number in enumerate(numbers, 1):
        index = index_of(directory, number)
        limit -= index.records if index is not None else 0
        if limit <= 0:
            return list(numbers[:count]), 0
    return list(numbers), limit


def _clocked(index: SegmentIndex) -> bool:
    return CLOCK_MIN < index.first_time <= index.last_time < CLOCK_MAX


def _micros(time_ns: int) -> int:
    """Microseconds, cut toward 1970 as in a column."""
    return time_ns // _MICROSECOND_NS if time_ns >= 0 else -(-time_ns // _MICROSECOND_NS)
