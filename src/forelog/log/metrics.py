"""Counters and timings of a stream, as a snapshot dict and for Prometheus.

Every stream has one `Metrics`. Each count costs a dictionary access, so it is done for each read, sync, roll
and recovery, and never for each record. Appends are counted by the appender itself. Only a sample is timed, one
for every 64 KiB.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from forelog.errors import MissingExtra
from forelog.kernel import Distribution

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

Source = Callable[[], dict[str, int]]

BUCKETS_SECONDS = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
BUCKETS_SIZES = (1, 4, 16, 64, 256, 1024, 4096)

COUNTERS = {
    "records_appended": "records handed to the operating system",
    "bytes_appended": "bytes of those records, with time, length and checksum",
    "syncs": "successful syncs, of segments or of the journal instead",
    "journal_syncs": "those of the journal",
    "syncs_failed": "failed syncs, each of which ended an appender",
    "writes_failed": "appends that failed and were undone",
    "rolls": "segments started",
    "recoveries": "logs opened to append",
    "torn_tails": "torn tails cut while opening",
    "torn_bytes": "bytes of those, kept in NAME.torn",
    "restored_bytes": "bytes that a power loss took from a segment, and that its journal had",
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
    "rotations": "rotations of a commit log that were asked for",
    "writes_lost": "writes that a commit log had queued, whose producers didn't wait, and that failed",
}
GAUGES = {
    "queue_length": "writes that wait in the queue of a commit log",
    "queue_bytes": "bytes of those, at most",
}
TIMINGS = {
    "append": "one append, by sample: under `always` the longest wait of each sync, else one for every 64 KiB",
    "append_many": "one append_many, by the same sample; under `always` it counts as an append",
    "sync": "one sync, of a segment or of the journal",
    "roll": "starting a segment",
    "recovery": "opening a log to append",
    "clean": "one run of a cleaner",
    "write": "one write to a commit log that waits for the sync: the longest wait of each",
}
SIZES = {
    "batch_writes": "writes of a commit log that went to the disk with one system call",
}


class Metrics:
    """The counters and timings of one stream, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._timings = {name: Distribution(BUCKETS_SECONDS) for name in TIMINGS}
        self._sizes = {name: Distribution(BUCKETS_SIZES) for name in SIZES}
        self._sources: list[weakref.WeakMethod[Source]] = []  # a forgotten appender must not live on here

    def add(self, **counts: int) -> None:
        """Add to counters."""
        with self._lock:
            for name, count in counts.items():
                self._counters[name] += count

    def observe(self, name: str, seconds: float) -> None:
        """Record a duration, in a timing."""
        with self._lock:
            self._timings[name].add(seconds)

    def timing(self, name: str) -> Distribution:
        """A timing, for code that must not run Python to add to it."""
        return self._timings[name]

    def size(self, name: str) -> Distribution:
        """A size, for the same purpose."""
        return self._sizes[name]

    def measure(self, name: str, size: int) -> None:
        """Record a size."""
        with self._lock:
            self._sizes[name].add(size)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Record the duration of the `with` block, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(name, time.perf_counter() - start)

    def add_source(self, source: Source) -> None:
        """Add a source of counts, such as an open appender. A snapshot adds them to the counters."""
        with self._lock:
            self._sources.append(weakref.WeakMethod(source))

    def remove_source(self, source: Source) -> None:
        """Add a source's last counts to the counters, and forget the source."""
        reference = weakref.WeakMethod(source)
        with self._lock:
            if reference in self._sources:
                self._sources.remove(reference)
                for name, count in source().items():
                    if name in self._counters:
                        self._counters[name] += count

    def snapshot(self) -> dict[str, Any]:
        """Return all counters, gauges, timings and sizes as of now."""
        with self._lock:
            counters = {**self._counters, **dict.fromkeys(GAUGES, 0)}
            for reference in self._sources:
                source = reference()
                for name, count in source().items() if source else ():
                    counters[name] += count
            timings = {
                name: {"count": d.count, "seconds": d.total, "seconds_max": d.most}
                for name, d in self._timings.items()
            }
            sizes = {
                name: {"count": d.count, "total": int(d.total), "max": int(d.most)}
                for name, d in self._sizes.items()
            }
        return {**counters, "timings": timings, "sizes": sizes}

    def histograms(self) -> dict[str, tuple[Sequence[float], list[int], float]]:
        """Return the bounds, the counts between them, and the sum of each timing (`NAME_seconds`) and size."""
        with self._lock:
            distributions = {f"{name}_seconds": d for name, d in self._timings.items()} | self._sizes
            return {name: (d.bounds, d.buckets, d.total) for name, d in distributions.items()}


def prometheus_collector(metrics: Metrics, *, log: str) -> Collector:
    """A collector for prometheus_client's `REGISTRY.register()`; `log` is the label that tells logs apart."""
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra.needed("prometheus_client", by="prometheus_collector()", extra="metrics") from error

    class StreamCollector(Collector):
        def collect(self) -> Iterator[Any]:
            snapshot = metrics.snapshot()
            for name, help_text in COUNTERS.items():
                family = CounterMetricFamily(f"forelog_{name}", help_text, labels=["log"])
                family.add_metric([log], snapshot[name])
                yield family
            for name, help_text in GAUGES.items():
                gauge = GaugeMetricFamily(f"forelog_{name}", help_text, labels=["log"])
                gauge.add_metric([log], snapshot[name])
                yield gauge
            help_texts = {f"{name}_seconds": text for name, text in TIMINGS.items()} | SIZES
            for name, (bounds, buckets, total) in metrics.histograms().items():
                histogram = HistogramMetricFamily(f"forelog_{name}", help_texts[name], labels=["log"])
                histogram.add_metric([log], _cumulated(bounds, buckets), sum_value=total)
                yield histogram

    return StreamCollector()


def _cumulated(bounds: Sequence[float], buckets: list[int]) -> list[tuple[str, float]]:
    return list(zip((*map(str, bounds), "+Inf"), accumulate(buckets), strict=True))
