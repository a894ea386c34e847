"""Power loss and kill -9 under both strategies."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from typing import Literal

import pytest

from forelog import Position, Stream
from forelog.commitlog import CommitLog
from forelog.commitlog.entries import read_entries
from forelog.formats import Captain, Format
from forelog.formats.m3 import M3, Datapoint, Series, Unit
from forelog.testing import CrashDisk

PRODUCERS = 3
FORMATS: dict[str, Format] = {"captain": Captain(), "m3": M3(), "m3 in small chunks": M3(chunk_bytes=64)}


def key_of(payload: bytes) -> tuple[int, int]:
    """A payload's producer and serial number."""
    name, serial, *_ = payload.split()
    return int(name), int(serial)


class Run:
    """What producers wrote on a crash disk, and at which moment each write was sure to survive."""

    def __init__(self, seed: int, strategy: Literal["wait", "behind"], fmt: Format) -> None:
        self.disk = CrashDisk(sector_bytes=(64, 512)[seed % 2])
        self.format = fmt
        self.begun: dict[tuple[int, int], int] = {}
        self.durable: dict[tuple[int, int], int] = {}
        log = CommitLog("log", files=self.disk, strategy=strategy, format=fmt, flush_interval_ms=5)
        self.path = log.path
        threads = [threading.Thread(target=self._produce, args=(log, seed, n)) for n in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.close()
        self._survive(list(self.begun))

    def _produce(self, log: CommitLog, seed: int, name: int) -> None:
        rng = random.Random(seed * 100 + name)
        for serial in range(8):
            self.begun[name, serial] = len(self.disk.events)
            if log.write(*self._item(name, serial, rng.choice([0, 10, 300]))) is not None:
                self._survive([(name, serial)])
            dice = rng.random()
            if dice < 0.2:
                mine = [key for key in self.begun if key[0] == name]
                log.rotate_logs() if dice < 0.1 else log.flush()
                self._survive(mine)

    def _item(self, name: int, serial: int, size: int) -> tuple:
        if isinstance(self.format, Captain):
            return (b"%d %d %s" % (name, serial, b"x" * size),)
        return Series(b"%d" % name), Datapoint(serial, float(size)), Unit.SECOND, b"x" * size

    def _survive(self, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            self.durable.setdefault(key, len(self.disk.events))

    def found(self, disk: CrashDisk) -> list[tuple[int, int]]:
        if isinstance(self.format, Captain):
            with Stream(self.path, files=disk).cursor() as cursor:
                return [key_of(record.payload) for record in cursor]
        entries = read_entries(Stream(self.path, format=self.format, files=disk))
        return [(int(entry.series.id), entry.datapoint.timestamp_ns) for _, entry in entries]

    def check(self, disk: CrashDisk, moment: int) -> None:
        with CommitLog("log", files=disk, format=self.format) as log:
            log.write(*self._item(9, 9, 9))
        found = self.found(disk)
        assert found.pop() == (9, 9)
        assert len(set(found)) == len(found), "a write came twice"
        assert all(self.begun[key] < moment for key in found)
        lost = [key for key, durable in self.durable.items() if durable <= moment and key not in found]
        assert not lost, f"{lost} had been acknowledged as durable before event {moment}"
        whole = self.found(self.disk)
        assert found == whole[: len(found)], "what was lost is not a suffix of what was written"


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("strategy", ["wait", "behind"])
@pytest.mark.parametrize("seed", range(6))
def test_a_power_loss_takes_at_most_a_suffix_and_nothing_acknowledged(seed, strategy, fmt, crash_count):
    run = Run(seed, strategy, FORMATS[fmt])
    rng = random.Random(seed)
    for moment in sorted(rng.sample(range(len(run.disk.events) + 1), 25)):
        for state in run.disk.states(moment, limit=12, seed=seed):
            run.check(state.disk, moment)
            crash_count(state)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("strategy", ["wait", "behind"])
def test_a_kill_takes_only_what_was_still_queued(strategy, fmt):
    run = Run(7, strategy, FORMATS[fmt])
    for moment in range(0, len(run.disk.events) + 1, 2):
        run.check(run.disk.killed(moment), moment)


WRITER = """
import random, sys, threading
from forelog.commitlog import CommitLog

path, strategy, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = CommitLog(path, strategy=strategy, flush_interval_ms=5)
out = threading.Lock()

def tell(text):
    with out:
        print(text, flush=True)

def produce(name):
    rng = random.Random(name + first)
    for serial in range(first, first + 100_000):
        position = log.write(b"%d %d" % (name, serial))
        if position is not None:
            tell(f"{position} {name} {serial}")
        elif serial % 50 == 0:
            log.flush()
            tell(f"flushed {name} {serial}")
        if rng.random() < 0.01:
            log.rotate_logs()

tell("open")
for n in range(4):
    threading.Thread(target=produce, args=(n,)).start()
"""


@pytest.mark.parametrize("strategy", ["wait", "behind"])
def test_kill_9_loses_nothing_acknowledged(tmp_path, strategy, request):
    rounds = max(request.config.getoption("--kill-rounds") // 10, 1)
    path = str(tmp_path / "log")
    rng = random.Random(strategy)
    acknowledged: dict[tuple[int, int], Position] = {}
    flushed: list[tuple[int, int, int]] = []
    for round_number in range(rounds):
        first = round_number * 1_000_000
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path, strategy, str(first)], stdout=subprocess.PIPE, text=True
        )
        lines = [process.stdout.readline() for _ in range(rng.randrange(2, 60))]
        process.kill()
        lines += process.stdout.read().splitlines(keepends=True)
        process.wait()
        process.stdout.close()
        for line in lines:
            match line.split() if line.endswith("\n") else []:
                case ["flushed", name, serial]:
                    flushed.append((int(name), first, int(serial)))
                case [position, name, serial]:
                    acknowledged[int(name), int(serial)] = Position.parse(position)
    with Stream(path).cursor() as cursor:
        records = [(key_of(record.payload), record.position) for record in cursor]
    found = dict(records)
    assert len(found) == len(records)
    assert {key: found.get(key) for key in acknowledged} == acknowledged
    missing = [
        (name, n) for name, first, serial in flushed for n in range(first, serial + 1) if (name, n) not in found
    ]
    assert not missing
    assert len(acknowledged) + len(flushed) > rounds * 2
    check_no_gaps([key for key, _ in records])


def check_no_gaps(keys: list[tuple[int, int]]) -> None:
    """What each producer wrote is there from the first on, for each time that it ran."""
    expected: dict[tuple[int, int], int] = {}
    for name, serial in keys:
        run = serial // 1_000_000
        assert serial == expected.get((name, run), run * 1_000_000)
        expected[name, run] = serial + 1
