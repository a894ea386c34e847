"""A log of messages as a table, and as a stream."""

from __future__ import annotations

import json

import pytest

from forelog.broker import MessageLogWriter


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "messages"
    with MessageLogWriter(path, file_bytes=4000, buffer_bytes=500, flush_interval_ms=None) as writer:
        times = [
            writer.write(f"plant/{i % 3}", b"%d" % i, {"n": i, "raw": b"x"} if i % 2 else None) for i in range(300)
        ]
    return str(path), times


def test_messages_are_a_table(spark, log):
    path, times = log
    frame = spark.read.format("forelog").option("codec", "messages").option("partitionBytes", "4k").load(path)
    assert frame.columns == ["segment", "offset", "time", "topic", "payload", "properties"]
    rows = frame.orderBy("segment", "offset").collect()
    assert [row.payload for row in rows] == [b"%d" % i for i in range(300)]
    assert [row.topic for row in rows] == [f"plant/{i % 3}" for i in range(300)]
    assert [json.loads(row.properties) for row in rows[:2]] == [{}, {"n": 1, "raw": "eA=="}]
    assert rows[0].segment == times[0]
    one = (
        spark.read.format("forelog").option("codec", "messages").schema("topic string, time_ns bigint").load(path)
    )
    assert sorted(row.time_ns for row in one.where("topic = 'plant/1'").collect()) == times[1::3]


def test_messages_are_a_stream(spark, log, tmp_path):
    path, _ = log
    frame = spark.readStream.format("forelog").option("codec", "messages").load(path)
    query = (
        frame.writeStream.format("memory")
        .queryName("messages")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert spark.table("messages").count() == 300


def test_the_codec_must_be_that_of_the_log(spark, log):
    with pytest.raises(Exception, match="codec messages"):
        spark.read.format("forelog").load(log[0])
