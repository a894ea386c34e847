"""Checks every checksum of many logs in parallel, segment by segment.

Each task checks some segments as `forelog verify` does, with the read lock of their log, and returns a row for
each. The driver checks what concerns a whole log: whether it is open for appending, and whether synced bytes are
missing. It uses the same code, so the result is that of `forelog verify`. In logs of M3's format the messages in
the chunks are checked too, and those that can't be read are defects.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forelog.errors import ForelogError
from forelog.log import verify as engine
from forelog.log.directory.watermark import read_mark
from forelog.log.verify import SegmentReport, VerifyReport
from forelog.log.walk import DEFECTS_MAX, Defect
from forelog.spark.options import PARTITION_BYTES
from forelog.spark.planning import Log, find_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_SCHEMA = (
    "log string, path string, format string, ok boolean, segments int, records bigint, bytes bigint, "
    "first_time timestamp, last_time timestamp, defects bigint, defect_bytes bigint, live boolean, "
    "problems array<string>, notes array<string>"
)
DEFECT_SCHEMA = (
    "log string, segment int, offset bigint, reason string, file string, file_offset bigint, bytes bigint, "
    "torn boolean"
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The results by the name of the log."""

    reports: dict[str, VerifyReport]
    """The report of each log."""

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.reports.values())

    def logs(self, spark: SparkSession) -> DataFrame:
        """A row for each log, with the figures and problems that `forelog verify` reports."""
        return spark.createDataFrame([_log_row(name, report) for name, report in self.reports.items()], LOG_SCHEMA)

    def defects(self, spark: SparkSession) -> DataFrame:
        """A row for each damaged place, at most a thousand per segment, and for each torn tail."""
        rows = [
            (name, *defect.position, defect.reason, defect.path, defect.physical_offset, defect.byte_count, torn)
            for name, report in self.reports.items()
            for defect, torn in _defects(report)
        ]
        return spark.createDataFrame(rows, DEFECT_SCHEMA)


@dataclass(frozen=True, slots=True)
class _Task:
    """Segments that one task checks."""

    log: Log
    chosen: list[int]
    numbers: list[int]
    """All segments of the log, because the last one is judged differently."""


def verify(spark: SparkSession, path: str, *, recursive: bool = False, task_bytes: int = PARTITION_BYTES) -> Fleet:
    """Check a log, or with `recursive` every log in a folder, in tasks of about `task_bytes`."""
    logs = {log.name: log for log in find_logs(path, recursive=recursive)}
    # Before the sizes, which may only grow after it.
    marks = {name: read_mark(log.stream().directory) for name, log in logs.items()}
    numbers = {name: log.stream().directory.numbers() for name, log in logs.items()}
    tasks = [task for name, log in logs.items() for task in _tasks(log, numbers[name], task_bytes)]
    segments: dict[str, list[SegmentReport]] = {name: [] for name in logs}
    for name, found in _run(spark, tasks):
        segments[name].append(_checked(found))
    reports = {}
    for name, log in logs.items():
        directory = log.stream().directory
        report = VerifyReport(log.path, log.format.name)
        report.segments = sorted(segments[name], key=lambda segment: segment.number)
        engine.conclude(directory, report, marks[name], numbers[name])
        reports[name] = report
    return Fleet(reports)


def _checked(report: SegmentReport | Exception) -> SegmentReport:
    if isinstance(report, Exception):
        raise report
    return report


def _tasks(log: Log, numbers: list[int], task_bytes: int) -> Iterator[_Task]:
    directory = log.stream().directory
    chosen: list[int] = []
    size = 0
    for number in numbers:
        segment_bytes = directory.segment_bytes(number) or 0
        if chosen and size + segment_bytes > task_bytes:
            yield _Task(log, chosen, numbers)
            chosen, size = [], 0
        chosen.append(number)
        size += segment_bytes
    if chosen:
        yield _Task(log, chosen, numbers)


def _run(spark: SparkSession, tasks: list[_Task]) -> list[tuple[str, SegmentReport | Exception]]:
    """Run each task on Spark, and return the results with the log's name."""
    if not tasks:
        return []

    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    # A plain function, and not one on Arrow batches: for those Spark wants pandas.
    check = F.udf(
        lambda index: [pickle.dumps(report) for report in _check(tasks[index])], "array<binary>", useArrow=False
    )
    numbers = spark.range(0, len(tasks), 1, numPartitions=len(tasks))
    found = numbers.select("id", check("id").alias("reports")).collect()
    return [(tasks[row.id].log.name, pickle.loads(report)) for row in found for report in row.reports]


def _check(task: _Task) -> Iterator[SegmentReport | Exception]:
    logging.getLogger("forelog").setLevel(logging.ERROR)  # damage is in the report
    directory = task.log.stream().directory
    try:
        with directory.read_lock():
            there = set(directory.numbers())
            for number in task.chosen:
                if number in there:  # cleaning or retention may have taken it since
                    report = engine.check_segment(directory, number, task.numbers)
                    if task.log.format.holds_entries:
                        _check_messages(task, report)
                    yield report
    except (ForelogError, OSError) as error:
        yield error


def _check_messages(task: _Task, report: SegmentReport) -> None:
    from forelog.commitlog.check import check_file

    found, torn = check_file(task.log.stream(), report.number, last=not report.sealed)
    report.defects = sorted(report.defects + found)[:DEFECTS_MAX]
    report.defects_found += len(found)
    report.defect_bytes += sum(defect.byte_count for defect in found)
    report.torn = report.torn or torn


def _defects(report: VerifyReport) -> Iterator[tuple[Defect, bool]]:
    for segment in report.segments:
        yield from ((defect, False) for defect in segment.defects)
        if segment.torn is not None and not report.live:
            yield segment.torn, True


def _log_row(name: str, report: VerifyReport) -> tuple[Any, ...]:
    times = [
        time_ns
        for segment in report.segments
        for time_ns in (segment.first_time_ns, segment.last_time_ns)
        if time_ns is not None
    ]
    return (
        name,
        report.path,
        report.format,
        report.ok,
        len(report.segments),
        report.records,
        report.byte_count,
        _timestamp(min(times, default=None)),
        _timestamp(max(times, default=None)),
        sum(segment.defects_found for segment in report.segments),
        sum(segment.defect_bytes for segment in report.segments),
        report.live,
        report.problems(),
        report.notes(),
    )


def _timestamp(time_ns: int | None) -> Any:
    from forelog.errors import TimeOutOfRange
    from forelog.times import to_datetime

    try:
        return None if time_ns is None else to_datetime(time_ns)
    except TimeOutOfRange:
        return None
