"""Reading: the kernel's scan, Arrow batches, a cursor's loop."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kernel import oracle

from benchmarks import limits
from benchmarks.measure import Case, Figure, Settings, fastest, interleave, payload, ratio_goal, row
from forelog import Stream, kernel
from forelog.log.damage import BLOCK_BYTES, BLOCK_ROWS

CHILD = Path(__file__).with_name("child.py")
_GB = 1e9


def scan_pass(scan: Callable[..., Any], data: bytes) -> float:
    """The seconds to scan all records, block by block as the engine does it."""
    start = time.perf_counter()
    at = 0
    while at < len(data):
        found = scan(data, at, min(at + BLOCK_BYTES, len(data)), 0, BLOCK_ROWS)
        if found.end == at:
            raise RuntimeError(f"the scan stopped at {at}, reason {found.reason}")
        at = found.end
    return time.perf_counter() - start


def _rate(data: bytes, run: Callable[[], float]) -> Callable[[], float]:
    return lambda: len(data) / run() / _GB


def _crc_cases(data: bytes) -> list[Case]:
    cases = [
        Case(
            "CRC-32C pass, forelog's kernel",
            "-",
            "limit",
            _rate(data, lambda: limits.crc_pass(kernel.crc32c, data)),
        )
    ]
    other = limits.other_crc32c()
    if other is not None:
        cases.append(
            Case("CRC-32C pass, crc32c package", "-", "limit", _rate(data, lambda: limits.crc_pass(other, data)))
        )
    return cases


def kernel_scan(settings: Settings) -> Figure:
    """The kernel's scan, beside the same in plain Python and one CRC pass."""
    frame = kernel.captain_encode(payload(), time.time_ns())
    data = frame * (settings.count(64 << 20, least=1 << 16) // len(frame))
    few = data[: len(frame) * settings.count(5_000, least=100)]
    target = bytearray(len(data))
    cases = [
        Case(
            "captain_scan, kernel",
            "-",
            "forelog",
            _rate(data, lambda: scan_pass(kernel.captain_scan, data)),
        ),
        Case("captain_scan, plain Python", "-", "peer", _rate(few, lambda: scan_pass(oracle.captain_scan, few))),
        Case("memcpy", "-", "limit", _rate(data, lambda: limits.copy_pass(data, target))),
        *_crc_cases(data),
    ]
    series = interleave(settings, cases)
    what = "decoding and checking records"
    return Figure(
        "kernel-scan",
        "Decoding and checking records in memory",
        [row(one, "GB/s") for one in series],
        [
            ratio_goal(f"{what}, to plain Python", series[0], series[1], at_least=25.0),
            ratio_goal(f"{what}, to one CRC-32C pass", series[0], fastest(series, "CRC-32C"), at_least=0.3),
        ],
        [f"{len(data) / (1 << 20):.0f} MiB of 100 B records; of two CRC-32C passes the faster one is the limit."],
    )


def _write_log(path: Path, byte_count: int, segment_bytes: int) -> tuple[Stream, list[Path], bytes]:
    """A log, its segments, and all of its bytes."""
    stream = Stream(path / "log")
    some = [payload()] * 1000
    with stream.appender(segment_bytes=segment_bytes) as log:
        written = 0
        while written < byte_count:
            position = log.append_many(some)[-1]
            written = (position.segment - 1) * segment_bytes + position.offset
    paths = [Path(info.path) for info in stream.segments()]
    return stream, paths, b"".join(place.read_bytes() for place in paths)


def arrow_scan(settings: Settings) -> Figure:
    """Stream.scan() to Arrow batches, from the page cache."""
    total = settings.count(128 << 20, least=1 << 18)
    with settings.scratch() as path:
        stream, paths, data = _write_log(path, total, total // 4)
        block = bytearray(BLOCK_BYTES)

        def scan(*columns: str) -> float:
            start = time.perf_counter()
            for _ in stream.scan(columns or None):
                pass
            return time.perf_counter() - start

        cases = [
            Case("scan(), position, time, payload", "-", "forelog", _rate(data, scan)),
            Case("scan(), only position and time", "-", "forelog", _rate(data, lambda: scan("position", "time"))),
            Case("preadv into one block", "-", "limit", _rate(data, lambda: limits.read_pass(paths, block))),
            *_crc_cases(data),
        ]
        scan()  # the interleaved warm-up is the second read: what is timed comes from the page cache
        series = interleave(settings, cases)
    return Figure(
        "arrow-scan",
        "A log as Arrow record batches",
        [row(one, "GB/s") for one in series],
        [
            ratio_goal(
                "scan() with payloads to one CRC-32C pass", series[0], fastest(series, "CRC-32C"), at_least=0.12
            )
        ],
        [f"{len(data) / (1 << 20):.0f} MiB of 100 B records in {len(paths)} segments, in the page cache."],
    )


def child(*args: object) -> dict[str, Any]:
    """What child.py says."""
    done = subprocess.run(
        [sys.executable, str(CHILD), *map(str, args)], check=True, capture_output=True, text=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def cursor(settings: Settings) -> Figure:
    """`for record in cursor`, beside the same loop where records are scanned in plain Python."""
    with settings.scratch() as path:
        total = settings.count(4 << 20, least=1 << 16)
        stream, _, _ = _write_log(path, total, total // 2)
        records = sum(len(batch) for batch in stream.scan(["offset"]))
        counts: set[int] = set()

        def loop(name: str, repeats: int) -> float:
            answer = child(name, stream.path, repeats)
            counts.add(answer["records"])
            return float(answer["records_per_second"])

        cases = [
            Case("cursor loop, kernel", "-", "forelog", lambda: loop("cursor", 10)),
            Case("cursor loop, plain Python", "-", "peer", lambda: loop("plain_cursor", 1)),
        ]
        series = interleave(settings, cases, min(settings.rounds, 5))
    if counts != {records}:
        raise RuntimeError(f"the cursors read {counts} records of {records}")
    return Figure(
        "cursor",
        "Record by record with a cursor",
        [row(one, "records/s") for one in series],
        [ratio_goal("cursor loop to the same in plain Python", series[0], series[1], at_least=3.0)],
        [
            f"{records:,} records in 2 segments, in the page cache, each loop in a process of its own; "
            "the kernel's takes the best of ten in each round."
        ],
    )
