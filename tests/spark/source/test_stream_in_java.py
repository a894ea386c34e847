"""A stream is read in Java as a table is: with the same rows, and with how far it is behind."""

from __future__ import annotations

import random

import pytest

from forelog import Stream
from forelog.spark.lag import bytes_between, seconds_between
from forelog.spark.planning import find_logs
from tests.spark.source.test_filters import make

pytestmark = pytest.mark.filterwarnings("ignore")


def stream(spark, path, folder, **options: object):
    """Run a stream to the end of its log. Returns its rows, and the query."""
    frame = spark.readStream.format("forelog").options(**{name: str(v) for name, v in options.items()})
    writer = frame.load(str(path)).writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/rows")
    query.awaitTermination()
    rows = spark.read.parquet(f"{folder}/rows")
    return sorted(map(str, rows.selectExpr("segment", "offset", "unix_micros(time)", "payload").collect())), query


@pytest.mark.parametrize("kind", ["whole", "cleaned", "damaged", "out of order", "continued"])
def test_a_stream_has_the_rows_of_the_table(spark, tmp_path, kind):
    rng = random.Random(kind)
    make(kind, tmp_path / "log", 5)
    frame = spark.read.format("forelog").option("onCorruption", "skip").load(str(tmp_path / "log"))
    asked = frame.selectExpr("segment", "offset", "unix_micros(time)", "payload")
    limit = rng.choice([90, 1000])
    rows, query = stream(spark, tmp_path / "log", tmp_path / "out", onCorruption="skip", maxRecordsPerBatch=limit)
    assert rows == sorted(map(str, asked.collect()))
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == len(rows)


def test_a_batch_is_read_in_columns(spark, tmp_path):
    make("whole", tmp_path / "log", 1)
    _, query = stream(spark, tmp_path / "log", tmp_path / "out")
    executed = query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    assert "ColumnarToRow" in executed


def test_a_progress_report_says_how_far_the_stream_is_behind(spark, tmp_path):
    times = iter(range(10**18, 10**18 + 10**12, 10**9))
    log = Stream(tmp_path / "log", clock=lambda: next(times))
    with log.appender(segment_bytes=500) as appender:
        for number in range(100):
            appender.append(b"%05d" % number)
    _, query = stream(spark, log.path, tmp_path / "out", maxRecordsPerBatch=40)
    (first, second, last) = [progress["sources"][0] for progress in query.recentProgress]
    assert first["description"] == f"forelog {log.path}"
    assert (first["metrics"]["lagSeconds"], second["metrics"]["lagSeconds"]) == ("59.0", "19.0")
    assert int(first["metrics"]["lagBytes.log"]) > int(second["metrics"]["lagBytes"]) > 20 * 25
    assert last["metrics"] == {"lagBytes": "0", "lagSeconds": "0.0", "logsBehind": "0"}


def test_the_lag_is_counted_in_bytes_and_seconds(tmp_path):
    times = iter(range(10**18, 10**18 + 10**12, 10**9))
    stream = Stream(tmp_path / "log", clock=lambda: next(times))
    with stream.appender(segment_bytes=500) as appender:
        positions = [appender.append(b"%05d" % number) for number in range(100)]
    (log,) = find_logs(stream.path, recursive=False)
    end = stream.end()
    files = sum(segment.byte_count for segment in stream.segments())
    assert (bytes_between(log, positions[0], end), seconds_between(log, positions[0], end)) == (files - 8, 99.0)
    assert (bytes_between(log, positions[99], end), seconds_between(log, positions[99], end)) == (25, 0.0)
    assert (bytes_between(log, end, end), seconds_between(log, end, end)) == (0, 0.0)
