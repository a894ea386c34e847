"""A log, or a folder of logs, to a table, each row exactly once.

    from forelog import spark as forelog_spark
    from forelog.spark.pipeline.ingest import ingest, read_table

    spark = forelog_spark.session()
    ingest(spark, "orders.log", "orders.table", partition_by="date")      # again whenever there is more
    read_table(spark, "orders.table").show()

Each commit of the table has the position it reached in each log (tables/), and the next run resumes there, however
this one ended. New records are cut into slices (ingest_plan.py). Tasks write them to Parquet files
(ingest_files.py), on Spark or in this process (ingest_run.py). A few slices at a time make a commit. Small files
are merged, by partition, in separate commits.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from forelog.bounds import check_number
from forelog.errors import BadOption, DataLoss
from forelog.files.modes import PRIVATE, check_mode
from forelog.log.directory.trace import trace
from forelog.log.position import Position
from forelog.spark.options import PARTITION_BYTES
from forelog.spark.pipeline.ingest_files import (
    MergeTask,
    Piece,
    WriteTask,
    Written,
    groups_to_merge,
    label_of,
    merge_files,
    write_pieces,
)
from forelog.spark.pipeline.ingest_plan import (
    COMMIT_BYTES,
    COMPACT_BELOW_BYTES,
    Plan,
    continuity_of,
    new_pieces,
    shape_of,
    table_columns,
)
from forelog.spark.pipeline.ingest_run import Finished, Run, bundled, ignored, parallelism, run_on
from forelog.spark.planning import Log, codec_for, find_logs
from forelog.spark.remote import is_remote
from forelog.spark.tables.commits import DataFile, TableInfo
from forelog.spark.tables.formats import format_of
from forelog.spark.tables.iceberg import place_of
from forelog.spark.tables.storage import storage_of
from forelog.spark.tables.table import Table, settled
from forelog.spark.types import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS_MAX = 1000
COMPACT_FILES_MIN = 8
COMPACT_GROWTH = 8  # a merged file is at most this many times as large as a small one
_TASKS_PER_CORE = 4  # in a commit, to keep all cores busy
_PLANS_MAX = 10

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CommitReport:
    """A commit that added rows."""

    time_s: float
    """When it was done, in seconds since 1970."""
    rows: int
    """Rows that it added."""
    bytes: int
    """Bytes of log that it covers."""
    seconds: float
    """Seconds that it took."""


@dataclass(slots=True)
class IngestReport:
    """What an ingest did."""

    rows: int = 0
    """Rows that were added."""
    files: int = 0
    """Files that were added."""
    bytes: int = 0
    """Bytes of the files that were written, without those of merges."""
    batches: int = 0
    """Commits that added rows."""
    merged: int = 0
    """Small files that were merged."""
    defects: int = 0
    """Damaged places that were skipped."""
    positions: dict[str, Position] = field(default_factory=dict)
    """The position that the table has reached in each log."""
    commits: deque[CommitReport] = field(default_factory=lambda: deque(maxlen=COMMITS_MAX))
    """The last commits that added rows."""
    seconds: float = 0.0
    """Seconds that it took."""


def ingest(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    codec: str = "records",
    table: str = "parquet",
    catalog: str | None = None,
    table_name: str | None = None,
    partition_by: str | None = None,
    once: bool = True,
    every_seconds: float = 10.0,
    compact_below: int = COMPACT_BELOW_BYTES,
    recursive: bool = False,
    on_corruption: str = "fail",
    fail_on_data_loss: bool = True,
    moved: bool = False,
    mode: int = PRIVATE,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Bring a table up to the end of a log, or of all logs in a folder, and with `once=False` keep it there.

    `codec` says what a row is; "auto" takes the one that fits the log.

    `table` is "parquet", "delta" or "iceberg". An Iceberg table is named as its folder, in a catalog of SQLite
    beside it; `table_name` ("sales.orders") and `catalog` say otherwise: an address, or a name that pyiceberg's
    configuration has.

    `partition_by` is "date", for the day (UTC) of the records' time, or the name of a column. Partitions with
    many files smaller than `compact_below` bytes have them merged; 0 for never. Damage is an error, or is passed
    over with `on_corruption="skip"`; so are records that were cleaned away unread, with
    `fail_on_data_loss=False`. A table stays with its log: `moved=True` if that has a new path.

    The target is a folder that the driver and all executors have at this path, or an address in a bucket. A new
    folder belongs to its user alone; `mode=0o640` lets the group read it, too. With `once=False` it looks for more
    every `every_seconds`, until `stop` is set, which ends it after the commit that is under way. `progress` is
    called with how many bytes of log are done, and how many there are; also from another thread.
    """
    plan = Plan(
        codec=codec,
        table=table,
        catalog=catalog,
        table_name=table_name,
        partition_by=partition_by,
        recursive=recursive,
        on_corruption=on_corruption,
        fail_on_data_loss=fail_on_data_loss,
        moved=moved,
        mode=check_mode(mode),
        compact_below=compact_below,
        commit_bytes=max(COMMIT_BYTES, PARTITION_BYTES * _TASKS_PER_CORE * parallelism(spark)),
    )
    work = Ingest(os.fspath(source), os.fspath(target), run_on(spark), plan, progress=progress)
    return work.once() if once else work.follow(every_seconds, stop or threading.Event())


def read_table(spark: SparkSession, target: str | os.PathLike[str]) -> DataFrame:
    """The rows of an ingested table, exactly as of its last commit.

    If an ingest merges files while they are read, Spark reports missing files. Then read again.
    """
    path = _absolute(os.fspath(target))
    state = settled(path)
    assert state.last is not None
    about = state.last.about
    schema = ddl(about.columns, list(about.columns))
    names = format_of(about.format).current(storage_of(path), state)
    if not names:
        return spark.createDataFrame([], schema)
    base = f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else path  # as Hadoop says it
    reader = spark.read.schema(schema).option("basePath", base)
    return reader.parquet(*(f"{base}/{name}" for name in names))


def table_files(target: str | os.PathLike[str]) -> list[str]:
    """The Parquet files of an ingested table, exactly as of its last commit, for Polars, DuckDB and others."""
    path = _absolute(os.fspath(target))
    state = settled(path)
    assert state.last is not None
    return [f"{path}/{name}" for name in format_of(state.last.about.format).current(storage_of(path), state)]


class Ingest:
    """A running ingest. `run` runs its tasks; nothing else in it needs Spark."""

    def __init__(
        self,
        source: str,
        target: str,
        run: Run,
        plan: Plan | None = None,
        *,
        progress: Progress | None = None,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        self._source = source
        self._target = _absolute(target)
        self._run = run
        self._plan = plan or Plan()
        if self._plan.codec == "auto":
            self._plan = replace(self._plan, codec=codec_for(self._logs()))
        self._progress = progress or _silent
        self._reached = reached or _silent
        self._shape = shape_of(self._plan)
        self._format = format_of(self._plan.table, self._plan.catalog, self._plan.table_name)
        self._table = Table(self._target, self._format, reached=self._reached, mode=self._plan.mode)
        self._about: TableInfo
        self._positions: dict[str, Position] = {}
        self._traces: dict[str, str] = {}
        self._continuity = continuity_of(self._plan)
        self._report = IngestReport()
        self._stop = threading.Event()

    def once(self) -> IngestReport:
        """Ingest up to the end that the log has now."""
        started = time.monotonic()
        with self._opened():
            self._catch_up()
        return self._told(started)

    def follow(self, every_seconds: float, stop: threading.Event) -> IngestReport:
        """Ingest what is new, again and again, until it is stopped."""
        try:
            check_number("every_seconds", every_seconds, above=True)
        except ValueError as error:
            raise BadOption(str(error)) from None
        started = time.monotonic()
        self._stop = stop
        with self._opened():
            due = started
            while not stop.is_set():
                self._catch_up()
                due = max(due + every_seconds, time.monotonic())
                stop.wait(due - time.monotonic())
        return self._told(started)

    def _told(self, started: float) -> IngestReport:
        self._report.positions = dict(self._positions)
        self._report.seconds = time.monotonic() - started
        return self._report

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._logs()  # raises for a wrong path, before a table is made
        with self._table.writing():
            last = self._table.state.last
            self._about = self._begin() if last is None else self._resume(last.about)
            self._positions = dict(self._table.state.positions)
            self._traces = dict(self._table.state.traces)
            try:
                yield
            finally:
                self._continuity.close()

    def _begin(self) -> TableInfo:
        plan = self._plan
        catalog = name = None
        if plan.table == "iceberg":
            catalog, name = place_of(self._target, plan.catalog, plan.table_name)
        return TableInfo(
            id=uuid.uuid4().hex,
            source=_place(self._source),
            recursive=plan.recursive,
            codec=plan.codec,
            format=plan.table,
            partition_by=plan.partition_by,
            columns=table_columns(self._shape),
            catalog=catalog,
            name=name,
        )

    def _resume(self, about: TableInfo) -> TableInfo:
        """Raise BadOption if the table was made with other options, or from another log."""
        wanted = self._begin()
        asked = [what for what in ("catalog", "table_name") if getattr(self._plan, what) is not None]
        kept = ["name" if what == "table_name" else what for what in asked]
        for what in ("codec", "format", "partition_by", "recursive", "columns", *kept):
            was, now = getattr(about, what), getattr(wanted, what)
            if was != now:
                raise BadOption(f"{self._target} was made with {what} {was!r}, not {now!r}: choose a new folder")
        if about.source == wanted.source:
            return about
        if not self._plan.moved:
            raise BadOption(
                f"{self._target} holds what was in {about.source}, not {wanted.source}: choose a new folder, or "
                "tell that the log was moved"
            )
        return replace(about, source=wanted.source)

    def _logs(self) -> list[Log]:
        return find_logs(self._source, recursive=self._plan.recursive)

    # -- doing

    def _catch_up(self) -> None:
        for _ in range(_PLANS_MAX):
            if self._write(new_pieces(self._plan, self._logs(), self._positions, self._continuity, self._traces)):
                break
        else:
            raise DataLoss(f"{self._source}: segments are cleaned away faster than they are read")
        if self._table.state.last is None:
            self._commit("append", self._table.stage(), [], {})  # a table without rows is one too
        if not self._stop.is_set():
            self._compact()

    def _write(self, pieces: list[Piece]) -> bool:
        """Write what is new, in commits; False if some of it was removed before it was read."""
        total = sum(piece.byte_count for piece in pieces)
        done = 0
        self._progress(done, total)
        for group in bundled(pieces, _sizes(pieces), self._plan.commit_bytes):
            if self._stop.is_set():
                return True
            started = time.monotonic()
            size = sum(piece.byte_count for piece in group)
            staging = self._table.stage()
            number = self._table.state.number + 1
            # What is new of many logs may be little of each.
            bundles = bundled(group, _sizes(group), self._plan.slice_bytes)
            tasks = [WriteTask(some, self._target, staging, label_of(number, n)) for n, some in enumerate(bundles)]
            inside = partial(self._inside, done, size, total, len(tasks))
            results = self._run_tasks(tasks, partial(write_pieces, self._shape), inside)
            if any(result.vanished for result in results):
                self._table.drop(staging)
                return False
            rows = self._append(staging, results, {one.piece.log.name: one.after for one in group})
            if rows:
                self._report.commits.append(CommitReport(time.time(), rows, size, time.monotonic() - started))
            done += size
            self._progress(done, total)
        return True

    def _inside(self, done: int, size: int, total: int, tasks: int, finished: int) -> None:
        """Report progress inside a commit, by the number of finished tasks."""
        if finished < tasks:
            self._progress(done + size * finished // tasks, total)

    def _run_tasks(
        self,
        tasks: Sequence[WriteTask | MergeTask],
        function: Callable[..., Written],
        finished: Finished = ignored,
    ) -> list[Written]:
        results: list[Written] = self._run(tasks, function, finished)
        for result in results:
            result.check()
        if len(results) != len(tasks):
            raise AssertionError(f"{len(results)} of {len(tasks)} tasks returned a result")
        return results

    def _append(self, staging: str, results: list[Written], reached: dict[str, Position]) -> int:
        """Commit new files. Returns the number of rows that they add."""
        files = sorted((file for result in results for file in result.files), key=lambda file: file.path)
        moved = any(
            self._positions.get(name, Position(0, 0)).segment != to.segment for name, to in reached.items()
        )
        self._positions |= reached
        self._note_traces(reached)
        self._report.defects += sum(result.defects for result in results)
        if not files and not moved:
            # No rows, and no segment that could be cleaned away and missed: not worth a commit.
            self._table.drop(staging)
            return 0
        self._commit("append", staging, files, self._positions)
        self._report.batches += bool(files)
        self._report.files += len(files)
        rows = sum(file.rows for file in files)
        self._report.rows += rows
        self._report.bytes += sum(file.bytes for file in files)
        return rows

    def _note_traces(self, reached: dict[str, Position]) -> None:
        """Keep the traces of the logs at these positions, to compare them next time."""
        for log in self._logs():
            if log.name in reached:
                self._traces.pop(log.name, None)
                found = trace(log.stream().directory, reached[log.name])
                if found is not None:
                    self._traces[log.name] = found

    def _compact(self) -> None:
        """Merge the small files of a partition, in a commit that changes no rows."""
        below = self._plan.compact_below
        choose = partial(groups_to_merge, below=below, at_least=COMPACT_FILES_MIN, up_to=COMPACT_GROWTH * below)
        known = self._table.state.files
        if not choose(list(known.values())):
            return
        # Others may have merged some by themselves, and that takes longer to find out.
        current = set(self._format.current(self._table.storage, self._table.state))
        groups = choose([file for path, file in known.items() if path in current])
        if not groups:
            return
        staging = self._table.stage()
        number = self._table.state.number + 1
        tasks = [MergeTask(self._target, group, staging, label_of(number, n)) for n, group in enumerate(groups)]
        results = self._run_tasks(tasks, partial(merge_files, self._shape))
        self._reached("merged")
        merged = [file.path for group in groups for file in group]
        added = [file for result in results for file in result.files]
        self._commit("compact", staging, added, self._table.state.positions, merged)
        self._report.merged += len(merged)

    def _commit(
        self,
        kind: str,
        staging: str,
        added: list[DataFile],
        positions: dict[str, Position],
        removed: Sequence[str] = (),
    ) -> None:
        self._table.commit(kind, self._about, staging, added, positions, removed, self._traces)


def _sizes(pieces: Sequence[Piece]) -> list[int]:
    return [piece.byte_count for piece in pieces]


def _silent(*_: object) -> None:
    pass


def _absolute(path: str) -> str:
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)


def _place(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)
