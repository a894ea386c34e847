"""Decoding M3's commit log: chunks to entries in columns."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from tests.kernel import oracle

from benchmarks.measure import Case, Figure, Settings, interleave, ratio_goal, row
from forelog import Stream, kernel
from forelog.commitlog.entries import scan_datapoints
from forelog.formats.m3 import M3, Series
from forelog.log.damage import BLOCK_BYTES, BLOCK_ROWS

SERIES = 1000
_BATCH = 1000
_START_NS = 1_794_765_600 * 10**9


def m3_file(entries: int) -> bytes:
    """A file as a commit log writes it: batches of a thousand entries, of a thousand series with tags in turn."""
    m3 = M3()
    encoder = m3.encoder(0)
    series = [
        Series(b"http.requests.%04d" % i, shard=i % 64, tags={b"host": b"web%02d" % (i % 40), b"dc": b"eu"})
        for i in range(SERIES)
    ]
    parts = []
    for first in range(0, entries, _BATCH):
        numbers = range(first, min(first + _BATCH, entries))
        items = [m3.item(series[i % SERIES], (_START_NS + i * 10_000_000, i * 0.25)) for i in numbers]
        parts.append(encoder.encode_many(items, _START_NS + first * 10_000_000)[0])
        encoder.accept()
    return b"".join(parts)


def decode_pass(module: ModuleType, data: bytes, entries: int) -> float:
    """The seconds to decode a file, block by block as the engine does it."""
    start = time.perf_counter()
    decoder = module.M3Decoder()
    at = found = 0
    while at < len(data):
        scan = module.m3_scan(data, at, min(at + BLOCK_BYTES, len(data)), 0, BLOCK_ROWS)
        decoded = decoder.feed(data, scan.starts, scan.ends, scan.offsets, 0, len(scan.starts))
        found += len(decoded.series)
        if scan.end == at or decoded.row < len(scan.starts):
            raise RuntimeError(f"decoding stopped at {at}")
        at = scan.end
    seconds = time.perf_counter() - start
    if found != entries:
        raise RuntimeError(f"{found} of {entries} entries were decoded")
    return seconds


def m3_decode(settings: Settings) -> Figure:
    """The kernel's decoder, beside the same in plain Python, and all the way to Arrow."""
    many, few = settings.count(1_000_000, least=3_000), settings.count(20_000, least=1_000)
    data, part = m3_file(many), m3_file(few)
    with settings.scratch() as path:
        stream = _log(path, data)

        def rate(count: int, run: Callable[[], float]) -> Callable[[], float]:
            return lambda: count / run()

        cases = [
            Case("m3 decode, kernel", "-", "forelog", rate(many, lambda: decode_pass(kernel, data, many))),
            Case("m3 decode, plain Python", "-", "peer", rate(few, lambda: decode_pass(oracle, part, few))),
            Case("scan_datapoints() to Arrow", "-", "forelog", rate(many, lambda: _arrow_pass(stream))),
        ]
        series = interleave(settings, cases)
    return Figure(
        "m3-decode",
        "M3's commit log as columns",
        [row(one, "records/s") for one in series],
        [ratio_goal("m3 decode to plain Python", series[0], series[1], at_least=20.0)],
        [f"{many:,} entries of {SERIES:,} series, {len(data) / (1 << 20):.0f} MiB; a record is an entry here."],
    )


def _log(path: Path, data: bytes) -> Stream:
    (path / "commitlog-0-0.db").write_bytes(data)
    return Stream.open(path)


def _arrow_pass(stream: Stream) -> float:
    start = time.perf_counter()
    for _ in scan_datapoints(stream):
        pass
    return time.perf_counter() - start
