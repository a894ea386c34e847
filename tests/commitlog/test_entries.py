"""Entries and datapoints of logs in M3's format: whole, in part, and around damage."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from itertools import chain

import pytest

from forelog import CorruptRecord, LogNotFound, Position, Stream, UnknownFormat, apply_repairs, kernel
from forelog.commitlog.entries import EntryWalk, read_entries, scan_datapoints
from forelog.formats.m3 import M3, Datapoint, Entry, Series, Unit
from forelog.formats.m3.columns import COLUMNS, datapoints_schema
from forelog.log.walk import Defect
from tests.conftest import VECTORS

pa = pytest.importorskip("pyarrow")

EXPECTED = json.loads((VECTORS / "m3/expected.json").read_text())
CPU, MEM = Series(b"cpu", shard=3, tags={b"host": b"a"}), Series(b"mem", namespace=b"other")


def file_of(tmp_path, *parts: bytes, number: int = 0) -> Stream:
    (tmp_path / f"commitlog-0-{number}.db").write_bytes(b"".join(parts))
    return Stream.open(tmp_path)


def chunked(*messages: bytes, chunk_bytes: int = 65_536) -> bytes:
    return kernel.m3_chunks(list(messages), chunk_bytes)[0]


def raw_chunk(data: bytes) -> bytes:
    size = struct.pack("<I", len(data))
    return size + struct.pack("<II", zlib.adler32(size), zlib.adler32(data)) + data


INFO = bytes.fromhex("01920793000000")


def entry(index: int, series: Series | None, number: int, annotation: bytes | None = None) -> bytes:
    """A message whose created, timestamp and value are all one number."""
    metadata = None if series is None else series.metadata
    return kernel.m3_message(index, number, metadata, number, float(number), 1, annotation)


def numbers(stream: Stream, **bounds) -> list[int]:
    return [found.created_ns for _, found in read_entries(stream, **bounds)]


def damaged(tmp_path, name: str) -> Stream:
    shutil.copy(VECTORS / "m3/damaged" / f"{name}.db", tmp_path / "commitlog-0-0.db")
    return Stream.open(tmp_path)


def test_a_directory_of_m3s_files_is_opened_as_what_it_is(vector, tmp_path):
    assert Stream.open(vector("m3")).format == M3()
    (tmp_path / "data").mkdir()
    shutil.copytree(VECTORS / "m3", tmp_path / "data/commitlogs")
    stream = Stream.open(tmp_path / "data")
    assert stream.path == f"{tmp_path}/data/commitlogs"
    assert stream.segments()[0].first_time_ns == 1763200000001234567
    assert [info.number for info in stream.segments()] == [0, 1, 2]


def test_a_directory_of_neither_is_no_log(tmp_path):
    with pytest.raises(LogNotFound, match=r"commitlog-0-0\.db"):
        Stream.open(tmp_path)


def test_entries_come_one_by_one_with_the_position_of_their_chunk(vector):
    found = list(read_entries(Stream.open(vector("m3"))))
    expected = EXPECTED["files"]["commitlog-0-0.db"]["entries"] + EXPECTED["files"]["commitlog-0-1.db"]["entries"]
    assert [e.datapoint.timestamp_ns for _, e in found] == [e["timestamp_ns"] for e in expected]
    assert [e.series.id.decode() for _, e in found] == [e["series_id"] for e in expected]
    offsets = {chunk["offset"] for chunk in EXPECTED["files"]["commitlog-0-0.db"]["chunks"]}
    assert {position.offset for position, _ in found if position.segment == 0} <= offsets
    assert found[0] == (
        Position(0, 0),
        Entry(
            Series(
                b"cpu.load{host=web01}",
                shard=5,
                tags=[(b"__name__", b"cpu_load"), (b"host", b"web01"), (b"region", b"eu")],
            ),
            Datapoint(1763200000000000000, -40.0),
            Unit.SECOND,
            None,
            1763200000001234567,
        ),
    )


def test_datapoints_come_as_columns(vector):
    stream = Stream.open(vector("m3"))
    table = pa.Table.from_batches(scan_datapoints(stream, COLUMNS), datapoints_schema(COLUMNS))
    rows = table.drop_columns(["timestamp", "created"]).to_pylist()  # Python has no nanoseconds
    for row, (position, found) in zip(rows, read_entries(stream), strict=True):
        assert (row["namespace"], row["id"], row["shard"]) == (
            found.series.namespace,
            found.series.id,
            found.series.shard,
        )
        assert row["tags"] == (None if found.series.tags is None else list(found.series.tags))
        assert struct.pack(">d", row["value"]) == struct.pack(">d", found.datapoint.value)
        assert (row["unit"], row["annotation"]) == (found.unit, found.annotation)
        assert row["position"] == {"segment": position.segment, "offset": position.offset}
        assert (row["segment"], row["offset"]) == position
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [found.datapoint.timestamp_ns for _, found in read_entries(stream)]
    created = table["created"].cast(pa.int64()).to_pylist()
    assert created == [found.created_ns for _, found in read_entries(stream)]
    assert {None, b""} < {row["annotation"] for row in rows}


def test_a_range_starts_with_the_series_of_what_lies_before_it(tmp_path):
    first = chunked(INFO, entry(0, CPU, 1), entry(1, MEM, 2))
    stream = file_of(tmp_path, first, chunked(entry(1, None, 3)), chunked(entry(0, None, 4), entry(0, None, 5)))
    file_of(tmp_path, chunked(INFO, entry(0, MEM, 6)), number=1)
    assert numbers(stream) == [1, 2, 3, 4, 5, 6]
    second = Position(0, len(first))
    assert numbers(stream, start=second) == [3, 4, 5, 6]
    assert [found.series for _, found in read_entries(stream, start=second)][:2] == [MEM, CPU]
    assert numbers(stream, until=second) == [1, 2]
    assert numbers(stream, since=5) == [5, 6]
    assert numbers(stream, since=2, until=5) == [2, 3, 4]
    values = [batch["value"].to_pylist() for batch in scan_datapoints(stream, ["value"], since=4, until=6)]
    assert values == [[4.0, 5.0]]


def test_a_time_is_found_also_past_a_file_without_entries(tmp_path):
    file_of(tmp_path, chunked(INFO, entry(0, CPU, 10), entry(0, None, 20)), number=0)
    file_of(tmp_path, chunked(INFO), number=1)
    stream = file_of(tmp_path, chunked(INFO), chunked(entry(0, CPU, 30)), number=2)
    assert numbers(stream, since=15) == [20, 30]
    assert numbers(stream, since=25) == [30]


def test_each_file_has_its_own_series(tmp_path):
    file_of(tmp_path, chunked(INFO, entry(0, CPU, 1)), number=0)
    stream = file_of(tmp_path, chunked(INFO, entry(0, MEM, 2)), number=1)
    assert [found.series for _, found in read_entries(stream)] == [CPU, MEM]
    rows = pa.Table.from_batches(scan_datapoints(stream, ["id"])).to_pylist()
    assert [row["id"] for row in rows] == [b"cpu", b"mem"]


@pytest.mark.parametrize("case", EXPECTED["damaged"], ids=lambda case: case["file"])
def test_damage_is_told_as_the_caller_chose(tmp_path, case):
    name = case["file"].removeprefix("damaged/").removesuffix(".db")
    stream = damaged(tmp_path, name)
    good = case["good_entries_before_end"]
    if name.startswith("corrupt"):
        walk = EntryWalk(stream)
        found = 0
        with pytest.raises(CorruptRecord) as caught:
            for block in walk:
                found += block.last - block.first
        assert found == good
        assert caught.value.position == Position(0, 0 if "first" in name else 2499)
        assert caught.value.reason in ("size checksum", "data checksum")
    else:
        assert len(numbers(stream)) == good
    assert len(numbers(stream, on_corruption="stop")) == good
    # Eight entries are in the chunk that is damaged. With the first chunk the metadata of all but one series is
    # gone, of which 40 entries remain.
    skipping = 40 if "first" in name else 201 - 8 if name.startswith("corrupt") else good
    assert len(numbers(stream, on_corruption="skip")) == skipping


def test_a_message_that_a_crash_cut_is_the_torn_end(tmp_path):
    stream = damaged(tmp_path, "truncated_inside_spanning_entry")
    walk = EntryWalk(stream)
    assert sum(block.last - block.first for block in walk) == 121
    assert (walk.torn.position, walk.torn.reason, walk.torn.byte_count) == (Position(0, 5956), "truncated", 524)
    assert walk.defects == []


def test_a_message_cut_in_a_file_that_is_not_the_last_is_damage(tmp_path):
    damaged(tmp_path, "truncated_inside_spanning_entry")
    stream = file_of(tmp_path, chunked(INFO, entry(0, CPU, 7)), number=1)
    with pytest.raises(CorruptRecord, match=r"truncated message.*000000000:5956"):
        numbers(stream)
    found: list[Defect] = []
    assert len(list(scan_datapoints(stream, on_corruption="skip", defects=found))) == 2
    assert [(str(defect.position), defect.reason) for defect in found] == [("000000000:5956", "truncated message")]


BAD_MESSAGES = [
    (b"\x05\x01\x92\x08\x97\x00", "field"),
    (b"\x05hello", "message"),
    (b"\xff" * 10, "message length"),
    (b"\x07" + INFO, "message"),
    (b"\x01\x01", "message"),
]


@pytest.mark.parametrize(("message", "reason"), BAD_MESSAGES)
def test_a_wrong_message_in_a_right_chunk_is_damage(tmp_path, message, reason):
    good = chunked(INFO, entry(0, CPU, 1))
    whole = entry(0, None, 2)
    bad = raw_chunk(bytes([len(whole)]) + whole + message)
    stream = file_of(tmp_path, good, bad, chunked(entry(0, None, 3)))
    with pytest.raises(CorruptRecord) as caught:
        numbers(stream)
    assert (caught.value.position, caught.value.reason) == (Position(0, len(good)), reason)
    assert caught.value.data == message[:32]
    assert numbers(stream, on_corruption="stop") == [1, 2]
    assert numbers(stream, on_corruption="skip") == [1, 2, 3]


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (b"\x01\x92\x09\x93\xc4\x00\xc4\x00\x00", "metadata"),
        (CPU.metadata[:-1] + b"xx", "metadata"),
        (b"x", "metadata"),
    ],
)
def test_metadata_that_cannot_be_read_is_damage(tmp_path, metadata, reason):
    stream = file_of(tmp_path, chunked(INFO, kernel.m3_message(0, 1, metadata, 1, 1.0, 1, None)))
    with pytest.raises(CorruptRecord) as caught:
        numbers(stream)
    assert caught.value.reason == reason


def test_tags_that_do_not_fill_their_bytes_are_damage(tmp_path):
    metadata = b"\x01\x92\x09\x93\xc4\x00\xc4\x00\x00\xc4\x05\x75\x27\x00\x00\x00"
    stream = file_of(tmp_path, chunked(INFO, kernel.m3_message(0, 1, metadata, 1, 1.0, 1, None)))
    with pytest.raises(CorruptRecord, match="tags"):
        numbers(stream)


def test_entries_of_a_series_that_is_lost_are_counted(tmp_path):
    stream = file_of(
        tmp_path, chunked(INFO, entry(0, CPU, 1)), chunked(entry(9, None, 2), entry(0, None, 3), entry(9, None, 4))
    )
    with pytest.raises(CorruptRecord, match="unknown series"):
        numbers(stream)
    assert numbers(stream, on_corruption="stop") == [1]
    walk = EntryWalk(stream, on_corruption="skip")
    assert sum(block.last - block.first for block in walk) == 2
    assert [defect.reason for defect in walk.message_defects] == ["2 entries of unknown series"]


def test_after_a_lost_chunk_reading_goes_on_where_a_chunk_begins_with_a_message(tmp_path):
    whole = chunked(entry(0, None, 2, b"n" * 150), entry(0, None, 3), chunk_bytes=128)
    assert len(M3().scan(whole, 0, len(whole), 0, 9).offsets) == 2
    broken = bytearray(whole)
    broken[20] ^= 1
    stream = file_of(tmp_path, chunked(INFO, entry(0, CPU, 1)), bytes(broken), chunked(entry(0, None, 4)))
    walk = EntryWalk(stream, on_corruption="skip")
    assert [block.entries.created.tolist() for block in walk] == [[1], [4]]
    assert [defect.reason for defect in walk.defects] == ["data checksum", "begins inside of a lost message"]


@pytest.mark.parametrize(
    ("place", "reason"), [(20, "begins inside of a lost message"), (150, "truncated message")]
)
def test_a_file_from_which_repair_took_a_chunk_has_a_gap_there(tmp_path, place, reason):
    whole = bytearray(chunked(entry(0, None, 2, b"n" * 150), chunk_bytes=128))
    whole[place] ^= 1
    head = chunked(INFO, entry(0, CPU, 1))
    stream = file_of(tmp_path, head, bytes(whole), chunked(entry(0, None, 3)))
    file_of(tmp_path, chunked(INFO, entry(0, CPU, 4)), number=1)
    apply_repairs(stream)
    walk = EntryWalk(stream, on_corruption="skip")
    assert list(chain(*(block.entries.created for block in walk))) == [1, 3, 4]
    assert [defect.reason for defect in walk.defects] == [reason]
    after = Position(0, len(head) + len(whole))
    assert numbers(stream, start=after, on_corruption="skip") == [3, 4]


def test_a_message_begun_in_one_block_and_ended_in_another_is_read(tmp_path):
    note = bytes(3 << 20)
    stream = file_of(tmp_path, chunked(INFO, entry(0, CPU, 1), entry(0, None, 2, note), entry(0, None, 3)))
    assert [(e.created_ns, e.annotation) for _, e in read_entries(stream)] == [(1, None), (2, note), (3, None)]


def test_what_is_written_meanwhile_comes_when_it_is_iterated_over_again(tmp_path):
    spanning = chunked(entry(0, None, 2, b"n" * 90), chunk_bytes=64)
    stream = file_of(tmp_path, chunked(INFO, entry(0, CPU, 1)), spanning[:76])
    walk = EntryWalk(stream)
    assert [block.entries.created.tolist() for block in walk] == [[1]]
    assert walk.torn is not None
    with open(tmp_path / "commitlog-0-0.db", "ab") as file:
        file.write(spanning[76:])
    assert [block.entries.created.tolist() for block in walk] == [[2]]
    assert walk.torn is None


def test_a_log_of_another_format_has_no_entries(tmp_path):
    with pytest.raises(UnknownFormat, match="captain"):
        list(read_entries(Stream(tmp_path)))


def test_a_format_that_there_is_not_is_told(tmp_path):
    assert Stream(tmp_path, format="m3").format == M3()
    with pytest.raises(UnknownFormat, match="'m4'"):
        Stream(tmp_path, format="m4")  # type: ignore[arg-type]


def test_unknown_columns_are_told(vector):
    with pytest.raises(ValueError, match="choose from namespace, id"):
        scan_datapoints(Stream.open(vector("m3")), ["payload"])
