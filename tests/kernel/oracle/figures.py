"""A count, a sum, a maximum, and a histogram: the oracle for `log/figures.pxi`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        if len(self.bounds) > 15:
            raise ValueError(f"{len(self.bounds)} bounds: expected up to 15")
        self.buckets = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = self.most = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        self.buckets[bisect_left(self.bounds, value)] += 1
