"""A log as Arrow record batches."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from forelog import CorruptRecord, Stream
from tests.conftest import VECTORS


@pytest.fixture
def stream(tmp_path):
    ticks = iter(range(10, 10**6))
    stream = Stream(tmp_path / "log", clock=lambda: next(ticks))
    with stream.appender(segment_bytes=1000) as log:
        for i in range(200):
            log.append(b"%d" % i * (i % 5))
    return stream


def test_a_scan_is_what_a_cursor_reads(stream):
    table = pa.Table.from_batches(stream.scan())
    with stream.cursor() as cursor:
        records = list(cursor)
    assert table["payload"].to_pylist() == [r.payload for r in records]
    assert [(p["segment"], p["offset"]) for p in table["position"].to_pylist()] == [r.position for r in records]
    assert table["time"].cast(pa.int64()).to_pylist() == [r.time_ns for r in records]
    assert str(table.schema.field("time").type) == "timestamp[ns, tz=UTC]"


def test_columns_are_chosen_and_come_in_the_order_asked_for(stream):
    table = pa.Table.from_batches(stream.scan(["length", "offset", "segment"], batch_rows=7))
    assert table.column_names == ["length", "offset", "segment"]
    with stream.cursor() as cursor:
        assert table["length"].to_pylist() == [len(r.payload) for r in cursor]
    assert max(batch.num_rows for batch in stream.scan(["offset"], batch_rows=7)) == 7


@pytest.mark.parametrize("columns", [["payloads"], [], "payload"])
def test_unknown_columns_are_refused_before_anything_is_read(stream, columns):
    with pytest.raises((ValueError, TypeError), match="columns"):
        stream.scan(columns)


def test_a_scan_holds_the_read_lock_and_lets_go_of_it(stream):
    batches = stream.scan(batch_rows=1)
    next(batches)
    with pytest.raises(TimeoutError):
        stream.cleaner(blocking=False)
    batches.close()
    stream.cleaner(blocking=False).close()


def test_batches_do_not_change_when_the_next_one_is_read(stream):
    batches = list(stream.scan(["payload", "offset"], batch_rows=3))
    with stream.cursor() as cursor:
        assert [p for batch in batches for p in batch["payload"].to_pylist()] == [r.payload for r in cursor]


def test_times_that_int64_cannot_hold_are_null(vector):
    expected = json.loads((VECTORS / "captain/times/expected.json").read_text())["records"]
    table = pa.Table.from_batches(Stream.open(vector("captain/times")).scan(["time"]))
    nulls = [value is None for value in table["time"].cast(pa.int64()).to_pylist()]
    outside = ("0000", "0001", "2262-04-12", "9999")
    assert nulls == [want["time_utc"].startswith(outside) for want in expected]


def test_damage_raises_or_is_skipped(stream, tmp_path):
    file = sorted((tmp_path / "log").glob("*.log"))[0]
    data = bytearray(file.read_bytes())
    data[60] ^= 4
    file.write_bytes(data)
    with pytest.raises(CorruptRecord):
        list(stream.scan())
    assert sum(batch.num_rows for batch in stream.scan(on_corruption="skip")) == 199
