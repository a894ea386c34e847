"""Readers that go on where they left off, in logs that forget."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from chiplog import KeepLast, Stream
from chiplog.errors import BadPosition
from chiplog.log.position import Position
from chiplog.spark.batch import Task
from chiplog.spark.options import read_options
from chiplog.spark.planning import end_of
from chiplog.spark.source import table_columns
from chiplog.spark.stream import ChiplogStreamReader, DataLoss


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path / "log")


def reader_of(stream, **options):
    options = read_options({"path": str(stream.path), **options})
    columns, names = table_columns(options)
    return ChiplogStreamReader(options, columns, names)


def forget(stream, segments: int = 1) -> None:
    with stream.cleaner() as cleaner:
        cleaner.clean(KeepLast(segments=segments))


def advance(reader, start):
    """The next offset, and the payloads up to it."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    payloads = []
    for task in reader.partitions(start, end):
        assert isinstance(task, Task)
        for batch in pickle.loads(pickle.dumps(reader)).read(task):
            payloads += batch["payload"].to_pylist()
    return end, payloads


@pytest.mark.parametrize("limits", [{}, {"maxRecordsPerBatch": "100"}])
def test_a_segment_that_was_read_to_its_end_may_be_rolled_and_cleaned_away(stream, limits):
    reader = reader_of(stream, **limits)
    with stream.appender() as log:
        log.append_many([b"a", b"b"])
        offset, payloads = advance(reader, reader.initialOffset())
        assert payloads == [b"a", b"b"]
        for new in (b"c", b"d"):
            log.roll()
            log.append(new)
            forget(stream)
            offset, payloads = advance(reader, offset)
            assert payloads == [new]
    reader.stop()


def test_records_of_that_segment_that_were_not_read_are_missed(stream):
    reader = reader_of(stream)
    with stream.appender() as log:
        log.append(b"a")
        offset, _ = advance(reader, reader.initialOffset())
        log.append(b"never read")
        log.roll()
        log.append(b"b")
    forget(stream)
    with pytest.raises(DataLoss, match="the stream stood at 000000001:29, and that segment is gone"):
        advance(reader, offset)
    assert advance(reader_of(stream, failOnDataLoss="false"), offset)[1] == [b"b"]
    reader.stop()


def test_a_segment_that_came_and_went_in_between_is_missed(stream):
    reader = reader_of(stream)
    with stream.appender() as log:
        log.append(b"a")
        offset, _ = advance(reader, reader.initialOffset())
        for payload in (b"never read", b"b"):
            log.roll()
            log.append(payload)
    forget(stream)
    with pytest.raises(DataLoss):
        advance(reader, offset)
    reader.stop()


def test_after_a_restart_nobody_knows_and_that_is_told(stream):
    reader = reader_of(stream)
    with stream.appender() as log:
        log.append(b"a")
        offset, _ = advance(reader, reader.initialOffset())
        log.roll()
        log.append(b"b")
    forget(stream)
    reader.stop()
    with pytest.raises(DataLoss, match="may have taken"):
        advance(reader_of(stream), offset)


@pytest.mark.parametrize("choice", ["true", "false"])
def test_a_position_past_the_end_is_of_another_log(stream, choice):
    with stream.appender() as log:
        log.append(b"a")
    with pytest.raises(BadPosition, match="Start with a new checkpoint"):
        advance(reader_of(stream, failOnDataLoss=choice), {"log": "000000007:100"})


def test_the_end_is_found_from_any_place_before_it(stream):
    with stream.appender() as log:
        log.append_many([b"a", b"b"])
        end = end_of(stream)
        assert end == stream.end()
        assert end_of(stream, Position(1, 29)) == end_of(stream, end) == end
        log.roll()
        assert end_of(stream, end) == Position(2, 0)


def test_on_a_remote_filesystem_a_segment_that_is_gone_is_missed(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    stream = Stream(tmp_path / "log")
    with stream.appender() as log:
        log.append(b"a")
        memory.put(str(tmp_path / "log"), "/standing", recursive=True)
        reader = ChiplogStreamReader(*_asked("memory://standing"))
        offset, payloads = advance(reader, reader.initialOffset())
        assert payloads == [b"a"]
        log.append(b"never copied")
        log.roll()
        log.append(b"b")
    memory.rm("/standing", recursive=True)
    (tmp_path / "log/000000001.log").unlink()
    memory.put(str(tmp_path / "log"), "/standing", recursive=True)
    with pytest.raises(DataLoss):
        advance(reader, offset)


def _asked(path: str):
    options = read_options({"path": path})
    return options, *table_columns(options)
