"""A disk that fails, and a writer that dies: nobody hangs, nobody is told something untrue."""

from __future__ import annotations

import errno
import faulthandler
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from forelog import Stream
from forelog.commitlog import CommitLog, read_entries
from forelog.commitlog.writes import Control
from forelog.errors import AppenderFailed, ForelogError, WriteFailed
from forelog.files import Files
from forelog.formats import Format
from forelog.formats.m3 import M3, Datapoint, Series
from forelog.log.commit import Request
from forelog.testing import CrashDisk


@pytest.fixture(autouse=True)
def no_hang():
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def payloads_of(files: Files) -> list[bytes]:
    with Stream("log", files=files).cursor() as cursor:
        return [record.payload for record in cursor]


def is_segment(operation) -> bool:
    return operation.path.endswith((".log", ".spare"))


def syncs(operation) -> bool:
    return operation.kind == "sync" and is_segment(operation)


def writes(operation) -> bool:
    return operation.kind == "write" and is_segment(operation)


def close_quietly(log: CommitLog) -> None:
    try:
        log.close()
    except ForelogError:
        pass


# -- policies


def test_stop_tells_everyone_from_then_on():
    disk = CrashDisk()
    log = CommitLog("log", files=disk)
    log.write(b"one")
    disk.fail(writes, errno.ENOSPC)
    with pytest.raises(WriteFailed) as caught:
        log.write(b"two")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(AppenderFailed, match="No space left"):
        log.write(b"three")
    with pytest.raises(AppenderFailed):
        log.rotate_logs()
    with pytest.raises(AppenderFailed):
        log.flush()
    assert log.failed is caught.value
    log.close()
    assert payloads_of(disk) == [b"one"]


def test_after_a_failed_sync_nothing_is_acknowledged_until_the_log_is_reopened():
    disk = CrashDisk()
    log = CommitLog("log", files=disk)
    log.write(b"one")
    fault = disk.fail(syncs)
    with pytest.raises(AppenderFailed, match="sync failed"):
        log.write(b"two")
    fault.stop()
    with pytest.raises(AppenderFailed):
        log.write(b"three")
    log.close()
    with CommitLog("log", files=disk) as log:
        log.write(b"four")
    assert payloads_of(disk)[0] == b"one"
    assert payloads_of(disk)[-1] == b"four"


def test_behind_tells_of_a_failed_flush_at_the_next_write_and_at_close():
    disk = CrashDisk()
    log = CommitLog("log", files=disk, strategy="behind", flush_interval_ms=1)
    disk.fail(syncs)
    log.write(b"one")
    deadline = time.monotonic() + 20
    while log.failed is None and time.monotonic() < deadline:
        time.sleep(0.001)
    with pytest.raises(AppenderFailed, match="sync failed"):
        log.write(b"two")
    with pytest.raises(AppenderFailed, match="sync failed"):
        log.close()
    log.close()


def test_ignore_goes_on_and_counts_what_was_lost():
    disk = CrashDisk()
    with CommitLog("log", files=disk, strategy="behind", on_failure="ignore", flush_interval_ms=10**7) as log:
        log.write(b"one")
        log.flush()
        fault = disk.fail(writes, errno.ENOSPC)
        log.write_batch([b"lost", b"lost too"])
        wait_until(lambda: log.snapshot()["writes_lost"] == 2)
        fault.stop()
        log.write(b"two")
    assert payloads_of(disk) == [b"one", b"two"]


def test_ignore_reopens_the_log_after_a_failed_sync():
    disk = CrashDisk()
    with CommitLog("log", files=disk, on_failure="ignore") as log:
        log.write(b"one")
        fault = disk.fail(syncs)
        with pytest.raises(AppenderFailed):
            log.write(b"not acknowledged")
        with pytest.raises(AppenderFailed):  # while it can't be reopened
            log.write(b"not acknowledged either")
        fault.stop()
        with pytest.raises(AppenderFailed):  # this one finds the appender failed, and has it reopened
            log.write(b"nor this")
        position = log.write(b"two")
        for state in disk.states(limit=50):
            with Stream("log", files=state.disk).cursor(start=position) as cursor:
                assert next(cursor).payload == b"two"


@pytest.mark.parametrize("answer", [True, False, ValueError("callback")])
def test_callback_decides(answer):
    disk = CrashDisk()
    errors = []

    def callback(error: Exception) -> bool:
        errors.append(error)
        if isinstance(answer, Exception):
            raise answer
        return answer

    log = CommitLog("log", files=disk, on_failure="callback", failure_callback=callback)
    fault = disk.fail(writes, errno.EIO)
    with pytest.raises(WriteFailed):
        log.write(b"one")
    fault.stop()
    if answer is True:
        log.write(b"two")
    else:
        with pytest.raises(AppenderFailed):
            log.write(b"two")
    log.close()
    assert [type(error) for error in errors] == [WriteFailed]
    assert payloads_of(disk) == ([b"two"] if answer is True else [])


@pytest.mark.parametrize("strategy", ["wait", "behind"])
def test_a_callback_may_close_the_log(strategy):
    disk = CrashDisk()
    log: CommitLog

    def callback(_: Exception) -> None:
        log.close()

    log = CommitLog("log", files=disk, strategy=strategy, on_failure="callback", failure_callback=callback)
    disk.fail(writes, errno.EIO)
    if strategy == "wait":
        with pytest.raises(WriteFailed):
            log.write(b"one")
    else:
        log.write(b"one")
        wait_until(lambda: log._closed)
    with pytest.raises(ForelogError):
        log.write(b"two")
    close_quietly(log)


def test_die_ends_the_process_with_a_line_and_a_status(tmp_path):
    code = (
        "import resource, sys; from forelog.commitlog import CommitLog\n"
        "log = CommitLog(sys.argv[1], on_failure='die')\n"
        "print(log.write(b'one'), flush=True)\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "log.write(b'x' * 1000); print('still here')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 74
    assert result.stdout == "000000001:8\n"
    assert "File too large" in result.stderr
    assert "on_failure='die'" in result.stderr


# -- nobody hangs


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("strategy", ["wait", "behind"])
@pytest.mark.parametrize("death", [SystemExit, MemoryError, KeyError])
def test_a_writer_that_dies_leaves_no_producer_hanging(strategy, death):
    disk = CrashDisk()
    log = CommitLog("log", files=disk, strategy=strategy, queue_max_writes=8)
    real = log._appender.append_many
    rounds = 0

    def dying(items):
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            raise death("injected")
        return real(items)

    log._appender.append_many = dying
    ended = []

    def work(name: int) -> None:
        for serial in range(100):
            try:
                log.write_batch([b"%d %d" % (name, serial)])
            except (ForelogError, RuntimeError, death, TypeError):
                pass
        ended.append(name)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ended) == 16
    close_quietly(log)
    assert rounds >= 5


@pytest.mark.parametrize("kind", ["sync", "rename", "sync_dir"])
def test_a_rotation_that_fails_in_the_background_is_told_to_everyone(kind):
    disk = CrashDisk()
    log = CommitLog("log", files=disk, strategy="behind", flush_interval_ms=10**7)
    log.write(b"one")
    log.flush()
    log.write(b"two")
    disk.fail(lambda operation: operation.kind == kind)
    with pytest.raises(AppenderFailed, match="sealing failed"):
        log.rotate_logs()
    wait_until(lambda: _refused(log))
    close_quietly(log)
    with CommitLog("log", files=disk.killed()) as log:
        log.write(b"three")
        files = log.stream.directory.files
    found = payloads_of(files)
    assert found[0] == b"one"
    assert found[-1] == b"three"


def _refused(log: CommitLog) -> bool:
    try:
        log.write(b"later")
    except AppenderFailed:
        return True
    return False


def test_without_a_spare_rotation_takes_longer_and_works():
    disk = CrashDisk()
    with CommitLog("log", files=disk) as log:
        fault = disk.fail(lambda op: op.kind == "open_append" and op.path.endswith("append.spare"), errno.EMFILE)
        log.write(b"one")
        log.rotate_logs()  # uses the spare that is there, and can't make another
        log.write(b"two")
        assert log.rotate_logs().endswith("000000003.log")
        log.write(b"three")
        assert fault.hits
        fault.stop()
    assert payloads_of(disk) == [b"one", b"two", b"three"]


def test_a_signal_handler_that_writes_hangs_nobody(tmp_path):
    code = (
        "import signal, sys; from forelog.commitlog import CommitLog\n"
        "log = CommitLog(sys.argv[1]); refused = written = 0\n"
        "def handler(*_):\n"
        "    global refused, written\n"
        "    try: log.write(b'handler'); written += 1\n"
        "    except RuntimeError: refused += 1\n"
        "    signal.setitimer(signal.ITIMER_REAL, delay)\n"  # not before: a slow machine would do nothing else
        "delay = 0.0017\n"
        "signal.signal(signal.SIGALRM, handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, delay)\n"
        "for i in range(1000): log.write(b'%d' % i)\n"
        "delay = 0\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "log.close(); print(written)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], capture_output=True, text=True, timeout=50
    )
    with Stream(tmp_path / "log").cursor() as cursor:
        payloads = [record.payload for record in cursor]
    assert payloads.count(b"handler") == int(result.stdout) > 0, result.stderr
    assert [payload for payload in payloads if payload != b"handler"] == [b"%d" % n for n in range(1000)]


@pytest.mark.parametrize("policy", ["stop", "ignore"])
@pytest.mark.parametrize("moment", ["while closing", "before closing"])
def test_close_tells_of_a_sync_that_failed(policy, moment):
    disk = CrashDisk()
    interval = 10**7 if moment == "while closing" else 1
    log = CommitLog("log", files=disk, strategy="behind", on_failure=policy, flush_interval_ms=interval)
    log.write(b"one")
    wait_until(lambda: log._appender.position.offset > 8)
    disk.fail(syncs)
    if moment == "before closing":
        log.write(b"two")
        wait_until(lambda: log._appender.failed is not None)
    with pytest.raises(ForelogError, match="failed"):
        log.close()
    assert log.failed is not None
    assert log.snapshot()["writes_lost"] >= 1


def test_what_was_written_before_a_failure_in_the_same_round_is_not_acknowledged():
    """Two rotations and a failed sealing between writes that wait: nobody's sync may be another segment's."""
    disk = CrashDisk()
    log = CommitLog("log", files=disk, on_failure="ignore")
    log.write(b"zero")
    entries: list[Request[Any]] = [log.write_of(b"1"), log._control(Control.ROTATE)]
    entries += [log.write_of(b"2"), log._control(Control.ROTATE), log.write_of(b"3")]
    fault = disk.fail(lambda operation: syncs(operation) and operation.path.endswith("000000001.log"))
    log._write_round(entries)
    assert all(entry.error is not None for entry in entries if entry.items)
    fault.stop()
    log._write_round([log.write_of(b"reopens it")])
    log.write(b"four")
    log.close()
    assert payloads_of(disk)[-1] == b"four"


def test_a_log_that_its_callback_closed_stays_closed():
    disk = CrashDisk()

    def callback(_: Exception) -> bool:
        log.close()
        return True

    log = CommitLog("log", files=disk, on_failure="callback", failure_callback=callback)
    disk.fail(syncs)
    with pytest.raises(ForelogError):
        log.write(b"one")
    disk.lock("log/append.lock", exclusive=True, timeout=0).release()


def test_a_spare_isnt_adopted_behind_a_segment_that_lost_its_end():
    disk = CrashDisk()
    log = CommitLog("log", files=disk, strategy="behind", flush_interval_ms=10**7)
    log.write(b"one")
    log.flush()
    log.write(b"two")
    disk.fail(lambda operation: syncs(operation) and operation.path.endswith("000000001.log"))
    with pytest.raises(AppenderFailed):
        log.rotate_logs()
    close_quietly(log)
    disk = disk.killed()
    segment = disk.contents()["log/000000001.log"]
    damaged = CrashDisk.of({**disk.contents(), "log/000000001.log": segment[:-6] + b"\0" * 6}, boot=disk.boot)
    with CommitLog("log", files=damaged) as log:
        log.write(b"three")
    assert payloads_of(damaged) == [b"one", b"three"]


STORM = """
import os, signal, sys, threading, time
from forelog.commitlog import CommitLog, read_entries

log = CommitLog(sys.argv[1], strategy=sys.argv[2], flush_interval_ms=3)
acknowledged, stop = [], threading.Event()

def work(name):
    for serial in range(10**9):
        if stop.is_set():
            return
        payload = b"%d-%d" % (name, serial)
        log.write(payload)
        acknowledged.append(payload)

def alarm():
    while not stop.wait(0.002):
        os.kill(os.getpid(), signal.SIGINT)

armed = False

def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads:
    thread.start()
interrupted = 0
end = time.monotonic() + 3
sender = threading.Thread(target=alarm)
sender.start()
while time.monotonic() < end:
    try:
        armed = True
        log.write(b"main")
        log.flush()
        log.rotate_logs()
        armed = False
    except KeyboardInterrupt:
        interrupted += 1
stop.set()
sender.join()
for thread in threads:
    thread.join()
log.close()
from forelog import Stream
with Stream(sys.argv[1]).cursor() as cursor:
    found = [record.payload for record in cursor if record.payload != b"main"]
assert len(found) == len(set(found))
missing = set(acknowledged) - set(found)
print(interrupted > 20, len(acknowledged) > 100, len(missing))
"""


@pytest.mark.parametrize("strategy", ["wait", "behind"])
def test_a_storm_of_interrupts_loses_nothing_and_hangs_nobody(tmp_path, strategy):
    result = subprocess.run(
        [sys.executable, "-c", STORM, str(tmp_path / "log"), strategy], capture_output=True, text=True, timeout=50
    )
    assert result.stdout == "True True 0\n", result.stderr[-3000:]


class InterruptedEncoder:
    """An encoder whose batch is accepted, or not, when an interrupt comes."""

    def __init__(self, encoder, *, accepted: bool) -> None:
        self._encoder, self._accepted = encoder, accepted
        self.encode_many, self.places = encoder.encode_many, encoder.places

    def accept(self) -> None:
        if self._accepted:
            self._encoder.accept()
        raise KeyboardInterrupt


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("before", [0, 1])
def test_an_interrupt_between_writing_and_counting_confuses_no_series(tmp_path, accepted, before):
    fmt: Format = M3()
    stream = Stream(tmp_path / "log", format=fmt)
    with stream.appender() as log:
        for serial in range(before):
            log.append(fmt.item(Series(b"first"), Datapoint(serial, 0.0)))
        log.active.encoder = InterruptedEncoder(log.active.encoder, accepted=accepted)
        with pytest.raises(KeyboardInterrupt):
            log.append(fmt.item(Series(b"aaa"), Datapoint(10, 1.0)))
        log.append(fmt.item(Series(b"bbb"), Datapoint(11, 2.0)))
        log.append(fmt.item(Series(b"aaa"), Datapoint(12, 3.0)))
    found = [(entry.series.id, entry.datapoint.value) for _, entry in read_entries(stream)]
    assert found == [*[(b"first", 0.0)] * before, (b"bbb", 2.0), (b"aaa", 3.0)]
