"""An ingest and a stream on a schedule, of a log that forgets what is old."""

from __future__ import annotations

import random

import pytest

from forelog import Stream
from forelog.spark.pipeline.ingest import ingest, read_table
from tests.spark.source.test_continuity import Producer


@pytest.mark.slow
def test_fifty_runs_beside_retention_miss_nothing_and_repeat_nothing(spark, tmp_path):
    rng = random.Random(24)
    stream = Stream(tmp_path / "log")
    producer = Producer(stream, rng)
    for run in range(50):
        with stream.appender(segment_bytes=rng.choice([300, 2000])) as log:
            producer.before(log)
            frame = spark.readStream.format("forelog")
            if run % 3 == 0:
                frame = frame.option("maxRecordsPerBatch", 9)
            writer = frame.load(stream.path).writeStream.format("parquet").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "rows"))
            query.awaitTermination()
            assert query.exception() is None
            ingest(spark, stream.path, tmp_path / "table")
            producer.after(log)
    streamed = sorted(
        int(row[0]) for row in spark.read.parquet(str(tmp_path / "rows")).select("payload").collect()
    )
    ingested = sorted(int(row[0]) for row in read_table(spark, tmp_path / "table").select("payload").collect())
    assert streamed == ingested == list(range(len(streamed)))
    assert producer.count - 2 <= len(streamed) <= producer.count
    assert len(stream.numbers()) < 4
