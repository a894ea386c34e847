"""Spark over a log, beside Parquet and the limits of Spark's own transport: `make bench-spark`.

Everything is measured in one session, in turns. The log is made once, in `--folder`, and kept for the next
run unless it is a temporary one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from chiplog import Stream
from chiplog.log.stream import Stream as LogStream
from chiplog.spark import session
from chiplog.spark.codecs import codec_of
from chiplog.spark.options import read_options
from chiplog.spark.pipeline.ingest import ingest
from chiplog.spark.planning import find_logs, plan

RECORD = 100
BATCH = 8192


class Tasks(DataSourceReader):
    """As many partitions as the log's own plan has, of rows that cost nothing to make."""

    def __init__(self, parts: int, rows: int, *, tuples: bool) -> None:
        self._parts, self._rows, self._tuples = parts, rows, tuples

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(n) for n in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        rows = self._rows // self._parts
        if self._tuples:
            for _ in range(rows):
                yield (1, 8, None, b"x" * RECORD)
            return
        columns = {
            "segment": pa.array([1] * BATCH, pa.int32()),
            "offset": pa.array(range(BATCH), pa.int64()),
            "time": pa.array(range(BATCH), pa.timestamp("us", tz="UTC")),
            "payload": pa.array([b"x" * RECORD] * BATCH, pa.binary()),
        }
        batch = pa.record_batch(columns)
        for done in range(0, rows, BATCH):
            yield batch.slice(0, min(BATCH, rows - done))


class Ready(DataSource):
    """A source that yields ready-made batches: the transport's limit."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return "segment int, offset bigint, time timestamp, payload binary"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        tuples = self.options.get("tuples") == "true"
        return Tasks(int(self.options["parts"]), int(self.options["rows"]), tuples=tuples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="the log's size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--segments", type=int, default=10_000, help="how many a plan is timed for")
    parser.add_argument("--folder", help="where to keep the log")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="chiplog-bench-"))
    try:
        figures = run(folder, options)
    finally:
        if not options.folder:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(figures))
    return 0


def run(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    rows = options.mib * (1 << 20) // (RECORD + 20)
    log = folder / f"log-{options.mib}"
    if not log.exists():
        write_log(log, rows)
    spark = session("local[2]", spark_driver_memory="3g")
    spark.dataSource.register(Ready)
    parquet = folder / f"parquet-{options.mib}"
    if not parquet.exists():
        read(spark, log).write.option("compression", "none").parquet(str(parquet))
    parts = len(plan(read_options({"path": str(log)}), find_logs(str(log), recursive=False), splits=True))
    say(f"{rows:,} records of {RECORD} bytes in {options.mib} MiB, {parts} tasks, local[2]")
    ready = spark.read.format("ready").options(parts=str(parts), rows=str(rows))
    cases: dict[str, Callable[[], Any]] = {
        "chiplog": lambda: total(read(spark, log)),
        "parquet": lambda: total(spark.read.parquet(str(parquet))),
        "ready-made batches": lambda: total(ready.load("x")),
    }
    seconds = in_turns(cases, options.rounds)
    few = rows // 20
    slow = spark.read.format("ready").options(parts="2", rows=str(few), tuples="true")
    seconds["tuples"] = timed(lambda: total(slow.load("x"))) * rows / few
    figures = {
        "of parquet": seconds["parquet"] / seconds["chiplog"],
        "of the transport": seconds["ready-made batches"] / seconds["chiplog"],
        "to tuples": seconds["tuples"] / seconds["chiplog"],
    }
    seconds |= in_turns(writers(spark, log, folder, rows), options.rounds)
    figures["ingest to spark's writer"] = seconds["spark's writer"] / seconds["ingest"]
    for name, value in seconds.items():
        say(f"{name:<22} {value:8.2f} s  {rows / value / 1e6:6.2f} M rows/s")
    figures["segments read of a hundredth"] = narrow(log)
    spark.stop()
    figures["planning to a bare loop"] = planning(folder, options.segments)
    goals = {
        "of parquet": 0.6,
        "of the transport": 0.85,
        "to tuples": 5.0,
        "ingest to spark's writer": 1.0,
        "planning to a bare loop": -3.0,
    }
    for name, value in figures.items():
        goal = goals.get(name)
        told = "" if goal is None else f"  goal {'>=' if goal > 0 else '<='} {abs(goal)}"
        say(f"{name:<32} {value:8.2f}{told}")
    return figures


def write_log(path: Path, rows: int) -> None:
    """Records that are all different, or Parquet would store a single one."""
    filler = os.urandom(1 << 20)
    with Stream(path).appender() as log:
        for done in range(0, rows, 10_000):
            serials = range(done, min(done + 10_000, rows))
            log.append_many([b"%012d" % n + filler[n % 999_000 : n % 999_000 + RECORD - 12] for n in serials])


def writers(spark: SparkSession, log: Path, folder: Path, rows: int) -> dict[str, Callable[[], Any]]:
    """The log to Parquet: by an ingest, which syncs what it writes, and by Spark, which doesn't."""
    target = folder / "written"

    def ingested() -> None:
        shutil.rmtree(target, ignore_errors=True)
        assert ingest(spark, log, target, compact_below=0).rows == rows

    def written() -> None:
        shutil.rmtree(target, ignore_errors=True)
        read(spark, log).write.parquet(str(target))

    return {"ingest": ingested, "spark's writer": written}


def read(spark: SparkSession, path: Path) -> Any:
    return spark.read.format("chiplog").load(str(path))


def total(frame: Any) -> Any:
    return frame.selectExpr("sum(length(payload))").first()[0]


def in_turns(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()  # warm
    for _ in range(rounds):
        for name, case in cases.items():
            found[name].append(timed(case))
    return {name: statistics.median(times) for name, times in found.items()}


def timed(case: Callable[[], Any]) -> float:
    start = time.perf_counter()
    case()
    return time.perf_counter() - start


def narrow(log: Path) -> float:
    """A read of one hundredth of the log's time: how many segments have records read of them."""
    segments = LogStream(log).segments()
    first, last = segments[0].first_time_ns or 0, segments[-1].first_time_ns or 0
    low = segments[len(segments) // 2].first_time_ns or 0
    text = {"since": _text(low), "until": _text(low + (last - first) // 100)}
    options = read_options({"path": str(log), **text})
    pieces = plan(options, find_logs(str(log), recursive=False), splits=True)
    touched = set()
    for piece in pieces:
        for batch in codec_of("records").batches(piece, ["segment"], BATCH, "raise", []):
            touched |= set(batch["segment"].unique().to_pylist())
    say(f"a hundredth of the time: records of {len(touched)} of {len(segments)} segments were read")
    return float(len(touched))


def _text(time_ns: int) -> str:
    from chiplog.times import format_time

    return format_time(time_ns)


def planning(folder: Path, count: int) -> float:
    """Planning many segments, to listing them and reading 24 bytes of each."""
    path = folder / "many"
    if not path.exists():
        with Stream(path).appender() as log:
            log.append(b"x")
        first = (path / "000000001.log").read_bytes()
        for number in range(2, count + 1):
            (path / f"{number:09d}.log").write_bytes(first)

    def bare() -> None:
        for name in os.listdir(path):
            if name.endswith(".log"):
                with open(path / name, "rb") as file:
                    file.read(24)

    options = read_options({"path": str(path)})
    ours = [timed(lambda: plan(options, find_logs(str(path), recursive=False), splits=True)) for _ in range(5)]
    return statistics.median(ours) / statistics.median([timed(bare) for _ in range(5)])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
