"""A log directory, and the ways to use it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from forelog.bounds import AGE_SECONDS_MAX, COUNT_MAX, check_number, check_whole
from forelog.errors import BadPosition
from forelog.files import Files, OSFiles, disk
from forelog.files.modes import PRIVATE
from forelog.formats import Block, Format, FormatName, named_format
from forelog.formats.captain import MAGIC, VERSION
from forelog.formats.columns import check_columns, load_pyarrow
from forelog.kernel import read_clock
from forelog.log.appender import (
    BATCH_BYTES_MAX,
    SEGMENT_BYTES,
    SYNC_INTERVAL_MS,
    Appender,
    Sync,
    SyncPolicy,
    Visible,
)
from forelog.log.cleaner import Cleaner
from forelog.log.cursor import Cursor
from forelog.log.damage import BLOCK_ROWS
from forelog.log.directory.detection import find_log
from forelog.log.directory.directory import Directory
from forelog.log.directory.place import if_there
from forelog.log.directory.segment import SegmentReader
from forelog.log.metrics import Metrics
from forelog.log.position import Position
from forelog.log.seek import find_segment
from forelog.log.walk import LOG_START, OnCorruption, Walk
from forelog.times import TimeLike, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

    from forelog.log.backup import Backup

PathLike = str | os.PathLike[str]
PositionLike = Position | tuple[int, int] | str
Bound = PositionLike | TimeLike


class Bounds(NamedTuple):
    """Part of a log: from `start` up to `stop`, with times from `since_ns` up to `until_ns`."""

    start: Position
    """The first position."""
    stop: Position | None
    """Excluded; None for the end of the log."""
    since_ns: int | None
    """The earliest time; None for any."""
    until_ns: int | None
    """Excluded."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment's size, records and times, as far as they are known without reading it."""

    number: int
    """The number of the segment."""
    path: str
    """The path of the segment's file."""
    byte_count: int
    """How many bytes of the file belong to the log."""
    end: Position
    """The position after the segment's last byte."""
    sealed: bool
    """Whether a later segment exists."""
    records: int | None
    """None where there is no index: for the last segment, and for those of other programs."""
    first_time_ns: int | None
    """The time of its first record, if it has one."""
    last_time_ns: int | None
    """The time of its last record, as the index has it."""
    rewritten: bool
    """Whether cleaning has moved the segment's records."""


class Stream:
    """One log: a directory of segments.

    Creating a Stream touches no file; the log is created by its first appender. `magic` and `version` are
    written into every segment and checked on every read, so a program never takes another program's log for its
    own. `Stream.open(path)` reads them from the files. The formats "m3" and "messages" have neither.
    `files` is the disk, by default that of the operating system. `clock` returns the nanoseconds that records
    are stamped with, by default `time.time_ns`. `mode` is the permissions of a new log's files, by default
    0o600: only its user may read it. An existing log keeps its mode.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        magic: int = MAGIC,
        version: int = VERSION,
        format: FormatName | Format = "captain",  # noqa: A002 - the name that users know
        files: Files | None = None,
        clock: Callable[[], int] | None = None,
        mode: int | None = None,
    ) -> None:
        self.path = os.fspath(path)
        if not self.path:
            raise ValueError("a log's path is empty: expected that of a directory")
        self.format: Format = named_format(format, magic=magic, version=version)
        self.metrics = Metrics()
        self._clock = clock
        self.directory = Directory(disk(files, mode), self.path, self.format)
        """The files of the log, for those who build on the engine."""

    @classmethod
    def open(cls, path: PathLike, *, files: Files | None = None) -> Self:
        """Open an existing log. Its format, magic number and version are read from its first segments."""
        files = files or OSFiles()
        found = find_log(files, os.fspath(path))
        return cls(found.path, format=found.format, files=files)

    def __repr__(self) -> str:
        return f"Stream({self.path!r}, format={self.format})"

    def appender(
        self,
        *,
        sync: Sync = SyncPolicy.OS,
        sync_interval_ms: int = SYNC_INTERVAL_MS,
        segment_bytes: int = SEGMENT_BYTES,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        journal_bytes: int = 0,
        spare: bool = False,
        visible: Visible | None = None,
        timeout: float | None = None,
        blocking: bool = True,
    ) -> Appender:
        """Open the log to append. Creates or recovers it, and waits while another appender has it.

        An append that finds the segment at `segment_bytes` or more seals it and starts the next. With
        `spare=True` the next segment is kept open, so no append waits for that. With `journal_bytes` most syncs
        go to a second file of that size, such as 1 MiB. On most disks this makes an append under `always`
        nearly twice as fast.
        Readers see a record when it is written, and under `always` when it is synced. `visible="synced"` hides
        records until they are synced under the other policies too, for programs that call `sync` before they
        acknowledge anything.
        If the lock isn't free, LockTimeout is raised after `timeout` seconds, or at once with `blocking=False`.
        """
        return Appender(
            self.directory,
            self.metrics,
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            segment_bytes=segment_bytes,
            batch_bytes_max=batch_bytes_max,
            journal_bytes=journal_bytes,
            spare=spare,
            visible=visible,
            timeout=_lock_timeout(timeout, blocking),
            clock=self._clock,
        )

    def cursor(
        self,
        *,
        start: PositionLike | None = None,
        until: Bound | None = None,
        since: TimeLike | None = None,
        reverse: bool = False,
        follow: bool = False,
        on_corruption: OnCorruption = "raise",
        timeout: float | None = None,
        blocking: bool = True,
    ) -> Cursor:
        """Read records from a position or a time on, up to another one, backward, or following the log.

        The record at `until`, a position or a time, is excluded. With `reverse=True` the same records come last
        to first. Damage raises CorruptRecord, ends the iteration ("stop") or is skipped ("skip"). What was
        skipped is logged, counted, and listed in `cursor.defects`.
        """
        bounds = self.bounds(start=start, until=until, since=since)
        return Cursor(
            self.directory,
            self.metrics,
            start=None if start is None else bounds.start,
            until=bounds.stop,
            since_ns=bounds.since_ns,
            until_ns=bounds.until_ns,
            reverse=reverse,
            follow=follow,
            on_corruption=on_corruption,
            timeout=_lock_timeout(timeout, blocking),
        )

    def cleaner(self, *, timeout: float | None = None, blocking: bool = True) -> Cleaner:
        """Open the log to clean it. Waits until nobody reads."""
        return Cleaner(self.directory, self.metrics, timeout=_lock_timeout(timeout, blocking), clock=self.now_ns)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        start: PositionLike | None = None,
        until: Bound | None = None,
        since: TimeLike | None = None,
        on_corruption: OnCorruption = "raise",
        batch_rows: int = BLOCK_ROWS,
        timeout: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read the log, or a range of it, as Arrow record batches, with one block in memory at a time."""
        from forelog.log import scan

        check_whole("batch_rows", batch_rows, most=COUNT_MAX)
        wanted = check_columns(scan.DEFAULT_COLUMNS if columns is None else columns, scan.COLUMNS)
        load_pyarrow()
        bounds = self.bounds(start=start, until=until, since=since)
        self.directory.check()

        def batches() -> Iterator[pa.RecordBatch]:
            with self._reading(bounds, on_corruption, batch_rows, timeout) as walk:
                yield from scan.batches(walk, wanted)

        return batches()

    def reading(
        self,
        *,
        start: PositionLike | None = None,
        until: Bound | None = None,
        since: TimeLike | None = None,
        on_corruption: OnCorruption = "raise",
        block_rows: int = BLOCK_ROWS,
        timeout: float | None = None,
    ) -> AbstractContextManager[Walk]:
        """Read the log a block at a time, in a `with` block that holds the read lock and yields a Walk.

        The bounds are those of `cursor`. Nothing is cleaned away meanwhile.
        """
        bounds = self.bounds(start=start, until=until, since=since)
        self.directory.check()
        return self._reading(bounds, on_corruption, block_rows, timeout)

    @contextlib.contextmanager
    def _reading(
        self, bounds: Bounds, on_corruption: OnCorruption, block_rows: int, timeout: float | None
    ) -> Iterator[Walk]:
        with (
            self.directory.read_lock(timeout=timeout),
            contextlib.closing(self.walk(bounds, on_corruption=on_corruption, block_rows=block_rows)) as walk,
        ):
            walk.check_start()
            yield walk

    def blocks(
        self,
        *,
        start: PositionLike | None = None,
        until: Bound | None = None,
        since: TimeLike | None = None,
        on_corruption: OnCorruption = "raise",
        timeout: float | None = None,
    ) -> Generator[Block, None, None]:
        """Iterate over the log a block at a time, as `reading` does. Each block is valid until the next is
        asked for."""
        with self.reading(
            start=start, until=until, since=since, on_corruption=on_corruption, timeout=timeout
        ) as walk:
            yield from walk

    def backup(
        self,
        target: PathLike,
        *,
        progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
        mode: int = PRIVATE,
    ) -> Backup:
        """Copy the log as it is now to a new directory. The copy is complete, synced, and read back.

        Programs may append and read meanwhile; cleaners wait. The copy is a closed log with the same positions.
        Damage raises CorruptRecord: repair the log first, with `forelog repair`. `progress(done_bytes,
        total_bytes)` is called for each part. `mode` is the permissions of the copy's files.
        """
        from forelog.log.backup import back_up

        self.directory.check()
        return back_up(self.directory, os.fspath(target), progress=progress, timeout=timeout, mode=mode)

    def scan_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The schema of scan()'s batches. `Table.from_batches` needs it for a log that may be empty."""
        from forelog.log import scan

        wanted = check_columns(scan.DEFAULT_COLUMNS if columns is None else columns, scan.COLUMNS)
        return scan.schema(wanted, wide=self.format.numbered_by_time)

    def numbers(self) -> list[int]:
        """The numbers of the segments, ascending."""
        return self.directory.numbers()

    def following(self, number: int) -> int | None:
        """The number of the segment after this one; None if there is none yet. Mostly doesn't list the
        directory."""
        return self.directory.following(number)

    def segment_bytes(self, number: int) -> int | None:
        """The size of a segment's file; None if there is none."""
        return self.directory.segment_bytes(number)

    def segments(self) -> list[SegmentInfo]:
        """Describe each segment, as far as that is possible without reading all of it."""
        numbers = self.directory.numbers()
        infos = []
        for number in numbers:
            with if_there(SegmentReader, self.directory, number) as reader:
                if reader is None:
                    continue
                index = reader.index
                infos.append(
                    SegmentInfo(
                        number,
                        reader.path,
                        reader.size,
                        Position(number, reader.end()),
                        sealed=number != numbers[-1],
                        records=index.records if index else None,
                        first_time_ns=reader.first_time(),
                        last_time_ns=index.last_time if index and index.records else None,
                        rewritten=reader.rewritten,
                    )
                )
        return infos

    def end(self) -> Position:
        """The position after the last record. A cursor that starts here returns only new records."""
        numbers = self.directory.numbers()
        if not numbers:
            return Position(0, 0)
        last = self.bounds(start=Position(numbers[-1], 0))
        with contextlib.closing(self.walk(last, on_corruption="skip")) as walk:
            for _ in walk:
                pass
            return max(walk.position, Position(numbers[-1], self.format.header_bytes))

    def now_ns(self) -> int:
        """The time on the clock that records are stamped with."""
        return read_clock(self._clock or time.time_ns)

    def bounds(
        self, *, start: PositionLike | None = None, until: Bound | None = None, since: TimeLike | None = None
    ) -> Bounds:
        """Turn the bounds of `cursor` into positions, and times in nanoseconds."""
        first = LOG_START if start is None else as_position(start)
        if isinstance(until, tuple):
            return Bounds(first, Position(*until), self._time(since), None)
        if isinstance(until, str) and ":" in until and until.replace(":", "").isdigit():
            return Bounds(first, Position.parse(until), self._time(since), None)
        return Bounds(first, None, self._time(since), self._time(until))

    def _time(self, value: TimeLike | None) -> int | None:
        if value is None:
            return None
        now_ns = self.now_ns() if isinstance(value, str) and value.startswith("-") else None
        return parse_time(value, now_ns=now_ns)

    def walk(self, bounds: Bounds, *, on_corruption: OnCorruption = "raise", block_rows: int = BLOCK_ROWS) -> Walk:
        """A Walk within bounds, for callers that hold the read lock. The caller closes it."""
        start = bounds.start
        if bounds.since_ns is not None:
            start = max(start, find_segment(self.directory, bounds.since_ns))
        return Walk(
            self.directory,
            start=start,
            stop=bounds.stop,
            since_ns=bounds.since_ns,
            until_ns=bounds.until_ns,
            on_corruption=on_corruption,
            metrics=self.metrics,
            block_rows=block_rows,
        )


def as_position(value: PositionLike) -> Position:
    """Make a position from a Position, a pair, or its text."""
    if isinstance(value, str):
        return Position.parse(value)
    if isinstance(value, tuple) and len(value) == 2:
        return Position(*value)
    raise BadPosition(
        f"{value!r} isn't a position: expected a Position, a pair, or a text such as 000000007:1048576"
    )


def _lock_timeout(timeout: float | None, blocking: bool) -> float | None:
    if not blocking:
        return 0.0
    check_number("timeout", timeout, most=math.inf, or_none="to wait for ever")
    return None if timeout is None or timeout > AGE_SECONDS_MAX else timeout
