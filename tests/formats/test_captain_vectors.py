"""Files that the original program wrote, whole and damaged: each is read as expected, or told of clearly."""

from __future__ import annotations

import base64
import hashlib
import json
import tracemalloc
from pathlib import Path

import pytest

from forelog import CorruptRecord, HeaderMismatch, Position, Record, Stream
from forelog.times import format_time, parse_time
from tests.conftest import VECTORS

CAPTAIN = VECTORS / "captain"
DAMAGED = json.loads((CAPTAIN / "damaged/expected.json").read_text())
STREAMS = json.loads((CAPTAIN / "streams/expected.json").read_text())

# What a reader makes of each damaged file: how many records, then which end. The files have no marks of how
# far they were synced, so that damage with nothing good after it is taken for a torn tail.
ENDS = {
    "good": "end",
    "empty_file": "end",
    "header_truncated": "torn header",
    "header_only": "end",
    "bad_magic": "HeaderMismatch",
    "wrong_version": "HeaderMismatch",
    "bitflip_payload_first": "CorruptRecord crc",
    "zone_offset_0_valid_crc": "end",
    "varint_noncanonical_valid_crc": "end",
    "bitflip_payload_last": "torn crc",
    "bitflip_time": "torn crc",
    "bitflip_crc": "torn crc",
    "crc_little_endian": "torn crc",
    "crc_ieee": "torn crc",
    "length_minus_1": "torn crc",
    "time_version_0": "torn time",
    "time_version_2_valid_crc": "torn time",
    "garbage_tail": "torn time",
    "zero_tail_64": "torn time",
    "zero_tail_3": "torn time",
    "varint_overflow_10xff": "torn length",
    "varint_10th_byte_2": "torn length",
}


def read(stream: Stream) -> tuple[list[Record], str]:
    records: list[Record] = []
    with stream.cursor() as cursor:
        try:
            records.extend(cursor)
        except CorruptRecord as error:
            return records, f"CorruptRecord {error.reason}"
        except HeaderMismatch:
            return records, "HeaderMismatch"
    return records, f"torn {cursor.torn.reason}" if cursor.torn else "end"


def test_every_record_of_the_originals_log_is_read_with_its_time_payload_and_segment():
    expected = json.loads((CAPTAIN / "basic/expected.json").read_text())
    with Stream.open(CAPTAIN / "basic").cursor() as cursor:
        for want in expected:
            record = next(cursor)
            assert Path(cursor.segment).name == want["segment"]
            assert record.time_ns == parse_time(want["time"])
            assert len(record.payload) == want["payload_len"]
            assert hashlib.sha256(record.payload).hexdigest() == want["payload_sha256"]
        assert next(cursor, None) is None


def test_every_time_the_original_can_write_is_read_to_the_nanosecond():
    expected = json.loads((CAPTAIN / "times/expected.json").read_text())["records"]
    with Stream.open(CAPTAIN / "times").cursor() as cursor:
        records = list(cursor)
    assert [record.payload for record in records] == [
        base64.b64decode(want["payload_base64"]) for want in expected
    ]
    for record, want in zip(records, expected, strict=True):
        if want["time_utc"].startswith("0000"):
            assert record.time_ns == -62135596801 * 10**9
        else:
            assert format_time(record.time_ns) == want["time_utc"]


@pytest.mark.parametrize("case", DAMAGED["cases"], ids=lambda case: case["case"])
def test_a_damaged_file_gives_its_good_records_and_a_defined_end(case, vector):
    path = vector("captain/damaged/" + case["case"])
    tracemalloc.start()
    records, end = read(Stream(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    good = case["good_records_before_error"]
    assert end == ENDS.get(case["case"], "torn truncated")
    assert len(records) == good
    for record, want in zip(records, DAMAGED["undamaged_records"], strict=False):
        if case["case"] not in ("zone_offset_0_valid_crc", "varint_noncanonical_valid_crc"):
            assert hashlib.sha256(record.payload).hexdigest() == want["payload_sha256"]
    assert peak < 8 << 20, "more memory than a reader's own buffers"


@pytest.mark.parametrize("case", DAMAGED["cases"], ids=lambda case: case["case"])
def test_a_damaged_file_can_be_appended_to_without_losing_a_good_record(case, vector):
    path = vector("captain/damaged/" + case["case"])
    before, end = read(Stream(path))
    original = (path / "000000001.log").read_bytes()
    if end == "HeaderMismatch":
        with pytest.raises(HeaderMismatch, match="expected"):
            Stream(path).appender()
        assert (path / "000000001.log").read_bytes() == original
        return
    with Stream(path).appender(sync="always") as log:
        log.append(b"appended")
    with Stream(path).cursor(on_corruption="skip") as cursor:
        after = [record.payload for record in cursor]
    assert after[: len(before)] == [record.payload for record in before]
    assert after[-1] == b"appended"
    if end.startswith("CorruptRecord"):
        assert (path / "000000001.log").read_bytes() == original, "damaged data was touched"
        assert len(after) == 4  # the three good ones behind the damage, and the new one
    elif end.startswith("torn"):
        kept = (path / "000000001.torn").read_bytes()
        assert original.endswith(kept)


@pytest.mark.parametrize(
    "case", [c for c in STREAMS["cases"] if c["case"] != "no_segments"], ids=lambda c: c["case"]
)
def test_a_stream_of_segments_is_read_as_the_original_reads_it(case, vector):
    path = vector("captain/streams/" + case["case"])
    events = case["cursor_events_when_caller_keeps_calling_next"]
    want = [(event["record"].encode(), event["segment"]) for event in events if "record" in event]
    found = []
    with Stream(path).cursor(on_corruption="skip") as cursor:
        for record in cursor:
            found.append((record.payload, Path(cursor.segment).name))
    assert found == want
    errors = [event for event in events if "error" in event]
    told = len(cursor.defects) + (cursor.torn is not None)
    # An empty last segment is a crash while it was created: nothing is lost, so nothing is told.
    assert told == (0 if case["case"] == "empty_last" else len(errors))


@pytest.mark.parametrize("case", STREAMS["cases"], ids=lambda case: case["case"])
def test_appending_to_a_stream_starts_a_segment_where_the_original_does(case, tmp_path, vector):
    path = tmp_path / "empty" if case["case"] == "no_segments" else vector("captain/streams/" + case["case"])
    before = {p.name for p in path.glob("*.log")} if path.exists() else set()
    with Stream(path).appender(segment_bytes=50) as log:
        position = log.append(b"x" * 8)
    changed = case["append_one_with_segsize_50"]["changed_files"]
    assert [f"{position.segment:09d}.log"] == list(changed)
    assert {p.name for p in path.glob("*.log")} >= before


def test_a_log_of_the_original_can_be_cleaned_and_the_rest_is_byte_for_byte_as_it_was(vector):
    path = vector("captain/basic")
    stream = Stream.open(path)
    with stream.cursor() as cursor:
        records = list(cursor)
    raw = {p.name: p.read_bytes() for p in path.glob("*.log")}
    with stream.cleaner() as cleaner:
        report = cleaner.clean(lambda _, record: len(record.payload) % 2 == 1)
    assert report.records_dropped == sum(
        len(r.payload) % 2 for r in records if r.position.segment != records[-1].position.segment
    )
    with stream.cursor() as cursor:
        kept = list(cursor)
    last = records[-1].position.segment
    assert kept == [r for r in records if len(r.payload) % 2 == 0 or r.position.segment == last]
    for record in kept:
        whole = raw[f"{record.position.segment:09d}.log"]
        frame = whole[record.position.offset : record.position.offset + record.frame_bytes]
        assert frame in (path / f"{record.position.segment:09d}.log").read_bytes()


def test_what_we_write_is_in_the_originals_layout(tmp_path):
    """Decoded here by the document alone: header, TIME, LEB128 length, payload, CRC-32C."""
    times = iter([1_794_765_600_000_000_001, 1_794_765_600_000_000_002])
    stream = Stream(tmp_path / "log", clock=lambda: next(times))
    payload = bytes(range(256)) * 2
    with stream.appender() as log:
        assert log.append(b"hi") == Position(1, 8)
        assert log.append(payload) == Position(1, 8 + 22)
    data = (tmp_path / "log/000000001.log").read_bytes()
    assert data[:8].hex() == "6370746e00000001"
    assert data[8:23].hex() == "01" + "0000000ee28bea20" + "00000001" + "0000"
    assert data[23:26] == b"\x02hi"
    assert data[30:45].hex() == "01" + "0000000ee28bea20" + "00000002" + "0000"
    assert data[45:47] == b"\x80\x04"
    assert data[47 : 47 + 512] == payload
    assert len(data) == 47 + 512 + 4
    for start, end in ((8, 26), (30, 559)):
        assert int.from_bytes(data[end : end + 4], "big") == crc32c_bit_by_bit(data[start:end])


def crc32c_bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
