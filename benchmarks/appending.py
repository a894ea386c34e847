"""Appending: one by one, and in batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import limits, peers
from benchmarks.measure import Case, Figure, Series, Settings, fastest, interleave, payload, ratio_goal, row
from forelog import Stream, kernel
from forelog.log.appender import Sync

BATCH = 1000


def _frame() -> bytes:
    frame: bytes = kernel.captain_encode(payload(), time.time_ns())
    return frame


def append_loop(path: Path, count: int, sync: Sync, journal_bytes: int = 0) -> float:
    """The seconds of `count` appends, without opening and closing."""
    data = payload()
    with Stream(path / "log").appender(sync=sync, journal_bytes=journal_bytes) as log:
        append = log.append
        start = time.perf_counter()
        for _ in range(count):
            append(data)
        return time.perf_counter() - start


def append_batches(path: Path, batches: int, sync: Sync) -> float:
    """The seconds of `batches` calls of append_many."""
    some = [payload()] * BATCH
    with Stream(path / "log").appender(sync=sync) as log:
        start = time.perf_counter()
        for _ in range(batches):
            log.append_many(some)
        return time.perf_counter() - start


def timed(settings: Settings, amount: float, run: Callable[[Path], float]) -> Callable[[], float]:
    """A round of `run` in a new directory, as a rate of `amount` to its seconds."""

    def once() -> float:
        with settings.scratch() as path:
            return amount / run(path)

    return once


def _lmdb_loop(path: Path, batches: int) -> float:
    return peers.lmdb_batches(path, payload(), batches, BATCH, sync=False, one_call=False)


def append(settings: Settings) -> Figure:
    """One record at a time."""
    many, some, few = settings.count(100_000), settings.count(20_000), settings.count(300)
    data, frame = payload(), _frame()
    cases = [
        Case("forelog append", "os", "forelog", timed(settings, many, lambda p: append_loop(p, many, "os"))),
        Case(
            "os.write of the same bytes",
            "none",
            "limit",
            timed(settings, many, lambda p: limits.write_loop(p / "bare", frame, many)),
        ),
        Case(
            "sqlite3, WAL, INSERT per commit",
            "OFF",
            "peer",
            timed(settings, some, lambda p: peers.sqlite_commits(p, data, some, "OFF")),
        ),
        Case(
            "sqlite3, WAL, INSERT per commit",
            "NORMAL",
            "peer",
            timed(settings, some, lambda p: peers.sqlite_commits(p, data, some, "NORMAL")),
        ),
        Case(
            "forelog append",
            "interval",
            "forelog",
            timed(settings, many, lambda p: append_loop(p, many, "interval")),
        ),
    ]
    if peers.has("rocksdict"):
        run = timed(settings, some, lambda p: peers.rocksdb_puts(p, data, some, sync=False))
        cases.append(Case("RocksDB put, WAL", "off", "peer", run))
    if peers.has("persistqueue"):
        run = timed(settings, few, lambda p: peers.persist_queue_puts(p, data, few))
        cases.append(Case("persist-queue put, file queue", "every 100", "peer", run))
    series = interleave(settings, cases)
    return Figure(
        "append",
        "One record at a time",
        [row(one, "records/s") for one in series],
        [
            ratio_goal("append to a bare os.write loop", series[0], series[1], at_least=0.6),
            ratio_goal("append to sqlite3 commits, synchronous=OFF", series[0], series[2], at_least=5.0),
        ],
        ["Opening and closing, which syncs, are not part of it; the same goes for all others."],
    )


def append_many(settings: Settings) -> Figure:
    """A thousand records at a time."""
    batches, synced = settings.count(200), settings.count(60)
    records, frame, data = batches * BATCH, _frame(), payload()
    pieces = frame * records
    cases = [
        Case(
            "forelog append_many",
            "os",
            "forelog",
            timed(settings, records, lambda p: append_batches(p, batches, "os")),
        ),
        Case(
            "os.write in 128 KiB pieces",
            "none",
            "limit",
            timed(settings, records, lambda p: limits.write_pieces(p / "bare", pieces)),
        ),
        Case(
            "sqlite3, WAL, executemany",
            "OFF",
            "peer",
            timed(settings, records, lambda p: peers.sqlite_batches(p, data, batches, BATCH, "OFF")),
        ),
    ]
    if peers.has("lmdb"):
        run = timed(settings, records, lambda p: peers.lmdb_batches(p, data, batches, BATCH, sync=False))
        cases.append(Case("LMDB putmulti, appending", "off", "peer", run))
        loop = timed(settings, records, lambda p: _lmdb_loop(p, batches))
        cases.append(Case("LMDB put in a loop", "off", "peer", loop))
    if peers.has("rocksdict"):
        run = timed(settings, records, lambda p: peers.rocksdb_batches(p, data, batches, BATCH, sync=False))
        cases.append(Case("RocksDB write batch, WAL", "off", "peer", run))
    series = interleave(settings, cases)
    goals = [
        ratio_goal("append_many(1000) to os.write in 128 KiB pieces", series[0], series[1], at_least=0.6),
    ]
    if peers.has("lmdb"):
        multi, single = fastest(series, "LMDB putmulti"), fastest(series, "LMDB put in a loop")
        goals.append(ratio_goal("append_many(1000) to LMDB's putmulti", series[0], multi, at_least=5.0))
        goals.append(ratio_goal("append_many(1000) to LMDB's put in a loop", series[0], single, at_least=5.0))
    rows = [row(one, "records/s") for one in series + _synced_batches(settings, synced)]
    figure = Figure("append-many", "Batches of 1,000 records", rows, goals)
    figure.notes.append(f"A batch is {len(frame) * BATCH / 1000:.0f} kB on disk, {len(frame)} B for each record.")
    return figure


def _synced_batches(settings: Settings, batches: int) -> list[Series]:
    """The same with a sync for each batch."""
    data, frame = payload(), _frame()
    records = batches * BATCH
    cases = [
        Case(
            "forelog append_many",
            "always",
            "forelog",
            timed(settings, records, lambda p: append_batches(p, batches, "always")),
        ),
        Case(
            "os.write and fdatasync per batch",
            "each",
            "limit",
            timed(settings, records, lambda p: limits.write_and_sync(p / "bare", frame * BATCH, batches)),
        ),
        Case(
            "sqlite3, WAL, executemany",
            "FULL",
            "peer",
            timed(settings, records, lambda p: peers.sqlite_batches(p, data, batches, BATCH, "FULL")),
        ),
    ]
    if peers.has("lmdb"):
        run = timed(settings, records, lambda p: peers.lmdb_batches(p, data, batches, BATCH, sync=True))
        cases.append(Case("LMDB putmulti, appending", "on", "peer", run))
    if peers.has("rocksdict"):
        run = timed(settings, records, lambda p: peers.rocksdb_batches(p, data, batches, BATCH, sync=True))
        cases.append(Case("RocksDB write batch, WAL", "on", "peer", run))
    return interleave(settings, cases, min(settings.rounds, 5))
