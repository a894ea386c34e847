"""A real standalone cluster on this machine: a master and two workers from pyspark's own files.

Not part of `make test`, because it takes a minute: `make cluster`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from forelog import Stream
from forelog.broker import MessageLogWriter

pytestmark = pytest.mark.filterwarnings("ignore")

SESSION = """
import sys, time
from forelog.spark import columnar_jar, register
from forelog.spark.package import package_zip
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import BooleanType

master, path = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.task.maxFailures", "8")
    .config("spark.jars", columnar_jar())
    .getOrCreate()
)
spark.sparkContext.setLogLevel("FATAL")
"""

WITH_THE_PACKAGE = """
spark.sparkContext.addPyFile(package_zip())
register(spark)

@F.udf(BooleanType())
def slow(segment):
    time.sleep(0.004)
    return True

frame = spark.read.format("forelog").option("partitionBytes", "1").load(path)
print("started", flush=True)
sums = ["count(*)", "count(distinct payload)", "sum(length(payload))"]
print(frame.where(slow("segment")).selectExpr(*sums).first()[:])
"""

WITH_THE_JAR_ALONE = """
register(spark)
frame = spark.read.format("forelog").option("partitionBytes", "1").load(path)
sums = ["count(*)", "count(distinct payload)", "sum(length(payload))", "max(segment) > 1"]
print(frame.selectExpr(*sums).first()[:], frame.count(), frame.where("segment = 2").count() > 0)
stream = spark.readStream.format("forelog").load(path).writeStream.format("noop").trigger(availableNow=True)
query = stream.option("checkpointLocation", path + ".checkpoint").start()
query.awaitTermination()
print(sum(progress["numInputRows"] for progress in query.recentProgress))
"""

WITH_AN_ARCHIVE = """
import sys
from forelog.spark import cluster_conf, environment_archive, register
from pyspark.sql import SparkSession

master, path, folder = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.executor.memory", "512m")
for name, value in cluster_conf(environment_archive(folder), python=folder + "/python").items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("FATAL")
register(spark)
frame = spark.read.format("forelog").option("codec", "auto").load(path)
print(sorted(frame.selectExpr("topic", "int(cast(payload as string)) payload").collect())[:2], frame.count())
"""

NO_PYTHON_HERE = """#!/bin/sh
[ -z "$SPARK_EXECUTOR_DIRS" ] || exit 1  # on executors there is none
exec {python} "$@"
"""


@pytest.fixture
def cluster(request, tmp_path):
    if not request.config.getoption("--cluster"):
        pytest.skip("a cluster is started only with --cluster")
    import pyspark

    launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    processes: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        command = [str(launcher), *arguments]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    place = "org.apache.spark.deploy"
    master = start(f"{place}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    url = told(master, r"(spark://127\.0\.0\.1:\d+)")
    workers = [
        start(f"{place}.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", url)
        for _ in range(2)
    ]
    for worker in workers:
        told(worker, "(Successfully registered)")
    yield url, workers, environment
    for process in processes:
        process.kill()
        process.wait()


def told(process: subprocess.Popen, pattern: str) -> str:
    """Wait until a process says something; what comes later is read and thrown away."""
    for line in process.stderr:
        if match := re.search(pattern, line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return match[1]
    raise AssertionError(f"it ended with {process.wait()}")


def test_a_worker_that_is_killed_changes_nothing(cluster, tmp_path):
    url, workers, environment = cluster
    path = tmp_path / "log"
    with Stream(path).appender(segment_bytes=2000) as log:
        for serial in range(3000):
            log.append(b"%06d" % serial)
    job = subprocess.Popen(
        [sys.executable, "-c", SESSION + WITH_THE_PACKAGE, url, str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout.readline() == "started\n"
    time.sleep(8)
    children = subprocess.run(["pgrep", "-P", str(workers[0].pid)], capture_output=True, text=True).stdout.split()
    workers[0].kill()
    for child in children:
        os.kill(int(child), 9)
    assert job.stdout.readline() == "(3000, 3000, 18000)\n"
    assert job.wait(60) == 0


def test_executors_need_no_python_to_read(cluster, tmp_path):
    url, _, environment = cluster
    with Stream(tmp_path / "log").appender(segment_bytes=20_000) as log:
        for serial in range(3000):
            log.append(b"%06d" % serial)
    python = tmp_path / "python"
    python.write_text(NO_PYTHON_HERE.format(python=sys.executable))
    python.chmod(0o755)
    job = subprocess.run(
        [sys.executable, "-c", SESSION + WITH_THE_JAR_ALONE, url, str(tmp_path / "log")],
        env={**environment, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.stdout.splitlines() == ["(3000, 3000, 18000, True) 3000 True", "3000"], job.stderr[-3000:]


def test_an_archive_brings_all_that_python_needs(cluster, tmp_path):
    """The workers' Python is a bare one, without any package."""
    url, _, environment = cluster
    with MessageLogWriter(tmp_path / "bus", flush_interval_ms=None) as bus:
        for serial in range(300):
            bus.write("a/b", b"%d" % serial)
    bare = Path(sys.base_prefix) / "bin" / "python3"
    (tmp_path / "python").symlink_to(bare)
    lacking = subprocess.run([bare, "-c", "import forelog"], capture_output=True, check=False).returncode
    assert lacking, "the test needs a Python without forelog"
    del environment["PYSPARK_PYTHON"]
    job = subprocess.run(
        [sys.executable, "-c", WITH_AN_ARCHIVE, url, str(tmp_path / "bus"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = "[Row(topic='a/b', payload=0), Row(topic='a/b', payload=1)] 300"
    assert job.stdout.strip() == expected, job.stderr[-3000:]
