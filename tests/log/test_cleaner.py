"""Forgetting: functions, rules, positions that stay valid, appenders that go on."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forelog import CorruptRecord, KeepLast, KeepLatest, OlderThan, Position, Record, SkipSegment, Stream
from forelog.testing import CrashDisk
from tests.notes import noted


def make(payloads: list[bytes], *, per_segment: int = 4, path="log", files=None) -> tuple[Stream, list[Record]]:
    ticks = iter(range(1, 10**6))
    stream = Stream(path, clock=lambda: next(ticks), files=files or CrashDisk())
    with stream.appender() as log:
        for i, payload in enumerate(payloads):
            log.append(payload)
            if i % per_segment == per_segment - 1:
                log.roll()
        log.append(b"last")
    return stream, read(stream)


def read(stream: Stream, **options) -> list[Record]:
    with stream.cursor(**options) as cursor:
        return list(cursor)


def clean(stream: Stream, forget, **options):
    with stream.cleaner() as cleaner:
        return cleaner.clean(forget, **options)


def test_a_function_decides_per_record_with_the_path_of_its_segment():
    stream, records = make([b"a", b"b", b"c", b"d", b"e", b"f"], per_segment=2)
    asked: list[tuple[str, Record]] = []
    report = clean(stream, lambda path, record: noted(asked, (path, record)) or record.payload in b"bcd")
    assert asked == [(f"log/{r.position.segment:09d}.log", r) for r in records[:6]], (
        "every sealed record, in order"
    )
    assert read(stream) == [r for r in records if r.payload not in (b"b", b"c", b"d")]
    assert (report.segments_visited, report.segments_rewritten, report.segments_removed) == (3, 1, 1)
    assert (report.records_dropped, report.records_kept) == (3, 3)


def test_the_last_segment_is_never_touched():
    stream, records = make([b"a", b"b", b"c"], per_segment=3)
    clean(stream, lambda *_: True)
    assert read(stream) == records[3:]
    assert stream.segments()[0].number == 2


def test_skip_segment_leaves_the_segment_and_goes_on():
    stream, records = make([b"a", b"b", b"c", b"d"], per_segment=2)

    def forget(path, record):
        if record.payload == b"b":
            raise SkipSegment
        return True

    report = clean(stream, forget)
    assert report.segments_skipped == ["log/000000001.log"]
    assert read(stream) == records[:2] + records[4:]


def test_an_error_of_the_function_stops_before_its_segment_changes():
    stream, records = make([b"a", b"b", b"c", b"d"], per_segment=2)

    def forget(path, record):
        if record.payload == b"d":
            raise RuntimeError("no")
        return True

    with pytest.raises(RuntimeError, match="no"):
        clean(stream, forget)
    assert read(stream) == records[2:]
    assert read(stream) == records[2:], "the lock was released"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(1, 6), st.data())
def test_positions_stay_valid_through_any_number_of_cleanings(payloads, per_segment, data):
    stream, records = make(payloads, per_segment=per_segment)
    kept = list(records)
    for _ in range(data.draw(st.integers(1, 3))):
        drop = set(data.draw(st.lists(st.sampled_from(records))))
        clean(stream, lambda _, record, drop=drop: record in drop)
        last = records[-1].position.segment
        kept = [r for r in kept if r not in drop or r.position.segment == last]
        assert read(stream) == kept
        assert read(stream, reverse=True) == kept[::-1]
    for record in records:
        assert read(stream, start=record.position) == [r for r in kept if r.position >= record.position]
        assert read(stream, until=record.position) == [r for r in kept if r.position < record.position]
        assert read(stream, since=record.time_ns) == [r for r in kept if r.time_ns >= record.time_ns]
        assert read(stream, start=record.next_position) == [r for r in kept if r.position > record.position]
    batches = list(stream.scan(["segment", "offset"]))
    columns = [
        Position(s, o)
        for b in batches
        for s, o in zip(b["segment"].to_pylist(), b["offset"].to_pylist(), strict=True)
    ]
    assert columns == [r.position for r in kept]


def test_older_than_drops_by_time_and_reads_no_segment_that_is_wholly_old_or_new():
    stream, records = make([b"%d" % i for i in range(12)], per_segment=4)
    before = stream.metrics.snapshot()["records_read"]
    report = clean(stream, OlderThan(time_ns=records[6].time_ns))
    assert stream.metrics.snapshot()["records_read"] - before <= 8, "only the segment in the middle, twice"
    assert read(stream) == records[6:]
    assert (report.segments_removed, report.segments_rewritten) == (1, 1)


@pytest.mark.parametrize("age", ["2h", timedelta(hours=2)])
def test_an_age_counts_back_from_each_run_by_the_streams_clock(age):
    hour = 3600 * 10**9
    now = [hour]
    stream = Stream("log", files=CrashDisk(), clock=lambda: now[0])
    with stream.appender() as log:
        for _ in range(4):
            log.append(b"%d" % (now[0] // hour))
            log.roll()
            now[0] += hour
    rule = OlderThan(age)
    clean(stream, rule)
    assert [r.payload for r in read(stream)] == [b"3", b"4"]
    now[0] += hour
    clean(stream, rule)
    assert [r.payload for r in read(stream)] == [b"4"]
    assert [r.payload for r in read(stream, since="-2h")] == [b"4"]
    assert read(stream, since="-1h") == []


def test_what_is_no_age_is_refused():
    with pytest.raises(TypeError):
        OlderThan()
    with pytest.raises(ValueError, match="duration"):
        OlderThan("soon")
    with pytest.raises(ValueError, match="single byte"):
        KeepLatest(until="=")  # type: ignore[arg-type]


def test_keep_last_keeps_whole_segments():
    stream, records = make([b"%d" % i for i in range(12)], per_segment=4)
    clean(stream, KeepLast(segments=2))
    assert read(stream) == records[8:]
    stream, records = make([b"%02d" % i for i in range(12)], per_segment=4)
    size = stream.segments()[0].byte_count
    clean(stream, KeepLast(byte_count=size + 1))
    assert read(stream) == records[4:] or read(stream) == records[8:]
    kept = sum(info.byte_count for info in stream.segments())
    assert kept >= size + 1
    assert kept - size < size + 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=3)), max_size=25), st.integers(1, 5))
def test_keep_latest_keeps_the_newest_of_each_key(items, per_segment):
    payloads = [b"key%d=%s" % item for item in items]
    for rule in (KeepLatest(until=b"="), KeepLatest(key=slice(0, 4))):
        stream, records = make(payloads, per_segment=per_segment)
        last = records[-1].position.segment
        newest = {record.payload[:4]: record for record in records}
        clean(stream, rule)
        assert read(stream) == [r for r in records if newest[r.payload[:4]] == r or r.position.segment == last]


def test_a_dry_run_counts_the_same_and_changes_nothing():
    disk = CrashDisk()
    stream, records = make([b"%d" % i for i in range(12)], per_segment=4, files=disk)
    before = disk.contents()
    counted = clean(stream, lambda _, r: int(r.payload) % 3 == 0 or int(r.payload) > 7, dry_run=True)
    assert {p: c for p, c in disk.contents().items() if "synced" not in p} == {
        p: c for p, c in before.items() if "synced" not in p
    }
    assert counted == clean(stream, lambda _, r: int(r.payload) % 3 == 0 or int(r.payload) > 7)


def test_damage_stops_cleaning_or_leaves_the_damaged_segment(tmp_path):
    from forelog.files import OSFiles

    stream, records = make(
        [b"%d" % i for i in range(9)], per_segment=3, path=str(tmp_path / "log"), files=OSFiles()
    )
    file = tmp_path / "log/000000002.log"
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecord):
        clean(stream, lambda *_: True)
    report = clean(stream, lambda *_: True, on_corruption="skip")
    assert report.segments_skipped == [str(file)]
    assert file.read_bytes() == data
    with pytest.raises(ValueError, match="expected"):
        clean(stream, lambda *_: True, on_corruption="stop")


def test_what_is_neither_function_nor_rule_is_refused():
    stream, _ = make([b"a"])
    with pytest.raises(TypeError, match="function"):
        clean(stream, "older than a day")


def test_appenders_go_on_while_a_cleaner_works(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender(segment_bytes=500) as log:
        for i in range(100):
            log.append(b"%d" % i)
        inside, appended = threading.Event(), threading.Event()

        def forget(_, record):
            inside.set()
            assert appended.wait(10), "append waited for the cleaner"
            return int(record.payload) % 2

        thread = threading.Thread(target=lambda: clean(stream, forget))
        thread.start()
        assert inside.wait(10)
        for i in range(100, 200):
            log.append(b"%d" % i)
        appended.set()
        thread.join()
    numbers = [int(r.payload) for r in read(stream)]
    assert numbers == sorted(numbers)
    assert set(range(100, 200)) <= set(numbers)


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "sync_dir", "open_append"])
def test_a_cleaner_on_a_failing_disk_loses_nothing_and_can_be_run_again(kind):
    disk = CrashDisk()
    stream, records = make([b"%d" % i for i in range(8)], per_segment=4, files=disk)
    fault = disk.fail(lambda op: op.kind == kind)
    with pytest.raises(OSError, match="Input/output"):
        clean(stream, lambda _, r: r.payload in b"1 6")
    fault.stop()
    assert [r for r in read(stream) if r.payload not in (b"1", b"6")] == [
        r for r in records if r.payload not in (b"1", b"6")
    ]
    clean(stream, lambda _, r: r.payload in b"1 6")
    assert read(stream) == [r for r in records if r.payload not in (b"1", b"6")]
    names = stream.directory.names()
    assert not [name for name in names if name.endswith(".rw")], "debris was swept up"
    assert [name[-4:] for name in sorted(names) if name.endswith((".idx", ".map"))] == [".map", ".map"]


def test_a_segment_cleaned_by_another_program_is_still_read(tmp_path):
    """The original rewrites segments too, and knows nothing of indexes: one that doesn't fit is ignored."""
    from forelog.files import OSFiles

    stream, records = make(
        [b"%d" % i for i in range(6)], per_segment=6, path=str(tmp_path / "log"), files=OSFiles()
    )
    clean(stream, lambda _, r: r.payload == b"1")
    file = tmp_path / "log/000000001.log"
    data = file.read_bytes()
    file.write_bytes(data[:8] + data[8 + records[0].frame_bytes :])
    assert [r.payload for r in read(stream)] == [b"2", b"3", b"4", b"5", b"last"]


def test_a_log_is_opened_while_a_cleaner_takes_the_segments_that_were_listed(tmp_path, monkeypatch):
    """Also if it takes more of them than there are looked at, and what is left has a magic number of its own."""
    from forelog.log.directory.directory import Directory

    stream = Stream(tmp_path / "log", magic=0x12345678)
    with stream.appender() as log:
        for number in range(40):
            log.append(b"%d" % number)
            log.roll()
        log.append(b"last")
    listed = Directory.numbers

    def numbers_then_clean(self: Directory) -> list[int]:
        found = listed(self)
        monkeypatch.setattr(Directory, "numbers", listed)
        clean(stream, lambda _path, _record: True)
        return found

    monkeypatch.setattr(Directory, "numbers", numbers_then_clean)
    opened = Stream.open(tmp_path / "log")
    assert opened.format == stream.format
    assert [record.payload for record in read(opened)] == [b"last"]


def test_a_record_that_ends_before_its_key_would_begin_stays():
    stream, _ = make([b"ab1", b"ab2", b"x", b"", b"x", b"cd1", b"ab3", b"cd2"])
    clean(stream, KeepLatest(key=slice(1, 2)))
    assert [record.payload for record in read(stream)] == [b"x", b"", b"x", b"ab3", b"cd2", b"last"]
    with pytest.raises(ValueError, match="is empty: all records would have the same key"):
        KeepLatest(key=slice(3, 3))
