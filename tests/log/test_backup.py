"""Backups: whole, checked, and safe beside those who write, roll and clean."""

from __future__ import annotations

import threading

import pytest

from forelog import CorruptRecord, KeepLast, LockTimeout, Stream, TargetTaken, verify
from forelog.testing import CrashDisk


def records(stream: Stream) -> list[tuple[object, bytes]]:
    with stream.cursor() as cursor:
        return [(record.position, record.payload) for record in cursor]


def test_a_backup_has_the_records_and_their_positions_and_can_be_gone_on_with(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender(segment_bytes=200) as log:
        log.append_many([b"%d" % number for number in range(10)])
        for number in range(20):
            log.append(b"more %d" % number)
        with stream.cleaner() as cleaner:
            cleaner.clean(lambda _, record: record.payload.endswith(b"3"))
        done = stream.backup(tmp_path / "copies" / "monday")
        assert done.records == len(records(stream)) == 27
        assert done.segments == len(stream.numbers())
        assert done.end == log.position
        log.append(b"after it")
    copy = Stream.open(tmp_path / "copies" / "monday")
    assert records(copy) == records(stream)[:-1]
    assert verify(copy).ok
    with copy.appender() as log:
        assert log.recovery.torn is None
        log.append(b"gone on")
    assert records(copy)[-1][1] == b"gone on"


def test_what_is_there_already_is_left_alone(tmp_path):
    stream = Stream(tmp_path / "log")
    stream.appender().close()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("x")
    (tmp_path / "file").write_text("x")
    for target in ("taken", "file", "log", "log/inside"):
        with pytest.raises(TargetTaken):
            stream.backup(tmp_path / target)
    (tmp_path / "empty").mkdir()
    assert stream.backup(tmp_path / "empty").records == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "log", "taken"]


def test_damage_is_not_copied_in_silence_and_nothing_is_left_of_the_attempt(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender() as log:
        log.append_many([b"x" * 100] * 10)
        log.roll()
        log.append(b"y")
    path = tmp_path / "log" / "000000001.log"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecord):
        stream.backup(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_cleaner_is_waited_for_and_waits(tmp_path):
    stream = Stream(tmp_path / "log")
    stream.appender().close()
    with stream.cleaner(), pytest.raises(LockTimeout):
        stream.backup(tmp_path / "copy", timeout=0)

    def progress(_done: int, _total: int) -> None:
        with pytest.raises(LockTimeout):
            stream.cleaner(timeout=0)
        asked.append(True)

    asked: list[bool] = []
    stream.backup(tmp_path / "copy", progress=progress)
    assert asked


def test_backups_beside_a_writer_that_rolls_and_a_cleaner_are_prefixes(tmp_path):
    stream = Stream(tmp_path / "log")
    stop = threading.Event()
    written: dict[object, bytes] = {}

    def write() -> None:
        number = 0
        with stream.appender(segment_bytes=500) as log:
            while not stop.is_set():
                batch = [b"%d" % (number + step) for step in range(7)]
                number += 7
                written.update(zip(log.append_many(batch), batch, strict=True))

    def clean() -> None:
        while not stop.wait(0.01):
            with stream.cleaner() as cleaner:
                cleaner.clean(KeepLast(segments=50))

    threads = [threading.Thread(target=write), threading.Thread(target=clean)]
    stream.appender().close()
    for thread in threads:
        thread.start()
    copies = []
    try:
        for number in range(8):
            copies.append(stream.backup(tmp_path / f"copy-{number}"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for copy in copies:
        found = records(Stream.open(copy.path))
        numbers = [int(payload) for _, payload in found]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert len(numbers) == copy.records
        assert all(written[position] == payload for position, payload in found)
        assert (copy.records and numbers[-1] % 7 == 6) or not numbers, "a batch is there as a whole"


def test_a_log_on_another_disk_is_copied_to_this_one(tmp_path):
    stream = Stream("log", files=CrashDisk())
    with stream.appender() as log:
        log.append(b"from memory")
    stream.backup(tmp_path / "copy")
    assert [payload for _, payload in records(Stream(tmp_path / "copy"))] == [b"from memory"]


def test_a_cleaned_log_keeps_its_maps(tmp_path):
    stream = Stream(tmp_path / "log", clock=iter(range(1, 1000)).__next__)
    with stream.appender() as log:
        positions = [log.append(b"%d" % number) for number in range(20)]
        log.roll()
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: int(record.payload) % 2 == 1)
        cleaner.clean(lambda _, record: record.payload == b"4")
    stream.backup(tmp_path / "copy")
    with Stream(tmp_path / "copy").cursor(start=positions[3]) as cursor:
        assert next(cursor).payload == b"6"
