"""Conversion between formats: nothing is lost, and nothing half done is left."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog import CorruptRecord, Stream, conversion, kernel, verify
from forelog.commitlog.entries import read_entries
from forelog.conversion import convert
from forelog.errors import ConvertFailed
from forelog.formats import Captain
from forelog.formats.m3 import M3, Datapoint, Entry, Series, Unit
from forelog.formats.m3.exchange import NotADatapoint, from_json, to_json
from forelog.log.directory.segment import SegmentWriter
from forelog.testing import CrashDisk

int64 = st.integers(-(2**63), 2**63 - 1)
floats = st.floats() | st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack(">d", struct.pack(">Q", bits))[0])
entries = st.builds(
    Entry,
    st.builds(
        Series,
        st.binary(max_size=9),
        st.binary(max_size=9),
        st.integers(0, 2**32 - 1),
        st.none() | st.lists(st.tuples(st.binary(min_size=1, max_size=5), st.binary(max_size=5)), max_size=3),
    ),
    st.builds(Datapoint, int64, floats),
    st.sampled_from(Unit) | st.integers(0, 255),
    st.none() | st.binary(max_size=9),
    int64,
)


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


def m3_log(path: Path, made: list[Entry], number: int = 0) -> Stream:
    path.mkdir(parents=True, exist_ok=True)
    items = [(e.series.metadata, *e.datapoint, int(e.unit), e.annotation, e.created_ns) for e in made]
    (path / f"commitlog-0-{number}.db").write_bytes(M3().encoder(number).encode_many(items, 0)[0])
    return Stream.open(path)


def bytes_of(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(path.rglob("*")) if p.suffix in (".log", ".db")}


@given(entries)
def test_json_says_all_of_a_datapoint(entry):
    found = from_json(to_json(entry))
    assert found.series == entry.series
    assert (found.timestamp_ns, found.unit, found.annotation) == (
        entry.datapoint.timestamp_ns,
        entry.unit,
        entry.annotation,
    )
    assert bits(found.value) == bits(entry.datapoint.value)


FIELDS = json.loads(to_json(Entry(Series(b"cpu"), Datapoint(1, 0.5), Unit.SECOND, None, 0)))


@pytest.mark.parametrize(
    "change",
    [
        {"id": 5},
        {"id": {"base64": "*"}},
        {"id": {"base64": "AA==", "x": 1}},
        {"id": "\ud800"},
        {"shard": -1},
        {"shard": 2**32},
        {"shard": True},
        {"tags": {"a": "b"}},
        {"tags": [["a"]]},
        {"tags": [["a", "x" * 65_536]]},
        {"tags": [["a", ""]] * 65_536},
        {"timestamp_ns": 2**63},
        {"timestamp_ns": 1.5},
        {"value": "nan"},
        {"value": None},
        {"value": 10**400},
        {"value": {"bits": "00"}},
        {"unit": 256},
        {"annotation": 3},
        {"more": 1},
    ],
    ids=lambda change: str(change)[:30],
)
def test_json_of_another_shape_is_no_datapoint(change):
    with pytest.raises(NotADatapoint):
        from_json(json.dumps({**FIELDS, **change}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"x", b"\xff", b"[" * 100_000])
def test_other_bytes_are_no_datapoint(data):
    with pytest.raises(NotADatapoint):
        from_json(data)


def test_there_and_back_nothing_is_lost(tmp_path, vector):
    source = vector("m3")
    there = convert(Stream.open(source), tmp_path / "there", Captain())
    back = convert(Stream.open(tmp_path / "there"), tmp_path / "back", M3())
    assert there.records == back.records == 221
    one, other = (list(read_entries(Stream.open(path))) for path in (source, tmp_path / "back"))
    none = Datapoint(0, 0.0)
    assert [entry._replace(datapoint=none) for _, entry in one] == [
        entry._replace(datapoint=none) for _, entry in other
    ]
    assert [(e.datapoint.timestamp_ns, bits(e.datapoint.value)) for _, e in one] == [
        (e.datapoint.timestamp_ns, bits(e.datapoint.value)) for _, e in other
    ]
    convert(Stream.open(tmp_path / "back"), tmp_path / "again", Captain())
    assert bytes_of(tmp_path / "again") == bytes_of(tmp_path / "there")


def test_what_m3_would_refuse_to_write_is_kept_too(tmp_path):
    odd = Series.of_metadata(b"\x01\x92\x09\x93\xc4\x00\xc4\x00\x00\xc4\x08\x75\x27\x01\x00\x00\x00\x00\x00")
    assert odd.tags == ((b"", b""),)
    made = [Entry(odd, Datapoint(-1, math.inf), 0, b"\xff", -9), Entry(odd, Datapoint(1, -0.0), 77, None, -10)]
    convert(m3_log(tmp_path / "odd", made), tmp_path / "there", Captain())
    convert(Stream.open(tmp_path / "there"), tmp_path / "back", M3())
    assert [entry for _, entry in read_entries(Stream.open(tmp_path / "back"))] == made


def test_records_keep_their_times_also_where_those_go_back(tmp_path):
    made = [Entry(Series(b"a"), Datapoint(0, 0.0), Unit.SECOND, None, time_ns) for time_ns in (50, 40, 60)]
    convert(m3_log(tmp_path / "m3", made), tmp_path / "there", Captain())
    with Stream.open(tmp_path / "there").cursor() as cursor:
        assert [record.time_ns for record in cursor] == [50, 40, 60]


def test_other_payloads_become_annotations_of_a_named_series(tmp_path):
    with Stream(tmp_path / "plain", clock=iter(range(7, 99)).__next__).appender() as log:
        log.append_many([b"one", b"\xff"])
    with pytest.raises(ConvertFailed, match="000000001:8 isn't a datapoint"):
        convert(Stream.open(tmp_path / "plain"), tmp_path / "m3", M3())
    assert os.listdir(tmp_path) == ["plain"]
    named = Series(b"orders", shard=4)
    convert(Stream.open(tmp_path / "plain"), tmp_path / "m3", M3(), series=named)
    found = [entry for _, entry in read_entries(Stream.open(tmp_path / "m3"))]
    assert [(e.series, e.annotation, e.datapoint.value) for e in found] == [
        (named, b"one", 0.0),
        (named, b"\xff", 0.0),
    ]
    assert {e.datapoint.timestamp_ns == e.created_ns for e in found} == {True}


def test_captain_to_captain_changes_the_header_and_nothing_else(tmp_path):
    with Stream(tmp_path / "one", clock=lambda: 5).appender() as log:
        log.append_many([b"x" * 50] * 100)
    report = convert(Stream.open(tmp_path / "one"), tmp_path / "two", Captain(0x12345678, 9), segment_bytes=1000)
    assert report.byte_count == 8 + 100 * 70
    found = Stream.open(tmp_path / "two")
    assert found.format == Captain(0x12345678, 9)
    with found.cursor() as cursor:
        assert [(record.time_ns, record.payload) for record in cursor] == [(5, b"x" * 50)] * 100


def test_many_files_are_made_of_what_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "_BATCH_ITEMS", 10)
    made = [Entry(Series(b"%d" % (i % 7)), Datapoint(i, float(i)), Unit.SECOND, None, i) for i in range(100)]
    report = convert(m3_log(tmp_path / "one", made), tmp_path / "two", M3(), segment_bytes=500)
    assert report.segments == len(bytes_of(tmp_path / "two")) > 3
    assert [entry for _, entry in read_entries(Stream.open(tmp_path / "two"))] == made


def test_damage_leaves_nothing_or_is_left_out(tmp_path):
    made = [Entry(Series(b"a"), Datapoint(i, 0.0), Unit.SECOND, None, i) for i in range(3)]
    m3_log(tmp_path / "m3", made)
    path = tmp_path / "m3/commitlog-0-0.db"
    more = kernel.m3_chunks([kernel.m3_message(0, 9, None, 9, 0.0, 1, None)], 512)[0]
    path.write_bytes(path.read_bytes() + more[:-1] + b"\x00" + more)
    source = Stream.open(tmp_path / "m3")
    with pytest.raises(CorruptRecord):
        convert(source, tmp_path / "there", Captain())
    assert os.listdir(tmp_path) == ["m3"]
    report = convert(source, tmp_path / "there", Captain(), on_corruption="skip")
    assert (report.records, report.skipped) == (4, 1)


def test_an_existing_log_is_never_written_into(tmp_path):
    source = m3_log(tmp_path / "m3", [])
    (tmp_path / "empty").mkdir()
    assert convert(source, tmp_path / "empty", Captain()).records == 0
    with pytest.raises(ConvertFailed, match="not empty"):
        convert(source, tmp_path / "empty", Captain())
    (tmp_path / "new.part").mkdir()
    with pytest.raises(ConvertFailed, match="interrupted"):
        convert(source, tmp_path / "new", Captain())


def test_what_does_not_read_back_is_no_success(tmp_path, monkeypatch):
    source = m3_log(tmp_path / "m3", [Entry(Series(b"a"), Datapoint(1, 0.0), Unit.SECOND, None, 1)])
    whole = SegmentWriter.finish

    def lose_a_byte(writer):
        whole(writer)
        path = Path(writer.directory.path, "000000001.log")
        path.write_bytes(path.read_bytes()[:-1])

    monkeypatch.setattr(SegmentWriter, "finish", lose_a_byte)
    with pytest.raises(ConvertFailed, match="not what is on the disk"):
        convert(source, tmp_path / "there", Captain())
    assert os.listdir(tmp_path) == ["m3"]


@pytest.mark.parametrize("target", [Captain(), M3()])
def test_a_conversion_is_there_whole_or_not_at_all_after_power_loss(tmp_path, target):
    source = m3_log(
        tmp_path / "m3", [Entry(Series(b"a"), Datapoint(n, 0.5), Unit.SECOND, None, n) for n in range(9)]
    )
    disk = CrashDisk()
    disk.make_dir("logs")
    report = convert(source, "logs/new", target, segment_bytes=100, files=disk)
    found = set()
    for state in disk.states_everywhere(limit=20):
        there = {path for path in state.disk.contents() if path.startswith("logs/new/")}
        if there:
            log = Stream.open(os.path.dirname(min(there)), files=state.disk)
            assert verify(log).problems() == []
        found.add(len(there))
    assert found == {0, report.segments}
