"""What the commit log is compared with does what it says: all writes are kept, and safe when that is told."""

import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from benchmarks.measure import Settings
from benchmarks.producing import SLOW_SYNC_SECONDS, Account, SlowFiles
from benchmarks.rotating import Swaps, cold_roll_ms, latencies, p999_ms
from benchmarks.stores import Lmdb, QueueAndFile, Sqlite, Usage, write_from_threads
from benchmarks.suite import BENCHMARKS

THREADS, EACH = 4, 25


def snapshot(sync_seconds: float, syncs: int = 10, records: int = 640) -> dict[str, object]:
    return {"timings": {"sync": {"seconds": sync_seconds, "count": syncs}}, "records_appended": records}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL", "FULL"])
def test_sqlite_has_all_writes(tmp_path: Path, synchronous: str, shared: bool) -> None:
    with Sqlite(tmp_path, synchronous, shared=shared) as store:
        usage = write_from_threads(store, b"chips", THREADS, EACH)
    assert usage.seconds > 0
    connection = sqlite3.connect(tmp_path / "log.sqlite")
    assert connection.execute("SELECT payload, count(*) FROM log").fetchall() == [(b"chips", THREADS * EACH)]
    connection.close()


@pytest.mark.parametrize("sync", [True, False])
def test_lmdb_has_all_writes(tmp_path: Path, sync: bool) -> None:
    lmdb = pytest.importorskip("lmdb")
    with Lmdb(tmp_path, sync=sync) as store:
        write_from_threads(store, b"chips", THREADS, EACH)
    with lmdb.open(str(tmp_path)) as environment:
        assert environment.stat()["entries"] == THREADS * EACH


@pytest.mark.parametrize("waits", [True, False])
def test_a_queue_and_a_file_have_all_writes(tmp_path: Path, waits: bool) -> None:
    with QueueAndFile(tmp_path, waits=waits) as store:
        write_from_threads(store, b"chips", THREADS, EACH)
        assert (tmp_path / "lines").read_bytes() == b"chips\n" * (THREADS * EACH)


def test_a_queue_and_a_file_tell_a_producer_only_after_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, allowed, told = threading.Event(), threading.Event(), threading.Event()

    def fdatasync(_: int) -> None:
        syncing.set()
        allowed.wait()

    def write() -> None:
        store.write(b"chips")
        told.set()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with QueueAndFile(tmp_path, waits=True) as store:
        writer = threading.Thread(target=write)
        writer.start()
        assert syncing.wait(10)
        assert not told.is_set()
        allowed.set()
        writer.join()
        assert told.is_set()


@pytest.mark.parametrize(
    ("cpu_seconds", "sync_seconds", "what"),
    [
        (2.0, 0.5, "bound by CPU"),
        (0.4, 1.8, "bound by the disk"),
        (0.6, 0.5, "bound by switches between threads"),
    ],
)
def test_an_account_says_what_there_was_too_little_of(cpu_seconds: float, sync_seconds: float, what: str) -> None:
    account = Account()
    assert account.add(Usage(2.0, cpu_seconds), snapshot(sync_seconds)) == 2.0
    assert account.bound_by == what
    assert str(account).startswith(what)
    assert str(account).endswith("64 writes to a sync")


def test_a_slow_disk_takes_its_time_to_sync(tmp_path: Path) -> None:
    file = SlowFiles().open_append(str(tmp_path / "file"))
    file.write(b"chips")
    start = time.perf_counter()
    file.sync()
    assert time.perf_counter() - start >= SLOW_SYNC_SECONDS
    file.close()


def test_one_in_a_thousand_took_longer() -> None:
    assert p999_ms([0.001] * 999 + [0.5]) == 500
    assert p999_ms([0.001] * 1001 + [0.5]) == 1


def test_latencies_are_of_all_writes_and_rotations_are_noted(tmp_path: Path) -> None:
    assert len(latencies(tmp_path / "still", 50, 0)) == 4 * 50
    swaps = Swaps()
    assert len(latencies(tmp_path / "rotating", 400, 0.00025, swaps)) == 4 * 400
    assert swaps.count >= 1
    assert swaps.longest_ms[0] > 0
    assert cold_roll_ms(tmp_path / "cold", 3) > 0


def test_no_writer_opens_a_file_when_logs_are_rotated(tmp_path: Path) -> None:
    figure = BENCHMARKS["rotation"](Settings(tmp_path, rounds=1, scale=0.05))
    (goal,) = [goal for goal in figure.goals if goal.unit == "files"]
    assert goal.reached
