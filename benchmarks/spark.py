"""Spark over a log, beside Parquet and the limits of Spark's own transport, in one session and in turns."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.measure import (
    Case,
    Figure,
    Role,
    Settings,
    count_goal,
    interleave,
    ratio_goal,
    row,
)
from forelog import Stream
from forelog.spark import session
from forelog.spark.codecs import codec_of
from forelog.spark.options import read_options
from forelog.spark.pipeline.ingest import ingest
from forelog.spark.planning import find_logs, plan
from forelog.spark.source import ForelogDataSource, ForelogPythonSource
from forelog.times import format_time

RECORD = 100
BATCH = 8192
LOG_BYTES = 1 << 30
FEWER = 20
"""Which part of the rows is enough for what is slow."""
SEGMENTS = 10_000
ROUNDS_MAX = 5
PARQUET_GOAL = 0.6
QUERY_GOAL = 1.0
TRANSPORT_GOAL = 0.85
TUPLES_GOAL = 5.0
WRITER_GOAL = 1.0
PLAN_GOAL = 3.0
IN_PLACE = "ready-made batches, forelog's"
TUPLES = "forelog, as tuples"


class Ready(DataSource):
    """A source that yields ready-made batches: the limit of Spark's transport for sources in Python."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return "segment int, offset bigint, time timestamp, payload binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return ReadyReader(int(self.options["parts"]), int(self.options["rows"]), schema.names)


class ReadyReader(DataSourceReader):
    """As many partitions as the log's own plan has, of rows that cost nothing to make."""

    def __init__(self, parts: int, rows: int, names: list[str]) -> None:
        self._parts, self._rows, self._names = parts, rows, names

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(n) for n in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        rows = self._rows // self._parts
        columns = {
            "segment": pa.array([1] * BATCH, pa.int32()),
            "offset": pa.array(range(BATCH), pa.int64()),
            "time": pa.array(range(BATCH), pa.timestamp("us", tz="UTC")),
            "payload": pa.array([b"x" * RECORD] * BATCH, pa.binary()),
        }
        batch = pa.record_batch({name: columns[name] for name in self._names})
        for done in range(0, rows, BATCH):
            yield batch.slice(0, min(BATCH, rows - done))


class ReadyColumns(Ready):
    """The same in the place of forelog's own source: the limit of its transport, where it has the part in Java."""

    @classmethod
    def name(cls) -> str:
        return ForelogPythonSource.name()


class Alone(ForelogDataSource):
    """forelog without the part in Java."""

    @classmethod
    def name(cls) -> str:
        return "alone"


class Tuples(Ready):
    """The log as a source that yields tuples, as most sources in Python do: a row for each record."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return TuplesReader(self.options["path"])


class TuplesReader(DataSourceReader):
    """A partition for each segment."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in Stream(self._path).numbers()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with Stream(self._path).cursor(start=(partition.value, 0), until=(partition.value + 1, 0)) as cursor:
            for record in cursor:
                yield (record.position.segment, record.position.offset, record.time, record.payload)


def reading(settings: Settings) -> Figure:
    """All of a log through Spark, to a sum and to Parquet."""
    rows = settings.count(LOG_BYTES, least=1 << 20) // (RECORD + 20)
    rounds = min(settings.rounds, ROUNDS_MAX)
    with settings.scratch() as path:
        log, parquet = path / "log", path / "parquet"
        settings.tell("writing the log")
        write_log(log, rows)
        write_log(path / "few", rows // FEWER, segment_bytes=(rows // FEWER) * (RECORD + 20) // 4)
        spark = session("local[2]", spark_driver_memory="3g")
        try:
            for source in (Ready, Tuples, Alone):
                spark.dataSource.register(source)
            read(spark, log).write.option("compression", "none").parquet(str(parquet))
            reads = interleave(settings, _reads(spark, log, parquet, rows), rounds)
            writes = interleave(settings, _writes(spark, log, path / "written", rows), min(rounds, 3))
        finally:
            spark.stop()
        touched, segments = narrow(log)
    figure = Figure("spark-read", f"Spark over a log of {rows:,} records of {RECORD} bytes, local[2]")
    figure.rows = [row(one, "rows/s") for one in (*reads, *writes)]
    ours, alone, of_parquet, ready, ready_columns, tuples = reads
    figure.goals = [
        ratio_goal("sum(length(payload)), to uncompressed Parquet", ours, of_parquet, at_least=PARQUET_GOAL),
        ratio_goal("sum, to ready-made batches, by Spark's transport", ours, ready, at_least=TRANSPORT_GOAL),
        ratio_goal("sum, to ready-made batches, by the same transport", ours, ready_columns),
        ratio_goal("without the part in Java, to ready-made batches", alone, ready, at_least=TRANSPORT_GOAL),
        ratio_goal("sum, to the same source with tuples", ours, tuples, at_least=TUPLES_GOAL),
        ratio_goal("ingest to Parquet, to Spark's own writer", *writes, at_least=WRITER_GOAL),
        count_goal(
            f"segments read for a hundredth of the time, of {segments}",
            touched,
            "segments",
            at_most=segments / 100 + 1,
        ),
    ]
    figure.notes.append(
        "The log's checksums are checked, all of them. Spark's transport takes all columns of a source in Python "
        "and makes rows of them; forelog's part in Java takes those that a query needs, as Spark does with "
        "Parquet. An ingest syncs what it writes, Spark's writer doesn't. Tuples come from a cursor, one by one, "
        "over a twentieth of the rows."
    )
    return figure


def _reads(spark: SparkSession, log: Path, parquet: Path, rows: int) -> list[Case]:
    """The same rows as a sum, from each source."""
    parts = len(plan(read_options({"path": str(log)}), find_logs(str(log), recursive=False), splits=True))
    few = rows // FEWER
    made = {"parts": str(parts), "rows": str(rows)}
    spark.dataSource.register(ReadyColumns)
    in_place = spark.read.format("forelog").options(**made).load("x")
    spark.dataSource.register(ForelogPythonSource)
    frames: list[tuple[str, Role, DataFrame]] = [
        ("forelog", "forelog", read(spark, log)),
        ("forelog, without the part in Java", "forelog", spark.read.format("alone").load(str(log))),
        ("Parquet", "peer", spark.read.parquet(str(parquet))),
        ("ready-made batches, Spark's transport", "limit", spark.read.format("ready").options(**made).load("x")),
        (IN_PLACE, "limit", in_place),
        (TUPLES, "peer", spark.read.format("tuples").load(str(log.parent / "few"))),
    ]

    def rate(name: str, frame: Any) -> float:
        spark.dataSource.register(ReadyColumns if name == IN_PLACE else ForelogPythonSource)
        try:
            return (few if name == TUPLES else rows) / timed(lambda: total(frame))
        finally:
            spark.dataSource.register(ForelogPythonSource)

    return [Case(name, "-", role, partial(rate, name, frame)) for name, role, frame in frames]


def querying(settings: Settings) -> Figure:
    """Four queries on a log, and on Parquet with the same rows."""
    rows = settings.count(LOG_BYTES, least=1 << 20) // (RECORD + 20)
    with settings.scratch() as path:
        log, parquet = path / "log", path / "parquet"
        settings.tell("writing the log")
        write_log(log, rows)
        spark = session("local[2]", spark_driver_memory="3g")
        try:
            read(spark, log).write.option("compression", "none").parquet(str(parquet))
            frames = {"forelog": read(spark, log), "Parquet": spark.read.parquet(str(parquet))}
            middle = len(Stream(log).numbers()) // 2 + 1
            checked = {name: total(frame) for name, frame in frames.items()}
            if len(set(checked.values())) > 1:
                raise AssertionError(f"the rows differ: {checked}")
            cases = [
                Case(f"{name}: {what}", "-", "peer" if name == "Parquet" else "forelog", partial(_rate, rows, run))
                for what, query in _queries(middle).items()
                for name, frame in frames.items()
                for run in [partial(query, frame)]
            ]
            reads = interleave(settings, cases, min(settings.rounds, ROUNDS_MAX))
        finally:
            spark.stop()
    figure = Figure("spark-query", f"Queries on a log of {rows:,} records of {RECORD} bytes, local[2]")
    figure.rows = [row(one, "rows/s") for one in reads]
    figure.goals = [
        ratio_goal(f"{what}, to uncompressed Parquet", *reads[2 * place : 2 * place + 2], at_least=QUERY_GOAL)
        for place, what in enumerate(_queries(middle))
    ]
    figure.notes.append(
        "Rows are all rows of the log, also where a query reads few of them. Counting reads the indexes and the "
        "last segment, as with Parquet the footers. All checksums of what is read are checked."
    )
    return figure


def _queries(segment: int) -> dict[str, Callable[[DataFrame], Any]]:
    everything = ["sum(segment)", "sum(offset)", "max(time)", "sum(length(payload))"]
    return {
        "an aggregate of all columns": lambda frame: frame.selectExpr(*everything).collect(),
        "all rows, to nowhere": lambda frame: frame.write.format("noop").mode("overwrite").save(),
        "count": lambda frame: frame.count(),
        "where segment = k": lambda frame: frame.where(f"segment = {segment}").selectExpr(*everything).collect(),
    }


def _rate(rows: int, run: Callable[[], Any]) -> float:
    return rows / timed(run)


def _writes(spark: SparkSession, log: Path, target: Path, rows: int) -> list[Case]:
    """The log to Parquet: by an ingest, which syncs what it writes, and by Spark, which doesn't."""

    def ingested() -> float:
        shutil.rmtree(target, ignore_errors=True)
        return rows / timed(lambda: ingest(spark, log, target, compact_below=0))

    def written() -> float:
        shutil.rmtree(target, ignore_errors=True)
        return rows / timed(lambda: read(spark, log).write.parquet(str(target)))

    return [
        Case("ingest to Parquet", "always", "forelog", ingested),
        Case("Spark's own writer", "none", "peer", written),
    ]


def write_log(path: Path, rows: int, segment_bytes: int = 64 << 20) -> None:
    """Records that are all different, or Parquet would store a single one."""
    filler = os.urandom(1 << 20)
    with Stream(path).appender(segment_bytes=segment_bytes) as log:
        for done in range(0, rows, 10_000):
            serials = range(done, min(done + 10_000, rows))
            log.append_many([b"%012d" % n + filler[n % 999_000 : n % 999_000 + RECORD - 12] for n in serials])


def read(spark: SparkSession, path: Path) -> Any:
    return spark.read.format("forelog").load(str(path))


def total(frame: Any) -> Any:
    return frame.selectExpr("sum(length(payload))").first()[0]


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def narrow(log: Path) -> tuple[int, int]:
    """A read of one hundredth of the log's time: how many segments have records read of them, and of how many."""
    segments = Stream(log).segments()
    first, last = segments[0].first_time_ns or 0, segments[-1].first_time_ns or 0
    low = segments[len(segments) // 2].first_time_ns or 0
    text = {"since": format_time(low), "until": format_time(low + (last - first) // 100)}
    options = read_options({"path": str(log), **text})
    touched: set[int] = set()
    for piece in plan(options, find_logs(str(log), recursive=False), splits=True):
        for batch in codec_of("records").batches(piece, ["segment"], BATCH, "raise", []):
            touched |= set(batch["segment"].unique().to_pylist())
    return len(touched), len(segments)


def planning(settings: Settings) -> Figure:
    """Planning a read of many segments, to listing them and reading 24 bytes of each."""
    count = settings.count(SEGMENTS, least=100)
    with settings.scratch() as path:
        with Stream(path / "log").appender() as log:
            log.append(b"x")
        first = (path / "log" / "000000001.log").read_bytes()
        for number in range(2, count + 1):
            (path / "log" / f"{number:09d}.log").write_bytes(first)
        options = read_options({"path": str(path / "log")})

        def bare() -> None:
            for name in os.listdir(path / "log"):
                if name.endswith(".log"):
                    with open(path / "log" / name, "rb") as file:
                        file.read(24)

        def planned() -> None:
            plan(options, find_logs(str(path / "log"), recursive=False), splits=True)

        cases = [
            Case("plan", "-", "forelog", lambda: count / timed(planned)),
            Case("list, and read 24 bytes of each", "-", "limit", lambda: count / timed(bare)),
        ]
        ours, limit = interleave(settings, cases, min(settings.rounds, ROUNDS_MAX))
    figure = Figure("spark-plan", f"Plan a read of {count:,} segments")
    figure.rows = [row(one, "segments/s") for one in (ours, limit)]
    figure.goals = [ratio_goal("time of a plan, to a bare loop", limit, ours, at_most=PLAN_GOAL)]
    return figure
