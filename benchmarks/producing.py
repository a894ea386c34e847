"""Many producers, one commit log: writes that are left behind, and writes that are waited for."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import limits, peers
from benchmarks.appending import timed
from benchmarks.measure import Case, Figure, Goal, Settings, interleave, payload, ratio_goal, row
from benchmarks.stores import Lmdb, QueueAndFile, Sqlite, Store, Usage, write_from_threads
from forelog.commitlog import CommitLog
from forelog.files import File, OSFile, OSFiles

FEW_PRODUCERS = 16
MANY_PRODUCERS = 64
SLOW_SYNC_SECONDS = 0.005
BUSY_SHARE = 0.5


@dataclass
class Account:
    """Where the time of a commit log's runs went, round by round."""

    cpu_per_second: list[float] = field(default_factory=list)
    sync_share: list[float] = field(default_factory=list)
    """Of the time, how much a sync was under way."""
    writes_per_sync: list[float] = field(default_factory=list)

    def add(self, usage: Usage, snapshot: dict[str, Any]) -> float:
        """Note a run; its seconds."""
        syncs = snapshot["timings"]["sync"]
        self.cpu_per_second.append(usage.cpu_per_second)
        self.sync_share.append(syncs["seconds"] / usage.seconds)
        self.writes_per_sync.append(snapshot["records_appended"] / max(1, syncs["count"]))
        return usage.seconds

    @property
    def bound_by(self) -> str:
        """What took more of the time: Python and the system, or the disk; if neither took half of it, waking."""
        cpu, disk = statistics.median(self.cpu_per_second), statistics.median(self.sync_share)
        if max(cpu, disk) < BUSY_SHARE:
            return "bound by switches between threads"
        return "bound by CPU" if cpu > disk else "bound by the disk"

    def __str__(self) -> str:
        cpu, share, writes = map(statistics.median, (self.cpu_per_second, self.sync_share, self.writes_per_sync))
        return (
            f"{self.bound_by}: {cpu:.2f} s of CPU in each second, a sync under way {share:.0%} of the time, "
            f"{writes:.0f} writes to a sync"
        )


def in_threads(open_store: Callable[[Path], Store], threads: int, each: int) -> Callable[[Path], float]:
    """The seconds of `each` writes from each thread, until all are on stable storage."""

    def run(path: Path) -> float:
        with open_store(path) as store:
            return write_from_threads(store, payload(), threads, each).seconds

    return run


def log_in_threads(account: Account, threads: int, each: int, **options: Any) -> Callable[[Path], float]:
    """The same for a commit log, on account."""

    def run(path: Path) -> float:
        with CommitLog(path / "log", **options) as log:
            return account.add(write_from_threads(log, payload(), threads, each), log.snapshot())

    return run


def log_in_tasks(account: Account, tasks: int, each: int) -> Callable[[Path], float]:
    """The same for tasks of one thread, which wait."""
    data = payload()

    async def main(path: Path) -> float:
        async with CommitLog(path / "log", strategy="wait") as log:

            async def write_all() -> None:
                for _ in range(each):
                    await log.write(data)

            start, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(write_all() for _ in range(tasks)))
            usage = Usage(time.perf_counter() - start, time.process_time() - cpu)
            return account.add(usage, log.snapshot())

    return lambda path: asyncio.run(main(path))


def write_behind(settings: Settings) -> Figure:
    """16 threads that don't wait, and a flush in the end."""
    each, fewer = settings.count(2000), settings.count(300)
    many, some = FEW_PRODUCERS * each, FEW_PRODUCERS * fewer
    account = Account()

    def peer(open_store: Callable[[Path], Store]) -> Callable[[], float]:
        return timed(settings, some, in_threads(open_store, FEW_PRODUCERS, fewer))

    cases = [
        Case(
            "CommitLog.write, behind",
            "4 MiB, 1 s",
            "forelog",
            timed(settings, many, log_in_threads(account, FEW_PRODUCERS, each, strategy="behind")),
        ),
        Case(
            "queue.Queue, a thread, a file",
            "4 MiB, 1 s",
            "peer",
            timed(settings, many, in_threads(lambda p: QueueAndFile(p, waits=False), FEW_PRODUCERS, each)),
        ),
        Case(
            "sqlite3, WAL, INSERT per commit", "NORMAL", "peer", peer(lambda p: Sqlite(p, "NORMAL", shared=False))
        ),
        Case("sqlite3, WAL, INSERT per commit", "OFF", "peer", peer(lambda p: Sqlite(p, "OFF", shared=False))),
    ]
    if peers.has("lmdb"):
        cases.append(Case("LMDB put per transaction", "off", "peer", peer(lambda p: Lmdb(p, sync=False))))
    series = interleave(settings, cases)
    goals = [
        ratio_goal("behind to queue.Queue, a thread, a file", series[0], series[1]),
        ratio_goal("behind to sqlite3 commits, synchronous=NORMAL", series[0], series[2]),
        ratio_goal("behind to sqlite3 commits, synchronous=OFF", series[0], series[3]),
    ]
    if peers.has("lmdb"):
        goals.append(ratio_goal("behind to LMDB without sync", series[0], series[4]))
    notes = [
        "All of it is on stable storage in the end, which is timed too: by `flush`, by a checkpoint that syncs, "
        "by LMDB's `sync`. On the way the log and the file are synced every 4 MiB and every second, sqlite3's "
        "NORMAL at its checkpoints, about every 4 MiB, and the others not at all.",
        f"CommitLog.write: {account}.",
    ]
    return Figure(
        "write-behind", "Written behind, from 16 threads", [row(one, "writes/s") for one in series], goals, notes
    )


def write_wait(settings: Settings) -> Figure:
    """16 threads that wait for the sync."""
    each, fewer = settings.count(300), settings.count(40)
    many, some = FEW_PRODUCERS * each, FEW_PRODUCERS * fewer
    account = Account()

    def peer(open_store: Callable[[Path], Store]) -> Callable[[], float]:
        return timed(settings, some, in_threads(open_store, FEW_PRODUCERS, fewer))

    cases = [
        Case(
            "CommitLog.write, wait",
            "each",
            "forelog",
            timed(settings, many, log_in_threads(account, FEW_PRODUCERS, each, strategy="wait")),
        ),
        Case(
            "queue.Queue, a thread, a file, events",
            "each",
            "peer",
            timed(settings, many, in_threads(lambda p: QueueAndFile(p, waits=True), FEW_PRODUCERS, each)),
        ),
        Case("sqlite3, WAL, INSERT per commit", "FULL", "peer", peer(lambda p: Sqlite(p, "FULL", shared=True))),
    ]
    if peers.has("lmdb"):
        cases.append(Case("LMDB put per transaction", "on", "peer", peer(lambda p: Lmdb(p, sync=True))))
    series = interleave(settings, cases)
    goals = [
        ratio_goal("wait to queue.Queue, a thread, a file, events", series[0], series[1]),
        ratio_goal("wait to sqlite3 commits, synchronous=FULL", series[0], series[2]),
    ]
    if peers.has("lmdb"):
        goals.append(ratio_goal("wait to LMDB with sync", series[0], series[3]))
    notes = [
        "A write returns after the sync that covers it, for everybody.",
        f"CommitLog.write: {account}.",
    ]
    return Figure(
        "write-wait", "Waited for, from 16 threads", [row(one, "writes/s") for one in series], goals, notes
    )


class _SlowFile(OSFile):
    """A file on a disk that takes its time to sync."""

    __slots__ = ()

    def sync(self) -> None:
        end = time.perf_counter() + SLOW_SYNC_SECONDS
        super().sync()
        time.sleep(max(0.0, end - time.perf_counter()))


class SlowFiles(OSFiles):
    """Files on a disk whose syncs take 5 ms, as over a network or on a disk that turns."""

    def open_append(self, path: str) -> File:
        file = super().open_append(path)
        assert isinstance(file, OSFile)
        file.__class__ = _SlowFile
        return file


def _slow_syncs(path: Path, count: int) -> float:
    """One write and one slow sync for each payload: its seconds."""
    file, data = SlowFiles().open_append(str(path / "bare")), payload()
    try:
        start = time.perf_counter()
        for _ in range(count):
            file.write(data)
            file.sync()
        return time.perf_counter() - start
    finally:
        file.close()


def write_many(settings: Settings) -> Figure:
    """64 threads and 64 tasks that wait, beside 64 times what one sync after the other can do."""
    each, few = settings.count(150), settings.count(60)
    alone, alone_slow = settings.count(500), settings.count(60)
    threads, tasks, slow = Account(), Account(), Account()
    waits: dict[str, Any] = {"strategy": "wait"}
    many = MANY_PRODUCERS * each
    cases = [
        Case(
            "CommitLog.write, 64 threads",
            "each",
            "forelog",
            timed(settings, many, log_in_threads(threads, MANY_PRODUCERS, each, **waits)),
        ),
        Case(
            "CommitLog.write, 64 tasks",
            "each",
            "forelog",
            timed(settings, many, log_in_tasks(tasks, MANY_PRODUCERS, each)),
        ),
        Case(
            "64 x os.write and fdatasync of 100 B",
            "each",
            "limit",
            timed(
                settings,
                MANY_PRODUCERS * alone,
                lambda p: limits.write_and_sync(p / "bare", payload(), alone),
            ),
        ),
        Case(
            "queue.Queue, a thread, a file, 64 events",
            "each",
            "peer",
            timed(settings, many, in_threads(lambda p: QueueAndFile(p, waits=True), MANY_PRODUCERS, each)),
        ),
        Case(
            "CommitLog.write, 64 threads",
            "each, 5 ms",
            "forelog",
            timed(
                settings,
                MANY_PRODUCERS * few,
                log_in_threads(slow, MANY_PRODUCERS, few, files=SlowFiles(), **waits),
            ),
        ),
        Case(
            "64 x os.write and fdatasync of 100 B",
            "each, 5 ms",
            "limit",
            timed(settings, MANY_PRODUCERS * alone_slow, lambda p: _slow_syncs(p, alone_slow)),
        ),
        Case(
            "64 threads that wake each other in turn",
            "none",
            "limit",
            timed(settings, many, lambda _: limits.wake_ring(MANY_PRODUCERS, each)),
        ),
    ]
    series = interleave(settings, cases)

    def goal(text: str, mine: int, limit: int, account: Account) -> Goal:
        found = ratio_goal(f"{text}, or bound by CPU", series[mine], series[limit], at_least=0.7)
        return found if found.reached else replace(found, held_back=account.bound_by)

    goals = [
        goal("64 waiting threads to 64 x fdatasync", 0, 2, threads),
        goal("64 waiting tasks to 64 x fdatasync", 1, 2, tasks),
        goal("64 waiting threads to 64 x fdatasync that takes 5 ms", 4, 5, slow),
        ratio_goal("64 threads to 64 that only wake each other", series[0], series[6]),
        ratio_goal("64 threads to queue.Queue, a thread, a file, events", series[0], series[3]),
    ]
    notes = [
        f"64 threads: {threads}.",
        f"64 tasks: {tasks}.",
        f"64 threads where a sync takes 5 ms, as over a network or on a disk that turns: {slow}.",
        "One thread of Python runs at a time: 1 s of CPU in each second is all there is, but for what the system "
        "does meanwhile. It is bound by whichever of the two, CPU and sync, took more of the time.",
    ]
    return Figure(
        "write-many", "Waited for, by 64 producers", [row(one, "writes/s") for one in series], goals, notes
    )
