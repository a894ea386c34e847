"""Many small logs are read a bundle at a time, in Java and in Python."""

from __future__ import annotations

import pickle
import random

import pytest

from forelog import Stream
from forelog.broker import MessageLogWriter
from forelog.spark.batch import ForelogReader
from forelog.spark.options import read_options
from forelog.spark.slices import table_columns
from forelog.spark.tasks import Bundle, bundled, tasks_in
from tests.spark.source.test_columnar import Alone

pytestmark = pytest.mark.filterwarnings("ignore")

COUNT = 300


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Logs of 0 to 9 records each."""
    path = tmp_path_factory.mktemp("many")
    for number in range(COUNT):
        with Stream(path / f"{number % 7}" / f"log{number:03d}").appender() as log:
            for serial in range(number % 10):
                log.append(b"%d %d" % (number, serial))
    return path


def expected() -> list[tuple[str, bytes]]:
    return sorted(
        (f"{n % 7}/log{n:03d}", b"%d %d" % (n, serial)) for n in range(COUNT) for serial in range(n % 10)
    )


def partitions(path, **options: str) -> list:
    checked = read_options({"path": str(path), "recursive": "true", "forelog.java": "true", **options})
    columns, names = table_columns(checked)
    return list(ForelogReader(checked, columns, names).partitions())


def test_many_small_tasks_are_bundled(logs):
    found = partitions(logs)
    assert 64 <= len(found) < COUNT / 2
    assert sum(len(tasks_in(one)) for one in found) == COUNT * 9 // 10, "an empty log needs none"
    again = pickle.loads(pickle.dumps(found))
    assert [tasks_in(one) for one in again] == [tasks_in(one) for one in found]
    assert len(partitions(logs, minPartitions="200")) >= 200
    assert any(isinstance(one, Bundle) for one in found)
    assert bundled([]) == Bundle(())


@pytest.mark.parametrize("source", ["forelog", "forelog_alone"])
def test_many_small_logs_have_their_rows(spark, logs, source):
    spark.dataSource.register(Alone)
    frame = spark.read.format(source).option("recursive", "true").load(str(logs))
    assert sorted((row.log, bytes(row.payload)) for row in frame.collect()) == expected()
    assert frame.count() == len(expected())
    assert frame.where("log = '3/log003'").count() == 3
    assert frame.limit(20).count() == 20


def test_damage_and_other_formats_are_read_by_python_in_between(spark, logs, tmp_path):
    rng = random.Random(1)
    for number in range(300):
        with Stream(tmp_path / "logs" / f"log{number:03d}").appender() as log:
            log.append_many([b"%d %d" % (number, serial) for serial in range(5)])
    for number in rng.sample(range(300), 20):
        file = tmp_path / "logs" / f"log{number:03d}" / "000000001.log"
        data = bytearray(file.read_bytes())
        data[70] ^= 1
        file.write_bytes(data)
    load = spark.read.format("forelog").option("recursive", "true").option("onCorruption", "skip").load
    assert load(str(tmp_path / "logs")).count() == 1500 - 20
    with pytest.raises(Exception, match="CorruptRecord"):
        spark.read.format("forelog").option("recursive", "true").load(str(tmp_path / "logs")).collect()
    for number in range(260):
        with MessageLogWriter(tmp_path / "buses" / f"{number}", flush_interval_ms=None) as bus:
            bus.write("a/b", b"%d" % number)
    frame = spark.read.format("forelog").option("recursive", "true").option("codec", "messages")
    found = frame.load(str(tmp_path / "buses"))
    assert sorted(int(row.payload) for row in found.collect()) == list(range(260))
    assert found.selectExpr("count(1)", "max(offset) >= 0").collect() == [(260, True)]


def test_a_stream_of_many_small_logs(spark, logs, tmp_path):
    frame = spark.readStream.format("forelog").option("recursive", "true").load(str(logs))
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
        str(tmp_path / "rows")
    ).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).select("log", "payload").collect()
    assert sorted((row.log, bytes(row.payload)) for row in rows) == expected()
