"""Producers, the queue, strategies, rotation: what a user of a commit log sees."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from forelog import Position, Stream
from forelog.commitlog import CommitLog, read_entries
from forelog.errors import AppenderClosed, AppenderFailed, LogNotFound, QueueFull, RecordTooLarge, UnknownFormat
from forelog.formats import Captain
from forelog.formats.m3 import Datapoint, Series
from forelog.testing import CrashDisk


@pytest.fixture(autouse=True)
def no_hang():
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def payloads(path) -> list[bytes]:
    with Stream.open(path).cursor() as cursor:
        return [record.payload for record in cursor]


def run_threads(count: int, work) -> None:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class SlowSyncs(CrashDisk):
    """A disk whose syncs wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.let.set()
        self.syncing = threading.Event()

    def open_append(self, path):
        file = super().open_append(path)
        real = file.sync

        def sync() -> None:
            self.syncing.set()
            assert self.let.wait(30)
            real()

        file.sync = sync
        return file


# -- strategies


def test_wait_gives_positions_and_behind_gives_none(tmp_path):
    with CommitLog(tmp_path / "wait", strategy="wait") as log:
        assert log.write(b"one") == Position(1, 8)
        assert list(log.write_batch([b"two", b"three"])) == [Position(1, 31), Position(1, 54)]
        assert list(log.write_batch([])) == []
    with CommitLog(tmp_path / "behind", strategy="behind") as log:
        assert log.write(b"one") is None
        assert log.write_batch([b"two", b"three"]) is None
    assert payloads(tmp_path / "wait") == payloads(tmp_path / "behind") == [b"one", b"two", b"three"]


def test_a_write_that_waits_is_durable_when_it_returns():
    disk = CrashDisk()
    with CommitLog("log", files=disk) as log:
        for serial in range(5):
            position = log.write(b"%d" % serial)
            for state in disk.states(limit=20):
                stream = Stream("log", files=state.disk)
                with stream.cursor(start=position) as cursor:
                    assert next(cursor).payload == b"%d" % serial


def test_a_write_behind_doesnt_wait_for_the_disk_and_flush_does():
    disk = SlowSyncs()
    with CommitLog("log", files=disk, strategy="behind", flush_interval_ms=1) as log:
        disk.let.clear()
        for serial in range(100):
            log.write(b"%d" % serial)
        flushed = threading.Event()

        def flush() -> None:
            log.flush()
            flushed.set()

        thread = threading.Thread(target=flush)
        thread.start()
        assert disk.syncing.wait(10)
        assert not flushed.wait(0.05)
        disk.let.set()
        thread.join()
        assert len(payloads_of(disk)) == 100


def payloads_of(disk: CrashDisk) -> list[bytes]:
    with Stream("log", files=disk).cursor() as cursor:
        return [record.payload for record in cursor]


@pytest.mark.parametrize(
    ("options", "writes"),
    [
        ({"flush_interval_ms": 5, "flush_bytes": 1 << 40}, 1),
        ({"flush_interval_ms": 10**7, "flush_bytes": 2000}, 50),
    ],
    ids=["by interval", "by size"],
)
def test_what_was_written_behind_is_flushed(options, writes):
    disk = CrashDisk()
    with CommitLog("log", files=disk, strategy="behind", **options) as log:
        for _ in range(writes):
            log.write(b"x" * 100)
        deadline = time.monotonic() + 20
        while not any(b"x" in content for content in kept_for_sure(disk)) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert any(b"x" in content for content in kept_for_sure(disk))


def kept_for_sure(disk: CrashDisk) -> list[bytes]:
    """The log's first segment in the worst states that a power loss could leave."""
    return [min((s.disk.contents().get("log/000000001.log", b"") for s in disk.states(limit=30)), key=len)]


def test_many_who_wait_share_a_sync(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        run_threads(32, lambda name: [log.write(b"%d-%d" % (name, i)) for i in range(30)])
        snapshot = log.snapshot()
    assert snapshot["records_appended"] == 32 * 30
    assert snapshot["syncs"] < 32 * 30
    assert snapshot["sizes"]["batch_writes"]["max"] > 1
    assert snapshot["timings"]["write"]["count"] > 0


# -- the queue


def test_a_full_queue_is_waited_for_or_refused():
    disk = SlowSyncs()
    options: dict[str, Any] = {"queue_max_writes": 10, "strategy": "wait", "files": disk}
    with CommitLog("log", queue_timeout=0, **options) as log:
        disk.let.clear()
        leader = threading.Thread(target=log.write, args=(b"first",))
        leader.start()
        assert disk.syncing.wait(10)
        waiting = [threading.Thread(target=log.write, args=(b"%d" % n,)) for n in range(10)]
        for thread in waiting:
            thread.start()
        while log.queue_length() < 10:
            time.sleep(0.001)
        with pytest.raises(QueueFull, match="10 writes of 10"):
            log.write(b"one too many")
        disk.let.set()
        for thread in [leader, *waiting]:
            thread.join()
        log.write(b"after")
        assert log.queue_length() == 0
    assert sorted(payloads_of(disk)) == sorted([b"first", b"after", *(b"%d" % n for n in range(10))])


def test_the_queue_is_bounded_by_bytes_and_takes_a_larger_batch_when_it_is_empty(tmp_path):
    longest = []
    with CommitLog(tmp_path / "log", strategy="behind", queue_max_bytes=1000) as log:

        def work(name: int) -> None:
            for _ in range(50):
                log.write(b"x" * 400)
                longest.append(log.commit.queue.bytes)

        run_threads(8, work)
        log.write(b"y" * 5000)
    assert max(longest) <= 1000
    assert len(payloads(tmp_path / "log")) == 8 * 50 + 1


def test_what_can_never_be_written_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("forelog.commitlog.log.BATCH_BYTES_MAX", 1000)
    with CommitLog(tmp_path / "log") as log:
        with pytest.raises(RecordTooLarge, match="the limit is 1000"):
            log.write(b"x" * 1001)
        for wrong in ("text", 5, None):
            with pytest.raises(TypeError):
                log.write(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected several"):
            log.write_batch(b"one")
        log.write(b"fine")


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "later"},
        {"queue_max_writes": 0},
        {"queue_timeout": -1},
        {"flush_interval_ms": 0},
        {"segment_bytes": "64M"},
        {"on_failure": "panic"},
        {"on_failure": "callback"},
        {"failure_callback": print},
    ],
)
def test_wrong_options_are_told_by_name(tmp_path, options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        CommitLog(tmp_path / "log", **options)
    assert not (tmp_path / "log").exists()


def test_an_unknown_format_is_told(tmp_path):
    with pytest.raises(UnknownFormat, match="'captain', 'm3' or 'messages'"):
        CommitLog(tmp_path / "log", format="json")  # type: ignore[arg-type]
    with CommitLog(tmp_path / "log", format=Captain(magic=7, version=2)) as log:
        log.write(b"one")
    assert Stream.open(tmp_path / "log").format == Captain(7, 2)


def test_an_existing_log_is_opened_in_its_own_format(tmp_path):
    with CommitLog(tmp_path / "plain", format=Captain(magic=7, version=2)) as log:
        log.write(b"one")
    with CommitLog.open(tmp_path / "plain") as log:
        log.write(b"two")
    assert payloads(tmp_path / "plain") == [b"one", b"two"]
    cpu = Series(b"cpu")
    with CommitLog(tmp_path / "m3", format="m3") as log:
        log.write(cpu, Datapoint(1, 0.5))
    for place in (tmp_path / "m3", tmp_path / "m3/commitlogs"):
        with CommitLog.open(place) as log:
            log.write(cpu, Datapoint(2, 0.5))
    assert len(list(read_entries(Stream.open(tmp_path / "m3")))) == 3
    with pytest.raises(LogNotFound):
        CommitLog.open(tmp_path / "none")


# -- rotation


def test_rotation_has_its_place_among_the_writes(tmp_path):
    with CommitLog(tmp_path / "log", strategy="behind") as log:
        log.write(b"before")
        path = log.rotate_logs()
        assert path.endswith("000000002.log")
        assert os.path.exists(path)
        log.write(b"after")
        log.flush()
        assert log.active_logs() == [path]
    with Stream.open(tmp_path / "log").cursor() as cursor:
        assert [(r.position.segment, r.payload) for r in cursor] == [(1, b"before"), (2, b"after")]


def test_a_segment_without_writes_is_not_rotated(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        assert log.rotate_logs() == log.rotate_logs() == log.active_logs()[0]


def test_files_rotate_only_on_request_unless_a_size_is_given(tmp_path):
    for size, segments in ((None, 1), (1000, 10)):
        path = tmp_path / f"{size}"
        with CommitLog(path, segment_bytes=size) as log:
            for _ in range(10):
                log.write(b"x" * 1000)
        assert len(list(path.glob("*.log"))) == segments


def test_writes_go_on_while_the_old_segment_is_synced_and_the_next_is_opened():
    """With all syncs and all openings of files held up, a thousand writes still get to the operating system."""
    disk = SlowSyncs()
    log = CommitLog("log", files=disk, strategy="behind", flush_interval_ms=10**7)
    log.write(b"before")
    disk.let.clear()
    rotated = threading.Thread(target=log.rotate_logs)
    rotated.start()
    while len(log.active_logs()) < 2:
        time.sleep(0.001)
    for serial in range(1000):
        log.write(b"%d" % serial)
    deadline = time.monotonic() + 20
    while b"999" not in disk.contents()["log/append.spare"] and time.monotonic() < deadline:
        time.sleep(0.001)
    contents = disk.contents()
    assert b"999" in contents["log/append.spare"]
    assert "log/000000002.log" not in contents, "a segment has its name before the one before it is synced"
    assert rotated.is_alive()
    disk.let.set()
    rotated.join()
    log.close()
    assert payloads_of(disk) == [b"before", *(b"%d" % n for n in range(1000))]


def test_a_second_rotation_waits_for_the_first_ones_background_work():
    disk = SlowSyncs()
    log = CommitLog("log", files=disk, strategy="behind", flush_interval_ms=10**7)
    log.write(b"1")
    disk.let.clear()
    paths = []
    threads = []
    for serial in (2, 3):
        threads.append(threading.Thread(target=lambda: paths.append(log.rotate_logs())))
        threads[-1].start()
        time.sleep(0.02)
        log.write(b"%d" % serial)
    time.sleep(0.05)
    assert paths == []
    assert "log/000000003.log" not in disk.contents()
    disk.let.set()
    for thread in threads:
        thread.join()
    log.close()
    assert sorted(paths) == ["log/000000002.log", "log/000000003.log"]
    assert payloads_of(disk) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("strategy", ["behind", "wait"])
def test_order_with_many_producers_and_rotations(tmp_path, strategy):
    """Each producer's writes in order, none lost, none doubled, each in exactly one file.

    And what `active_logs` leaves out doesn't grow any more.
    """
    producers, writes = (32, 31_250) if strategy == "behind" else (32, 500)
    done = threading.Event()
    rotations = 0
    wrong: list[str] = []
    closed: dict[str, int] = {}

    with CommitLog(tmp_path / "log", strategy=strategy) as log:

        def work(name: int) -> None:
            for serial in range(writes):
                log.write(b"%d %d" % (name, serial))

        def rotate() -> None:
            nonlocal rotations
            rng = random.Random(1)
            while not done.wait(rng.random() * 0.03):
                path = log.rotate_logs()
                rotations += 1
                files = list(map(str, (tmp_path / "log").glob("*.log")))
                active = log.active_logs()
                for file in files:
                    if file not in active:
                        closed.setdefault(file, os.path.getsize(file))
                if path not in active or not all(map(os.path.exists, active)):
                    wrong.append(f"{active} after a rotation to {path}")

        rotating = threading.Thread(target=rotate)
        rotating.start()
        run_threads(producers, work)
        done.set()
        rotating.join()
        assert log.snapshot()["rotations"] == rotations
    assert not wrong
    assert rotations > 5
    assert len(closed) > 5
    assert {file: os.path.getsize(file) for file in closed} == closed
    seen: dict[int, int] = defaultdict(int)
    segments = set()
    for batch in Stream.open(tmp_path / "log").scan(["segment", "payload"]):
        segments |= set(batch["segment"].unique().to_pylist())
        for payload in batch["payload"].to_pylist():
            name, serial = map(int, payload.split())
            assert serial == seen[name], f"producer {name}: {serial} instead of {seen[name]}"
            seen[name] += 1
    assert seen == dict.fromkeys(range(producers), writes)
    assert len(segments) > 5


# -- tasks


def test_tasks_and_threads_use_one_log(tmp_path):
    async def main() -> None:
        async with CommitLog(tmp_path / "log") as log:
            thread = threading.Thread(target=lambda: [log.log.write(b"t%d" % i) for i in range(50)])
            thread.start()
            positions = await asyncio.gather(*(log.write(b"%d" % i) for i in range(200)))
            assert len(set(positions)) == 200
            assert len(await log.write_batch([b"a", b"b"])) == 2
            path = await log.rotate_logs()
            assert log.active_logs() == [path]
            await asyncio.to_thread(thread.join)
            await log.flush()
            assert log.queue_length() == 0

    asyncio.run(main())
    assert len(payloads(tmp_path / "log")) == 252


def test_a_full_queue_doesnt_hold_up_the_event_loop():
    disk = SlowSyncs()

    async def main() -> int:
        ticks = 0
        async with CommitLog("log", files=disk, strategy="wait", queue_max_writes=4) as log:
            disk.let.clear()
            writes = [asyncio.create_task(log.write(b"%d" % i)) for i in range(30)]
            for _ in range(20):
                await asyncio.sleep(0.001)
                ticks += 1
            disk.let.set()
            await asyncio.gather(*writes)
        return ticks

    assert asyncio.run(main()) == 20
    assert len(payloads_of(disk)) == 30


# -- the end


def test_close_writes_what_is_queued_and_refuses_what_comes_later(tmp_path):
    log = CommitLog(tmp_path / "log", strategy="behind")
    for serial in range(2000):
        log.write(b"%d" % serial)
    log.close()
    log.close()
    with pytest.raises(AppenderClosed, match="is closed"):
        log.write(b"late")
    with pytest.raises(AppenderClosed):
        log.rotate_logs()
    assert payloads(tmp_path / "log") == [b"%d" % n for n in range(2000)]


def test_close_while_the_queue_is_full_and_producers_wait():
    disk = SlowSyncs()
    log = CommitLog("log", files=disk, strategy="wait", queue_max_writes=3)
    disk.let.clear()
    written, refused = [], []

    def work(name: int) -> None:
        try:
            written.append(log.write(b"%d" % name))
        except AppenderClosed:
            refused.append(name)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    while log.queue_length() < 3:
        time.sleep(0.001)
    closing = [threading.Thread(target=log.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    time.sleep(0.02)
    disk.let.set()
    for thread in [*threads, *closing]:
        thread.join()
    assert len(written) + len(refused) == 12
    assert refused
    assert len(payloads_of(disk)) == len(written)


def test_close_during_a_rotation():
    disk = SlowSyncs()
    log = CommitLog("log", files=disk, strategy="behind", flush_interval_ms=10**7)
    log.write(b"before")
    disk.let.clear()
    rotating = threading.Thread(target=log.rotate_logs)
    rotating.start()
    while len(log.active_logs()) < 2:
        time.sleep(0.001)
    log.write(b"after")
    closing = threading.Thread(target=log.close)
    closing.start()
    time.sleep(0.02)
    disk.let.set()
    rotating.join()
    closing.join()
    assert payloads_of(disk) == [b"before", b"after"]
    assert "log/append.spare" not in disk.contents()


def test_a_program_that_ends_without_closing_loses_nothing(tmp_path):
    code = (
        "import sys; from forelog.commitlog import CommitLog\n"
        "log = CommitLog(sys.argv[1], strategy='behind')\n"
        "for i in range(5000): log.write(b'%d' % i)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], check=True, timeout=60)
    assert payloads(tmp_path / "log") == [b"%d" % n for n in range(5000)]


def test_a_forked_child_is_refused_and_harms_nothing(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        log.write(b"parent")
        child = os.fork()
        if child == 0:
            try:
                log.write(b"child")
            except AppenderFailed:
                log.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        log.write(b"parent again")
        log.rotate_logs()
    assert payloads(tmp_path / "log") == [b"parent", b"parent again"]


def test_metrics_tell_of_queue_batches_and_rotations_also_to_prometheus():
    from prometheus_client import CollectorRegistry, generate_latest

    from forelog import prometheus_collector

    disk = SlowSyncs()
    with CommitLog("log", files=disk) as log:
        log.write_batch([b"x"] * 20)
        log.rotate_logs()
        disk.let.clear()
        disk.syncing.clear()
        threads = [threading.Thread(target=log.write, args=(b"y",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert disk.syncing.wait(10)
        while log.queue_length() < 3:
            time.sleep(0.001)
        registry = CollectorRegistry()
        registry.register(prometheus_collector(log.metrics, log="test"))
        text = generate_latest(registry).decode()
        disk.let.set()
        for thread in threads:
            thread.join()
    assert 'forelog_queue_length{log="test"} 3.0' in text
    assert 'forelog_rotations_total{log="test"} 1.0' in text
    assert 'forelog_batch_writes_bucket{le="16",log="test"} 0.0' in text
    assert 'forelog_batch_writes_bucket{le="64",log="test"} 1.0' in text
    assert 'forelog_sync_seconds_count{log="test"}' in text
