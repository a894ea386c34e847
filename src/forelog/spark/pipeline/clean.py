"""What may be forgotten, decided in Spark over logs too large for one machine, and applied by the engine.

Spark decides which records may go, as a set of positions for each segment. The engine's cleaner then takes them
out, log by log, with its locks, its rewriting of one segment at a time and its promises: the last segment is never
touched, positions stay valid, and a crash in between leaves a log that is whole.

- `ExpiredJobs()`: every command of a job that is gone: deleted, expired, or its ttl is over. A server that starts
  afterwards knows the same jobs as before.
- `FinishedJobs("1h")`: those too, and the commands of jobs that were completed or failed so long ago or longer:
  their results are not known any more.
- `SupersededKeys(until=b"=")`: every record whose key has a later one in the same log.

Why it is safe while the log is written to: a record that comes after the decision can't make a forgotten one
matter again. A job that is gone stays gone, and a key's older record stays superseded. What supersedes is synced
before anything is taken out. Segments are cleaned oldest first, so that at any moment a job's add has gone before
its delete; and damage stops the run there, for the same reason.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from forelog.errors import BadOption, SkipSegment
from forelog.log.cleaner import CleanReport
from forelog.log.position import Record
from forelog.log.stream import Stream
from forelog.spark.pipeline.jobs import jobs, lives_of
from forelog.spark.pipeline.replay import key_of
from forelog.spark.pipeline.tables import JOB_COLUMNS, log_columns, read_table
from forelog.spark.planning import find_logs
from forelog.times import TimeLike, parse_duration, parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Doomed = dict[int, "array[int]"]
"""Offsets of records that may go, by segment."""


class CleanRule(Protocol):
    """Decides in Spark which records may be forgotten."""

    codec: str
    columns: tuple[str, ...]

    def doomed(self, table: DataFrame) -> DataFrame:
        """The rows of a table that may go: `segment` and `offset`, and `log` where the table has it."""


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
    """The same, and commands of jobs that were completed or failed at least an age ago."""

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
    """What was done to a log, or would be; `positions` is how many records the rule lets go."""

    log: str
    path: str
    positions: int
    report: CleanReport


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
    """Forget what a rule lets go, of a log or of every log in a folder. Unless `apply`, only say what it would be.

    `timeout` is how long to wait for readers of a log to finish; for ever by default.
    """
    logs = {log.name: log for log in find_logs(path, recursive=recursive)}
    for log in logs.values():
        if not log.format.appends_in_place:
            raise BadOption(
                f"{log.path} is in the format {log.format.name}, where later records need earlier ones"
            )
    table = read_table(spark, path, rule.columns, codec=rule.codec, recursive=recursive)
    decided = dict(_decisions(rule.doomed(table), next(iter(logs)) if not recursive else None))
    found = []
    for done, (name, log) in enumerate(logs.items()):
        if progress is not None:
            progress(done, len(logs))
        doomed = decided.pop(name, {})
        report = _apply(log.stream(), doomed, apply=apply, timeout=timeout)
        found.append(Cleaned(name, log.path, sum(map(len, doomed.values())), report))
    return found


def _decisions(doomed: DataFrame, name: str | None) -> Iterator[tuple[str, Doomed]]:
    """What may go, log by log. Offsets come in lists, eight bytes each, and not as objects of their own."""
    logs = log_columns(doomed)
    lists = doomed.groupBy(*logs, "segment").agg(F.collect_list("offset").alias("offsets"))
    rows = lists.orderBy(*logs, "segment").toLocalIterator()
    for log, segments in groupby(rows, key=lambda row: row.log if logs else name):
        yield str(log), {row.segment: array("q", row.offsets) for row in segments}


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
    """What a decision rests on must be as durable as what goes by it was."""
    directory = stream.directory
    numbers = directory.numbers()
    if numbers:
        last = directory.open_segment(numbers[-1])
        try:
            last.sync()
        finally:
            last.close()
