"""Records and bytes over time, from columns, in bounded memory.

The time is cut into a fixed number of bins. When a record lies past the last one, pairs of bins are
merged and each is twice as wide: whatever the log's span, nothing is read twice and no record is an object.

>>> from array import array
>>> histogram = Histogram(bins=4)
>>> histogram.add(array("q", [0, 1, 2, 3_000_000]), array("q", [0, 20, 40, 60]), 80)
>>> histogram.records, histogram.bytes, histogram.width_ns
([3, 0, 0, 1], [60, 0, 0, 20], 1000000)
>>> histogram.add(array("q", [7_000_000]), array("q", [80]), 100)
>>> histogram.records, histogram.width_ns
([3, 1, 0, 1], 2000000)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

BINS = 512
WIDTH_NS_MIN = 1_000_000


class Histogram:
    """Counts of records and bytes in each period."""

    def __init__(self, bins: int = BINS) -> None:
        self.start_ns: int | None = None
        self.end_ns = 0
        self.width_ns = WIDTH_NS_MIN
        self.records = [0] * bins
        self.bytes = [0] * bins

    def add(self, times: array[int], offsets: array[int], end: int) -> None:
        """Count records with these times, which start at these offsets; the last one ends at `end`."""
        if not times:
            return
        if self.start_ns is None:
            self.start_ns = self.end_ns = times[0]
        first, last = min(times[0], times[-1]), max(times[0], times[-1])
        self._reach(last)
        row, at_bin = 0, self._bin(first)
        while row < len(times):
            # The times of a log don't go back; of one that another program wrote they may, and then a
            # stretch counts where it starts.
            edge = self.start_ns + (at_bin + 1) * self.width_ns
            stop = len(times) if edge > last else max(bisect_left(times, edge, row), row)
            if stop > row:
                after = offsets[stop] if stop < len(offsets) else end
                self.records[at_bin] += stop - row
                self.bytes[at_bin] += after - offsets[row]
                row = stop
            at_bin = min(max(at_bin + 1, self._bin(times[row])), len(self.records) - 1) if row < len(times) else 0

    def resampled(self, count: int) -> tuple[list[int], list[int]]:
        """Records and bytes in at most `count` bins over the span that there are records in."""
        if self.start_ns is None:
            return [], []
        used = self._bin(self.end_ns) + 1
        count = min(count, used)
        records, sizes = [0] * count, [0] * count
        for i in range(used):
            records[i * count // used] += self.records[i]
            sizes[i * count // used] += self.bytes[i]
        return records, sizes

    @property
    def span_ns(self) -> int:
        """The time from the first to the last record."""
        return 0 if self.start_ns is None else self.end_ns - self.start_ns

    def _bin(self, time_ns: int) -> int:
        assert self.start_ns is not None
        return min(max((time_ns - self.start_ns) // self.width_ns, 0), len(self.records) - 1)

    def _reach(self, time_ns: int) -> None:
        assert self.start_ns is not None
        self.end_ns = max(self.end_ns, time_ns)
        while time_ns >= self.start_ns + self.width_ns * len(self.records):
            self.records = _halved(self.records)
            self.bytes = _halved(self.bytes)
            self.width_ns *= 2


def _halved(bins: list[int]) -> list[int]:
    half = [sum(bins[i : i + 2]) for i in range(0, len(bins), 2)]
    return half + [0] * (len(bins) - len(half))
