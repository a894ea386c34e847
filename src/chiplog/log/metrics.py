"""Counters and timings of a stream, as a snapshot dict and for Prometheus.

Every stream has one `Metrics`. Adding to it costs a dictionary entry, so that it is done where something
is read, synced, rolled or recovered, never once per record; single appends are counted by the appender
itself and timed by sample, one for every 64 KiB.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chiplog.errors import MissingExtra

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

Source = Callable[[], dict[str, int]]

BUCKETS_SECONDS = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)

COUNTERS = {
    "records_appended": "records handed to the operating system",
    "bytes_appended": "bytes of those records, with time, length and checksum",
    "syncs": "successful syncs of segments",
    "syncs_failed": "failed syncs, each of which ended an appender",
    "writes_failed": "appends that failed and were undone",
    "rolls": "segments started",
    "recoveries": "logs opened to append",
    "torn_tails": "torn tails cut while opening",
    "torn_bytes": "bytes of those, kept in NAME.torn",
    "synced_bytes_missing": "bytes that had been synced and are gone: the disk lied, or somebody cut the file",
    "records_read": "records read by cursors, scans and cleaners",
    "bytes_read": "bytes of those",
    "segments_opened": "segments opened to read",
    "defects_skipped": "damaged places that a reader was told to skip",
    "defect_bytes_skipped": "bytes of those",
    "segments_cleaned": "segments rewritten by cleaning",
    "segments_removed": "segments removed by cleaning",
    "records_cleaned": "records dropped by cleaning",
    "bytes_cleaned": "bytes of those",
}
TIMINGS = {
    "append": "one append, by sample: under `always` the longest wait of each sync, else one for every 64 KiB",
    "append_many": "one append_many; under `always` it counts as an append",
    "sync": "one sync of a segment",
    "roll": "starting a segment",
    "recovery": "opening a log to append",
    "clean": "one run of a cleaner",
}


class Timing:
    """How often, how long altogether, how long at most, and in which buckets."""

    __slots__ = ("buckets", "count", "seconds", "seconds_max")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.seconds_max = 0.0
        self.buckets = [0] * (len(BUCKETS_SECONDS) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.seconds_max = max(self.seconds_max, seconds)
        for i, bound in enumerate(BUCKETS_SECONDS):
            if seconds <= bound:
                self.buckets[i] += 1
                return
        self.buckets[-1] += 1


class Metrics:
    """What happened on one stream, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._timings = {name: Timing() for name in TIMINGS}
        self._sources: list[weakref.WeakMethod[Source]] = []  # a forgotten appender must not live on here

    def add(self, **counts: int) -> None:
        """Count."""
        with self._lock:
            for name, count in counts.items():
                self._counters[name] += count

    def observe(self, name: str, seconds: float) -> None:
        """Note how long something took."""
        with self._lock:
            self._timings[name].add(seconds)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note how long the block takes, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(name, time.perf_counter() - start)

    def add_source(self, source: Source) -> None:
        """Counts that are kept elsewhere, and added at a snapshot: an open appender's own."""
        with self._lock:
            self._sources.append(weakref.WeakMethod(source))

    def remove_source(self, source: Source) -> None:
        """Take a source's last counts over and forget it."""
        reference = weakref.WeakMethod(source)
        with self._lock:
            if reference in self._sources:
                self._sources.remove(reference)
                for name, count in source().items():
                    self._counters[name] += count

    def snapshot(self) -> dict[str, Any]:
        """All counters and timings now."""
        with self._lock:
            counters = dict(self._counters)
            for reference in self._sources:
                source = reference()
                for name, count in source().items() if source else ():
                    counters[name] += count
            timings = {
                name: {"count": t.count, "seconds": t.seconds, "seconds_max": t.seconds_max}
                for name, t in self._timings.items()
            }
        return {**counters, "timings": timings}

    def histograms(self) -> dict[str, tuple[list[int], float]]:
        """For each timing the counts per bucket, not cumulated, and the sum of seconds."""
        with self._lock:
            return {name: (list(t.buckets), t.seconds) for name, t in self._timings.items()}


def prometheus_collector(metrics: Metrics, *, log: str) -> Collector:
    """A collector for prometheus_client's `REGISTRY.register()`; `log` is the label that tells logs apart."""
    try:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra("prometheus_client is not installed: pip install 'chiplog[metrics]'") from error

    class StreamCollector(Collector):
        def collect(self) -> Iterator[Any]:
            snapshot = metrics.snapshot()
            for name, help_text in COUNTERS.items():
                family = CounterMetricFamily(f"chiplog_{name}", help_text, labels=["log"])
                family.add_metric([log], snapshot[name])
                yield family
            histograms = metrics.histograms()
            for name, help_text in TIMINGS.items():
                buckets, seconds = histograms[name]
                cumulated, total = [], 0
                for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), buckets, strict=True):
                    total += count
                    cumulated.append((bound, total))
                histogram = HistogramMetricFamily(f"chiplog_{name}_seconds", help_text, labels=["log"])
                histogram.add_metric([log], cumulated, sum_value=seconds)
                yield histogram

    return StreamCollector()
