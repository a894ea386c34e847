"""How logs are cut into tasks: whatever the size, the parts are the whole. Without Spark."""

from __future__ import annotations

import random

import pytest

from forelog import Stream
from forelog.errors import BadOption, LogNotFound
from forelog.spark import planning
from forelog.spark.codecs import codec_of
from forelog.spark.options import read_options
from forelog.spark.planning import find_logs, plan
from forelog.spark.slices import read_slice, table_columns

SIZES = [1, 100, 1000, 5000, 50_000, 10**7]


def write_log(path, seed: int, *, segment_bytes: int = 5000) -> None:
    rng = random.Random(seed)
    now = 1_700_000_000_000_000_000

    def clock() -> int:
        nonlocal now
        now += rng.randrange(10**7)
        return now

    with Stream(path, clock=clock).appender(segment_bytes=segment_bytes) as log:
        for serial in range(400):
            log.append(b"%d-" % serial + rng.randbytes(rng.choice([0, 10, 200, 3000])))


def rows_of(path, **options: object) -> list[tuple]:
    """Segment, offset and payload of every row, by way of the plan."""
    checked = read_options({"path": str(path), **{name: str(value) for name, value in options.items()}})
    columns, default = table_columns(checked)
    logs = find_logs(checked.path, recursive=checked.recursive)
    rows = []
    for piece in plan(checked, logs, splits=codec_of(checked.codec).splits):
        for batch in read_slice(piece, checked, columns, default):
            rows += zip(*(batch[name].to_pylist() for name in ("segment", "offset", "payload")), strict=True)
    return rows


def expected(path, **bounds) -> list[tuple]:
    with Stream(path).cursor(**bounds) as cursor:
        return [(r.position.segment, r.position.offset, r.payload) for r in cursor]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", SIZES)
def test_the_parts_are_the_whole_for_every_size(tmp_path, seed, size):
    path = tmp_path / "log"
    write_log(path, seed, segment_bytes=(300, 5000, 60_000, 10**6)[seed])
    assert rows_of(path, partitionBytes=size, batchRows=random.Random(seed).choice([1, 7, 8192])) == expected(path)


def test_also_after_cleaning_and_without_indexes(tmp_path):
    path = tmp_path / "log"
    write_log(path, 1, segment_bytes=200_000)
    with Stream(path).cleaner() as cleaner:
        cleaner.clean(lambda _, record: len(record.payload) % 3 == 0)
    before = expected(path)
    for size in SIZES:
        assert rows_of(path, partitionBytes=size) == before
    for index in path.glob("*.idx"):
        index.unlink()
    for size in SIZES:
        assert rows_of(path, partitionBytes=size) == before


def test_bounds_by_time_and_position_equal_the_cursors(tmp_path):
    path = tmp_path / "log"
    write_log(path, 2)
    with Stream(path).cursor() as cursor:
        records = list(cursor)
    low, high = records[100], records[300]
    assert rows_of(path, since=low.time.isoformat()) == expected(path, since=low.time)
    assert rows_of(path, until=high.time.isoformat()) == expected(path, until=high.time)
    assert rows_of(path, startingPosition=low.position) == expected(path, start=low.position)
    both = rows_of(path, since=low.time.isoformat(), until=high.time.isoformat(), partitionBytes=500)
    assert both == expected(path, since=low.time, until=high.time)


def test_a_range_of_times_leaves_the_other_segments_alone(tmp_path):
    path = tmp_path / "log"
    write_log(path, 3, segment_bytes=1000)
    segments = Stream(path).segments()
    middle = segments[len(segments) // 2]
    options = read_options({"path": str(path), "partitionBytes": "1"})
    narrow = read_options(
        {
            "path": str(path),
            "partitionBytes": "1",
            "since": _text(middle.first_time_ns),
            "until": _text(middle.first_time_ns + 1),
        }
    )
    logs = find_logs(str(path), recursive=False)
    assert len(plan(options, logs, splits=True)) >= len(segments)
    assert {piece.start.segment for piece in plan(narrow, logs, splits=True)} <= {middle.number - 1, middle.number}


def _text(time_ns: int) -> str:
    from forelog.times import format_time

    return format_time(time_ns)


def test_planning_opens_no_sealed_segment(tmp_path, monkeypatch):
    path = tmp_path / "log"
    write_log(path, 1, segment_bytes=1000)
    opened = []
    from forelog.files import OSFiles

    real = OSFiles.open_read
    monkeypatch.setattr(OSFiles, "open_read", lambda self, name: (opened.append(name), real(self, name))[1])
    logs = find_logs(str(path), recursive=False)
    opened.clear()
    pieces = plan(read_options({"path": str(path)}), logs, splits=True)
    assert len(pieces) == 1
    segments = {name for name in opened if name.endswith(".log")}
    assert segments == {Stream(path).segments()[-1].path}


def test_the_end_is_that_of_the_planning(tmp_path):
    """What is appended, or half written, after that is no task's."""
    path = tmp_path / "log"
    write_log(path, 1)
    options = read_options({"path": str(path)})
    before = expected(path)
    (log,) = find_logs(str(path), recursive=False)
    pieces = plan(options, [log], splits=True)
    with Stream(path).appender() as appender:
        appender.append(b"later")
    with open(Stream(path).segments()[-1].path, "ab") as file:
        file.write(b"\1half a record")
    columns, default = table_columns(options)
    rows = sum(batch.num_rows for piece in pieces for batch in read_slice(piece, options, columns, default))
    assert rows == len(before)
    assert len(rows_of(path)) == len(before) + 1


def test_a_folder_of_logs(tmp_path):
    for name in ("a", "b/c", "_hidden", ".git"):
        write_log(tmp_path / name, 1)
    logs = find_logs(str(tmp_path), recursive=True)
    assert [log.name for log in logs] == ["a", "b/c"]
    assert len(rows_of(tmp_path, recursive="true")) == 800


def test_remote_filesystems_are_read_through_fsspec(tmp_path):
    pytest.importorskip("fsspec")
    write_log(tmp_path / "a", 1)
    write_log(tmp_path / "b", 2, segment_bytes=10**6)
    assert rows_of(f"local://{tmp_path}/a", partitionBytes=4000) == expected(tmp_path / "a")
    assert len(rows_of(f"local://{tmp_path}", recursive="true")) == 800


def test_bounds_may_be_of_any_year(tmp_path):
    write_log(tmp_path / "log", 1)
    whole = expected(tmp_path / "log")
    assert rows_of(tmp_path / "log", since="0001-01-01", until="2300-01-01") == whole
    assert rows_of(tmp_path / "log", since="-1000000d", until="9999-12-31") == whole
    assert rows_of(tmp_path / "log", since="2300-01-01") == rows_of(tmp_path / "log", until="0001-01-01") == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"codec": "json"}, "no codec 'json': expected one of commands, datapoints, messages, records"),
        ({"sinc": "-1m"}, "no option 'sinc': did you mean since"),
        ({"flavour": "x"}, "there are path, codec"),
        ({"since": "tomorrow"}, "since: 'tomorrow' isn't a time"),
        ({"startingPosition": "here"}, "expected earliest, latest, or a position"),
        ({"onCorruption": "ignore"}, "expected fail, skip or stop"),
        ({"recursive": "perhaps"}, "expected true or false"),
        ({"partitionBytes": "0"}, "expected a number above 0"),
        ({"partitionBytes": "large"}, "such as 1000 or 64m"),
        ({"partitionBytes": "9999999t"}, "expected at most"),
        ({"batchRows": "9999999999"}, "expected at most 2147483647"),
        ({"since": f"-{'9' * 400}d"}, "longer than anything in a log"),
    ],
)
def test_wrong_options_are_told(tmp_path, options, told):
    write_log(tmp_path / "log", 1)
    with pytest.raises(BadOption, match=told):
        rows_of(tmp_path / "log", **options)


def test_a_path_without_a_log_is_told(tmp_path):
    with pytest.raises(LogNotFound):
        rows_of(tmp_path / "none")
    with pytest.raises(LogNotFound):
        rows_of(tmp_path / "none", recursive="true")


LIMITS = [{"rows": 1}, {"rows": 37}, {"room": 1}, {"room": 5000}, {"rows": 50, "room": 9000}]
LIMIT_OPTIONS = {"rows": "maxRecordsPerBatch", "room": "maxBytesPerBatch"}


@pytest.mark.parametrize("limits", LIMITS)
def test_the_batches_of_a_stream_are_the_whole_and_keep_their_limits(tmp_path, limits):
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from forelog.spark.stream import ForelogStreamReader

    for name, seed in (("a", 1), ("b", 2)):
        write_log(tmp_path / name, seed, segment_bytes=3000)
    given = {LIMIT_OPTIONS[name]: str(value) for name, value in limits.items()}
    options = read_options({"path": str(tmp_path), "recursive": "true", **given})
    columns, default = table_columns(options)
    reader = ForelogStreamReader(options, columns, default)
    offset = reader.initialOffset()
    found: dict[str, list] = {"a": [], "b": []}
    largest = 0
    for _ in range(2000):
        following = reader.latestOffset(offset, ReadAllAvailable())
        if following == offset:
            break
        count = 0
        for task in reader.partitions(offset, following):
            for batch in reader.read(task):
                rows = batch.to_pylist()
                count += len(rows)
                for row in rows:
                    found[row["log"]].append((row["segment"], row["offset"], row["payload"]))
        largest = max(largest, count)
        offset = following
    assert found == {name: expected(tmp_path / name) for name in ("a", "b")}
    assert largest <= limits.get("rows", 800) + 1


@pytest.mark.parametrize("limits", [{}, *LIMITS])
def test_a_stream_of_datapoints_keeps_entries_that_span_chunks_whole(tmp_path, limits):
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from forelog.commitlog import CommitLog
    from forelog.formats.m3 import M3, Datapoint, Series, Unit
    from forelog.spark.stream import ForelogStreamReader

    rng = random.Random(1)
    path = str(tmp_path / "data")
    given = {
        {"rows": "maxRecordsPerBatch", "room": "maxBytesPerBatch"}[name]: str(n) for name, n in limits.items()
    }
    options = read_options({"path": path, "codec": "datapoints", **given})
    columns, _ = table_columns(options)
    reader, offset, found = ForelogStreamReader(options, columns, ["value"]), None, []
    for turn in range(3):
        with CommitLog(path, format=M3(chunk_bytes=64)) as log:
            for serial in range(turn * 20, turn * 20 + 20):
                note = rng.randbytes(rng.choice([0, 30, 400]))
                log.write(Series(b"%d" % (serial % 3)), Datapoint(serial, float(serial)), Unit.SECOND, note)
        offset = reader.initialOffset() if offset is None else offset
        while (following := reader.latestOffset(offset, ReadAllAvailable())) != offset:
            for task in reader.partitions(offset, following):
                found += [value for batch in reader.read(task) for value in batch["value"].to_pylist()]
            offset = following
    assert found == [float(serial) for serial in range(60)]


def test_a_plan_is_made_while_a_cleaner_takes_what_was_looked_at(tmp_path, monkeypatch):
    path = tmp_path / "log"
    write_log(path, 1)
    (log,) = find_logs(str(path), recursive=False)
    options = read_options({"path": str(path), "partitionBytes": "100"})
    measured = planning._bytes_between

    def measure_then_clean(*arguments):
        found = measured(*arguments)
        with Stream(path).cleaner() as cleaner:
            cleaner.clean(lambda _path, _record: True)
        return found

    monkeypatch.setattr(planning, "_bytes_between", measure_then_clean)
    pieces = plan(options, [log], splits=True)
    columns, default = table_columns(options)
    rows = sum(batch.num_rows for piece in pieces for batch in read_slice(piece, options, columns, default))
    assert rows == len(expected(path)) > 0


def test_no_task_reads_a_header_alone(tmp_path):
    write_log(tmp_path / "log", 1, segment_bytes=20_000)
    options = read_options({"path": str(tmp_path / "log"), "partitionBytes": "1"})
    pieces = plan(options, find_logs(str(tmp_path / "log"), recursive=False), splits=True)
    assert len(pieces) > 2
    assert [piece for piece in pieces if 0 < piece.stop.offset <= 8] == []
