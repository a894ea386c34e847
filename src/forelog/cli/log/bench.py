"""`forelog bench`: a quick measurement of the log, and of the disk beneath it in the same run.

Each figure of the log is shown beside the bare call of the operating system: os.write for an append, fdatasync
for a synced one, reading for a scan. It takes a few seconds, and holds for this machine at this moment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass

from forelog.cli import codes, options
from forelog.cli.output import human_bytes, human_count, human_duration, print_json, table
from forelog.log.appender import Sync
from forelog.log.stream import Stream
from forelog.log.walk import Walk

PHASE_BYTES_MAX = 64 << 20
BATCH_RECORDS = 1000
_LOOP_RECORDS = 64  # between two looks at the clock
_READ_BYTES = 1 << 20


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "bench",
        "Measure appending, syncing and scanning on this disk, beside bare os.write and fdatasync. Works in a\n"
        "temporary directory inside DIR, of at most 320 MiB, and removes it.",
    )
    parser.add("""
        [directory DIR]       a directory on the disk to measure (default: .)
        --seconds N           total duration (default: 4)
        --payload-bytes SIZE  size of a payload (default: 100)
    """)
    parser.set_types(seconds=options.some_seconds, payload_bytes=options.byte_size)
    parser.set_defaults(directory=".", seconds=4.0, payload_bytes=100)
    return parser


@dataclass(slots=True)
class Measure:
    """How fast something went."""

    name: str
    bare: bool
    """Whether it is the operating system alone, to compare with."""
    records: int
    byte_count: int
    seconds: float
    p50_seconds: float | None = None
    p99_seconds: float | None = None

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.byte_count / self.seconds if self.seconds else 0.0


def run(chosen: argparse.Namespace) -> int:
    if not os.path.isdir(chosen.directory):
        raise codes.UsageError(f"{chosen.directory} isn't a directory: give one on the disk to measure")
    if chosen.payload_bytes > 1 << 20:
        raise codes.UsageError(
            f"--payload-bytes {chosen.payload_bytes}: at most 1MiB, to stay within a few seconds"
        )
    place = tempfile.mkdtemp(prefix="forelog-bench-", dir=chosen.directory)
    try:
        measures = _measure(place, chosen.seconds, bytes(chosen.payload_bytes))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if chosen.json:
        print_json(
            {
                "directory": chosen.directory,
                "payload_bytes": chosen.payload_bytes,
                "measures": [
                    {
                        **asdict(measure),
                        "records_per_second": measure.records_per_second,
                        "bytes_per_second": measure.bytes_per_second,
                    }
                    for measure in measures
                ],
            }
        )
    else:
        _print(chosen, measures)
    return codes.FINE


def _print(chosen: argparse.Namespace, measures: list[Measure]) -> None:
    rows: list[tuple[str, ...]] = [("", ">records/s", ">bytes/s", ">p50", ">p99")]
    rows += [_row(measure) for measure in measures]
    print(f"payloads of {chosen.payload_bytes:,} bytes in {os.path.abspath(chosen.directory)}")
    print("\n".join(table(rows)))


def _row(measure: Measure) -> tuple[str, ...]:
    return (
        f"  {measure.name}" if measure.bare else measure.name,
        human_count(measure.records_per_second) if measure.records else "-",
        human_bytes(measure.bytes_per_second),
        "-" if measure.p50_seconds is None else human_duration(measure.p50_seconds),
        "-" if measure.p99_seconds is None else human_duration(measure.p99_seconds),
    )


def _measure(place: str, seconds: float, payload: bytes) -> list[Measure]:
    share = seconds / 8
    log = Stream(f"{place}/os")
    frame, _ = log.format.encoder(1).encode_many([payload], time.time_ns())
    measures = [_append(log, "append, sync=os", payload, len(frame), share, sync="os")]
    measures.append(_write(f"{place}/write", frame, share))
    batched = Stream(f"{place}/many")
    measures.append(_append_many(batched, payload, len(frame), share))
    interval = Stream(f"{place}/interval")
    measures.append(_append(interval, "append, sync=interval", payload, len(frame), share, sync="interval"))
    measures.append(_append_synced(Stream(f"{place}/always"), payload, len(frame), share))
    measures.append(_write_synced(f"{place}/synced", frame, share))
    measures += _scan(batched, share)
    return measures


def _repeat(step: Callable[[], object], step_bytes: int, seconds: float, bytes_max: int) -> tuple[int, float]:
    """Call `step` until the time or the bytes are used up. Returns how often, and how long that took."""
    calls, start = 0, time.perf_counter()
    while True:
        for _ in range(_LOOP_RECORDS):
            step()
        calls += _LOOP_RECORDS
        elapsed = time.perf_counter() - start
        if elapsed >= seconds or calls * step_bytes >= bytes_max:
            return calls, elapsed


def _timed(step: Callable[[], object], seconds: float) -> tuple[list[float], float]:
    """Call `step` until the time is used up. Returns how long each call took, and all of them."""
    latencies: list[float] = []
    start = time.perf_counter()
    while (before := time.perf_counter()) - start < seconds or not latencies:
        step()
        latencies.append(time.perf_counter() - before)
    return sorted(latencies), time.perf_counter() - start


def _append(stream: Stream, name: str, payload: bytes, size: int, seconds: float, *, sync: Sync) -> Measure:
    with stream.appender(sync=sync, sync_interval_ms=100) as log:
        append = log.append
        calls, elapsed = _repeat(lambda: append(payload), size, seconds, PHASE_BYTES_MAX)
    return Measure(name, False, calls, calls * size, elapsed)


def _append_many(stream: Stream, payload: bytes, size: int, seconds: float) -> Measure:
    batch = [payload] * max(min(BATCH_RECORDS, (1 << 20) // size), 1)
    calls, elapsed = 0, 0.0
    with stream.appender() as log:
        while elapsed < seconds and calls * len(batch) * size < PHASE_BYTES_MAX:
            start = time.perf_counter()
            log.append_many(batch)
            elapsed += time.perf_counter() - start
            calls += 1
    records = calls * len(batch)
    return Measure(f"append_many of {len(batch):,}", False, records, records * size, elapsed)


def _append_synced(stream: Stream, payload: bytes, size: int, seconds: float) -> Measure:
    with stream.appender(sync="always") as log:
        latencies, elapsed = _timed(lambda: log.append(payload), seconds)
    return _with_latencies("append, sync=always", False, latencies, size, elapsed)


def _write(path: str, frame: bytes, seconds: float) -> Measure:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        calls, elapsed = _repeat(lambda: os.write(descriptor, frame), len(frame), seconds, PHASE_BYTES_MAX)
    finally:
        os.close(descriptor)
    return Measure("bare os.write", True, calls, calls * len(frame), elapsed)


def _write_synced(path: str, frame: bytes, seconds: float) -> Measure:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def step() -> None:
        os.write(descriptor, frame)
        os.fdatasync(descriptor)

    try:
        latencies, elapsed = _timed(step, seconds)
    finally:
        os.close(descriptor)
    return _with_latencies("bare os.write and fdatasync", True, latencies, len(frame), elapsed)


def _with_latencies(name: str, bare: bool, latencies: list[float], size: int, elapsed: float) -> Measure:
    count = len(latencies)
    p50, p99 = latencies[count // 2], latencies[min(count * 99 // 100, count - 1)]
    return Measure(name, bare, count, count * size, elapsed, p50, p99)


def _scan(stream: Stream, seconds: float) -> list[Measure]:
    """Scan what append_many wrote, over and over, and read the same files bare."""
    paths = [info.path for info in stream.segments()]
    size = sum(os.path.getsize(path) for path in paths)
    buffer = bytearray(_READ_BYTES)

    def scan() -> int:
        with closing(Walk(stream.directory)) as walk:
            return sum(len(block.scan.offsets) for block in walk)

    def read() -> int:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return 0

    measures = []
    for name, bare, step in (("scan", False, scan), ("bare read", True, read)):
        rounds, records, start = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not rounds:
            records += step()
            rounds += 1
        measures.append(Measure(name, bare, records, rounds * size, elapsed))
    return measures
