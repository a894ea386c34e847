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

pytestmark = pytest.mark.filterwarnings("ignore")

JOB = """
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
        [sys.executable, "-c", JOB, url, str(path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout.readline() == "started\n"
    time.sleep(8)
    children = subprocess.run(["pgrep", "-P", str(workers[0].pid)], capture_output=True, text=True).stdout.split()
    workers[0].kill()
    for child in children:
        os.kill(int(child), 9)
    assert job.stdout.readline() == "(3000, 3000, 18000)\n"
    assert job.wait(60) == 0
