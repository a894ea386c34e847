"""Writing and reading messages."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime

import pytest

from forelog import (
    AppenderClosed,
    BadPosition,
    CorruptRecord,
    LockTimeout,
    LogNotFound,
    Position,
    WriteFailed,
    verify,
)
from forelog.broker import Message, MessageLogReader, MessageLogWriter
from forelog.errors import AppenderFailed
from forelog.files import OSFiles
from forelog.testing import CrashDisk
from forelog.times import format_time

START = 1_794_767_400_000_000_000
SECOND = 10**9


class Clock:
    """A clock that is put forward by hand, and ticks a microsecond whenever it is looked at."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def quiet(path, **options) -> MessageLogWriter:
    """A writer without a thread, so that only the test flushes."""
    return MessageLogWriter(path, flush_interval_ms=None, **{"clock": Clock(), **options})


def fill(path, count: int = 100, size: int = 200, **options) -> list[int]:
    with quiet(path, **{"file_bytes": 2000, "buffer_bytes": 700, **options}) as log:
        return [log.write(f"topic/{i % 3}", b"%05d" % i + bytes(size)) for i in range(count)]


def received(path, **options) -> list[int]:
    with MessageLogReader(path, **options) as reader:
        return [int(message.payload[:5]) for message in reader]


# -- writing and reading


def test_a_message_is_read_as_it_was_written(tmp_path):
    properties = {"qos": 1, "user": [["a", "b"]], "raw": b"\x00\xff", "expiry": None, "ratio": 0.5}
    with quiet(tmp_path) as log:
        time_ns = log.write("plant/é", b"21.5", properties)
        log.write("plant/é", bytearray(b"21.6"))
        log.write(b"", memoryview(b""))
        end = log.flush()
    with MessageLogReader(tmp_path) as reader:
        first = reader.recv()
        assert first == Message(time_ns, "plant/é", b"21.5", properties, Position(time_ns, 0), first.next_position)
        assert first.time == datetime.fromtimestamp(time_ns // 1000 / 1e6, UTC)
        assert [(m.topic, m.payload, m.properties) for m in reader] == [("plant/é", b"21.6", {}), ("", b"", {})]
        assert reader.position == end
        assert reader.recv() is None


def test_a_message_is_in_the_log_once_it_was_flushed_and_not_before(tmp_path):
    with quiet(tmp_path) as log:
        log.write("t", b"00001")
        assert log.buffered_bytes > 0
        assert received(tmp_path) == []
        assert log.flush() == log.position
        assert log.buffered_bytes == 0
        assert received(tmp_path) == [1]
        log.write("t", b"00002")
    assert received(tmp_path) == [1, 2]


def test_a_full_buffer_flushes_itself(tmp_path):
    with quiet(tmp_path, buffer_bytes=100) as log:
        for i in range(10):
            log.write("t", b"%05d" % i + bytes(20))
            assert log.buffered_bytes < 100
        assert 0 < len(received(tmp_path)) < 10
    with quiet(tmp_path, buffer_bytes=1) as log:
        log.write("t", b"00010")
        assert received(tmp_path)[-1] == 10


def test_an_interval_flushes_by_itself(tmp_path):
    with MessageLogWriter(tmp_path, flush_interval_ms=5) as log, MessageLogReader(tmp_path, follow=True) as reader:
        for i in range(3):
            log.write("t", b"%05d" % i)
            assert reader.recv(timeout=20).payload == b"%05d" % i


def test_files_are_rotated_by_size_and_named_by_their_first_message(tmp_path):
    times = fill(tmp_path)
    with MessageLogReader(tmp_path) as reader:
        found = list(reader)
    assert [message.time_ns for message in found] == times
    numbers = sorted({message.position.segment for message in found})
    assert len(numbers) > 5
    assert set(numbers) <= set(times)
    assert all(path.stat().st_size < 3000 for path in tmp_path.glob("*.dat"))
    assert verify(reader.stream).ok


def test_times_are_of_the_writing_and_never_the_same(tmp_path):
    with MessageLogWriter(tmp_path, clock=lambda: START) as log:
        times = [log.write("t") for _ in range(5)]
    with MessageLogWriter(tmp_path, clock=lambda: START - SECOND) as log:
        times += [log.write("t") for _ in range(5)]
    assert times == list(range(times[0], times[0] + 10))
    with MessageLogReader(tmp_path) as reader:
        assert [message.time_ns for message in reader] == times


def test_many_threads_write_at_once(tmp_path):
    with MessageLogWriter(tmp_path, file_bytes=5000, buffer_bytes=300, flush_interval_ms=1) as log:

        def work(name: int) -> None:
            for i in range(200):
                log.write(str(name), b"%05d" % i)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with MessageLogReader(tmp_path) as reader:
        found = list(reader)
    for name in range(4):
        assert [int(m.payload) for m in found if m.topic == str(name)] == list(range(200))
    assert all(a.time_ns < b.time_ns for a, b in itertools.pairwise(found))


# -- from a time


def test_reading_starts_at_a_time_in_any_of_its_forms(tmp_path):
    clock = Clock()
    with quiet(tmp_path, clock=clock, file_bytes=2000) as log:
        times = []
        for i in range(60):
            clock.now += SECOND
            times.append(log.write("t", b"%05d" % i + bytes(100)))
    now = clock.now
    with MessageLogReader(tmp_path, clock=lambda: now) as reader:
        for row in (0, 1, 17, 59):
            assert int(reader.recv_as_of(times[row]).payload[:5]) == row
            assert int(reader.recv_as_of(format_time(times[row])).payload[:5]) == row
            assert int(reader.recv_as_of(times[row] - 1).payload[:5]) == row
        assert int(reader.recv_as_of("-10s").payload[:5]) == 50
        assert int(reader.recv().payload[:5]) == 51
        assert int(reader.recv_as_of(datetime.fromtimestamp(times[30] // SECOND, UTC)).payload[:5]) == 30
        assert int(reader.recv_as_of("2020-01-01").payload[:5]) == 0
        assert reader.recv_as_of("2100-01-01") is None
        with pytest.raises(ValueError, match="no time zone"):
            reader.recv_as_of("2026-11-15T18:00:00")


class Counting(OSFiles):
    """Counts what is read of segments."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.bytes_read = 0

    def open_read(self, path: str):
        file = super().open_read(path)
        if path.endswith(".dat"):
            self.opened.append(path)
            read_into = file.read_into
            outer = self

            class Counted:
                def __getattr__(self, name):
                    return getattr(file, name)

                def read_into(self, buffer, offset):
                    count = read_into(buffer, offset)
                    outer.bytes_read += count
                    return count

            return Counted()
        return file


def test_a_time_is_found_by_names_and_one_index_and_not_by_reading(tmp_path):
    times = fill(tmp_path, 3000, 4000, file_bytes=3 << 20, buffer_bytes=1 << 18)
    assert len(list(tmp_path.glob("*.dat"))) > 3
    files = Counting()
    with MessageLogReader(tmp_path, files=files) as reader:
        for row in (100, 900, 1500):
            files.opened.clear()
            files.bytes_read = 0
            assert int(reader.recv_as_of(times[row]).payload[:5]) == row
            assert len(files.opened) == 1
            # A block from the mark before it, in a file of three blocks.
            assert files.bytes_read <= (1 << 20) + 100


# -- resuming, following, filtering


def test_a_reader_goes_on_where_another_left_off(tmp_path):
    fill(tmp_path, 30)
    with MessageLogReader(tmp_path) as reader:
        for _ in range(13):
            message = reader.recv()
        position = reader.position
        assert message.next_position == position
    assert received(tmp_path, start=position) == list(range(13, 30))
    assert received(tmp_path, start=str(position)) == list(range(13, 30))
    with MessageLogReader(tmp_path) as reader:
        reader.seek(message.position)
        assert reader.recv() == message
    with pytest.raises(BadPosition):
        received(tmp_path, start="nonsense")


def test_a_filter_says_which_topics_are_wanted(tmp_path):
    fill(tmp_path, 30)
    assert received(tmp_path, filter=lambda topic: topic == "topic/1") == list(range(1, 30, 3))


def test_a_follower_waits_for_more_through_rotations(tmp_path):
    with quiet(tmp_path, file_bytes=300) as log, MessageLogReader(tmp_path, follow=True) as reader:
        assert reader.recv(timeout=0) is None
        for i in range(20):
            log.write("t", b"%05d" % i + bytes(80))
            log.flush()
            assert int(reader.recv(timeout=20).payload[:5]) == i
        assert reader.recv(timeout=0.01) is None


def test_tasks_read_and_follow(tmp_path):
    async def main() -> None:
        with quiet(tmp_path) as log:
            log.write("t", b"00000")
            log.flush()
            async with MessageLogReader(tmp_path) as reader:
                assert [message.payload async for message in reader] == [b"00000"]
            async with MessageLogReader(tmp_path, follow=True) as reader:
                assert (await reader.recv_async()).payload == b"00000"
                waiting = asyncio.create_task(reader.recv_async(timeout=20))
                await asyncio.sleep(0)
                log.write("t", b"00001")
                log.flush()
                assert (await waiting).payload == b"00001"
                assert await reader.recv_async(timeout=0.01) is None

    asyncio.run(main())


# -- what goes wrong


def test_what_is_not_there_or_closed_or_taken_is_told(tmp_path):
    with pytest.raises(LogNotFound):
        MessageLogReader(tmp_path / "nothing")
    log = quiet(tmp_path)
    with pytest.raises(LockTimeout):
        quiet(tmp_path, timeout=0)
    log.close()
    log.close()
    with pytest.raises(AppenderClosed):
        log.write("t")
    with pytest.raises(AppenderClosed):
        log.flush()


@pytest.mark.parametrize(
    "options",
    [{"buffer_bytes": 0}, {"flush_interval_ms": 0}, {"retain_seconds": -1}, {"file_bytes": 0}, {"sync": "no"}],
)
def test_options_that_make_no_sense_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        MessageLogWriter(tmp_path, **options)


def test_damage_is_told_or_skipped_and_listed(tmp_path):
    fill(tmp_path, 30)
    path = sorted(tmp_path.glob("*.dat"))[1]
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecord):
        received(tmp_path)
    with MessageLogReader(tmp_path, on_corruption="skip") as reader:
        assert len(list(reader)) == 29
        assert len(reader.defects) == 1


def test_a_full_disk_refuses_messages_and_loses_none_that_were_taken():
    disk = CrashDisk()
    with quiet("log", files=disk, buffer_bytes=200) as log:
        taken = []
        for i in range(30):
            if i == 10:
                fault = disk.fail(lambda op: op.kind == "write" and op.path.endswith(".dat"), errno.ENOSPC)
            if i == 20:
                fault.stop()
            try:
                log.write("t", b"%05d" % i + bytes(40))
                taken.append(i)
            except WriteFailed:
                assert log.buffered_bytes < 200
    assert 20 <= len(taken) < 30
    assert received("log", files=disk) == taken


def test_a_failed_sync_is_final_and_told_to_everybody():
    disk = CrashDisk()
    log = quiet("log", files=disk, sync="always")
    log.write("t", b"00000")
    log.flush()
    fault = disk.fail(lambda op: op.kind == "sync" and op.path.endswith(".dat"))
    log.write("t", b"00001")
    with pytest.raises(AppenderFailed):
        log.flush()
    with pytest.raises(AppenderFailed):
        log.write("t", b"00002")
    with pytest.raises(AppenderFailed):
        log.close()
    fault.stop()
    with quiet("log", files=disk) as log:
        log.write("t", b"00003")
    assert received("log", files=disk)[0] == 0
    assert received("log", files=disk)[-1] == 3


def test_what_was_flushed_under_always_survives_power_loss():
    disk = CrashDisk()
    log = quiet("log", files=disk, sync="always", file_bytes=150)
    for i in range(6):
        log.write("t", b"%05d" % i + bytes(40))
        log.flush()
        for state in disk.states(limit=20):
            with quiet("log", files=state.disk):
                pass
            assert received("log", files=state.disk) == list(range(i + 1))
    log.close()


def test_what_was_flushed_survives_a_kill(tmp_path):
    program = (
        "import sys; from forelog.broker import MessageLogWriter\n"
        f"log = MessageLogWriter({str(tmp_path)!r}, buffer_bytes=1, file_bytes=20000)\n"
        "for i in range(10**6):\n"
        "    log.write('t', b'%05d' % i + bytes(100)); print(i, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    for line in writer.stdout:
        told = int(line)
        if told >= 500:
            break
    writer.kill()
    writer.wait()
    writer.stdout.close()
    with quiet(tmp_path, clock=time.time_ns) as log:
        log.write("t", b"99999")
    found = received(tmp_path)
    assert found[:-1] == list(range(len(found) - 1))
    assert len(found) - 1 > told


# -- forgetting


def test_old_files_go_as_a_whole_and_by_their_names_alone(tmp_path):
    clock = Clock()
    with quiet(tmp_path, clock=clock, file_bytes=2000) as log:
        for i in range(60):
            clock.now += SECOND
            log.write("t", b"%05d" % i + bytes(100))
            log.flush()
        done = log.retain(seconds=20.5)
        assert done.removed
        assert not done.kept
        assert done.removed_bytes > 2000
        left = received(tmp_path)
        assert left == list(range(left[0], 60))
        assert 20 <= len(left) <= 40
        done = log.retain(byte_count=3000)
        assert sum(path.stat().st_size for path in tmp_path.glob("*.dat")) >= 3000
        assert len(list(tmp_path.glob("*.dat"))) <= 3
        assert log.retain(seconds=0).removed
        assert len(list(tmp_path.glob("*.dat"))) == 1
        assert log.retain().removed == []
    assert verify(log.stream).ok
    assert list(tmp_path.glob("*.idx")) == []


def test_what_is_still_needed_stays_unless_forced_and_then_that_is_told(tmp_path, caplog):
    fill(tmp_path, 60)
    with MessageLogReader(tmp_path) as reader:
        for _ in range(25):
            needed = reader.recv().position
    with quiet(tmp_path, needed=lambda: needed, clock=lambda: START + 3600 * SECOND) as log:
        done = log.retain(seconds=0)
        assert done.kept
        assert received(tmp_path, start=needed) == list(range(24, 60))
        assert received(tmp_path)[0] > 0
        assert log.retain(needed, byte_count=0).removed == []
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            done = log.retain(needed, seconds=0, force=True)
    assert done.forced == done.removed
    assert str(needed) in caplog.text
    assert received(tmp_path, start=needed)[-1] == 59
    assert len(received(tmp_path)) < 20


def test_a_rotation_lets_old_files_go_but_never_waits_for_a_reader(tmp_path):
    with quiet(tmp_path, file_bytes=500, retain_bytes=2000) as log:
        with MessageLogReader(tmp_path) as reader:
            for i in range(30):
                log.write("t", b"%05d" % i + bytes(80))
                log.flush()
            assert int(reader.recv().payload[:5]) == 0
            assert len(list(tmp_path.glob("*.dat"))) > 5
        for i in range(30, 40):
            log.write("t", b"%05d" % i + bytes(80))
            log.flush()
        assert len(list(tmp_path.glob("*.dat"))) <= 5
    assert received(tmp_path)[-1] == 39


def test_a_follower_outlives_the_files_it_has_read(tmp_path):
    with quiet(tmp_path, file_bytes=300) as log, MessageLogReader(tmp_path, follow=True) as reader:
        for i in range(20):
            log.write("t", b"%05d" % i + bytes(80))
            log.flush()
            assert int(reader.recv(timeout=20).payload[:5]) == i
            log.retain(reader.position, seconds=0)
        assert len(list(tmp_path.glob("*.dat"))) <= 2


def test_an_interrupt_neither_loses_nor_doubles_what_was_buffered(tmp_path, monkeypatch):
    with quiet(tmp_path) as log:
        append_encoded = log._appender.append_encoded

        def interrupted(data, starts):
            if not written_first:
                raise KeyboardInterrupt
            append_encoded(data, starts)
            raise KeyboardInterrupt

        for written_first in (False, True):
            log.write("t", b"%05d" % written_first)
            monkeypatch.setattr(log._appender, "append_encoded", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.flush()
            monkeypatch.undo()
        log.write("t", b"00002")
    assert received(tmp_path) == [0, 1, 2]
