"""Readers that go on where they left off, in logs that forget."""

from __future__ import annotations

import pickle
import threading

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from forelog import KeepLast, Stream
from forelog.errors import BadPosition, DataLoss
from forelog.log.position import Position
from forelog.spark.options import read_options
from forelog.spark.pipeline.ingest import Ingest
from forelog.spark.pipeline.ingest_run import run_here
from forelog.spark.planning import end_of
from forelog.spark.slices import table_columns
from forelog.spark.stream import ForelogStreamReader
from forelog.spark.tasks import Task


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path / "log")


def reader_of(stream, **options):
    options = read_options({"path": str(stream.path), **options})
    columns, names = table_columns(options)
    return ForelogStreamReader(options, columns, names)


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
    with pytest.raises(DataLoss, match="may have removed"):
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
        reader = ForelogStreamReader(*_asked("memory://standing"))
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


class Steps(threading.Event):
    """An ingest's stop: it waits for nothing, does a step instead, and is set after the last."""

    def __init__(self, *steps):
        super().__init__()
        self._steps = list(steps)

    def wait(self, timeout=None):
        if self._steps:
            self._steps.pop(0)()
        else:
            self.set()
        return self.is_set()


def follow(stream, target, *steps, run=run_here) -> int:
    return Ingest(str(stream.path), str(target), run).follow(60, Steps(*steps)).rows


def test_an_ingest_goes_on_after_a_segment_that_it_had_read_to_its_end(stream, tmp_path):
    with stream.appender() as log:
        log.append_many([b"a", b"b"])

        def roll_and_forget():
            log.roll()
            log.append(b"c")
            forget(stream)

        assert follow(stream, tmp_path / "t", roll_and_forget, lambda: None, roll_and_forget) == 4


def test_an_ingest_goes_on_if_such_a_segment_goes_between_planning_and_reading(stream, tmp_path):
    forgotten = []

    def run(tasks, function, finished):
        segments = [number for task in tasks for piece in task.pieces for number in piece.segments]
        if segments == [1, 2]:
            forget(stream)
            forgotten.append(1)
        return run_here(tasks, function, finished)

    with stream.appender() as log:
        log.append(b"a")

        def more():
            log.roll()
            log.append(b"b")

        assert follow(stream, tmp_path / "t", more, run=run) == 2
    assert forgotten == [1]


def test_an_ingest_misses_records_that_it_had_not_read(stream, tmp_path):
    with stream.appender() as log:
        log.append(b"a")

        def forget_too_much():
            log.append(b"never read")
            log.roll()
            log.append(b"b")
            forget(stream)

        with pytest.raises(DataLoss, match="the table goes up to 000000001:29, and that segment is gone"):
            follow(stream, tmp_path / "t", forget_too_much)


def test_an_ingest_closes_what_it_kept_open(stream, tmp_path):
    with stream.appender() as log:
        log.append(b"a")
    work = Ingest(str(stream.path), str(tmp_path / "t"), run_here)
    assert work.once().rows == 1
    assert not work._continuity._held


def _asked(path: str):
    options = read_options({"path": path})
    return options, *table_columns(options)


# -- logs that are others by now


def written_anew(stream, how: str) -> None:
    """The log's only segment, cut or with other records in the same places."""
    fmt = stream.format
    path = f"{stream.path}/{fmt.segment_name(1)}"
    with open(path, "rb") as file:
        data = file.read()
    other = fmt.header() + b"".join(fmt.encode(payload, 2 * 10**18) for payload in (b"A", b"B", b"C"))
    with open(path, "wb") as file:
        file.write(data[:-20] if how == "cut" else other)


@pytest.mark.parametrize("how", ["cut", "restored"])
def test_a_stream_finds_out_that_its_log_is_another_one(stream, how):
    with stream.appender() as log:
        log.append_many([b"a", b"b"])
    reader = reader_of(stream)
    offset, payloads = advance(reader, reader.initialOffset())
    assert payloads == [b"a", b"b"]
    written_anew(stream, how)
    with pytest.raises(DataLoss, match="different by now"):
        advance(reader_of(stream), offset)


@pytest.mark.parametrize("how", ["cut", "restored"])
def test_an_ingest_finds_out_that_its_log_is_another_one(stream, tmp_path, how):
    with stream.appender() as log:
        log.append_many([b"a", b"b"])
    table = str(tmp_path / "table")
    assert Ingest(stream.path, table, run_here).once().rows == 2
    assert Ingest(stream.path, table, run_here).once().rows == 0
    written_anew(stream, how)
    with pytest.raises(DataLoss, match="different by now"):
        Ingest(stream.path, table, run_here).once()
