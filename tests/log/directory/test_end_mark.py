"""What was refused was never there: no reader goes past the end mark, in this process or in another."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import pytest

from forelog import AppenderFailed, Position, Stream, WriteFailed
from forelog.files import OSFiles
from forelog.files.watches import PollWatch
from forelog.formats import Captain
from forelog.log.directory.end import NAME, checked_offset, read_end
from forelog.testing import CrashDisk
from tests.notes import noted


def payloads(stream: Stream, **options: Any) -> list[bytes]:
    with stream.cursor(**options) as cursor:
        return [record.payload for record in cursor]


def watched(disk: CrashDisk, stream: Stream, path: str = ".log") -> list[list[bytes]]:
    """What a reader sees after each change of a segment, for as long as the disk is used."""
    seen = []
    happen = disk._happen

    def look(event):
        happen(event)
        if event.path.endswith(path) and not looking:
            looking.append(True)
            seen.append(payloads(stream))
            looking.clear()

    looking: list[bool] = []
    disk._happen = look
    return seen


def stop_after(disk: CrashDisk, byte_count: int) -> None:
    """Have the next write to a segment take so many bytes, and those after it none."""

    def is_first(operation) -> bool:
        if operation.kind != "write" or not operation.path.endswith(".log") or writes:
            return False
        writes.append(operation)
        return True

    writes: list[object] = []
    disk.write_short(is_first, byte_count)
    disk.fail(lambda op: op.kind == "write" and op.path.endswith(".log") and len(writes) == 1, errno.ENOSPC)


@pytest.mark.parametrize("policy", ["os", "always"])
@pytest.mark.parametrize("many", [False, True])
def test_a_batch_that_meets_a_full_disk_is_seen_by_nobody(policy, many):
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync=policy)
    log.append(b"before")
    seen = watched(disk, stream)
    stop_after(disk, 61)
    with pytest.raises(WriteFailed):
        log.append_many([b"refused %d" % i for i in range(10)]) if many else log.append(b"refused" * 50)
    for one in disk._faults:
        one.stop()
    assert seen
    assert all(view == [b"before"] for view in seen)
    position = log.append(b"after")
    assert position.segment == 2, "what was cut off may have been read by another program"
    assert payloads(stream) == [b"before", b"after"]


def test_a_batch_is_all_there_or_not_at_all_while_it_is_written():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender()
    log.append(b"before")
    seen = watched(disk, stream)
    disk.write_short(lambda op: op.kind == "write" and op.path.endswith(".log"), 7)
    log.append_many([b"one", b"two", b"three"])
    assert len(seen) > 5
    assert all(view == [b"before"] for view in seen)
    assert payloads(stream) == [b"before", b"one", b"two", b"three"]


def test_under_always_a_record_is_seen_when_it_is_synced():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="always")
    seen = watched(disk, stream)
    log.append(b"x")
    kinds = [event.kind for event in disk.events if event.path == "log/000000001.log"]
    assert kinds[-2:] == ["write", "sync"]
    assert seen == [[], []]
    assert payloads(stream) == [b"x"]


def test_a_failed_sync_leaves_unseen_what_nobody_was_told_of():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="always")
    log.append(b"synced")
    fault = disk.fail(lambda op: op.kind == "sync" and op.path.endswith(".log"))
    with pytest.raises(AppenderFailed):
        log.append(b"unknown")
    fault.stop()
    assert payloads(stream) == [b"synced"]
    log.close()
    assert payloads(stream) == [b"synced"]


@pytest.mark.parametrize("cut", [1, 30, 46, 60, 69, 91])
def test_a_killed_process_leaves_all_of_a_batch_or_nothing(cut):
    """Cut inside of a record and, at 46 and 69, between two of them."""
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender()
    log.append(b"one")
    stop_after(disk, cut)
    disk.fail(lambda op: op.kind == "truncate")
    with pytest.raises(AppenderFailed):
        log.append_many([b"two", b"six", b"ten", b"odd"])
    after = disk.killed()
    stream = Stream("log", files=after)
    assert payloads(stream) == [b"one"]
    with stream.appender() as log:
        assert log.recovery.torn is not None
        assert log.recovery.torn.reason == "unfinished"
        assert log.recovery.records == 1
        assert log.append(b"next") == Position(2, 8)
    assert payloads(stream) == [b"one", b"next"]
    assert len(after.contents()["log/000000001.torn"]) == cut


def test_a_batch_that_was_written_but_not_told_of_is_kept():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="always")
    log.append(b"one")
    disk.fail(lambda op: op.kind == "sync" and op.path.endswith(".log"))
    with pytest.raises(AppenderFailed):
        log.append_many([b"two", b"three"])
    stream = Stream("log", files=disk.killed())
    assert payloads(stream) == [b"one"]
    with stream.appender() as log:
        assert log.recovery.torn is None
        assert payloads(stream) == [b"one", b"two", b"three"]


def test_after_a_reboot_the_mark_means_nothing():
    disk = CrashDisk()
    log = Stream("log", files=disk).appender()
    log.append(b"one")
    log.sync()
    after = next(iter(disk.states(limit=1)))
    assert read_end(Stream("log", files=after.disk).directory).segment == 0
    assert payloads(Stream("log", files=after.disk)) == [b"one"]


def test_what_another_program_appends_after_a_killed_appender_is_read(tmp_path):
    code = f"import os, forelog; forelog.Stream({str(tmp_path)!r}).appender().append(b'ours'); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert read_end(Stream(tmp_path).directory).segment == 1
    with (tmp_path / "000000001.log").open("ab") as file:
        file.write(Captain().encode(b"theirs", 2 * 10**18))
    (tmp_path / "000000002.log").write_bytes(Captain().header() + Captain().encode(b"more", 2 * 10**18))
    assert payloads(Stream(tmp_path)) == [b"ours", b"theirs", b"more"]
    with Stream(tmp_path).cursor(follow=True) as cursor:
        assert [cursor.read(0).payload for _ in range(3)] == [b"ours", b"theirs", b"more"]
    with Stream(tmp_path).appender() as log:
        log.append(b"ours again")
    assert payloads(Stream(tmp_path)) == [b"ours", b"theirs", b"more", b"ours again"]


def test_no_flipped_bit_of_a_mark_hides_a_record(tmp_path):
    log = Stream(tmp_path).appender()
    for number in range(300):
        log.append(b"%d" % number)
    expected = [b"%d" % number for number in range(300)]
    path = tmp_path / NAME
    right = path.read_bytes()
    for bit in range(len(right) * 8):
        flipped = bytearray(right)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert payloads(Stream(tmp_path)) == expected, f"bit {bit}"
    path.write_bytes(right[:30])
    assert payloads(Stream(tmp_path)) == expected


def test_an_offset_is_never_taken_for_another_one_by_a_flipped_bit():
    for offset in (0, 1, 8, 31, 4096, 123_456_789, 2**40 + 17):
        for bit in range(64):
            wrong = checked_offset(offset) ^ (1 << bit)
            assert checked_offset(wrong & (2**48 - 1)) != wrong


def test_a_full_disk_does_not_end_an_appender_by_a_signal(tmp_path):
    """Words that lie in a hole of a file have a process killed when the disk has no block for them."""
    Stream(tmp_path).appender().close()
    status = os.stat(tmp_path / NAME)
    assert status.st_blocks * 512 >= status.st_size


def test_who_waits_for_the_sync_may_ask_that_readers_do_too():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender(visible="synced") as log:
        log.append(b"x")
        assert payloads(stream) == []
        log.sync()
        assert payloads(stream) == [b"x"]
    with pytest.raises(ValueError, match="visible is 'soon'"):
        stream.appender(visible="soon")  # type: ignore[arg-type]


def test_a_follower_looks_again_soon_when_the_mark_has_moved_behind_it(tmp_path, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(PollWatch, "wait", lambda _, timeout: noted(waits, timeout))
    monkeypatch.setattr(OSFiles, "watch", lambda *_: PollWatch())
    stream = Stream(tmp_path)
    with stream.appender() as log, stream.cursor(follow=True) as cursor:
        look = cursor._load
        left: list[bytes] = []

        def look_too_early() -> bool:
            found = look()
            if not found and left:
                log.append(left.pop())
            return found

        monkeypatch.setattr(cursor, "_load", look_too_early)
        for payload in (b"one", b"two"):
            left.append(payload)
            assert cursor.read().payload == payload
    assert len(waits) == 2
    assert max(waits) < 0.01
