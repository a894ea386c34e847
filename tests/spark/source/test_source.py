"""The data source in a real session: batch, stream, write."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from pathlib import Path

import pytest

from forelog import Stream
from forelog.commitlog import CommitLog
from forelog.formats.m3 import Datapoint, Series
from tests.conftest import VECTORS
from tests.spark.source.test_planning import expected, write_log

pytestmark = pytest.mark.filterwarnings("ignore")


def rows(frame) -> list[tuple]:
    return sorted(
        (r.segment, r.offset, bytes(r.payload)) for r in frame.select("segment", "offset", "payload").collect()
    )


# -- batch


def test_a_log_is_a_table(read, tmp_path):
    write_log(tmp_path / "log", 1)
    frame = read(tmp_path / "log", partitionBytes=20_000)
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        ("segment", "int"),
        ("offset", "bigint"),
        ("time", "timestamp"),
        ("payload", "binary"),
    ]
    assert rows(frame) == expected(tmp_path / "log")
    with Stream(tmp_path / "log").cursor() as cursor:
        lengths = sum(len(record.payload) for record in cursor)
    assert (
        read(tmp_path / "log", schema="length long, time_ns long").selectExpr("sum(length)").first()[0] == lengths
    )


def test_filters_on_time_and_segment_give_what_they_say(read, tmp_path):
    write_log(tmp_path / "log", 2)
    frame = read(tmp_path / "log")
    everything = frame.select("time", "segment", "offset").collect()
    middle = sorted(row.time for row in everything)[200]
    for condition, holds in [
        (frame.time > middle, lambda row: row.time > middle),
        (frame.time <= middle, lambda row: row.time <= middle),
        (frame.time == middle, lambda row: row.time == middle),
        (frame.segment >= 5, lambda row: row.segment >= 5),
        (frame.segment == 3, lambda row: row.segment == 3),
    ]:
        found = frame.where(condition).select("time", "segment", "offset").collect()
        assert sorted(found) == sorted(filter(holds, everything))


def test_the_originals_files_are_read_as_expected(read, vector):
    told = json.loads((VECTORS / "captain/basic/expected.json").read_text())
    found = read(vector("captain/basic")).orderBy("segment", "offset").collect()
    assert [(row.segment, hashlib.sha256(row.payload).hexdigest()) for row in found] == [
        (int(one["segment"].removesuffix(".log")), one["payload_sha256"]) for one in told
    ]


@pytest.mark.parametrize("log", ["cmdlog", "cmdlog-2090"])
def test_a_command_log_is_decoded(read, vector, log):
    told = json.loads((VECTORS / f"workq/{log.replace('cmdlog', 'expected')}.json").read_text())["records"]
    found = read(vector(f"workq/{log}"), codec="commands").orderBy("segment", "offset").collect()
    assert len(found) == len(told)
    for row, one in zip(found, told, strict=True):
        assert (row.segment, row.offset) == (int(one["segment"].removesuffix(".log")), one["offset"])
        assert row.error is None
        assert row.id == one["id"]
        assert row.name == one.get("name")
        assert row.priority == one.get("priority")
        assert row.ttl_ms == one.get("ttl")
        if "job_payload_base64" in one:
            assert bytes(row.job_payload) == base64.b64decode(one["job_payload_base64"])


def test_datapoints_are_rows(read, tmp_path):
    with CommitLog(tmp_path / "data", format="m3") as log:
        for second in range(100):
            series = Series(b"%d" % (second % 7), tags={b"host": b"a"})
            log.write(series, Datapoint(second * 10**9, float(second)))
            if second % 30 == 0:
                log.rotate_logs()
    frame = read(tmp_path / "data", codec="datapoints")
    assert frame.selectExpr("count(*)", "sum(value)", "count(distinct id)").first()[:] == (100, 4950.0, 7)
    first = frame.orderBy("timestamp").first()
    assert (bytes(first.id), first.timestamp.timestamp(), first.value) == (b"0", 0, 0.0)
    assert [(bytes(k), bytes(v)) for k, v in first.tags.items()] == [(b"host", b"a")]


def test_a_folder_of_logs_has_a_column_log(read, tmp_path):
    write_log(tmp_path / "a", 1)
    write_log(tmp_path / "deep/b", 2)
    counts = {row.log: row["count"] for row in read(tmp_path, recursive=True).groupBy("log").count().collect()}
    assert counts == {"a": 400, "deep/b": 400}


def test_damage_fails_is_skipped_or_listed(read, tmp_path):
    write_log(tmp_path / "log", 1)
    segment = Stream(tmp_path / "log").segments()[2]
    file = Path(segment.path)
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    with pytest.raises(Exception, match="CorruptRecord"):
        read(tmp_path / "log").selectExpr("sum(length(payload))").collect()
    assert read(tmp_path / "log").count() == 400, "as many as were written: nothing is read for that"
    assert 390 < read(tmp_path / "log", onCorruption="skip").count() < 400
    defects = read(tmp_path / "log", defects=True).collect()
    assert [(row.segment, row.reason, row.file) for row in defects] == [(3, "crc", segment.path)]
    assert read(tmp_path / "log", defects=True).schema.names[0] == "segment"


@pytest.mark.parametrize(
    ("options", "told"),
    [({"codec": "x"}, "there is no codec 'x'"), ({"sinc": "1"}, "did you mean since"), ({}, "there is no log at")],
)
def test_what_is_wrong_is_told(read, tmp_path, options, told):
    if options:
        write_log(tmp_path / "log", 1)
    with pytest.raises(Exception, match=told):
        read(tmp_path / "log", **options).count()


def test_a_column_of_another_type_is_refused(read, tmp_path):
    write_log(tmp_path / "log", 1)
    with pytest.raises(Exception, match="column 'time' is timestamp, not bigint"):
        read(tmp_path / "log", schema="time long").count()
    with pytest.raises(Exception, match="there is no column 'offsett'"):
        read(tmp_path / "log", schema="offsett long").count()


# -- streaming


def stream_to(spark, path, target, **options):
    """Read all that is there now, going on from what was read before; the batches' numbers of rows."""
    source = spark.readStream.format("forelog").options(**{k: str(v) for k, v in options.items()}).load(str(path))
    query = (
        source.writeStream.format("parquet")
        .option("path", str(target / "table"))
        .option("checkpointLocation", str(target / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    if query.exception():
        raise query.exception()
    return [progress["numInputRows"] for progress in query.recentProgress]


def test_a_stream_reads_everything_once_across_restarts_rolls_and_cleaning(spark, tmp_path):
    path, target = tmp_path / "log", tmp_path / "out"
    serials = iter(range(10**6))
    rng = random.Random(1)
    for turn in range(3):
        with Stream(path).appender(segment_bytes=4000) as log:
            for _ in range(150):
                log.append(b"%d %s" % (next(serials), b"x" * rng.randrange(200)))
        stream_to(spark, path, target)
        if turn == 1:
            with Stream(path).cleaner() as cleaner:
                cleaner.clean(lambda _, record: int(record.payload.split()[0]) % 2 == 0)
    found = [int(bytes(row.payload).split()[0]) for row in spark.read.parquet(str(target / "table")).collect()]
    assert sorted(found) == list(range(450))


def test_batches_are_limited_by_records_and_by_bytes(spark, tmp_path):
    write_log(tmp_path / "log", 1)
    sizes = stream_to(spark, tmp_path / "log", tmp_path / "rows", maxRecordsPerBatch=150)
    assert [size for size in sizes if size] == [150, 150, 100]
    sizes = stream_to(spark, tmp_path / "log", tmp_path / "bytes", maxBytesPerBatch="100k")
    assert sum(sizes) == 400
    assert len([size for size in sizes if size]) > 2


def test_logs_that_come_later_are_found(spark, tmp_path):
    write_log(tmp_path / "logs/a", 1)
    stream_to(spark, tmp_path / "logs", tmp_path / "out", recursive=True)
    write_log(tmp_path / "logs/b", 2)
    assert sum(stream_to(spark, tmp_path / "logs", tmp_path / "out", recursive=True)) == 400
    assert spark.read.parquet(str(tmp_path / "out/table")).count() == 800


def test_cleaning_that_outran_the_reader_is_told_unless_that_is_fine(spark, tmp_path):
    path, target = tmp_path / "log", tmp_path / "out"
    write_log(path, 1)
    stream_to(spark, path, target, startingPosition="latest")
    for _ in range(2):
        write_log(path, 2)
    numbers = [segment.number for segment in Stream(path).segments()]
    with Stream(path).cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.position.segment < numbers[-2])
    with pytest.raises(Exception, match="that segment is gone"):
        stream_to(spark, path, target)
    assert sum(stream_to(spark, path, target, failOnDataLoss=False)) > 0


# -- writing


def test_a_frame_becomes_logs_and_comes_back(spark, read, tmp_path):
    frame = spark.range(1000).selectExpr("cast(id as string) payload", "concat('k', id % 3) region")
    frame.write.format("forelog").mode("append").save(str(tmp_path / "out"))
    frame.write.format("forelog").mode("append").option("key", "region").save(str(tmp_path / "out"))
    back = read(tmp_path / "out", recursive=True)
    assert back.count() == 2000
    assert back.where("log like '%region=k1%'").count() == 333
    assert not list((tmp_path / "out").glob("_*"))
    frame.limit(10).write.format("forelog").mode("overwrite").save(str(tmp_path / "out"))
    assert read(tmp_path / "out", recursive=True).count() == 10


def test_a_write_that_fails_leaves_nothing(spark, tmp_path):
    frame = spark.range(100).selectExpr("if(id = 77, null, cast(id as string)) payload")
    with pytest.raises(Exception, match="a payload is null"):
        frame.write.format("forelog").mode("append").save(str(tmp_path / "out"))
    assert not list((tmp_path / "out").rglob("*.log"))
    with pytest.raises(Exception, match="from a column `payload`"):
        spark.range(3).write.format("forelog").mode("append").save(str(tmp_path / "out"))


def copy(spark, source, target, checkpoint) -> None:
    query = (
        spark.readStream.format("forelog")
        .load(str(source))
        .select("payload")
        .writeStream.format("forelog")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(target))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def test_a_stream_of_a_log_to_a_log_is_written_once(spark, read, tmp_path):
    write_log(tmp_path / "log", 1)
    for checkpoint in ("one", "one", "two"):
        copy(spark, tmp_path / "log", tmp_path / "copy", tmp_path / checkpoint)
    with Stream(tmp_path / "log").cursor() as cursor:
        payloads = sorted(record.payload for record in cursor)
    copied = read(tmp_path / "copy", recursive=True).select("payload").collect()
    assert sorted(bytes(row.payload) for row in copied) == sorted(payloads * 2), "two queries, each exactly once"
    # A batch that was committed, and is tried again because its checkpoint was lost in between, changes nothing.
    for commit in (tmp_path / "one/commits").iterdir():
        commit.unlink()
    copy(spark, tmp_path / "log", tmp_path / "copy", tmp_path / "one")
    assert read(tmp_path / "copy", recursive=True).count() == 800
