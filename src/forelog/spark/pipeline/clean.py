"""Cleaning logs that are too large for one machine: Spark chooses the records, and the engine removes them.

Spark chooses records by their positions in each segment. Tasks of Spark then let the engine's cleaner remove them,
log by log, with its usual promises: it rewrites one segment at a time under its lock, never touches the last one,
keeps positions valid, and a crash leaves a whole log.

- `ExpiredJobs()`: every command of a job that is gone: deleted, expired, or past its ttl. A server that starts
  afterwards knows the same jobs as before.
- `FinishedJobs("1h")`: these, and the commands of jobs that completed or failed at least so long ago. Their
  results are lost.
- `SupersededKeys(until=b"=")`: every record whose key has a later one in the same log.

This is safe while the log is written to, because a later record can't make a removed one matter again: a job that
is gone stays gone, and a key's older record stays superseded. The superseding records are synced before anything
is removed. Segments are cleaned oldest first, so a job's add is removed before its delete. For the same reason,
damage ends the run.
"""

from __future__ import annotations

import os
import pickle
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from forelog.errors import BadOption, SkipSegment
from forelog.log.cleaner import CleanReport
from forelog.log.position import Record
from forelog.log.stream import Stream
from forelog.spark.pipeline.failures import find_failure
from forelog.spark.pipeline.ingest_run import watched
from forelog.spark.pipeline.input import JOB_COLUMNS, log_columns, read_log
from forelog.spark.pipeline.jobs import jobs, lives_of
from forelog.spark.pipeline.replay import key_of
from forelog.spark.planning import find_logs
from forelog.spark.remote import is_remote
from forelog.times import TimeLike, parse_duration, parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Doomed = dict[int, "array[int]"]
"""Offsets of records that may go, by segment."""


class CleanRule(Protocol):
    """Chooses in Spark which records to remove."""

    codec: str
    columns: tuple[str, ...]

    def doomed(self, table: DataFrame) -> DataFrame:
        """The rows to remove: `segment` and `offset`, and `log` if the table has it."""


class ExpiredJobs:
    """Commands of jobs that are gone as of `now`."""

    codec = "commands"
    columns: tuple[str, ...] = JOB_COLUMNS

    def __init__(self, *, now: TimeLike | None = None) -> None:
        self.now_ns = time.time_ns() if now is None else parse_time(now)

    def doomed(self, table: DataFrame) -> DataFrame:
        keys = [*log_columns(table), "id", "life"]
        gone = jobs(table).where(self._gone()).select(*keys)
        return lives_of(table).join(gone, keys, "left_semi").select(*log_columns(table), "segment", "offset")

    def _gone(self) -> str:
        return f"removed is not null or unix_micros(expires) < {self.now_ns // 1000}"


class FinishedJobs(ExpiredJobs):
    """Commands of jobs that are gone, or that completed or failed at least an age ago."""

    def __init__(self, age: str = "0s", *, now: TimeLike | None = None) -> None:
        super().__init__(now=now)
        self.before_ns = self.now_ns - parse_duration(age)

    def _gone(self) -> str:
        return f"{super()._gone()} or unix_micros(finished) <= {self.before_ns // 1000}"


class SupersededKeys:
    """Records whose key, as of `forelog.KeepLatest`, has a later one."""

    codec = "records"
    columns: tuple[str, ...] = ("segment", "offset", "payload")

    def __init__(self, *, key: slice | None = None, until: bytes | None = None) -> None:
        self._slice, self._until = key, until
        if key is None and until is None:
            raise BadOption("which part of a payload is its key? Give a slice, or the byte that ends it")

    def doomed(self, table: DataFrame) -> DataFrame:
        keyed = table.select(
            *log_columns(table), "segment", "offset", key_of(self._slice, self._until).alias("key")
        )
        order = Window.partitionBy(*log_columns(table), "key").orderBy("segment", "offset")
        later = keyed.withColumn("later", F.lead("offset").over(order)).where("later is not null")
        return later.select(*log_columns(table), "segment", "offset")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was removed from a log, or would be; `positions` is the number of records that the rule chose."""

    log: str
    """The name of the log."""
    path: str
    """The log's directory."""
    positions: int
    """The number of records that the rule chose."""
    report: CleanReport
    """What the cleaner removed, or would remove."""


def clean(
    spark: SparkSession,
    path: str,
    rule: CleanRule,
    *,
    apply: bool = False,
    recursive: bool = False,
    timeout: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Cleaned]:
    """Remove what a rule chooses, from a log or from every log in a folder. Without `apply`, only report it.

    `timeout` is how long to wait for readers of a log to finish; for ever by default.
    """
    logs = {log.name: log for log in find_logs(path, recursive=recursive)}
    for log in logs.values():
        if not log.format.appends_in_place:
            raise BadOption(
                f"{log.path} is in the format {log.format.name}, where later records need earlier ones"
            )
    table = read_log(spark, path, rule.columns, codec=rule.codec, recursive=recursive)
    root = path if is_remote(path) else os.path.abspath(path)  # tasks may run in another folder
    work = partial(_cleaned, root, None if recursive else next(iter(logs)), apply=apply, timeout=timeout)
    count = spark.sparkContext.accumulator(0)

    def counted(rows: Iterable[Any]) -> Iterator[bytes]:
        for cleaned in work(rows):
            count.add(1)
            yield pickle.dumps(cleaned)

    def tell() -> None:
        if progress is not None:
            progress(min(count.value, len(logs)), len(logs))

    try:
        with watched(tell):
            results = map(pickle.loads, _decisions(rule.doomed(table)).rdd.mapPartitions(counted).collect())
    except (Py4JJavaError, PySparkException) as error:
        raise find_failure(error) from error
    found = {one.log: one for one in results}
    return [found.get(name) or Cleaned(name, log.path, 0, CleanReport()) for name, log in logs.items()]


def _decisions(doomed: DataFrame) -> DataFrame:
    """The chosen offsets by segment: all of a log in one partition, its segments in their order."""
    logs = log_columns(doomed)
    lists = doomed.groupBy(*logs, "segment").agg(F.collect_list("offset").alias("offsets"))
    gathered = lists.repartition(*logs) if logs else lists.coalesce(1)
    return gathered.sortWithinPartitions(*logs, "segment")


def _cleaned(
    path: str, name: str | None, rows: Iterable[Any], *, apply: bool, timeout: float | None
) -> Iterator[Cleaned]:
    """Clean the logs of a partition, one after the other, on an executor. `name` is that of the only log."""
    for log, segments in groupby(rows, key=lambda row: row.log if name is None else name):
        doomed = {row.segment: array("q", row.offsets) for row in segments}
        stream = Stream.open(path if name is not None else f"{path}/{log}")
        report = _apply(stream, doomed, apply=apply, timeout=timeout)
        yield Cleaned(log, stream.path, sum(map(len, doomed.values())), report)


def _apply(stream: Stream, doomed: Doomed, *, apply: bool, timeout: float | None) -> CleanReport:
    if not doomed:
        return CleanReport()
    untouched: set[str] = set()
    current: tuple[int, set[int]] = (-1, set())

    def forget(path: str, record: Record) -> bool:
        nonlocal current
        number = record.position.segment
        if number not in doomed:
            untouched.add(path)
            raise SkipSegment
        if current[0] != number:
            current = (number, set(doomed[number]))
        return record.position.offset in current[1]

    with stream.cleaner(timeout=timeout) as cleaner:
        if apply:
            _sync_last(stream)
        # A function, not a rule: rules go from the newest segment to the oldest.
        report = cleaner.clean(forget, dry_run=not apply)
    report.segments_skipped = [path for path in report.segments_skipped if path not in untouched]
    return report


def _sync_last(stream: Stream) -> None:
    """Sync the log, so the superseding records are as durable as the removed ones were."""
    directory = stream.directory
    numbers = directory.numbers()
    if numbers:
        last = directory.open_segment(numbers[-1])
        try:
            last.sync()
        finally:
            last.close()
