"""Checks every checksum of many logs in parallel.

A task checks some small logs, or some segments of a large one, as `forelog verify` does, with the read lock of the
log. Of a large log the driver checks what concerns it as a whole: whether it is open for appending, and whether
synced bytes are missing. It uses the same code, so the result is that of `forelog verify`. In logs of M3's format
the messages in the chunks are checked too, and those that can't be read are defects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forelog.errors import ForelogError
from forelog.log import verify as engine
from forelog.log.directory.watermark import read_mark
from forelog.log.verify import SegmentReport, VerifyReport
from forelog.log.walk import DEFECTS_MAX, Defect
from forelog.spark.options import PARTITION_BYTES
from forelog.spark.pipeline.ingest_run import bundled, ignored, run_on
from forelog.spark.planning import Log, find_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_SCHEMA = (
    "log string, path string, format string, ok boolean, segments int, records bigint, bytes bigint, "
    "first_time timestamp, last_time timestamp, defects bigint, defect_bytes bigint, live boolean, "
    "problems array<string>, notes array<string>"
)
_OPEN_COST_BYTES = 1 << 18  # as much can be checked in the time that it takes to open a log
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
class _Part:
    """Some segments of a large log."""

    log: Log
    chosen: list[int]
    numbers: list[int]
    """All segments of the log, because the last one is judged differently."""


Task = tuple[Log, ...] | _Part
"""Small logs, each checked as a whole, or a part of a large one."""


def verify(spark: SparkSession, path: str, *, recursive: bool = False, task_bytes: int = PARTITION_BYTES) -> Fleet:
    """Check a log, or with `recursive` every log in a folder, in tasks of about `task_bytes`."""
    logs = {log.name: log for log in find_logs(path, recursive=recursive)}
    sizes = {name: _bytes_of(log) for name, log in logs.items()}
    large = {name: log for name, log in logs.items() if sizes[name] > task_bytes}
    # Before the sizes, which may only grow after it.
    marks = {name: read_mark(log.stream().directory) for name, log in large.items()}
    numbers = {name: log.stream().directory.numbers() for name, log in large.items()}
    segments: dict[str, list[SegmentReport]] = {name: [] for name in large}
    small = [log for name, log in logs.items() if name not in large]
    tasks: list[Task] = [part for name, log in large.items() for part in _parts(log, numbers[name], task_bytes)]
    tasks += bundled(small, [sizes[log.name] + _OPEN_COST_BYTES for log in small], task_bytes)
    reports = {}
    for found in run_on(spark)(tasks, _checked, ignored):
        for name, report in found:
            if isinstance(report, Exception):
                raise report
            if isinstance(report, VerifyReport):
                reports[name] = report
            else:
                segments[name].append(report)
    for name, log in large.items():
        whole = VerifyReport(log.path, log.format.name)
        whole.segments = sorted(segments[name], key=lambda segment: segment.number)
        engine.conclude(log.stream().directory, whole, marks[name], numbers[name])
        reports[name] = whole
    return Fleet({name: reports[name] for name in logs})


def _bytes_of(log: Log) -> int:
    directory = log.stream().directory
    return sum(directory.segment_bytes(number) or 0 for number in directory.numbers())


def _parts(log: Log, numbers: list[int], task_bytes: int) -> Iterator[_Part]:
    directory = log.stream().directory
    sizes = [directory.segment_bytes(number) or 0 for number in numbers]
    for chosen in bundled(numbers, sizes, task_bytes):
        yield _Part(log, list(chosen), numbers)


Found = list[tuple[str, SegmentReport | VerifyReport | Exception]]


def _checked(task: Task) -> Found:
    """The reports of a task, each with the log's name. An error that a retry can't help is one of them."""
    logging.getLogger("forelog").setLevel(logging.ERROR)  # damage is in the report
    if isinstance(task, _Part):
        return [(task.log.name, one) for one in _part(task)]
    return [(log.name, _whole(log)) for log in task]


def _whole(log: Log) -> VerifyReport | Exception:
    directory = log.stream().directory
    try:
        with directory.read_lock():
            mark, numbers = read_mark(directory), directory.numbers()
            report = VerifyReport(log.path, log.format.name)
            for number in numbers:
                with suppress(FileNotFoundError):  # an empty one, whose place another one has taken
                    report.segments.append(_segment(log, number, numbers))
            engine.conclude(directory, report, mark, numbers)
            return report
    except (ForelogError, OSError) as error:
        return error


def _part(task: _Part) -> Iterator[SegmentReport | Exception]:
    directory = task.log.stream().directory
    try:
        with directory.read_lock():
            there = set(directory.numbers())
            for number in task.chosen:
                if number in there:  # cleaning or retention may have taken it since
                    yield _segment(task.log, number, task.numbers)
    except (ForelogError, OSError) as error:
        yield error


def _segment(log: Log, number: int, numbers: list[int]) -> SegmentReport:
    report = engine.check_segment(log.stream().directory, number, numbers)
    if log.format.holds_entries:
        _check_messages(log, report)
    return report


def _check_messages(log: Log, report: SegmentReport) -> None:
    from forelog.commitlog.check import check_file

    found, torn = check_file(log.stream(), report.number, last=not report.sealed)
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
