"""Readers that go on where they left off, in logs that forget."""

from __future__ import annotations

import pickle
import random
import threading
from pathlib import Path

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
    found = read_options({"path": str(stream.path), **options})
    columns, names = table_columns(found)
    return ForelogStreamReader(found, columns, names)


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


def test_after_a_restart_the_log_tells_where_the_removed_segments_ended(stream):
    reader = reader_of(stream)
    with stream.appender() as log:
        log.append(b"a")
        offset, _ = advance(reader, reader.initialOffset())
        log.roll()
        log.append(b"b")
    forget(stream)
    reader.stop()
    assert advance(reader_of(stream), offset)[1] == [b"b"]


def test_after_a_restart_a_segment_that_had_more_is_missed(stream):
    with stream.appender() as log:
        log.append(b"a")
        offset, _ = advance(reader_of(stream), reader_of(stream).initialOffset())
        log.append(b"never read")
        log.roll()
        log.append(b"b")
    forget(stream)
    with pytest.raises(DataLoss, match="may have removed"):
        advance(reader_of(stream), offset)


def test_after_a_restart_an_empty_segment_that_came_and_went_is_not_missed(stream):
    with stream.appender() as log:
        log.append(b"a")
        offset, _ = advance(reader_of(stream), reader_of(stream).initialOffset())
        log.roll()
        log.roll()
        log.append(b"b")
    path = Path(stream.path) / "000000002.log"
    if not path.exists():  # an empty segment is not rolled
        path.write_bytes(stream.format.header())
    forget(stream)
    assert advance(reader_of(stream), offset)[1] == [b"b"]


def test_a_segment_that_another_program_removed_is_missed_after_a_restart(stream):
    with stream.appender() as log:
        log.append(b"a")
        offset, _ = advance(reader_of(stream), reader_of(stream).initialOffset())
        log.roll()
        log.append(b"b")
    (Path(stream.path) / "000000001.log").unlink()
    with pytest.raises(DataLoss, match="may have removed"):
        advance(reader_of(stream), offset)


def planned(stream, reader):
    with stream.appender() as log:
        log.append_many([b"a", b"b"])
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        log.roll()
        log.append(b"c")
    return start, end


def test_a_batch_that_is_repeated_after_a_restart_misses_what_was_removed_meanwhile(stream):
    _, end = planned(stream, reader_of(stream))
    forget(stream)
    start = {"log": "000000001:0"}
    with pytest.raises(DataLoss, match="may have removed"):
        reader_of(stream).partitions(start, end)
    (task,) = reader_of(stream, failOnDataLoss="false").partitions(start, end)
    assert task.segments == ()


def test_a_task_whose_segment_is_removed_before_it_reads_fails(stream):
    reader = reader_of(stream)
    start, end = planned(stream, reader)
    (task,) = reader.partitions(start, end)
    forget(stream)
    with pytest.raises(DataLoss, match="removed after this batch was planned"):
        list(pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(task))))
    reader.stop()


def test_a_new_log_whose_first_segment_goes_while_it_is_planned_is_not_cut_short(tmp_path):
    first, late = Stream(tmp_path / "logs/a"), Stream(tmp_path / "logs/b")
    reader = reader_of(first, path=str(tmp_path / "logs"), recursive="true")
    with first.appender() as log:
        log.append(b"x")
    start = reader.initialOffset()
    with late.appender() as log:
        log.append(b"never read")
        log.roll()
        log.append(b"y")
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    forget(late)
    with pytest.raises(DataLoss):
        reader.partitions(start, end)
    reader.stop()


class Producer:
    """Appends numbers, from 0 on, and lets its log forget what a scheduled run has read."""

    def __init__(self, stream, rng: random.Random) -> None:
        self.stream, self.rng, self.count = stream, rng, 0

    def append(self, log, count: int) -> None:
        log.append_many([b"%d" % n for n in range(self.count, self.count + count)])
        self.count += count

    def before(self, log) -> None:
        for _ in range(self.rng.randrange(4)):
            self.append(log, self.rng.randrange(1, 12))
            if self.rng.random() < 0.4:
                log.roll()

    def after(self, log) -> None:
        """Everything has been read up to here."""
        way = self.rng.choice(["roll", "append", "append and roll", "nothing"])
        if way == "append and roll":
            self.append(log, 1)
        if "roll" in way:
            log.roll()
            if self.rng.random() < 0.5:
                self.append(log, 1)
        elif way == "append":
            self.append(log, 1)
        forget(self.stream, 2 if way == "append and roll" else 1)


@pytest.mark.parametrize("seed", range(3))
def test_runs_of_a_log_with_retention_miss_nothing(stream, tmp_path, seed):
    """Each run is as a new process: only the checkpoint and the table are kept in between."""
    rng = random.Random(seed)
    producer = Producer(stream, rng)
    offset, read, ingested = {"log": "000000000:0"}, list[bytes](), 0
    for _ in range(50):
        with stream.appender(segment_bytes=rng.choice([200, 1000])) as log:
            producer.before(log)
            reader = reader_of(stream, **({"maxRecordsPerBatch": "7"} if rng.random() < 0.3 else {}))
            reader.prepareForTriggerAvailableNow()
            following, payloads = advance(reader, offset)
            while following != offset:
                read += payloads
                offset = following
                following, payloads = advance(reader, offset)
            reader.stop()
            ingested += Ingest(str(stream.path), str(tmp_path / "table"), run_here).once().rows
            assert ingested == len(read)
            producer.after(log)
    assert sorted(map(int, read)) == list(range(len(read)))
    assert producer.count - 2 <= len(read) <= producer.count


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
