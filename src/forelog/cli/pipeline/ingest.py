"""`forelog pipeline ingest`: write a log to a table, until it is done or stopped."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forelog.cli.output import human_bytes, human_duration, plural
from forelog.cli.pipeline.pages import add_rows, made
from forelog.cli.progress import Progress
from forelog.files.modes import PRIVATE
from forelog.spark.pipeline.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forelog.spark.pipeline.ingest import IngestReport


def ingest(spark: SparkSession, chosen: argparse.Namespace) -> tuple[dict[str, Any], IngestReport]:
    """Run an ingest. Returns its result, as `--json` prints it and as a report."""
    from forelog.spark.pipeline.ingest import ingest as run

    with _stopped_by_signals(chosen.follow) as stop, Rounds(f"ingest {chosen.path}") as progress:
        found = run(
            spark,
            chosen.path,
            chosen.target,
            codec=chosen.codec or "records",
            table=chosen.table or "parquet",
            catalog=chosen.catalog,
            table_name=chosen.table_name,
            partition_by=chosen.partition_by,
            once=not chosen.follow,
            every_seconds=chosen.every or 10.0,
            recursive=chosen.recursive,
            on_corruption=chosen.on_corruption or "fail",
            mode=PRIVATE if chosen.mode is None else chosen.mode,
            stop=stop,
            progress=progress,
        )
    value = {"path": chosen.path, "target": chosen.target, **asdict(found)}
    del value["commits"]
    value["positions"] = {name: str(position) for name, position in found.positions.items()}
    return value, found


def lines(chosen: argparse.Namespace, found: IngestReport) -> list[str]:
    """What it prints in a terminal."""
    lines = [
        f"{chosen.target}: {plural(found.rows, 'row')} in {plural(found.files, 'file')}, "
        f"{human_bytes(found.bytes)}, {plural(found.batches, 'commit')}, {human_duration(found.seconds)}"
    ]
    if found.defects:
        lines.append(f"  {plural(found.defects, 'damaged place')} left out")
    return lines


def page(chosen: argparse.Namespace, value: dict[str, Any], found: IngestReport) -> Report:
    """What it writes with `--report`: commits over time, and the table's files."""
    from forelog.spark.tables.commits import load_state
    from forelog.spark.tables.storage import storage_of

    page = Report(f"ingest {chosen.path}", f"{made()}; to {chosen.target}")
    counts = ("rows", "files", "bytes", "batches", "merged", "defects", "seconds")
    add_rows(page, "this run", [{name: value[name] for name in counts}])
    for what, title in (
        ("rows", "rows of a commit"),
        ("bytes", "bytes of log in a commit"),
        ("seconds", "seconds that a commit took"),
    ):
        page.add_lines(title, {what: [(one.time_s, float(getattr(one, what))) for one in found.commits]})
    sizes: dict[str, int] = {}
    for file in load_state(storage_of(chosen.target)).files.values():
        place = file.folder or "the table"
        sizes[place] = sizes.get(place, 0) + file.bytes
    page.add_bars("bytes of the table's files", dict(sorted(sizes.items())), "B")
    add_rows(page, "how far it goes", [{"log": log, "position": at} for log, at in value["positions"].items()])
    return page


@contextmanager
def _stopped_by_signals(follows: bool) -> Iterator[threading.Event | None]:
    """Ctrl-C and SIGTERM end a run that follows its log, after the commit in progress."""
    if not follows:
        yield None
        return
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Rounds:
    """Shows the progress of each round of catching up; a new round starts whenever the log has grown."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._progress is None:
            self._progress = Progress(self._label).__enter__()
        self._progress(done, total)
        if done >= total:
            self._end()

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
