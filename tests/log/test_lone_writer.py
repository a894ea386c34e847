"""A writer without company appends and syncs in one call, and leaves all in order for those who come."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forelog import Stream
from forelog.commitlog import CommitLog
from forelog.errors import AppenderClosed, AppenderFailed
from forelog.log.appender import Appender
from forelog.testing import CrashDisk


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def payloads(stream: Stream) -> list[bytes]:
    with stream.cursor() as cursor:
        return [record.payload for record in cursor]


def commits() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "forelog-commit"}


@pytest.mark.parametrize("journal_bytes", [0, 1 << 20])
def test_it_needs_no_thread_and_no_round(tmp_path: Path, journal_bytes: int) -> None:
    before, stream = commits(), Stream(tmp_path / "log")
    with stream.appender(sync="always", journal_bytes=journal_bytes) as log:
        positions = [log.append(b"%d" % i) for i in range(50)]
        assert log.append_many([b"a", b"b"])[0].offset == log.position.offset - 42
        assert commits() <= before
        assert log.unsynced_bytes == 0
        found = stream.metrics.snapshot()
        assert (found["syncs"], found["journal_syncs"]) == (51, 51 if journal_bytes else 0)
        assert (found["timings"]["append"]["count"], found["timings"]["sync"]["count"]) == (51, 51)
        assert payloads(stream) == [*(b"%d" % i for i in range(50)), b"a", b"b"]
    with stream.cursor() as cursor:
        assert [record.position for record in cursor][:50] == positions


def test_a_commit_log_that_waits_has_it_too(tmp_path: Path) -> None:
    before = commits()
    with CommitLog(tmp_path / "log") as log:
        positions = [log.write(b"%d" % i) for i in range(50)]
        assert commits() <= before
        found = log.snapshot()
        assert (found["syncs"], found["timings"]["write"]["count"]) == (50, 50)
        assert found["sizes"]["batch_writes"] == {"count": 50, "total": 50, "max": 1}
    with Stream(tmp_path / "log").cursor() as cursor:
        assert [record.position for record in cursor] == positions


def test_no_reader_sees_its_record_before_the_sync() -> None:
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    seen: list[list[bytes]] = []
    with stream.appender(sync="always") as log:
        log.append(b"one")
        fault = disk.fail(lambda op: op.kind == "sync" and bool(seen.append(payloads(stream))), 0)
        log.append(b"two")
        fault.stop()
        assert seen == [[b"one"]]
        assert payloads(stream) == [b"one", b"two"]


def test_whoever_comes_while_it_syncs_is_served_next() -> None:
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender(sync="always") as log:
        threads: list[threading.Thread] = []

        def company(operation: Any) -> bool:
            if operation.kind == "sync" and len(threads) < 3:
                thread = threading.Thread(target=log.append, args=(b"company",))
                threads.append(thread)
                thread.start()
            return False

        disk.fail(company)
        for _ in range(5):
            log.append(b"alone")
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert sorted(payloads(stream)) == [b"alone"] * 5 + [b"company"] * 3


def test_tasks_and_the_main_thread_take_turns(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "log")

    async def main() -> None:
        async with stream.appender(sync="always") as log:
            for _ in range(20):
                log.append(b"thread")
                await asyncio.gather(*(log.append_async(b"task") for _ in range(3)))

    asyncio.run(main())
    assert sorted(payloads(stream)) == [b"task"] * 60 + [b"thread"] * 20


def test_a_failed_sync_is_final_also_when_an_interrupt_comes_before_it_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="always")
    log.append(b"one")
    fault = disk.fail(lambda op: op.kind == "sync", errno.EIO)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log._core, "fail", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(b"two")
    fault.stop()
    for _ in range(2):
        with pytest.raises(AppenderFailed, match="sync failed"):
            log.append(b"three")
    assert isinstance(log.failed, AppenderFailed)
    log.close()
    assert b"three" not in payloads(stream)


def test_an_interrupt_between_any_two_steps_of_it_loses_nothing_that_was_acknowledged() -> None:
    """On a disk in memory its steps are Python, and each can be interrupted."""
    for number in range(12):
        disk = CrashDisk()
        stream = Stream("log", files=disk)
        log = stream.appender(sync="always", journal_bytes=4096)
        log.append(b"one")
        calls = 0

        def interrupt(_: object, number: int = number) -> bool:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                raise KeyboardInterrupt
            return False

        fault = disk.fail(interrupt)
        for payload in (b"two", b"three"):
            try:
                log.append(payload)
            except KeyboardInterrupt:
                pass
        fault.stop()
        position = log.append(b"four")
        for state in disk.states(limit=30):
            after = Stream("log", files=state.disk)
            with after.appender(), after.cursor(start=position) as cursor:
                assert next(cursor).payload == b"four", number
        log.close()
        assert [one for one in payloads(stream) if one not in (b"two", b"three")] == [b"one", b"four"]


def test_a_closed_log_and_a_handler_in_the_middle_of_a_call_are_refused(tmp_path: Path) -> None:
    log = Stream(tmp_path / "log").appender(sync="always")
    for lock in (log._core, log._core.sync_lock):
        with lock, pytest.raises(RuntimeError, match="from inside of another append"):
            log.append(b"handler")
    log.append(b"fine")
    log.close()
    for append in (lambda: log.append(b"late"), lambda: log.append_many([b"late"])):
        with pytest.raises(AppenderClosed):
            append()


def test_a_clock_that_appends_is_refused_and_the_next_append_is_fine(tmp_path: Path) -> None:
    logs: list[Appender] = []
    ticks = iter(range(10**6))

    def clock() -> int:
        if logs and next(ticks) == 0:
            logs[0].append(b"inner")
        return 7

    with Stream(tmp_path / "log", clock=clock).appender(sync="always") as log:
        logs.append(log)
        with pytest.raises(RuntimeError, match="from inside of another append"):
            log.append(b"outer")
        log.append(b"next")
    assert payloads(Stream(tmp_path / "log")) == [b"next"]


def test_a_child_forked_while_another_thread_syncs_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    stop = threading.Event()
    with Stream(tmp_path / "log").appender(sync="always") as log:

        def work() -> None:
            while not stop.is_set():
                log.append(b"parent")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)  # ends the child if it hangs
                    try:
                        log.append(b"child")
                    except AppenderFailed:
                        os._exit(7)
                    os._exit(1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        finally:
            stop.set()
            thread.join()
    assert set(payloads(Stream(tmp_path / "log"))) <= {b"parent"}


STORM = """
import random, signal, sys, threading
from forelog import Stream
from forelog.commitlog import CommitLog

path, kind, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "commitlog":
    log = CommitLog(path)
    append = log.write
else:
    log = Stream(path).appender(sync="always", segment_bytes=100_000, journal_bytes=65536 * (kind == "journal"))
    append = log.append
rng = random.Random(1)
interrupts, armed, acknowledged, company = 0, False, {}, []

def interrupt(*_):
    global interrupts, armed
    signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.0004 + 0.00001)
    if armed:
        armed = False
        interrupts += 1
        raise KeyboardInterrupt

def work(name):
    for i in range(20):
        payload = b"%d-%d" % (name, i)
        acknowledged[payload] = append(payload)

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0001)
i = 0
while interrupts < wanted:
    i += 1
    try:
        if i % 400 == 0:
            company = [thread for thread in company if thread.is_alive()]
            thread = threading.Thread(target=work, args=(i,))
            thread.start()
            company.append(thread)
        payload = b"main-%d" % i
        armed = True
        position = append(payload)
        armed = False
        acknowledged[payload] = position
    except KeyboardInterrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
for thread in company:
    thread.join()
log.close()
with Stream(path).cursor() as cursor:
    found = [(record.payload, record.position) for record in cursor]
places = dict(found)
assert len(places) == len(found), "something is there twice"
assert [place for _, place in found] == sorted(place for _, place in found)
assert all(places.get(payload) == position for payload, position in acknowledged.items())
print("interrupts", interrupts, "records", len(acknowledged) > 100)
"""


@pytest.mark.parametrize("kind", ["stream", "journal", "commitlog"])
def test_a_storm_of_12000_interrupts_loses_nothing_and_hangs_nobody(tmp_path: Path, kind: str) -> None:
    run = [sys.executable, "-c", STORM, str(tmp_path / "log"), kind, "4000"]
    result = subprocess.run(run, capture_output=True, text=True, timeout=280)
    assert result.stdout == "interrupts 4000 records True\n", result.stderr[-3000:]
