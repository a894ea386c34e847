"""What a forked child inherits: no lock of its parent's outlives the parent in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from forelog import LockTimeout, Stream, files

# Opens something, forks, and tells of it; the child then lives until its standard input is closed.
PARENT = """
import os, sys
from forelog import Stream
from forelog.broker import MessageLogWriter
from forelog.commitlog import CommitLog
from forelog.files import OSFiles
from forelog.jobs import LocalServer
from forelog.state import PersistentDict
from forelog.copies.slots import Slots
path = sys.argv[1]
held = {opening}
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""
HOLDERS = {
    "appender": "Stream(path).appender()",
    "appender under always, with spare and journal": (
        "Stream(path).appender(sync='always', spare=True, journal_bytes=1 << 16)"
    ),
    "appender that syncs at intervals": "Stream(path).appender(sync='interval')",
    "state": "PersistentDict(path).open()",
    "commit log": "CommitLog(path)",
    "job server": "LocalServer(path)",
    "messages": "MessageLogWriter(path, buffer_bytes=1)",
}


@pytest.fixture
def orphan(tmp_path):
    """Start a process that opens something and forks; kill it, so that only its child is left."""
    started = []

    def start(opening: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(opening=opening), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        os.kill(child, 0)  # it is still there

    yield start
    for process in started:
        process.stdin.close()  # which ends the child
        process.stdout.close()
        process.wait(30)


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_child_that_outlives_its_killed_parent_keeps_no_appender_out(tmp_path, orphan, holder):
    orphan(HOLDERS[holder])
    lock = files.OSFiles().lock(f"{tmp_path}/append.lock", exclusive=True, timeout=0)
    files.OSFiles().lock(f"{tmp_path}/append.synced", exclusive=True, timeout=0).release()
    lock.release()
    if holder != "messages":  # which has no segment before its first message
        Stream.open(tmp_path).appender(blocking=False).close()


@pytest.mark.parametrize("opening", ["cleaner", "cursor"])
def test_a_child_that_outlives_its_killed_parent_keeps_no_cleaner_out(tmp_path, orphan, opening):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        log.append(b"x")
    orphan(f"Stream(path).{opening}()")
    stream.cleaner(blocking=False).close()


def test_a_child_that_outlives_its_killed_parent_keeps_no_other_lock(tmp_path, orphan):
    orphan("Slots(path)")
    files.OSFiles().lock(f"{tmp_path}/append.lock", exclusive=True, timeout=0).release()
    orphan("OSFiles().lock(path + '/lock', exclusive=True, timeout=0)")  # as an ingested table's is taken
    files.OSFiles().lock(f"{tmp_path}/lock", exclusive=True, timeout=0).release()


def in_child(act) -> int:
    """What `act` returns in a forked child, as its exit status."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(act())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_leaves_the_parent_its_lock(tmp_path):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        assert in_child(lambda: 0) == 0
        with pytest.raises(LockTimeout):
            stream.appender(blocking=False)
        log.append(b"x")
    assert stream.end().offset > 8


def test_a_child_of_a_fork_while_a_lock_is_waited_for_has_none_of_it(tmp_path):
    path = f"{tmp_path}/some.lock"
    held, taken = files.OSFiles().lock(path, exclusive=True, timeout=0), []
    thread = threading.Thread(
        target=lambda: taken.append(files.OSFiles().lock(path, exclusive=True, timeout=None))
    )
    thread.start()
    while descriptors_of(path) < 2:
        assert thread.is_alive()
    assert in_child(lambda: descriptors_of(path)) == 0
    held.release()
    thread.join(30)
    taken[0].release()


def descriptors_of(path: str) -> int:
    """How often this process has a file open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}") == path
    return count


def test_a_cursor_that_a_child_reads_on_with_takes_a_lock_of_its_own(tmp_path):
    stream = Stream(tmp_path)
    with stream.appender(segment_bytes=100) as log:
        for i in range(50):
            log.append(b"%d" % i)
    with stream.cursor() as cursor:
        assert next(cursor).payload == b"0"

        assert in_child(lambda: int(cursor._lock is None)) == 1
        assert in_child(lambda: len(list(cursor))) == 49
        with pytest.raises(LockTimeout):
            stream.cleaner(blocking=False)
        assert len(list(cursor)) == 49


def test_a_cleaner_that_a_child_cleans_with_waits_for_its_parent(tmp_path):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        log.append(b"x")
        log.roll()
    with stream.cleaner() as cleaner:

        def clean() -> int:
            try:
                cleaner.lock(timeout=0.01)
            except LockTimeout:
                return 7
            return 8

        assert in_child(clean) == 7
        with pytest.raises(LockTimeout):
            stream.cursor(blocking=False)


def test_a_follower_in_a_child_takes_no_change_from_its_parent(tmp_path):
    stream = Stream(tmp_path)
    with stream.appender() as log, stream.cursor(follow=True) as cursor:
        log.append(b"x")
        assert next(cursor).payload == b"x"
        watch = cursor._watching()
        assert in_child(lambda: int(cursor._watch is None and cursor._watching().fileno() is not None)) == 1
        assert cursor._watch is watch
        log.append(b"y")
        assert watch.wait(5)


def test_a_fork_inside_of_a_signal_handler_that_interrupts_a_lock_being_opened_goes_on(tmp_path):
    from forelog.files.forks import forking

    with forking:  # as a handler finds it whose thread is opening a lock
        assert in_child(lambda: 3) == 3
