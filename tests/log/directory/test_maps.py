"""The maps of rewritten segments: by them positions stay valid, and without one nobody is led astray."""

from __future__ import annotations

import logging
import re

import pytest

from forelog import CorruptRecord, Position, Record, Stream
from forelog.formats import Captain
from forelog.log.directory.index import decode_index, encode_index
from forelog.log.repair import apply_repairs, plan_repair
from forelog.log.verify import verify
from forelog.testing import CrashDisk
from tests.log.test_cleaner import clean, make, read

PAYLOADS = [b"drop me, please", b"keep", b"drop this one too", b"keep", b"keep", b"drop", b"keep", b"keep"]


def rewritten() -> tuple[CrashDisk, Stream, list[Record]]:
    """A log whose first two segments were rewritten, and what they had held."""
    disk = CrashDisk()
    stream, records = make(PAYLOADS, files=disk)
    clean(stream, lambda _, record: record.payload.startswith(b"drop"))
    return disk, stream, records


def map_path(disk: CrashDisk, number: int = 1) -> str:
    size = len(disk.contents()[f"log/{number:09d}.log"])
    return f"log/{number:09d}.{size}.map"


def with_file(disk: CrashDisk, path: str, data: bytes | None) -> Stream:
    """The log with another content of one file."""
    contents = {name: content for name, content in disk.contents().items() if name != path}
    return Stream("log", files=CrashDisk.of(contents if data is None else {**contents, path: data}))


def with_damaged_map(disk: CrashDisk, number: int = 1) -> Stream:
    path = map_path(disk, number)
    return with_file(disk, path, disk.contents()[path][:-1] + b"?")


def disk_of(stream: Stream) -> CrashDisk:
    disk = stream.directory.files
    assert isinstance(disk, CrashDisk)
    return disk


def survivors(records: list[Record]) -> list[Record]:
    return [record for record in records if not record.payload.startswith(b"drop")]


def test_only_a_rewritten_segment_has_a_map():
    disk, stream, records = rewritten()
    sides = [name.rpartition(".")[2] for name in sorted(disk.contents()) if name[-3:] in ("idx", "map")]
    assert sides == ["map", "map"]
    assert [info.rewritten for info in stream.segments()] == [True, True, False]
    assert read(stream, start=records[2].position) == survivors(records[2:])


def test_a_segment_that_lost_only_its_last_records_counts_as_rewritten():
    stream, _ = make([b"keep", b"drop"], per_segment=2)
    clean(stream, lambda _, record: record.payload == b"drop")
    assert [info.rewritten for info in stream.segments()] == [True, False]


def test_no_flipped_byte_of_a_map_leads_a_resuming_cursor_astray():
    disk, _, records = rewritten()
    path = map_path(disk)
    right = disk.contents()[path]
    for place in range(len(right)):
        stream = with_file(disk, path, right[:place] + bytes((right[place] ^ 0x10,)) + right[place + 1 :])
        with pytest.raises(CorruptRecord):
            read(stream, start=records[3].position)


@pytest.mark.parametrize("size", [0, 1, 50])
def test_a_cut_map_is_told_with_what_and_where_and_what_to_do(size):
    disk, _, records = rewritten()
    path = map_path(disk)
    stream = with_file(disk, path, disk.contents()[path][:size])
    with pytest.raises(CorruptRecord, match=r"forelog repair.*on_corruption='skip'") as caught:
        read(stream, start=records[1].position)
    assert path in str(caught.value)
    assert (caught.value.reason, caught.value.path) == ("map", "log/000000001.log")
    assert caught.value.position == Position(1, 0)


def test_a_map_of_other_bytes_is_not_used():
    disk, _, _ = rewritten()
    path = map_path(disk)
    index = decode_index(disk.contents()[path])
    assert index is not None
    index.tail = b"else"
    with pytest.raises(CorruptRecord, match=r"\.map is damaged"):
        read(with_file(disk, path, encode_index(index)))


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"since": 4}, {"until": Position(2, 0)}])
def test_whatever_way_a_segment_is_read_its_damaged_map_is_told(options):
    disk, _, _ = rewritten()
    with pytest.raises(CorruptRecord, match="map"):
        read(with_damaged_map(disk), **options)


def test_after_the_error_a_cursor_does_not_go_on_as_if_nothing_were():
    disk, _, _ = rewritten()
    with with_damaged_map(disk).cursor() as cursor:
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                next(cursor)


def test_a_cursor_that_skips_reads_every_record_and_counts_the_defect(caplog):
    disk, _, records = rewritten()
    stream = with_damaged_map(disk)
    with caplog.at_level(logging.WARNING, "forelog"), stream.cursor(on_corruption="skip") as cursor:
        found = list(cursor)
        (defect,) = cursor.defects
    assert [record.payload for record in found] == [record.payload for record in survivors(records)]
    assert found[0].position == Position(1, 8), "where its bytes are"
    assert (defect.reason, defect.position) == ("map", Position(1, 0))
    assert stream.metrics.snapshot()["defects_skipped"] == 1
    assert "positions can't be told" in caplog.text


def test_a_cursor_that_stops_at_damage_stops_before_the_segment():
    disk, _, records = rewritten()
    stream = with_damaged_map(disk, 2)
    with stream.cursor(on_corruption="stop") as cursor:
        assert list(cursor) == survivors(records[:4])
        assert [defect.reason for defect in cursor.defects] == ["map"]


def test_a_cleaner_leaves_a_segment_whose_map_is_damaged():
    disk, _, _ = rewritten()
    stream = with_damaged_map(disk)
    with pytest.raises(CorruptRecord):
        clean(stream, lambda *_: True)
    assert clean(stream, lambda *_: True, on_corruption="skip").segments_skipped == ["log/000000001.log"]


def test_a_map_that_was_written_as_an_index_is_still_read():
    disk, _, records = rewritten()
    contents = {name.replace(".map", ".idx"): data for name, data in disk.contents().items()}
    stream = Stream("log", files=CrashDisk.of(contents))
    assert read(stream, start=records[2].position) == survivors(records[2:])
    assert verify(stream).tidy
    clean(stream, lambda _, record: record.position == records[1].position)
    assert read(stream, start=records[1].position) == survivors(records[2:])
    assert verify(stream).tidy


def test_verify_tells_of_a_damaged_map():
    disk, _, _ = rewritten()
    report = verify(with_damaged_map(disk))
    assert report.problems() == ["the map of log/000000001.log is damaged or doesn't fit its records"]
    assert (report.segments[0].index, report.segments[0].rewritten) == ("damaged", True)
    assert report.records == 6


def test_maps_that_no_segment_has_are_debris_and_cleaning_sweeps_them():
    disk, _, _ = rewritten()
    contents = {**disk.contents(), "log/000000001.77.map": b"", "log/000000009.30.map": b""}
    stream = Stream("log", files=CrashDisk.of(contents))
    assert verify(stream).indexes_stale == ["000000001.77.map", "000000009.30.map"]
    clean(stream, lambda *_: False)
    assert verify(stream).tidy


def test_a_removed_segment_takes_its_map_along():
    disk, stream, _ = rewritten()
    clean(stream, lambda *_: True)
    assert not [name for name in disk.contents() if name.endswith(".map")]


def test_a_last_segment_that_was_rewritten_is_not_appended_to_whatever_its_map():
    disk, _, _ = rewritten()
    contents = {name: data for name, data in disk.contents().items() if "/000000003" not in name}
    del contents["log/append.synced"]
    path = map_path(disk, 2)
    for data in (contents[path], contents[path][:-1]):
        stream = Stream("log", files=CrashDisk.of({**contents, path: data}))
        with stream.appender() as log:
            assert log.append(b"new") == Position(3, 8)


# -- repairing


def test_a_repair_gives_new_positions_and_old_ones_lead_to_the_whole_segment():
    disk, _, records = rewritten()
    stream = with_damaged_map(disk)
    (repair,) = apply_repairs(stream)
    assert (repair.kind, repair.copies) == ("map", ["000000001.broken.map"])
    assert plan_repair(stream) == []
    first = [record.payload for record in survivors(records[:4])]
    for record in records[:4]:
        found = read(stream, start=record.position)
        assert [r.payload for r in found[:2]] == first, "nothing is missed, whatever was stored"
    mended = [record for record in read(stream) if record.position.segment == 1]
    assert not {record.position for record in mended} & {record.position for record in records}
    for row, record in enumerate(mended):
        assert read(stream, start=record.position)[0] == mended[row]


def test_positions_stay_new_when_a_map_is_damaged_again():
    disk, _, _ = rewritten()
    seen: set[Position] = set()
    for round_number in range(1, 4):
        stream = with_damaged_map(disk)
        apply_repairs(stream)
        disk = disk_of(stream)
        positions = {record.position for record in read(stream) if record.position.segment == 1}
        assert len(positions) == 2
        assert not positions & seen, f"round {round_number}"
        seen |= positions


def test_a_repaired_segment_can_be_cleaned_and_keeps_its_new_positions():
    disk, _, _ = rewritten()
    stream = with_damaged_map(disk)
    apply_repairs(stream)
    before = read(stream)
    clean(stream, lambda _, record: record == before[0])
    assert read(stream) == before[1:]
    assert read(stream, start=before[0].position) == before[1:]


def test_damaged_records_and_a_damaged_map_are_mended_together():
    disk, _, _ = rewritten()
    contents = disk.contents()
    segment = bytearray(contents["log/000000001.log"])
    segment[20] ^= 0xFF
    path = map_path(disk)
    contents |= {"log/000000001.log": bytes(segment), path: contents[path][:-1]}
    stream = Stream("log", files=CrashDisk.of(contents))
    (repair,) = apply_repairs(stream)
    assert repair.copies == ["000000001.broken", "000000001.broken.map"]
    assert verify(stream).tidy
    first, *_ = read(stream)
    assert first.position.offset > 1 << 48, "no position that another record had"


def test_a_map_outlives_damage_to_the_last_bytes_of_its_segment():
    disk, _, records = rewritten()
    segment = bytearray(disk.contents()["log/000000001.log"])
    segment[-1] ^= 0xFF
    stream = with_file(disk, "log/000000001.log", bytes(segment))
    with pytest.raises(CorruptRecord):
        read(stream)
    apply_repairs(stream)
    assert read(stream) == [record for record in survivors(records) if record != records[3]]
    assert verify(stream).tidy


def test_power_lost_at_any_moment_of_mending_a_map_misleads_nobody():
    disk, _, _ = rewritten()
    stream = with_damaged_map(disk)
    apply_repairs(stream)
    states = 0
    for state in disk_of(stream).states_everywhere(limit=5):
        states += 1
        found = Stream("log", files=state.disk)
        if verify(found).ok:
            assert read(found)[0].position.offset >= 1 << 48
        else:
            with pytest.raises(CorruptRecord):
                read(found)
        apply_repairs(found)
        assert verify(found).tidy
    assert states > 10


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("000000007.torn", 7),
        ("000000007.77.map", 7),
        ("000000007.log.rw", 7),
        ("000000007.broken.map.2", 7),
        ("000000007.log", None),
        ("append.lock", None),
        ("7.torn", None),
    ],
)
def test_a_file_beside_a_segment_is_known_by_its_name(name, number):
    assert Stream("log", files=CrashDisk()).directory.owner(name) == number


def test_a_file_beside_a_segment_is_known_in_a_format_with_other_names():
    class Other(Captain):
        def segment_name(self, number: int) -> str:
            return f"other-{number}.db"

        def segment_number(self, name: str) -> int | None:
            match = re.fullmatch(r"other-(\d+)\.db", name)
            return int(match[1]) if match else None

    disk = CrashDisk()
    stream = Stream("log", format=Other(), files=disk)
    with stream.appender() as log:
        records = log.append_many([b"drop", b"keep"])
        log.roll()
    clean(stream, lambda _, record: record.payload == b"drop")
    assert [record.position for record in read(stream, start=records[0])] == [records[1]]
    debris = {"log/other-1.db.rw": b"", "log/other-1.db.77.map": b"", "log/other-9.db.30.idx": b""}
    stream = Stream("log", format=Other(), files=CrashDisk.of({**disk.contents(), **debris}))
    report = verify(stream)
    assert report.rewrites == ["other-1.db.rw"]
    assert report.indexes_stale == ["other-1.db.77.map", "other-9.db.30.idx"]
    clean(stream, lambda *_: False)
    assert verify(stream).tidy
