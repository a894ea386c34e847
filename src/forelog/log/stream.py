"""A log directory, and the ways to use it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, Self

from forelog.bounds import AGE_SECONDS_MAX, COUNT_MAX, check_number, check_whole
from forelog.errors import BadPosition, LogNotFound
from forelog.files import Files, OSFiles, disk
from forelog.files.modes import PRIVATE
from forelog.formats import Captain, Format, detect, named_format
from forelog.formats.captain import MAGIC, VERSION
from forelog.kernel import read_clock
from forelog.log.appender import BATCH_BYTES_MAX, SEGMENT_BYTES, SYNC_INTERVAL_MS, Appender, SyncPolicy
from forelog.log.cleaner import Cleaner
from forelog.log.cursor import Cursor
from forelog.log.damage import BLOCK_ROWS
from forelog.log.directory.segments import READ_LOCK, Directory, SegmentReader, read_exactly, segments_elsewhere
from forelog.log.metrics import Metrics
from forelog.log.position import Position
from forelog.log.walk import LOG_START, Block, OnCorruption, Walk
from forelog.times import TimeLike, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

    from forelog.log.backup import Backup

PathLike = str | os.PathLike[str]
PositionLike = Position | tuple[int, int] | str
Bound = PositionLike | TimeLike

_FOLDERS_LOOKED_AT = 100
_HEADERS_COMPARED = 16


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What is known of a segment without reading it."""

    number: int
    path: str
    byte_count: int
    end: Position
    """The position after its last byte."""
    sealed: bool
    """Whether a later segment exists."""
    records: int | None
    """None where there is no index: for the last segment, and for those of other programs."""
    first_time_ns: int | None
    last_time_ns: int | None
    rewritten: bool
    """Whether cleaning has moved its records."""


class Stream:
    """One log: a directory of segments.

    Making one touches nothing; a log is created by its first appender. `magic` and `version` mark every
    segment and are checked on every read, so that one program's log isn't taken for another's;
    `Stream.open(path)` takes them from the files. A `format` other than captain, "m3" or "messages", has neither.
    `files` is the disk, the operating system's by default; `clock` gives the nanoseconds that records are
    stamped with, `time.time_ns` by default. `mode` is that of the files of a new log, 0o600 by default: only its
    user reads it. A log that exists keeps its own.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        magic: int = MAGIC,
        version: int = VERSION,
        format: str | Format = "captain",  # noqa: A002 - the name that users know
        files: Files | None = None,
        clock: Callable[[], int] | None = None,
        mode: int | None = None,
    ) -> None:
        self.path = os.fspath(path)
        if not self.path:
            raise ValueError("a log's path is empty: expected that of a directory")
        self.format: Format = Captain(magic, version) if format == "captain" else named_format(format)
        self.metrics = Metrics()
        self._clock = clock
        self._directory = Directory(disk(files, mode), self.path, self.format)

    @classmethod
    def open(cls, path: PathLike, *, files: Files | None = None) -> Self:
        """An existing log, whose format, magic number and version are taken from its first segments."""
        files = files or OSFiles()
        place = os.fspath(path)
        probe = Directory(files, place, Captain())
        numbers = probe.numbers()
        other = None if numbers else segments_elsewhere(files, place, probe.format)
        if other is not None:
            return cls(other[1], format=other[0], files=files)
        formats = _formats(probe, numbers)
        while numbers and not formats and not probe.has(numbers[-1]):
            numbers = probe.numbers()  # all that were listed are gone, and others there
            formats = _formats(probe, numbers)
        if formats:
            # The most common one: a damaged header must not make strangers of all the others.
            return cls(place, format=formats.most_common(1)[0][0], files=files)
        if numbers:
            return cls(place, files=files)
        if inside := _logs_inside(files, place):  # as in what a broker keeps
            raise LogNotFound(f"there are no segments in {place}, but in {' and in '.join(inside)}: say which")
        raise LogNotFound(
            f"there are no segments in {place}: expected files such as 000000001.log, commitlog-0-0.db or "
            "20261115T183000.123456789Z.dat"
        )

    def __repr__(self) -> str:
        return f"Stream({self.path!r}, format={self.format})"

    def appender(
        self,
        *,
        sync: SyncPolicy | str = SyncPolicy.OS,
        sync_interval_ms: int = SYNC_INTERVAL_MS,
        segment_bytes: int = SEGMENT_BYTES,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        journal_bytes: int = 0,
        spare: bool = False,
        visible: Literal["written", "synced"] | None = None,
        timeout: float | None = None,
        blocking: bool = True,
    ) -> Appender:
        """Open the log to append, creating or recovering it; waits while another appender has it.

        A segment is sealed by the first append that finds it at `segment_bytes` or more. With `spare=True`
        the next one is kept open, so that no append waits while a segment is sealed and the next started. With
        `journal_bytes` most syncs are of a file beside it, of that size, 1 MiB being a good one: under
        `always` that makes an append nearly twice as fast on most disks.
        Readers see a record when it is written, and under `always` when it is synced; `visible="synced"` is for
        who calls `sync` before it acknowledges anything.
        `timeout` seconds, or `blocking=False`, end the wait for the lock with LockTimeout.
        """
        return Appender(
            self._directory,
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
        """Read records: from a position or a time on, up to one, backward, or following the log's growth.

        `until` is a position or a time, and excluded. With `reverse=True` the same records come last to
        first. Damage raises CorruptRecord, ends the iteration ("stop") or is passed over ("skip"); what was
        passed over is logged, counted, and listed in `cursor.defects`.
        """
        stop, until_ns = self._bounds(until)
        return Cursor(
            self._directory,
            self.metrics,
            start=None if start is None else as_position(start),
            until=stop,
            since_ns=self._time(since),
            until_ns=until_ns,
            reverse=reverse,
            follow=follow,
            on_corruption=on_corruption,
            timeout=_lock_timeout(timeout, blocking),
        )

    def cleaner(self, *, timeout: float | None = None, blocking: bool = True) -> Cleaner:
        """Open the log to clean it; waits until nobody reads."""
        return Cleaner(self._directory, self.metrics, timeout=_lock_timeout(timeout, blocking), clock=self._now)

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
        """The log, or a range of it, as Arrow record batches; memory stays bounded whatever its size."""
        from forelog.log import scan

        check_whole("batch_rows", batch_rows, most=COUNT_MAX)
        wanted = scan.check_columns(scan.DEFAULT_COLUMNS if columns is None else columns)
        scan.load_pyarrow()
        stop, until_ns = self._bounds(until)
        since_ns = self._time(since)
        self._directory.check()

        def batches() -> Iterator[pa.RecordBatch]:
            lock = self._directory.files.lock(f"{self.path}/{READ_LOCK}", exclusive=False, timeout=timeout)
            try:
                walk = self._walk(
                    start=Position(0, 0) if start is None else as_position(start),
                    stop=stop,
                    since_ns=since_ns,
                    until_ns=until_ns,
                    on_corruption=on_corruption,
                    block_rows=batch_rows,
                )
                try:
                    walk.check_start()
                    yield from scan.batches(walk, wanted)
                finally:
                    walk.close()
            finally:
                lock.release()

        return batches()

    def blocks(
        self,
        *,
        start: PositionLike | None = None,
        until: Bound | None = None,
        since: TimeLike | None = None,
        on_corruption: OnCorruption = "raise",
        timeout: float | None = None,
    ) -> Iterator[Block]:
        """The log a block at a time, for what builds on the engine. Each is valid until the next is asked for."""
        stop, until_ns = self._bounds(until)
        since_ns = self._time(since)
        self._directory.check()
        lock = self._directory.files.lock(f"{self.path}/{READ_LOCK}", exclusive=False, timeout=timeout)
        try:
            walk = self._walk(
                start=LOG_START if start is None else as_position(start),
                stop=stop,
                since_ns=since_ns,
                until_ns=until_ns,
                on_corruption=on_corruption,
            )
            try:
                walk.check_start()
                yield from walk
            finally:
                walk.close()
        finally:
            lock.release()

    def backup(
        self,
        target: PathLike,
        *,
        progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
        mode: int = PRIVATE,
    ) -> Backup:
        """Copy the log as it is now to a new directory: whole, on stable storage, and read back.

        Others may append and read meanwhile; cleaners wait. The copy is a log, closed in order, in which positions
        are those of this one. Damage raises CorruptRecord: `forelog repair` mends, and a copy of the files keeps
        the evidence. `progress(done_bytes, total_bytes)` is called as it goes on. `mode` is that of the
        copy's files.
        """
        from forelog.log.backup import back_up

        self._directory.check()
        return back_up(self._directory, os.fspath(target), progress=progress, timeout=timeout, mode=mode)

    def scan_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The schema of scan()'s batches: what `Table.from_batches` needs for a log that may be empty."""
        from forelog.log import scan

        wanted = scan.check_columns(scan.DEFAULT_COLUMNS if columns is None else columns)
        return scan.schema(wanted, wide=self.format.numbered_by_time)

    def numbers(self) -> list[int]:
        """The numbers of the segments there are, ascending."""
        return self._directory.numbers()

    def following(self, number: int) -> int | None:
        """The number of the segment after this one; None if there is none yet. Mostly without a listing."""
        return self._directory.following(number)

    def segment_bytes(self, number: int) -> int | None:
        """How large a segment's file is; None if there is none."""
        found = self._directory.files.stat(self._directory.segment_path(number))
        return None if found is None else found[0]

    def segments(self) -> list[SegmentInfo]:
        """What is known of each segment without reading it whole."""
        numbers = self._directory.numbers()
        infos = []
        for number in numbers:
            try:
                reader = SegmentReader(self._directory, number)
            except FileNotFoundError:
                continue
            try:
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
            finally:
                reader.close()
        return infos

    def end(self) -> Position:
        """The position after the last byte: where a cursor that wants only what is new starts."""
        numbers = self._directory.numbers()
        if not numbers:
            return Position(0, 0)
        walk = self._walk(start=Position(numbers[-1], 0), on_corruption="skip")
        try:
            for _ in walk:
                pass
            return max(walk.position, Position(numbers[-1], self.format.header_bytes))
        finally:
            walk.close()

    def _now(self) -> int:
        return read_clock(self._clock or time.time_ns)

    def _time(self, value: TimeLike | None) -> int | None:
        if value is None:
            return None
        now_ns = self._now() if isinstance(value, str) and value.startswith("-") else None
        return parse_time(value, now_ns=now_ns)

    def _bounds(self, until: Bound | None) -> tuple[Position | None, int | None]:
        """What `until` means: a position, or a time."""
        if isinstance(until, tuple):
            return Position(*until), None
        if isinstance(until, str) and ":" in until and until.replace(":", "").isdigit():
            return Position.parse(until), None
        return None, self._time(until)

    def _walk(
        self,
        *,
        start: Position,
        stop: Position | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        on_corruption: OnCorruption = "raise",
        block_rows: int = BLOCK_ROWS,
    ) -> Walk:
        from forelog.log.seek import find_segment

        if since_ns is not None:
            start = max(start, find_segment(self._directory, since_ns))
        return Walk(
            self._directory,
            start=start,
            stop=stop,
            since_ns=since_ns,
            until_ns=until_ns,
            on_corruption=on_corruption,
            metrics=self.metrics,
            block_rows=block_rows,
        )


def as_position(value: PositionLike) -> Position:
    """A position from itself, a pair, or its text."""
    if isinstance(value, str):
        return Position.parse(value)
    if isinstance(value, tuple) and len(value) == 2:
        return Position(*value)
    raise BadPosition(
        f"{value!r} is no position: expected a Position, a pair, or a text such as 000000007:1048576"
    )


def _lock_timeout(timeout: float | None, blocking: bool) -> float | None:
    if not blocking:
        return 0.0
    check_number("timeout", timeout, most=math.inf, or_none="to wait for ever")
    return None if timeout is None or timeout > AGE_SECONDS_MAX else timeout


def _formats(probe: Directory, numbers: list[int]) -> Counter[Format]:
    """How many of the first segments say that they are of which format."""
    formats: Counter[Format] = Counter()
    for number, head in islice(_heads(probe, numbers), _HEADERS_COMPARED):
        if len(head) >= probe.format.header_bytes and any(head):
            formats[detect(probe.segment_name(number), head)] += 1
    return formats


def _heads(directory: Directory, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
    """The first bytes of each segment that is still there: a cleaner may have taken some since all were listed."""
    for number in numbers:
        try:
            file = directory.open_segment(number)
        except FileNotFoundError:
            continue
        try:
            head = read_exactly(file, 16, 0)
        finally:
            file.close()
        yield number, head


def _logs_inside(files: Files, place: str) -> list[str]:
    """The folders right below this one that have segments, as far as that can be told quickly."""
    found = []
    for name in sorted(files.list_dir(place))[:_FOLDERS_LOOKED_AT]:
        folder = Directory(files, f"{place}/{name}", Captain())
        with contextlib.suppress(OSError, LogNotFound):
            if folder.numbers() or segments_elsewhere(files, folder.path, folder.format):
                found.append(folder.path)
    return found
