"""What runs in Java gives what Python alone does: for all columns, some, or none, with filters and without."""

from __future__ import annotations

import random
import stat
from typing import Any

import pytest

from forelog import Stream
from forelog.broker import MessageLogWriter
from forelog.commitlog import CommitLog
from forelog.formats.m3 import Datapoint, Series
from forelog.spark import columnar, session
from forelog.spark.codecs import codec_of
from forelog.spark.source import ForelogDataSource
from tests.spark.source.test_planning import write_log

pytestmark = pytest.mark.filterwarnings("ignore")


class Alone(ForelogDataSource):
    """The source as a session without the jar has it."""

    @classmethod
    def name(cls) -> str:
        return "forelog_alone"


@pytest.fixture(params=["forelog", "forelog_alone"])
def load(request, spark):
    """A log as a data frame, with and without the part in Java."""
    spark.dataSource.register(Alone)
    return spark.read.format(request.param).load


def plan_of(frame) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def segments(path) -> int:
    with Stream(path).appender(segment_bytes=200) as log:
        for serial in range(100):
            log.append(b"%09d" % serial)
    return len(Stream(path).numbers())


def test_a_query_with_filters_changes_nothing_for_the_next_one(load, tmp_path):
    count = segments(tmp_path / "log")
    frame = load(str(tmp_path / "log"))
    assert frame.where(f"segment >= {count}").count() < 100
    assert frame.count() == 100
    assert frame.where("segment >= 2").count() > frame.where(f"segment >= {count}").count()
    both = frame.where("segment = 1").union(frame.where(f"segment >= {count}")).union(frame)
    assert both.groupBy("segment").count().count() == count
    ends = frame.where(f"segment in (1, {count})").count()
    assert both.count() == 100 + ends
    pairs = frame.where("segment = 1").alias("a").join(frame.alias("b"), "payload")
    assert pairs.count() == frame.where("segment = 1").count()


def test_a_frame_shows_what_is_there_when_it_is_asked(spark, tmp_path):
    segments(tmp_path / "log")
    frame = spark.read.format("forelog").load(str(tmp_path / "log"))
    assert frame.count() == 100
    with Stream(tmp_path / "log").appender() as log:
        log.append(b"one more")
    assert frame.count() == 101


def test_a_query_reads_no_more_columns_than_it_needs(spark, tmp_path):
    segments(tmp_path / "log")
    frame = spark.read.format("forelog").load(str(tmp_path / "log"))
    asked = frame.where("offset > 100").selectExpr("length(payload) as bytes")
    assert {row.bytes for row in asked.collect()} == {9}
    assert "forelog[offset" in plan_of(asked)
    assert "segment#" not in plan_of(asked)
    assert "ColumnarToRow" in plan_of(asked)


def messages(path) -> None:
    with MessageLogWriter(path) as log:
        for serial in range(50):
            log.write(f"topic/{serial % 3}", b"%d" % serial)


def datapoints(path) -> None:
    with CommitLog(path, format="m3") as log:
        for serial in range(50):
            series = Series(b"cpu%d" % (serial % 3), tags={b"host": b"a"} if serial % 2 else None)
            log.write(series, Datapoint(serial * 10**9, serial / 3))


@pytest.mark.parametrize("codec", ["records", "commands", "datapoints", "messages"])
def test_every_choice_of_columns_has_the_same_values(spark, tmp_path, vector, codec):
    spark.dataSource.register(Alone)
    path = vector("workq/cmdlog") if codec == "commands" else tmp_path / "log"
    if codec != "commands":
        {"records": lambda path: write_log(path, 3), "datapoints": datapoints, "messages": messages}[codec](path)
    names = list(codec_of(codec).columns)
    schema = ", ".join(f"`{name}` {kind}" for name, kind in codec_of(codec).columns.items())
    ours, alone = (
        spark.read.format(name).schema(schema).option("codec", codec).load(str(path))
        for name in ("forelog", "forelog_alone")
    )
    rows = alone.collect()
    assert len(rows) == ours.count() > 40
    assert ours.collect() == rows
    choose = random.Random(codec)
    for _ in range(6):
        some = choose.sample(names, choose.randint(1, len(names)))
        assert ours.select(*some).collect() == [tuple(row[name] for name in some) for row in rows]


def test_functions_in_python_take_columns_from_it(spark, tmp_path):
    from pyspark.sql.functions import udf

    segments(tmp_path / "log")
    frame = spark.read.format("forelog").load(str(tmp_path / "log"))
    number = udf(int, "bigint")
    assert frame.select(number("payload").alias("n")).selectExpr("sum(n)").first()[0] == sum(range(100))
    mapped = frame.select("offset", "payload").mapInArrow(lambda batches: batches, "offset bigint, payload binary")
    assert mapped.where("offset > 0").count() == 100
    frame.cache()
    try:
        assert [frame.where(f"payload = cast('{n:09d}' as binary)").count() for n in (0, 99, 100)] == [1, 1, 0]
    finally:
        frame.unpersist()


def allocated(spark) -> int:
    """How much of Arrow's memory Spark holds."""
    return spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator().getAllocatedMemory()


def test_batches_that_are_under_way_to_a_worker_keep_what_is_in_them(spark, tmp_path):
    from pyspark.sql.functions import pandas_udf, udf  # type: ignore[attr-defined]

    segments(tmp_path / "log")
    frame = spark.read.format("forelog").option("batchRows", 3).load(str(tmp_path / "log"))
    number = udf(int, "bigint")
    both = frame.select("payload", number("payload").alias("n"), "offset").collect()
    assert [(bytes(row.payload), row.n) for row in both] == [(b"%09d" % n, n) for n in range(100)]
    plus: Any = pandas_udf(lambda offsets: offsets + 1, "bigint")
    assert all(row.o == row.offset + 1 for row in frame.select("offset", plus("offset").alias("o")).collect())
    assert allocated(spark) == 0


def test_memory_of_batches_that_nobody_read_is_given_back(spark, tmp_path):
    from pyspark.sql.functions import udf

    segments(tmp_path / "log")
    frame = spark.read.format("forelog").option("batchRows", 3).load(str(tmp_path / "log"))
    assert len(frame.limit(4).collect()) == 4
    number = udf(int, "bigint")
    for _ in range(5):
        assert [row.n for row in frame.select(number("payload").alias("n")).limit(2).collect()] == [0, 1]
    assert frame.selectExpr("assert_true(offset < 0)", "payload").limit(0).collect() == []
    with pytest.raises(Exception, match="is not true"):
        frame.selectExpr("assert_true(segment < 3)").collect()
    assert allocated(spark) == 0


def test_damage_is_told_by_both(load, tmp_path):
    segments(tmp_path / "log")
    file = tmp_path / "log" / "000000002.log"
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    with pytest.raises(Exception, match="000000002"):
        load(str(tmp_path / "log")).selectExpr("sum(offset)").collect()


# -- making the jar


def test_the_jar_is_made_once_and_named_after_what_it_is_made_of(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar = columnar.columnar_jar.__wrapped__()
    assert jar is not None
    assert [str(path) for path in (tmp_path / "forelog").iterdir()] == [jar]
    monkeypatch.setattr(columnar, "_build", None)
    assert columnar.columnar_jar.__wrapped__() == jar


def test_where_it_can_not_be_compiled_there_is_none_and_the_log_says_why(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'Caused by: no such class' >&2\nexit 3\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(columnar, "java_home", lambda: str(tmp_path))
    with caplog.at_level("INFO", "forelog"):
        assert columnar.columnar_jar.__wrapped__() is None
    assert "row by row, several times slower: Caused by: no such class" in caplog.text
    assert list((tmp_path / "cache" / "forelog").iterdir()) == []


def test_a_session_that_is_there_already_is_used_as_it_is(spark):
    assert session(columnar=False).sparkContext is spark.sparkContext
