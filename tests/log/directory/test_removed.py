"""A log notes where the segments ended that it removes."""

from __future__ import annotations

import errno
import logging

import pytest

from forelog import KeepLast, Stream
from forelog.log.directory import removed
from forelog.log.directory.directory import Directory
from forelog.log.directory.removed import NAME, Removed, note_removal, read_removed
from forelog.testing import CrashDisk


def log_of(disk: CrashDisk, segments: int) -> dict[int, int]:
    """A log with this many sealed segments, and one more. Returns where each sealed one ends."""
    ends = {}
    with Stream("log", files=disk).appender() as log:
        for number in range(1, segments + 1):
            log.append_many([b"x" * number] * number)
            ends[number] = Stream("log", files=disk).end().offset
            log.roll()
        log.append(b"last")
    return ends


def keep(disk: CrashDisk, segments: int) -> None:
    with Stream("log", files=disk).cleaner() as cleaner:
        cleaner.clean(KeepLast(segments=segments))


def directory_of(disk: CrashDisk) -> Directory:
    return Stream("log", files=disk).directory


def test_the_ends_of_removed_segments_are_known() -> None:
    disk = CrashDisk()
    ends = log_of(disk, 4)
    assert read_removed(directory_of(disk)) == {}
    keep(disk, 2)
    assert Stream("log", files=disk).numbers() == [4, 5]
    assert read_removed(directory_of(disk)) == {number: Removed(ends[number], number + 1) for number in (1, 2, 3)}


def test_a_segment_that_lost_records_keeps_the_end_that_it_had() -> None:
    disk = CrashDisk()
    ends = log_of(disk, 3)
    with Stream("log", files=disk).cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.position.segment == 3 and record.position.offset < 60)
        cleaner.clean(lambda _, record: record.position.segment == 3)
    assert read_removed(directory_of(disk)) == {3: Removed(ends[3], 4)}


def test_after_a_crash_every_segment_that_is_gone_has_a_note() -> None:
    disk = CrashDisk()
    ends = log_of(disk, 3)
    keep(disk, 1)
    lacking = 0
    for state in disk.states_everywhere(limit=30):
        stream = Stream("log", files=state.disk)
        if state.disk.stat("log/000000001.log") is None and state.disk.stat("log/000000004.log") is None:
            continue
        notes = read_removed(stream.directory)
        gone = [number for number in ends if not stream.directory.has(number)]
        lacking += len(gone)
        begun = {number for number in gone if number < max(stream.numbers())}
        assert {number: notes.get(number) for number in begun} == {
            number: Removed(ends[number], number + 1) for number in begun
        }
    assert lacking


@pytest.mark.parametrize("extra", [b"x", b"GONE", bytes(32), b"GONE" + bytes(28)])
def test_what_a_crash_left_of_an_entry_harms_no_other(extra: bytes) -> None:
    disk = CrashDisk()
    ends = log_of(disk, 3)
    note_removal(directory_of(disk), 1)
    file = disk.open_append(f"log/{NAME}")
    file.write(extra)
    note_removal(directory_of(disk), 2)
    assert read_removed(directory_of(disk)) == {1: Removed(ends[1], 2), 2: Removed(ends[2], 3)}


def test_a_full_disk_does_not_keep_a_segment(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashDisk()
    log_of(disk, 2)
    disk.fail(lambda operation: operation.path.endswith(NAME) and operation.kind == "write", errno.ENOSPC)
    with caplog.at_level(logging.WARNING, "forelog"):
        keep(disk, 1)
    assert Stream("log", files=disk).numbers() == [3]
    assert read_removed(directory_of(disk)) == {}
    assert "no note of the end of segment 1" in caplog.text


def test_a_long_file_keeps_the_latest_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed, "_KEPT", 3)
    disk = CrashDisk()
    ends = log_of(disk, 9)
    keep(disk, 1)  # the newest first
    notes = read_removed(directory_of(disk))
    assert {7, 8, 9} <= set(notes) <= set(ends)
    assert len(disk.contents()[f"log/{NAME}"]) <= 7 * 32
    assert not [name for name in disk.contents() if name.endswith(".new")]


def test_a_segment_whose_map_is_damaged_is_not_noted() -> None:
    """Its file is shorter than the segment was: a reader that had not read all of it would miss nothing."""
    disk = CrashDisk()
    log_of(disk, 2)
    with Stream("log", files=disk).cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.position.segment == 2 and record.position.offset < 20)
    (path,) = [name for name in disk.contents() if name.endswith(".map")]
    file = disk.open_update(path)
    file.write_at(b"\xff" * 8, 30)
    note_removal(directory_of(disk), 2)
    assert read_removed(directory_of(disk)) == {}
