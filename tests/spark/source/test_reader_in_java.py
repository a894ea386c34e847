"""The reader in Java and the one in Python give the same, on all vectors, damaged ones too, and on random logs."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from forelog import Stream
from forelog.errors import ForelogError
from forelog.spark.codecs import RECORD_COLUMNS
from forelog.spark.options import read_options
from forelog.spark.planning import find_logs, plan
from forelog.spark.slices import read_slice, table_columns
from forelog.spark.tasks import tasks_of
from forelog.times import format_time
from tests.conftest import VECTORS
from tests.spark.source.test_filters import make
from tests.spark.source.test_planning import write_log

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = list(RECORD_COLUMNS)
LOGS = sorted({file.parent for file in VECTORS.rglob("*.log") if "m3" not in file.parts})


def here(path: Path, names: list[str], **options: object) -> list[tuple]:
    """The rows that Python reads, without Spark."""
    checked = read_options({"path": str(path), **{name: str(value) for name, value in options.items()}})
    columns, _ = table_columns(checked)
    rows = []
    for piece in plan(checked, find_logs(checked.path, recursive=checked.recursive), splits=True):
        for batch in read_slice(piece, checked, columns, names):
            rows += zip(*(values(batch[name]) for name in names), strict=True)
    return sorted(rows, key=str)


def values(column) -> list:
    return (column.view("int64") if str(column.type) == "timestamp[us, tz=UTC]" else column).to_pylist()


def there(spark, path: Path, names: list[str], **options: object) -> list[tuple]:
    """The rows that Spark has, with times as microseconds."""
    columns, _ = table_columns(read_options({"path": str(path), **{name: str(v) for name, v in options.items()}}))
    reader = spark.read.format("forelog").options(**{name: str(value) for name, value in options.items()})
    frame = reader.schema(", ".join(f"`{name}` {columns[name]}" for name in names)).load(str(path))
    frame = frame.selectExpr(*("unix_micros(time)" if name == "time" else f"`{name}`" for name in names))
    return sorted(
        (tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.collect()), key=str
    )


def fails(path: Path) -> str | None:
    """The name of the error that Python raises for a log, if any."""
    try:
        here(path, ["offset"])
    except ForelogError as error:
        return type(error).__name__
    return None


@pytest.fixture
def vectors(tmp_path) -> list[Path]:
    """Copies of all logs that the original programs wrote, each in a folder by itself."""
    logs = [tmp_path / "vectors" / log.relative_to(VECTORS) for log in LOGS]
    for source, target in zip(LOGS, logs, strict=True):
        shutil.copytree(source, target)
    return logs


@pytest.mark.parametrize("choice", ["skip", "stop", "fail"])
def test_vectors_have_the_same_rows(spark, tmp_path, vectors, choice):
    for log in vectors:
        if fails(log) if choice == "fail" else not openable(log):
            shutil.rmtree(log)
    names = ["log", *NAMES]
    rows = here(tmp_path / "vectors", names, recursive=True, onCorruption=choice)
    assert there(spark, tmp_path / "vectors", names, recursive=True, onCorruption=choice) == rows
    assert len({row[0] for row in rows}) > 10


def openable(log: Path) -> bool:
    try:
        return bool(Stream.open(log).numbers())
    except ForelogError:
        return False


def test_vectors_fail_with_the_same_error(spark, vectors):
    failing = {log: name for log in vectors if (name := fails(log))}
    assert len(failing) > 3
    for log, name in failing.items():
        with pytest.raises(Exception, match=name):
            there(spark, log, ["payload"])


@pytest.mark.parametrize("kind", ["whole", "cleaned", "damaged", "out of order", "continued"])
def test_random_logs_have_the_same_rows(spark, tmp_path, kind):
    rng = random.Random(kind)
    for seed in range(2):
        path = tmp_path / f"log{seed}"
        make(kind, path, seed + 10)
        times = sorted(row[0] for row in here(path, ["time_ns"], onCorruption="skip") if row[0] is not None)
        for bounds in ({}, {"since": rng.choice(times)}, {"since": times[50], "until": rng.choice(times[50:])}):
            options: dict[str, object] = {name: format_time(time) for name, time in bounds.items()}
            options |= {
                "onCorruption": rng.choice(["skip", "stop"]),
                "partitionBytes": rng.choice([1, 3000, 70_000, 10**8]),
                "batchRows": rng.choice([1, 7, 8192]),
            }
            names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
            assert there(spark, path, names, **options) == here(path, names, **options), options


def java(path: Path, **options: str) -> list[bool]:
    """For each task of a log, whether Java reads it."""
    checked = read_options({"path": str(path), "forelog.java": "true", **options})
    pieces = plan(checked, find_logs(checked.path, recursive=False), splits=True)
    return ["folder" in (task.plan or {}) for task in tasks_of(pieces, checked)]


def test_whole_logs_are_read_in_java(tmp_path):
    write_log(tmp_path / "log", 1, segment_bytes=50_000)
    assert java(tmp_path / "log", partitionBytes="50000").count(True) > 3
    assert all(java(tmp_path / "log", partitionBytes="50000"))
    assert all(java(tmp_path / "log", since="2023-01-01", until="2033-01-01"))
    assert not any(java(tmp_path / "log", until="9999-01-01"))
    assert not any(java(tmp_path / "log", defects="true"))


def test_a_segment_that_another_program_has_cut_is_not(tmp_path):
    write_log(tmp_path / "log", 1, segment_bytes=50_000)
    segment = Stream(tmp_path / "log").segments()[1]
    os.truncate(segment.path, segment.byte_count - 100)
    assert set(java(tmp_path / "log", partitionBytes="50000")) == {True, False}


def test_a_segment_that_is_rewritten_or_removed_after_planning_is_read_as_it_is_now(spark, tmp_path):
    path = tmp_path / "log"
    write_log(path, 1, segment_bytes=50_000)
    frame = spark.read.format("forelog").option("partitionBytes", 40_000).load(str(path))
    query = frame.selectExpr("segment", "offset", "payload")
    query._jdf.queryExecution().executedPlan().execute().getNumPartitions()  # from here on the tasks are planned
    with Stream(path).cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.position.segment == 2 or record.position.offset % 2 == 0)
    rows = [(row.segment, row.offset, bytes(row.payload)) for row in query.collect()]
    assert sorted(rows, key=str) == here(path, ["segment", "offset", "payload"])
    assert 100 < len(rows) < 300


def test_a_task_that_begins_at_damage_skips_it(tmp_path):
    """Also after damage that leads astray whoever comes from the segment's start."""
    with Stream(tmp_path / "log").appender(segment_bytes=200_000) as log:
        for serial in range(3000):
            log.append(b"%099d" % serial)
    count = len(here(tmp_path / "log", ["offset"]))
    (segment, *_) = Stream(tmp_path / "log").segments()
    (first, second, *_) = plan(
        read_options({"path": str(tmp_path / "log"), "partitionBytes": "60000"}),
        find_logs(str(tmp_path / "log"), recursive=False),
        splits=True,
    )
    assert second.start.segment == 1
    data = bytearray(Path(segment.path).read_bytes())
    data[8 + 15] ^= 3  # the length of the first record
    data[second.start.offset + 40] ^= 1  # the payload of the first record of the second task
    Path(segment.path).write_bytes(data)
    assert len(here(tmp_path / "log", ["offset"], partitionBytes=60000, onCorruption="skip")) == count - 2
