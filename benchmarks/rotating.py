"""Rotation by hot swap: what writes notice of it.

Four threads write behind, each time noting how long the call took; in every other run `rotate_logs` is called
again and again meanwhile. At an even pace the processor has time to spare, and what is slow is the log; at full
rate threads mostly wait for each other and for the interpreter, with rotations or without.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Case, Figure, Series, Settings, count_goal, interleave, payload, ratio_goal, row
from forelog import Stream
from forelog.commitlog import CommitLog
from forelog.files import File, OSFiles

PRODUCERS = 4
PACE_SECONDS = 0.00025
ROTATE_SECONDS = 0.02
COLD_ROLLS = 30
SYNC = "4 MiB, 1 s"


class _WatchedFiles(OSFiles):
    """Counts the files that are opened by others than the thread that makes spares."""

    def __init__(self) -> None:
        self.opened_by_others = 0

    def open_append(self, path: str) -> File:
        self.opened_by_others += threading.current_thread().name != "forelog-spare"
        return super().open_append(path)


@dataclass
class Swaps:
    """What the rotations of all runs took."""

    longest_ms: list[float] = field(default_factory=list)
    """The longest that the writer spent in one, for each run."""
    count: int = 0
    opened_by_others: int = 0
    """Files that were opened by anyone but the thread that makes spares."""


def p999_ms(seconds: list[float]) -> float:
    """What one in a thousand took longer than, in milliseconds."""
    return sorted(seconds)[len(seconds) * 999 // 1000] * 1000


def _write_timed(log: CommitLog, count: int, pace: float, seconds: list[float]) -> None:
    """`count` writes, one every `pace` seconds; how long each of them took."""
    data, clock, write = payload(), time.perf_counter, log.write
    due = clock()
    for _ in range(count):
        if pace:
            due += pace
            time.sleep(max(0.0, due - clock()))
        start = clock()
        write(data)
        seconds.append(clock() - start)


def latencies(path: Path, each: int, pace: float, swaps: Swaps | None = None) -> list[float]:
    """How long each write of four threads took; with rotations all the while, if there is where to note them."""
    files = _WatchedFiles()
    seconds: list[list[float]] = [[] for _ in range(PRODUCERS)]
    with CommitLog(path / "log", strategy="behind", files=files) as log:
        opened_before = files.opened_by_others
        threads = [threading.Thread(target=_write_timed, args=(log, each, pace, own)) for own in seconds]
        for thread in threads:
            thread.start()
        while swaps is not None:
            log.rotate_logs()
            threads[0].join(ROTATE_SECONDS)
            if not threads[0].is_alive():
                break
        for thread in threads:
            thread.join()
        if swaps is not None:
            rolls = log.snapshot()["timings"]["roll"]
            swaps.longest_ms.append(rolls["seconds_max"] * 1000)
            swaps.count += rolls["count"]
            swaps.opened_by_others += files.opened_by_others - opened_before
    return [one for own in seconds for one in own]


def cold_roll_ms(path: Path, count: int) -> float:
    """How long starting a segment takes without a spare: sync, create, sync. The median, in milliseconds."""
    took = []
    with Stream(path / "log").appender(sync="os", spare=False) as log:
        for _ in range(count):
            log.append(payload())
            start = time.perf_counter()
            log.roll()
            took.append(time.perf_counter() - start)
    return statistics.median(took) * 1000


def rotation(settings: Settings) -> Figure:
    """p99.9 of writes with and without rotations, and a swap beside starting a segment cold."""
    paced, full, rolls = settings.count(4000), settings.count(10_000), settings.count(COLD_ROLLS, least=3)
    swaps, swaps_full = Swaps(), Swaps()

    def measured(run: Callable[[Path], float]) -> Callable[[], float]:
        def once() -> float:
            with settings.scratch() as path:
                return run(path)

        return once

    def p999(each: int, pace: float, into: Swaps | None) -> Callable[[], float]:
        return measured(lambda path: p999_ms(latencies(path, each, pace, into)))

    cases = [
        Case("p99.9 of a write, paced", SYNC, "forelog", p999(paced, PACE_SECONDS, None)),
        Case("p99.9 of a write, paced, rotating", SYNC, "forelog", p999(paced, PACE_SECONDS, swaps)),
        Case("p99.9 of a write, full rate", SYNC, "forelog", p999(full, 0, None)),
        Case("p99.9 of a write, full rate, rotating", SYNC, "forelog", p999(full, 0, swaps_full)),
        Case("starting a segment without a spare", "os", "limit", measured(lambda p: cold_roll_ms(p, rolls))),
    ]
    still, rotating, still_full, rotating_full, cold = series = interleave(settings, cases)
    longest = Series(
        Case("longest swap of a round, paced", SYNC, "forelog", lambda: 0.0), swaps.longest_ms[-len(cold.rates) :]
    )
    opened = swaps.opened_by_others + swaps_full.opened_by_others
    return Figure(
        "rotation",
        "Rotating while four threads write",
        [row(one, "ms") for one in (*series, longest)],
        [
            ratio_goal("p99.9 of writes while rotating to without", rotating, still, at_most=3.0),
            ratio_goal("p99.9 at full rate while rotating to without", rotating_full, still_full),
            ratio_goal("longest swap to starting a segment without a spare", longest, cold, at_most=1.0),
            count_goal("files opened by a writer", opened, "files", at_most=0),
        ],
        [
            f"Paced is 4,000 writes/s from each of {PRODUCERS} threads; full rate is as fast as they can, "
            "which leaves it to chance how long the interpreter lets one of them wait. "
            f"`rotate_logs` was called {ROTATE_SECONDS * 1000:.0f} ms after it last returned, "
            f"{swaps.count + swaps_full.count} times altogether.",
        ],
    )
