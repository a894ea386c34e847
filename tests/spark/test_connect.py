"""The source on Spark Connect: a client without a JVM, which registers it and sends the package along.

In a process of its own: a session of Connect and a classic one don't go together. The server's Python here has
forelog installed as well, so that this doesn't show that the package it was sent would be enough.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

for needed in ("grpc", "pandas"):
    pytest.importorskip(needed, reason="pyspark[connect] is not installed")

from examples.command_pipeline.server import connect_server, environment  # noqa: E402

from forelog import Stream  # noqa: E402

CLIENT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from forelog.spark import register
from forelog.spark.package import package_zip

address, folder = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.remote(address).getOrCreate()
spark.addArtifacts(package_zip(), pyfile=True)
register(spark)

orders = spark.read.format("forelog").load(str(folder / "orders.log"))
print(type(spark).__module__, orders.columns)
print(orders.selectExpr("count(*)", "sum(length(payload))", "max(segment)").first()[:])
print(orders.where("time < '2020-01-01'").count())

stream = spark.readStream.format("forelog").option("maxRecordsPerBatch", 250).load(str(folder / "orders.log"))
query = (
    stream.select("payload").writeStream.format("forelog")
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start(str(folder / "copies"))
)
query.awaitTermination()
copies = spark.read.format("forelog").option("recursive", "true").load(str(folder / "copies"))
print(copies.selectExpr("count(distinct payload)", "count(distinct log)").first()[:])
try:
    spark.read.format("forelog").load(str(folder / "nothing")).show()
except Exception as error:
    print("there is no log" in str(error) or str(error))
spark.stop()
"""


def test_a_client_of_spark_connect_reads_streams_and_writes_logs(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # starts faster
    with Stream(tmp_path / "orders.log").appender(segment_bytes=4000) as log:
        for serial in range(500):
            log.append(b"%06d" % serial)
    with connect_server(tmp_path, **{"spark.sql.shuffle.partitions": "1"}) as address:
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CLIENT, address, str(tmp_path)],
            env=environment(), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "pyspark.sql.connect.session ['segment', 'offset', 'time', 'payload']",
        "(500, 3000, 4)",
        "0",
        "(500, 2)",
        "True",
    ]
