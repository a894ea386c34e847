"""Logs to tables on Spark, and reading them back."""

from __future__ import annotations

from uuid import UUID

import pytest

from forelog import CorruptRecord, LogNotFound, Stream
from forelog.errors import TaskFailed
from forelog.formats.commands.commands import Add, encode
from forelog.spark.pipeline.ingest import ingest, read_table
from forelog.spark.pipeline.ingest_run import ignored, run_on
from tests.spark.ingest.test_ingest import Clock, append


def numbers(frame) -> list[int]:
    return sorted(int(bytes(row.payload).split(b":")[0]) for row in frame.select("payload").collect())


def test_a_log_to_a_table_and_back(spark, tmp_path):
    log, target = Stream(str(tmp_path / "log"), clock=Clock()), str(tmp_path / "t")
    append(log, 0, 30)
    assert ingest(spark, log.path, target, partition_by="date").rows == 30
    append(log, 30, 40)
    report = ingest(spark, log.path, target, partition_by="date")
    assert report.rows == 10
    table = read_table(spark, target)
    assert table.columns == ["segment", "offset", "time", "payload", "date"]
    assert dict(table.dtypes)["date"] == "date"
    assert numbers(table) == list(range(40))
    assert numbers(spark.read.parquet(target)) == list(range(40))
    wrong = table.where("date != cast(time as date)").count()
    assert wrong == 0


def test_commands_by_name_whatever_the_name(spark, tmp_path):
    log = Stream(str(tmp_path / "log"))
    names = ["eu/west", "größe", "007", "a b=c"]
    with log.appender() as appender:
        for n, name in enumerate(names):
            appender.append(encode(Add(UUID(int=n).bytes, name, ttr_ms=1000, ttl_ms=60_000, created_ns=0)))
    ingest(spark, log.path, str(tmp_path / "t"), codec="commands", partition_by="name")
    assert sorted(row.name for row in read_table(spark, tmp_path / "t").select("name").collect()) == sorted(names)


def test_an_error_of_a_task_is_its_own_and_not_sparks(spark, tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 100)
    segment = tmp_path / "log" / "000000001.log"
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptRecord, match="damaged record") as caught:
        ingest(spark, log.path, tmp_path / "t")
    assert caught.value.reason == "crc"
    with pytest.raises(TaskFailed, match="a task failed: ZeroDivisionError"):
        run_on(spark)([0], lambda n: 1 // n, ignored)
    with pytest.raises(LogNotFound, match="no table of an ingest"):
        read_table(spark, tmp_path / "nothing")
