"""What others build on: a log's directory, its bounds, reading under the lock, and segments of a new log."""

from __future__ import annotations

import pytest

from forelog import BadPosition, LockTimeout, LogNotFound, Position, Stream, UnknownFormat
from forelog.formats import FORMATS, named_format
from forelog.log.directory.directory import Directory
from forelog.log.directory.segment import SegmentWriter
from forelog.testing import CrashDisk

NOON = 1_700_000_000 * 10**9


@pytest.fixture
def stream() -> Stream:
    times = iter(range(NOON, NOON + 100))
    stream = Stream("log", files=CrashDisk(), clock=lambda: next(times))
    with stream.appender(segment_bytes=60) as log:
        for number in range(6):
            log.append(b"%d" % number)
    return stream


def payloads(walk) -> list[bytes]:
    return [
        bytes(block.buffer[block.scan.starts[row] : block.scan.ends[row]])
        for block in walk
        for row in range(block.first, block.last)
    ]


def test_bounds_are_positions_and_times(stream):
    assert stream.bounds() == (Position(0, 0), None, None, None)
    assert stream.bounds(start="000000002:8", until=(3, 8)) == (Position(2, 8), Position(3, 8), None, None)
    assert stream.bounds(until="000000003:8").stop == Position(3, 8)
    bounds = stream.bounds(since=NOON, until="2023-11-14T22:13:21Z")
    assert (bounds.since_ns, bounds.until_ns) == (NOON, NOON + 10**9)
    assert stream.bounds(since="-1s").since_ns == stream.now_ns() - 1 - 10**9  # the clock has gone on by one
    with pytest.raises(BadPosition):
        stream.bounds(start="anywhere")


def test_reading_gives_a_walk_and_holds_the_lock_while_it_lasts(stream):
    with stream.reading(start=(1, 0), since=NOON + 2) as walk:
        with pytest.raises(LockTimeout):
            stream.cleaner(timeout=0)
        assert payloads(walk) == [b"2", b"3", b"4", b"5"]
    stream.cleaner(timeout=0).close()
    assert walk.done
    with pytest.raises(BadPosition, match="past the end"), stream.reading(start=(99, 0)):
        pass
    stream.cleaner(timeout=0).close()
    with pytest.raises(LogNotFound):
        Stream("nowhere", files=CrashDisk()).reading()


def test_who_holds_the_lock_walks_without_it(stream):
    with stream.directory.read_lock():
        walk = stream.walk(stream.bounds(until=NOON + 2))
        assert payloads(walk) == [b"0", b"1"]
        walk.close()


def test_the_directory_knows_its_segments_and_their_sizes(stream):
    directory = stream.directory
    assert directory.numbers() == [1, 2]
    assert directory.segment_bytes(1) == stream.segment_bytes(1) == 8 + 3 * 21
    assert directory.segment_bytes(9) is None


def test_segments_of_a_new_log_keep_their_records_and_times(stream):
    copy = Stream("copy", files=stream.directory.files)
    copy.directory.make()
    writer = SegmentWriter(copy.directory)
    for block in stream.blocks():
        writer.begin(block.segment)
        writer.copy(block)
    writer.begin(3)
    writer.write([b"later", b"last"], [NOON + 7, NOON + 9])
    writer.finish()
    assert (writer.records, writer.numbers) == (8, [1, 2, 3])
    assert writer.byte_count == sum(info.byte_count for info in copy.segments())
    found = [(record.time_ns - NOON, record.payload) for record in copy.cursor()]
    assert found == [*((n, b"%d" % n) for n in range(6)), (7, b"later"), (9, b"last")]


def test_a_format_answers_for_itself():
    assert {name: named_format(name).record_word for name in FORMATS} == {
        "captain": "record",
        "m3": "chunk",
        "messages": "message",
    }
    assert [name for name in FORMATS if named_format(name).holds_entries] == ["m3"]
    assert [name for name in FORMATS if named_format(name).signature] == ["captain"]
    captain = named_format(magic=5, version=7)
    assert captain.signature == (5, 7)
    assert named_format().of_header(captain.header()) == captain
    assert all(named_format(name).of_header(b"") == named_format(name) for name in ("m3", "messages"))


def test_a_directory_of_another_format_is_refused(stream):
    with pytest.raises(UnknownFormat):
        Directory(stream.directory.files, "log", named_format("m3")).check()
