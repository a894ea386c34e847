"""Counts and bounds come from the indexes of a log, and are those of its rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forelog import Stream
from forelog.broker import MessageLogWriter
from forelog.spark.batch import ForelogReader
from forelog.spark.options import read_options
from forelog.spark.slices import table_columns
from forelog.spark.totals import Totals
from tests.spark.source.test_columnar import plan_of
from tests.spark.source.test_filters import make
from tests.spark.source.test_planning import write_log

pytestmark = pytest.mark.filterwarnings("ignore")

ASKED = [
    "count(1)",
    "count(offset)",
    "count(time)",
    "min(segment)",
    "max(segment)",
    "min(offset)",
    "max(offset)",
    "min(time)",
    "max(time)",
]


@pytest.mark.parametrize("kind", ["whole", "cleaned", "damaged", "out of order", "continued"])
def test_counts_and_bounds_are_those_of_the_rows(spark, tmp_path, kind):
    rng = random.Random(kind)
    path = tmp_path / "log"
    make(kind, path, 3)
    for choice in ("skip", "stop") if kind == "damaged" else ("fail", "skip"):
        frame = spark.read.format("forelog").option("onCorruption", choice).load(str(path))
        rows = frame.where("segment >= 0 or offset >= 0")  # which is all of them, and nothing an index has
        for _ in range(4):
            some = rng.sample(ASKED, rng.randint(1, 4))
            asked = [f"unix_micros({one})" if one in ("min(time)", "max(time)") else one for one in some]
            assert frame.selectExpr(*asked).collect() == rows.selectExpr(*asked).collect(), (some, choice)


def test_counts_and_bounds_of_messages_and_of_many_logs(spark, tmp_path):
    with MessageLogWriter(tmp_path / "bus", file_bytes=2000, buffer_bytes=500, flush_interval_ms=None) as log:
        for number in range(100):
            log.write("a/b", b"%d" % number)
    frame = spark.read.format("forelog").option("codec", "messages").load(str(tmp_path / "bus"))
    asked = ["count(1)", "min(segment)", "max(time)"]
    assert frame.selectExpr(*asked).collect() == frame.where("length(topic) > 0").selectExpr(*asked).collect()
    for name in "abc":
        write_log(tmp_path / "logs" / name, 1)
    frame = spark.read.format("forelog").option("recursive", "true").load(str(tmp_path / "logs"))
    assert frame.count() == 1200
    assert sorted(frame.groupBy("log").count().collect()) == [("a", 400), ("b", 400), ("c", 400)]


def test_an_empty_log_has_no_rows_and_no_bounds(spark, tmp_path):
    Stream(tmp_path / "log").appender().close()
    frame = spark.read.format("forelog").load(str(tmp_path / "log"))
    assert frame.selectExpr("count(1)", "min(time)", "max(segment)").collect() == [(0, None, None)]


def tasks_for(path: Path, **options: str) -> list:
    checked = read_options({"path": str(path), "forelog.java": "true", **options})
    columns, names = table_columns(checked)
    return list(ForelogReader(checked, columns, names).partitions())


@pytest.fixture
def log(tmp_path):
    """Ten segments of which the last one has no index yet."""
    with Stream(tmp_path / "log").appender(segment_bytes=2000) as log:
        for number in range(600):
            log.append(b"%09d" % number)
    return tmp_path / "log"


def test_only_segments_without_an_index_are_read(log):
    last = Stream(log).numbers()[-1]
    known, rest = tasks_for(log, **{"forelog.aggregates": '[["count", null], ["max", "time"]]'})
    assert known.piece is None
    assert known.plan["known"][0] > 500
    assert rest.piece.start.segment == rest.piece.stop.segment == last
    # No index has the offset of a segment's last record.
    (task,) = tasks_for(log, **{"forelog.aggregates": '[["count", null], ["max", "offset"]]'})
    assert (task.piece.start.segment, task.piece.stop.segment) == (1, last)


@pytest.mark.parametrize("option", [{"since": "2001-01-01"}, {"onCorruption": "skip"}, {"onCorruption": "stop"}])
def test_indexes_are_not_asked_where_only_reading_tells(log, option):
    tasks = tasks_for(log, **option, **{"forelog.aggregates": '[["count", null]]'})
    assert [task.piece.start.segment for task in tasks] == [1]


def test_a_limit_plans_no_more_segments_than_it_needs(log):
    def segments(**options: str) -> list[tuple[int, int]]:
        return [(t.piece.start.segment, t.piece.stop.segment) for t in tasks_for(log, **options)]

    last = Stream(log).numbers()[-1]
    assert segments(**{"forelog.limit": "5"}) == [(1, 2)]
    assert segments(**{"forelog.limit": "599"}) == [(1, last)]
    assert segments(**{"forelog.limit": "5", "startingPosition": "000000003:0"}) == [(3, 4)]
    assert segments(**{"forelog.limit": "5", "onCorruption": "skip"}) == [(1, last)]


def test_a_limit_gives_as_many_rows(spark, log):
    frame = spark.read.format("forelog").load(str(log))
    for limit in (0, 1, 5, 77, 599, 600, 1000):
        assert frame.limit(limit).count() == min(limit, 600)
        assert len(frame.limit(limit).collect()) == min(limit, 600)
    assert [bytes(row.payload) for row in frame.limit(3).collect()] == [b"%09d" % n for n in range(3)]
    assert frame.where("segment = 3").limit(2).count() == 2


def test_a_small_log_is_sent_to_all_executors_for_a_join(spark, log):
    frame = spark.read.format("forelog").load(str(log))
    joined = frame.alias("a").join(frame.alias("b"), ["segment", "offset"])
    assert "BroadcastHashJoin" in plan_of(joined)
    assert joined.count() == 600


def test_a_codec_of_ones_own_is_read(spark, log, monkeypatch):
    """Its rows may be fewer than the records."""
    from forelog.spark import register_codec
    from forelog.spark.codecs import Records

    class Own(Records):
        name = "own"
        row_each = False

    monkeypatch.setattr("forelog.spark.codecs._codecs", {})
    register_codec(Own())
    (task,) = tasks_for(log, codec="own", **{"forelog.aggregates": '[["count", null]]'})
    assert task.piece.start.segment == 1


def test_totals_of_segments_are_added():
    totals = Totals.of_json('[["count", null], ["min", "time"], ["max", "time"]]')
    for values in ([2, 5, 9], [1, None, None], [4, 3, 7]):
        totals.add(values)
    assert totals.known == [7, 3, 9]
