"""Forgetting records that no longer matter.

A cleaner visits every segment but the last, which belongs to the appender. It holds the read lock alone: no cursor
reads meanwhile, appenders continue. A segment that loses some records is rewritten, one that loses all is removed.
Positions stay valid: reading resumes at the first surviving record at or after a position.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> with stream.appender() as log:
...     positions = log.append_many([b"keep", b"drop", b"keep too"])
...     _ = log.roll()
>>> with stream.cleaner() as cleaner:
...     report = cleaner.clean(lambda path, record: record.payload == b"drop")
>>> report.records_dropped, report.segments_rewritten
(1, 1)
>>> with stream.cursor(start=positions[1]) as cursor:
...     next(cursor).payload
b'keep too'
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal, Self

from forelog.errors import CorruptRecord, HeaderMismatch, SkipSegment
from forelog.files import Lock
from forelog.files.forks import let_go_in_children
from forelog.formats import Block
from forelog.log.cursor import records_of
from forelog.log.directory.directory import Directory
from forelog.log.directory.segment import SegmentReader
from forelog.log.metrics import Metrics
from forelog.log.position import Position, Record
from forelog.log.rewrite import logical_end_of, remove_segment, rewrite_segment, sweep
from forelog.log.rules import Rule
from forelog.log.seek import chunk_bounds
from forelog.log.walk import Progress, Walk

logger = logging.getLogger("forelog")

CleanFunction = Callable[[str, Record], bool]


@dataclass(slots=True)
class CleanReport:
    """The result of a cleaner's run."""

    segments_visited: int = 0
    """Segments that were looked at: all but the last."""
    segments_rewritten: int = 0
    """Segments that lost some of their records."""
    segments_removed: int = 0
    """Segments that lost all of their records."""
    segments_skipped: list[str] = field(default_factory=list)
    """Segments left as they are, because the function raised SkipSegment or because they are damaged."""
    records_dropped: int = 0
    """Records that were dropped."""
    records_kept: int = 0
    """Records that are left in the segments that were visited."""
    bytes_dropped: int = 0
    """Bytes of the records that were dropped."""


class Cleaner:
    """Cleans a log; make one with `Stream.cleaner()`."""

    def __init__(
        self,
        directory: Directory,
        metrics: Metrics,
        *,
        timeout: float | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._lock: Lock | None = None
        self._numbers: list[int] = []
        directory.check()
        let_go_in_children(self)
        self.lock(timeout)

    def lock(self, timeout: float | None = None) -> None:
        """Take the read lock exclusively. Waits for cursors to close. Opening a cleaner does this."""
        if self._lock is None:
            self._lock = self._directory.read_lock(exclusive=True, timeout=timeout)

    def unlock(self) -> None:
        """Let cursors read."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.release()

    close = unlock
    _forked = unlock  # the lock is the parent's: a child that cleans waits for one of its own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def clean(
        self,
        forget: CleanFunction | Rule,
        *,
        on_corruption: Literal["raise", "skip"] = "raise",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CleanReport:
        """Drop the records that `forget` selects: a function `(path, record) -> bool`, or a rule.

        If the function raises SkipSegment, the current segment stays as it is. Any other exception stops the
        run between two segments. So does damage, unless `on_corruption="skip"` leaves damaged segments as they
        are. `dry_run=True` only counts. In a format whose records need earlier ones, such as m3, a segment is
        dropped as a whole or kept.
        """
        if on_corruption not in ("raise", "skip"):
            raise ValueError(f"on_corruption is {on_corruption!r}: expected 'raise' or 'skip'")
        self.lock()
        report = CleanReport()
        with self._metrics.timed("clean"):
            if not dry_run:
                sweep(self._directory)
            rule: Rule = _ByFunction(self._directory, forget) if _is_function(forget) else forget  # type: ignore[assignment]
            if rule.needs_last and not self._directory.format.appends_in_place:
                raise ValueError(f"{rule!r} is about records by themselves, which {self._directory.path} hasn't")
            numbers = self._numbers = self._directory.numbers()
            rule.begin(self._directory, numbers, self._clock())
            if rule.needs_last and numbers:
                self._show_last(rule, numbers[-1])
            # Newest first, so that a rule has seen every later record when it decides about one. Rules that
            # look at records one by one don't mind; a user's function expects the log's own order.
            forward = _is_function(forget) or getattr(rule, "oldest_first", False)
            order = numbers[:-1] if forward else numbers[-2::-1]
            for done, number in enumerate(order):
                if progress is not None:
                    progress(done, len(order))
                self._clean_segment(rule, number, report, on_corruption, dry_run)
            if progress is not None:
                progress(len(order), len(order))
        return report

    def _show_last(self, rule: Rule, number: int) -> None:
        for block in self._blocks_backward(number, on_corruption="skip"):
            rule.keep(block)
        # What supersedes a record must be as durable as that was, before it goes.
        with closing(self._directory.open_segment(number)) as last:
            last.sync()

    def _clean_segment(
        self, rule: Rule, number: int, report: CleanReport, on_corruption: str, dry_run: bool
    ) -> None:
        path = self._directory.segment_path(number)
        report.segments_visited += 1
        try:
            masks = self._decide(rule, number)
        except SkipSegment:
            report.segments_skipped.append(path)
            return
        except (CorruptRecord, HeaderMismatch) as error:
            if on_corruption == "raise":
                raise
            logger.warning("left %s as it is: %s", path, error)
            report.segments_skipped.append(path)
            return
        if masks is None:
            return
        kept = sum(sum(mask) for mask in masks)
        dropped = sum(len(mask) for mask in masks) - kept
        if kept and not self._directory.format.appends_in_place:
            kept, dropped = kept + dropped, 0  # later records need earlier ones: all of a segment goes, or none
        report.records_kept += kept
        if dropped == 0 and kept:
            return
        before = self._directory.segment_bytes(number) or 0
        after = 0
        if kept and not dry_run:
            end = logical_end_of(self._directory, number)
            after = rewrite_segment(self._directory, number, self._with_masks(number, masks), end)
        elif not dry_run:
            remove_segment(self._directory, number)
        elif kept:
            after = before - self._dropped_bytes(number, masks)
        report.records_dropped += dropped
        report.bytes_dropped += before - after
        report.segments_rewritten += bool(kept)
        report.segments_removed += not kept
        if not dry_run:
            self._metrics.add(
                records_cleaned=dropped,
                bytes_cleaned=before - after,
                segments_cleaned=int(bool(kept)),
                segments_removed=int(not kept),
            )
            logger.info(
                "%s %s: %d records dropped, %d kept", "rewrote" if kept else "removed", path, dropped, kept
            )

    def _decide(self, rule: Rule, number: int) -> list[bytearray] | None:
        """For each block of the segment, in order, which rows to keep; None to leave it as it is."""
        with closing(SegmentReader(self._directory, number)) as reader:
            index = reader.index
        verdict = rule.segment(number, index)
        if verdict is True:
            return None
        if verdict is False and index is not None:
            return [bytearray(index.records)]
        if isinstance(rule, _ByFunction):
            return [rule.keep(block) for block in self._blocks(number)]
        if verdict is False:
            return [bytearray(len(block.scan.offsets)) for block in self._blocks(number)]
        masks = [rule.keep(block) for block in self._blocks_backward(number, on_corruption="raise")]
        masks.reverse()
        return masks

    def _blocks(self, number: int) -> Iterator[Block]:
        return self._walk(Position(number, 0), Position(number + 1, 0), "raise")

    def _blocks_backward(self, number: int, on_corruption: Literal["raise", "skip"]) -> Iterator[Block]:
        bounds = chunk_bounds(self._directory, number, Position(number, 0), Position(number + 1, 0))
        for low, high in reversed(bounds):
            # A range is a block, unless its records are tiny: then its blocks must be turned round too.
            blocks = [_copied(block) for block in self._walk(low, high, on_corruption)]
            yield from reversed(blocks)

    def _walk(self, low: Position, high: Position, on_corruption: Literal["raise", "skip"]) -> Iterator[Block]:
        with closing(
            Walk(
                self._directory,
                start=low,
                stop=high,
                on_corruption=on_corruption,
                metrics=self._metrics,
                numbers=self._numbers,
            )
        ) as walk:
            yield from walk

    def _with_masks(self, number: int, masks: list[bytearray]) -> Iterator[tuple[Block, bytearray]]:
        """Read the segment's blocks again, each with its part of the decision."""
        keep = bytearray().join(masks)
        row = 0
        for block in self._blocks(number):
            rows = len(block.scan.offsets)
            yield block, keep[row : row + rows]
            row += rows

    def _dropped_bytes(self, number: int, masks: list[bytearray]) -> int:
        return sum(
            block.frame_bytes(row)
            for block, keep in self._with_masks(number, masks)
            for row, kept in enumerate(keep)
            if not kept
        )


def _is_function(forget: CleanFunction | Rule) -> bool:
    return not hasattr(forget, "keep")


def _copied(block: Block) -> Block:
    return block._replace(buffer=memoryview(bytes(block.buffer[: block.scan.end])))


class _ByFunction:
    """A user's function as a rule."""

    needs_last = False

    def __init__(self, directory: Directory, function: CleanFunction | Rule) -> None:
        if not callable(function):
            raise TypeError(f"clean() takes a function (path, record) -> bool or a rule, not {function!r}")
        self._function: CleanFunction = function
        self._exact_time = directory.format.exact_time

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:
        pass

    def segment(self, number: int, index: object) -> bool | None:  # noqa: ARG002
        return None

    def keep(self, block: Block) -> bytearray:
        function, path = self._function, block.path
        return bytearray(not function(path, record) for record in records_of(block, self._exact_time))
