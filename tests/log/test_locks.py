"""Who may do what at the same time, in one process and in several."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from forelog import LockTimeout, Stream, files
from forelog.files import locks

HOLD = (
    "import sys; from forelog import Stream\n"
    "stream = Stream(sys.argv[1])\n"
    "held = getattr(stream, sys.argv[2])()\n"
    "print('held', flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture
def stream(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender() as log:
        log.append(b"x")
    return stream


@pytest.fixture
def hold(stream):
    """Have another process hold an appender, a cursor or a cleaner, until the test ends."""
    processes = []

    def start(what: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, stream.path, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in processes:
        process.communicate()


@pytest.mark.parametrize("held", ["appender", "cursor", "cleaner"])
@pytest.mark.parametrize("wanted", ["appender", "cursor", "cleaner"])
def test_only_appenders_exclude_appenders_and_only_cleaners_exclude_cursors(stream, hold, held, wanted):
    process = hold(held)
    excluded = {("appender", "appender"), ("cursor", "cleaner"), ("cleaner", "cursor"), ("cleaner", "cleaner")}
    if (held, wanted) not in excluded:
        getattr(stream, wanted)(blocking=False).close()
        return
    start = time.monotonic()
    with pytest.raises(LockTimeout, match="is locked by another"):
        getattr(stream, wanted)(timeout=0.05)
    assert time.monotonic() - start >= 0.05
    process.communicate()  # ends it
    getattr(stream, wanted)(blocking=False).close()


def test_waiting_ends_when_the_holder_is_killed(stream, hold):
    process = hold("appender")
    got = threading.Event()

    def wait() -> None:
        stream.appender().close()
        got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.is_set()
    process.kill()
    thread.join(10)
    assert got.is_set()


def test_who_waits_long_for_a_lock_is_told(stream, monkeypatch, caplog):
    monkeypatch.setattr("forelog.files.locks._SILENT_SECONDS", 0.01)
    held = stream.appender()
    thread = threading.Thread(target=lambda: stream.appender().close())
    thread.start()
    while "waiting for" not in caplog.text:
        assert thread.is_alive()
    held.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_forgotten_appender_lets_go_of_its_lock(stream):
    log = stream.appender()
    log.append(b"y")
    del log
    gc.collect()
    with stream.appender(blocking=False) as again:
        assert again.recovery.records == 2


def test_locks_exclude_within_a_process_too(stream):
    with stream.appender(), pytest.raises(LockTimeout):
        stream.appender(blocking=False)
    with stream.cursor(), pytest.raises(LockTimeout):
        stream.cleaner(blocking=False)
    with stream.cleaner(), pytest.raises(LockTimeout):
        stream.cursor(blocking=False)


def test_a_follower_lets_cleaners_work_while_it_waits(stream):
    with stream.cursor(follow=True) as cursor:
        assert next(cursor).payload == b"x"
        with stream.cleaner(timeout=5) as cleaner:
            cleaner.clean(lambda *_: True)


def test_a_cursor_can_let_go_of_its_lock_and_go_on(stream):
    with stream.appender() as log:
        log.append(b"y")
    with stream.cursor() as cursor:
        assert next(cursor).payload == b"x"
        cursor.unlock()
        stream.cleaner(blocking=False).close()
        assert next(cursor).payload == b"y"


def test_lock_files_are_empty_and_stay(stream, tmp_path):
    stream.cursor().close()
    for name in ("append.lock", "read.lock"):
        file = tmp_path / "log" / name
        assert file.read_bytes() == b""
        assert file.stat().st_mode & 0o777 == 0o600


def test_an_appender_whose_lock_file_was_removed_still_keeps_others_out(stream, tmp_path, monkeypatch):
    monkeypatch.setattr("forelog.log.directory.watermark._DYING_SECONDS", 0.01)
    with stream.appender() as log:
        (tmp_path / "log" / "append.lock").unlink()
        with pytest.raises(LockTimeout, match=r"append\.lock was removed"):
            stream.appender(blocking=False)
        log.append(b"y")
    with stream.appender(blocking=False) as log:
        assert log.recovery.records == 2


def test_who_waited_for_a_lock_file_that_was_removed_takes_the_new_one(tmp_path, monkeypatch):
    path, flock = tmp_path / "some.lock", locks._poll_flock
    waits: list[tuple[Any, ...]] = []

    def removed_while_waiting(*arguments: Any) -> None:
        if not waits:
            path.unlink()
        waits.append(arguments)
        flock(*arguments)

    monkeypatch.setattr(locks, "_poll_flock", removed_while_waiting)
    held = files.OSFiles().lock(str(path), exclusive=True, timeout=30)
    with pytest.raises(LockTimeout):
        files.OSFiles().lock(str(path), exclusive=True, timeout=0)
    assert len(waits) == 3
    held.release()


def test_two_processes_that_fight_for_the_lock_lose_nothing(tmp_path):
    script = (
        "import sys; from forelog import Stream\n"
        "for i in range(25):\n"
        "    with Stream(sys.argv[1]).appender(sync='os', segment_bytes=500) as log:\n"
        "        log.append_many([b'%s-%d-%d' % (sys.argv[2].encode(), i, j) for j in range(4)])\n"
    )
    path = str(tmp_path / "log")
    processes = [subprocess.Popen([sys.executable, "-c", script, path, name]) for name in "abc"]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with Stream(path).cursor() as cursor:
        payloads = [record.payload.decode() for record in cursor]
    for name in "abc":
        assert [p for p in payloads if p[0] == name] == [f"{name}-{i}-{j}" for i in range(25) for j in range(4)]
    assert len(payloads) == 300
