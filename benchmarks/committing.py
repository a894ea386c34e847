"""Synced before append returns: what threads and tasks gain by sharing a sync."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks import limits, peers
from benchmarks.appending import append_loop, timed
from benchmarks.measure import Case, Figure, Settings, interleave, payload, ratio_goal, row
from forelog import Stream, kernel
from forelog.log.directory.journal import JOURNAL_BYTES

WRITERS = 64


def _threads(path: Path, each: int) -> float:
    data = payload()
    with Stream(path / "log").appender(sync="always") as log:

        def append_all() -> None:
            for _ in range(each):
                log.append(data)

        return peers.seconds_of_threads([append_all] * WRITERS)


def _tasks(path: Path, each: int) -> float:
    data = payload()

    async def main() -> float:
        async with Stream(path / "log").appender(sync="always") as log:

            async def append_all() -> None:
                for _ in range(each):
                    await log.append_async(data)

            start = time.perf_counter()
            await asyncio.gather(*(append_all() for _ in range(WRITERS)))
            return time.perf_counter() - start

    return asyncio.run(main())


def _cases(settings: Settings) -> list[Case]:
    alone, each = settings.count(500), settings.count(200)
    data = payload()
    frame = kernel.captain_encode(data, time.time_ns())
    shared = WRITERS * each
    cases = [
        Case(
            "forelog append, 1 thread",
            "always",
            "forelog",
            timed(settings, alone, lambda p: append_loop(p, alone, "always")),
        ),
        Case(
            "forelog append, 64 threads", "always", "forelog", timed(settings, shared, lambda p: _threads(p, each))
        ),
        Case(
            "forelog append_async, 64 tasks",
            "always",
            "forelog",
            timed(settings, shared, lambda p: _tasks(p, each)),
        ),
        Case(
            "os.write and fdatasync, 1 thread",
            "each",
            "limit",
            timed(settings, alone, lambda p: limits.write_and_sync(p / "bare", frame, alone)),
        ),
        Case(
            "sqlite3, WAL, INSERT per commit",
            "FULL",
            "peer",
            timed(settings, alone, lambda p: peers.sqlite_commits(p, data, alone, "FULL")),
        ),
    ]
    journal = timed(settings, alone, lambda p: append_loop(p, alone, "always", JOURNAL_BYTES))
    cases.append(Case("forelog append, 1 thread, with a journal", "always", "forelog", journal))
    if peers.has("rocksdict"):
        one = timed(settings, alone, lambda p: peers.rocksdb_puts(p, data, alone, sync=True))
        few = settings.count(50)
        many = timed(
            settings, WRITERS * few, lambda p: peers.rocksdb_puts(p, data, few, sync=True, threads=WRITERS)
        )
        cases.append(Case("RocksDB put, WAL, 1 thread", "on", "peer", one))
        cases.append(Case("RocksDB put, WAL, 64 threads", "on", "peer", many))
    return cases


def always(settings: Settings) -> Figure:
    """sync="always" with one writer and with 64."""
    series = interleave(settings, _cases(settings))
    return Figure(
        "always",
        "Synced before append returns",
        [row(one, "records/s") for one in series],
        [
            ratio_goal("64 threads to 1 thread", series[1], series[0], at_least=10.0),
            ratio_goal("64 tasks to 1 thread", series[2], series[0]),
            ratio_goal("1 thread to os.write and fdatasync", series[0], series[3], at_least=0.9),
            ratio_goal("1 thread to sqlite3 commits, synchronous=FULL", series[0], series[4], at_least=1.2),
            ratio_goal("1 thread with a journal to os.write and fdatasync", series[5], series[3], at_least=1.1),
        ],
    )
