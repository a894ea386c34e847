"""What verify() finds, and what it leaves alone."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from forelog import LockTimeout, LogNotFound, OlderThan, Position, Stream
from forelog.log import verify as module
from forelog.log.verify import verify

SECOND = 1_000_000_000


def make_log(path: Path, *, segments: int = 3, records: int = 4, start: int = 1000) -> Stream:
    ticks = iter(range(start * SECOND, 10**20, SECOND))
    stream = Stream(path, clock=lambda: next(ticks))
    with stream.appender() as log:
        for segment in range(segments):
            if segment:
                log.roll()
            for record in range(records):
                log.append(b"segment %d record %d" % (segment + 1, record))
    return stream


def flip(path: str | Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes((byte[0] ^ 0xFF,)))


def test_a_sound_log_has_no_problems_and_nothing_to_do(tmp_path: Path) -> None:
    report = verify(make_log(tmp_path))
    assert (report.ok, report.tidy, report.problems(), report.notes()) == (True, True, [], [])
    assert report.records == 12
    assert report.byte_count == sum(path.stat().st_size for path in tmp_path.glob("*.log"))


def test_each_segment_is_described(tmp_path: Path) -> None:
    first, second, last = verify(make_log(tmp_path)).segments
    assert (first.number, first.records, first.sealed, first.index) == (1, 4, True, "fits")
    assert (first.first_time_ns, first.last_time_ns) == (1000 * SECOND, 1003 * SECOND)
    assert second.first_time_ns == 1004 * SECOND
    assert (last.sealed, last.index) == (False, "none")


def test_a_flipped_bit_in_a_sealed_segment_is_found_with_its_place(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.cursor() as cursor:
        second = [record.position for record in cursor][1]
    flip(tmp_path / "000000001.log", second.offset + 20)
    report = verify(stream)
    assert not report.ok
    (defect,) = report.segments[0].defects
    assert (defect.position, defect.reason) == (second, "crc")
    assert report.segments[0].records == 3
    assert report.records == 11
    assert str(second) in report.problems()[0]


def test_damage_to_synced_data_in_the_last_segment_is_no_torn_tail(tmp_path: Path) -> None:
    stream = make_log(tmp_path, segments=1)
    size = (tmp_path / "000000001.log").stat().st_size
    flip(tmp_path / "000000001.log", size - 1)
    (segment,) = verify(stream).segments
    assert segment.torn is None
    assert [defect.reason for defect in segment.defects] == ["crc"]


def test_a_torn_tail_is_a_problem_when_nobody_appends(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with open(tmp_path / "000000003.log", "ab") as file:
        file.write(b"\x01\x00\x00")
    report = verify(stream)
    assert report.segments[-1].torn is not None
    assert report.segments[-1].torn.byte_count == 3
    assert not report.ok


def test_a_torn_tail_is_the_end_of_the_log_while_somebody_appends(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.appender():
        with open(tmp_path / "000000003.log", "ab") as file:
            file.write(b"\x01\x00\x00")
        report = verify(stream)
    assert report.live
    assert report.ok
    assert any("being written" in note for note in report.notes())


def test_a_tail_that_an_appender_finished_meanwhile_was_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_log(tmp_path)
    with open(tmp_path / "000000003.log", "ab") as file:
        file.write(b"\x01\x00\x00")

    def finish(_: object) -> bool:
        with open(tmp_path / "000000003.log", "ab") as file:
            file.write(b"the rest")
        return False  # and closed

    monkeypatch.setattr(module, "_is_live", finish)
    assert verify(stream).ok


def test_an_index_that_is_being_written_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_log(tmp_path)
    path = next(tmp_path.glob("000000002.*.idx"))
    right = path.read_bytes()
    path.write_bytes(right[:50])
    monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(right))
    with stream.appender():
        assert verify(stream).segments[1].index == "fits"


def test_an_index_that_stays_damaged_is_told_of_a_live_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_log(tmp_path)
    flip(next(tmp_path.glob("000000002.*.idx")), 30)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with stream.appender():
        report = verify(stream)
    assert (report.ok, report.tidy) == (True, False)


def test_an_empty_last_segment_is_a_crash_during_creation(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    (tmp_path / "000000004.log").touch()
    report = verify(stream)
    assert report.segments[-1].header == "unfinished"
    assert len(report.problems()) == 1


def test_a_segment_of_another_log_is_told_by_what_its_header_says(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    flip(tmp_path / "000000002.log", 0)
    report = verify(stream)
    assert report.segments[1].header == "foreign"
    assert "magic 0x9c70746e, expected 0x6370746e" in report.problems()[0]
    assert report.records == 8


def test_a_missing_index_is_a_note_and_no_problem(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    next(tmp_path.glob("000000001.*.idx")).unlink()
    report = verify(stream)
    assert report.ok
    assert not report.tidy
    assert report.segments[0].index == "missing"


def test_a_damaged_index_is_a_note_and_no_problem(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    flip(next(tmp_path.glob("000000002.*.idx")), 30)
    report = verify(stream)
    assert report.segments[1].index == "unusable"
    assert report.ok
    assert not report.tidy


def test_an_index_with_a_right_checksum_that_counts_other_records_is_damaged(tmp_path: Path) -> None:
    from forelog.log.directory.index import decode_index, encode_index

    stream = make_log(tmp_path)
    path = next(tmp_path.glob("000000001.*.idx"))
    index = decode_index(path.read_bytes())
    assert index is not None
    index.records += 1
    path.write_bytes(encode_index(index))
    assert verify(stream).segments[0].index == "damaged"


def test_synced_bytes_that_are_gone_are_told(tmp_path: Path) -> None:
    stream = make_log(tmp_path, segments=1)
    path = tmp_path / "000000001.log"
    with stream.cursor() as cursor:
        last = [record.position.offset for record in cursor][-1]
    lost = path.stat().st_size - last
    os.truncate(path, last)
    report = verify(stream)
    assert report.segments[0].defects == []
    assert report.synced_bytes_missing == lost
    assert not report.ok


def test_a_synced_segment_that_is_gone_is_told(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    (tmp_path / "000000003.log").unlink()
    report = verify(stream)
    assert report.synced_segment_missing == 3
    assert not report.ok


def test_segments_that_cleaning_removed_are_not_missed(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.cleaner() as cleaner:
        cleaner.clean(OlderThan(time_ns=1006 * SECOND))
    report = verify(stream)
    assert report.tidy
    assert [segment.number for segment in report.segments] == [2, 3]
    assert report.segments[0].rewritten


def test_debris_and_evidence_are_listed_and_other_files_are_not(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    for name in (
        "000000001.log.rw",
        "000000001.77.idx",
        "000000009.30.idx",
        "000000002.torn",
        "notes.txt",
        "1.rw",
    ):
        (tmp_path / name).write_bytes(b"x")
    report = verify(stream)
    assert report.ok
    assert report.rewrites == ["000000001.log.rw"]
    assert report.indexes_stale == ["000000001.77.idx", "000000009.30.idx"]
    assert report.evidence == ["000000002.torn"]


def test_times_that_go_back_are_counted_with_the_first_place(tmp_path: Path) -> None:
    stream = make_log(tmp_path, segments=1, records=1)
    fmt = stream.format
    times = [50, 60, 40, 70, 30]
    (tmp_path / "000000001.log").write_bytes(fmt.header() + b"".join(fmt.encode(b"", t) for t in times))
    (tmp_path / "append.synced").unlink()
    report = verify(stream)
    assert report.ok
    assert report.segments[0].times_back == 2
    assert report.segments[0].times_back_first == Position(1, 8 + 2 * 20)


def test_more_damage_than_is_listed_is_still_counted(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    with stream.appender() as log:
        log.append_many([b"x" * 10] * 4200)
        log.roll()
    path = tmp_path / "000000001.log"
    data = bytearray(path.read_bytes())
    for record in range(0, 4200, 4):
        data[8 + record * 30 + 20] ^= 0xFF
    path.write_bytes(data)
    segment = verify(stream).segments[0]
    assert (segment.defects_found, len(segment.defects), segment.records) == (1050, 1000, 3150)
    assert segment.defect_bytes == 1050 * 30


def test_progress_goes_up_to_all_bytes(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    seen: list[tuple[int, int]] = []
    report = verify(stream, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == (report.byte_count, report.byte_count)


def test_memory_stays_that_of_a_block(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    with stream.appender(segment_bytes=4 << 20) as log:
        for _ in range(40):
            log.append_many([b"y" * 200] * 2500)
    tracemalloc.start()
    try:
        assert verify(stream).records == 100_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_a_cleaner_keeps_it_waiting(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.cleaner(), pytest.raises(LockTimeout):
        verify(stream, timeout=0)


def test_no_log_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        verify(Stream(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("case", "problems"),
    [
        ("good", 0), ("gap", 0), ("seq_zero", 0), ("starts_at_7", 0), ("header_only_last", 0),
        ("foreign_names", 0), ("torn_first", 1), ("torn_last", 1), ("bad_crc_first", 1),
        ("empty_last", 1), ("empty_middle", 1),
    ],
)  # fmt: skip
def test_streams_of_the_original_program(case: str, problems: int, vector: Callable[[str], Path]) -> None:
    path = vector(f"captain/streams/{case}")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert len(verify(Stream.open(path)).problems()) == problems
    after = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "read.lock"}
    assert after == before
