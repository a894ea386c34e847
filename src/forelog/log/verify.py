"""Check every byte of a log, and change nothing.

Segments are read in order, with one block in memory at a time, whatever the size of the log. Cleaners wait
meanwhile; appenders and cursors don't. A record that an appender is just writing isn't a defect.

A report has problems and notes. *Problems* are damage: records that can't be read, a torn tail that nobody is
writing, an index or a map that doesn't fit, synced bytes that are gone. *Notes* report what loses no data: an
index that is missing or can't be used, files that an interrupted rewrite left, times that go back.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> with stream.appender() as log:
...     _ = log.append_many([b"one", b"two"])
>>> report = verify(stream)
>>> report.ok, report.records, report.byte_count
(True, 2, 54)
"""

from __future__ import annotations

import contextlib
import operator
import time
from array import array
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from forelog.errors import LockTimeout
from forelog.files import Files
from forelog.formats import Block
from forelog.kernel.types import TIME_MAX, TIME_MIN
from forelog.log.directory.directory import APPEND_LOCK, Directory
from forelog.log.directory.index import SegmentIndex, indexed_bytes, was_a_map
from forelog.log.directory.journal import missing_bytes
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.watermark import Mark, read_mark
from forelog.log.metrics import Metrics
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import BAD_MAP, Defect, Progress, Walk

IndexState = Literal["fits", "missing", "unusable", "damaged", "none"]

_INDEX_LOOKS = 5
_INDEX_PAUSE_SECONDS = 0.02

JOURNAL_HAS_MORE = "lacks %d bytes that were lost with the power, and that its journal has"


@dataclass(slots=True)
class SegmentReport:
    """What was found in one segment."""

    number: int
    """The number of the segment."""
    path: str
    """The path of the segment's file."""
    byte_count: int = 0
    """How many bytes of the file belong to the log."""
    records: int = 0
    """How many records of the segment can be read."""
    first_time_ns: int | None = None
    """The time of the first record that can be read."""
    last_time_ns: int | None = None
    """The time of the last record that can be read."""
    sealed: bool = False
    """Whether a later segment exists."""
    rewritten: bool = False
    """Whether cleaning has moved the segment's records."""
    index: IndexState = "none"
    """The state of its index, or of its map if it was rewritten. `none`: there is none, and none is needed.

    `unusable`: half written, damaged, or of other bytes, so it isn't used. Searching is slower, and nothing else.
    `damaged`: a map that can't be used, or an index or map that is used and wrong.
    """
    defects: list[Defect] = field(default_factory=list)
    """The segment's defects, at most the first thousand."""
    defects_found: int = 0
    """How many places in the segment are damaged."""
    defect_bytes: int = 0
    """How many bytes the damaged places have."""
    torn: Defect | None = None
    """The torn tail, of the last segment only."""
    header: Literal["right", "unfinished", "foreign"] = "right"
    """`unfinished` has 0 to 7 bytes or zeros; `foreign` is another log's, or damaged beyond telling."""
    header_defect: str | None = None
    """What is wrong with the segment's header, if anything."""
    times_back: int = 0
    """How many records are earlier than the one before them."""
    times_back_first: Position | None = None
    """Where a record is earlier than the one before it, for the first time."""


@dataclass(slots=True)
class VerifyReport:
    """What was found in a log."""

    path: str
    """The path of the log."""
    format: str
    """The name of the log's format."""
    live: bool = False
    """Whether a program has the log open to append. Then a torn tail is a record that is being written."""
    segments: list[SegmentReport] = field(default_factory=list)
    """What was found in each segment."""
    synced_segment_missing: int | None = None
    """A segment that had been synced, and is gone."""
    synced_bytes_missing: int = 0
    """How many synced bytes are gone from the end of the last segment."""
    journal_bytes: int = 0
    """Bytes that the last segment lost with the power, and that its journal has. Recovery restores them."""
    rewrites: list[str] = field(default_factory=list)
    """Names of unfinished rewrites and copies: debris."""
    indexes_stale: list[str] = field(default_factory=list)
    """Names of indexes and maps that belong to no segment as it is now: debris."""
    evidence: list[str] = field(default_factory=list)
    """Names of what recovery and repair have put aside."""

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def byte_count(self) -> int:
        return sum(segment.byte_count for segment in self.segments)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged or lost."""
        return not self.problems()

    @property
    def tidy(self) -> bool:
        """Whether a repair would have nothing to do."""
        missing = any(segment.index in ("missing", "unusable") for segment in self.segments)
        return self.ok and not (missing or self.rewrites or self.indexes_stale)

    def problems(self) -> list[str]:
        """A line for each thing that is damaged or lost."""
        lines = []
        for segment in self.segments:
            lines += _segment_problems(segment, live=self.live)
        if self.synced_segment_missing is not None:
            lines.append(f"segment {self.synced_segment_missing} had been synced, and is gone")
        if self.synced_bytes_missing:
            lines.append(
                f"{self.synced_bytes_missing} synced bytes are missing at the end of {self.segments[-1].path}: "
                "the disk didn't keep them, or the file was cut"
            )
        if self.journal_bytes:
            lines.append(f"{self.segments[-1].path} {JOURNAL_HAS_MORE % self.journal_bytes}: see `forelog repair`")
        return lines

    def notes(self) -> list[str]:
        """A line for each thing that is worth knowing but isn't damage."""
        lines = []
        missing = [segment for segment in self.segments if segment.index == "missing"]
        if missing:
            lines.append(f"{len(missing)} of {len(self.segments)} segments have no index: searching is slower")
        for segment in self.segments:
            if segment.index == "unusable":
                lines.append(f"the index of {segment.path} can't be used: searching is slower")
            if segment.times_back:
                lines.append(
                    f"{segment.times_back} times go back in {segment.path}, first at {segment.times_back_first}: "
                    "searching by time may miss records there"
                )
            if segment.torn is not None and self.live:
                lines.append(f"{segment.path} ends in {segment.torn.byte_count} bytes that are being written")
        for kind, names in (
            ("left by an interrupted rewrite", self.rewrites),
            ("an index of no segment", self.indexes_stale),
            ("kept as evidence", self.evidence),
        ):
            lines += [f"{name} is {kind}" for name in names]
        return lines


def _segment_problems(segment: SegmentReport, *, live: bool) -> list[str]:
    lines = []
    if segment.header == "foreign":
        lines.append(f"{segment.path} {segment.header_defect}: another log's segment, or a damaged header")
    elif segment.header == "unfinished" and segment.torn is None:
        lines.append(f"{segment.path} {segment.header_defect}: it was never finished, or was zeroed")
    else:
        lines += [str(defect) for defect in segment.defects]
        if segment.defects_found > len(segment.defects):
            lines.append(f"{segment.defects_found - len(segment.defects)} more damaged places in {segment.path}")
    if segment.torn is not None and not live:
        lines.append(str(segment.torn))
    if segment.index == "damaged":
        kind = "map" if segment.rewritten else "index"
        lines.append(f"the {kind} of {segment.path} is damaged or doesn't fit its records")
    return lines


def verify(stream: Stream, *, progress: Progress | None = None, timeout: float | None = None) -> VerifyReport:
    """Check every byte of a log, as of now; `progress(done_bytes, total_bytes)` is called for each block.

    Waits for a cleaner to finish, at most `timeout` seconds.
    """
    directory = stream.directory
    directory.names()  # a missing log is reported before a lock file is made
    with directory.read_lock(timeout=timeout):
        return check(directory, progress=progress)


def check(directory: Directory, *, progress: Progress | None = None, alone: bool = False) -> VerifyReport:
    """Do what verify() does, for a caller that holds the read lock. `alone` says that it holds the append lock
    too."""
    report = VerifyReport(directory.path, directory.format.name)
    mark = read_mark(directory)  # before the sizes, which may only grow after it
    numbers = directory.numbers()
    sizes = [directory.segment_bytes(number) or 0 for number in numbers]
    total, done = sum(sizes), 0
    for number, size in zip(numbers, sizes, strict=True):
        counted = None if progress is None else _shifted(progress, done, total)
        with contextlib.suppress(FileNotFoundError):  # an empty one, whose place another one has taken
            report.segments.append(check_segment(directory, number, numbers, progress=counted))
        done += size
    if progress is not None:
        progress(total, total)
    conclude(directory, report, mark, numbers, alone=alone)
    return report


def conclude(
    directory: Directory, report: VerifyReport, mark: Mark | None, numbers: list[int], *, alone: bool = False
) -> None:
    """Check what concerns the log as a whole, once the reports of all segments are there.

    The mark and the numbers are those from before the segments were checked.
    """
    report.live = not alone and _is_live(directory)
    if report.live:
        _look_again_at_indexes(directory, report)
    elif report.segments and not alone:
        _settle_torn(directory, report.segments[-1], report)
    if not report.live:
        report.journal_bytes = missing_bytes(directory)
    _compare_mark(directory, report, mark, numbers)
    _sort_names(directory, report)


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    return lambda place, _: progress(min(done + place, total), total)


# -- one segment


def check_segment(
    directory: Directory, number: int, numbers: list[int], *, progress: Progress | None = None
) -> SegmentReport:
    """Check one of the segments with these numbers. The caller holds the read lock."""
    last = number == numbers[-1]
    report = SegmentReport(number, directory.segment_path(number), sealed=not last)
    metrics = Metrics()
    walk = Walk(
        directory,
        start=Position(number, 0),
        stop=Position(number + 1, 0),
        on_corruption="skip",
        metrics=metrics,
        numbers=numbers,
    )
    columns = _Columns(directory, report)
    with contextlib.closing(walk):
        for block in walk:
            columns.add(block)
            if progress is not None:
                progress(block.base + block.scan.end, 0)
        report.defects = [defect for defect in walk.defects if defect.reason != BAD_MAP]
        maps_damaged = len(walk.defects) - len(report.defects)
        report.torn = walk.torn
    counts = metrics.snapshot()
    report.defects_found = counts["defects_skipped"] - maps_damaged
    report.defect_bytes = counts["defect_bytes_skipped"]
    _check_header_and_index(directory, report, columns, last=last)
    return report


class _Columns:
    """Sums over the blocks of a segment."""

    def __init__(self, directory: Directory, report: SegmentReport) -> None:
        self._report = report
        self._exact_time = directory.format.exact_time
        self.last_time = TIME_MIN
        self.earliest, self.latest = TIME_MAX, TIME_MIN
        """The least and the greatest time, as an index has them: where times go back, not the first and last."""

    def add(self, block: Block) -> None:
        report, times = self._report, block.scan.times
        if not report.records:
            report.first_time_ns = self._time(block, 0)
        back = self._count_times_back(block, times)
        self.earliest = min(self.earliest, min(times) if back else times[0])
        self.latest = max(self.latest, max(times) if back else times[-1])
        report.records += len(times)
        self.last_time = times[-1]
        report.last_time_ns = self._time(block, len(times) - 1)

    def _count_times_back(self, block: Block, times: array[int]) -> int:
        report = self._report
        back: int = int(bool(report.records) and times[0] < self.last_time)
        back += sum(map(operator.gt, times, islice(times, 1, None)))
        if back and report.times_back_first is None:
            row = next((i for i in range(1, len(times)) if times[i] < times[i - 1]), 0)
            row = 0 if report.records and times[0] < self.last_time else row
            report.times_back_first = Position(report.number, block.offsets[row])
        report.times_back += back
        return back

    def _time(self, block: Block, row: int) -> int | None:
        time_ns = block.scan.times[row]
        if time_ns in (TIME_MIN, TIME_MAX):
            place = block.scan.offsets[row] - block.base
            return self._exact_time(bytes(block.buffer[place : place + 16]))
        return time_ns


def _check_header_and_index(directory: Directory, report: SegmentReport, columns: _Columns, *, last: bool) -> None:
    with contextlib.closing(SegmentReader(directory, report.number)) as reader:
        report.byte_count = reader.size
        report.header_defect = reader.header_defect
        if reader.header_defect is not None:
            report.header = "unfinished" if reader.header_blank or reader.size < reader.header_bytes else "foreign"
            if last and reader.size < reader.header_bytes:
                report.torn = Defect(Position(report.number, 0), "header", reader.path, 0, reader.size, torn=True)
            elif report.torn is not None:
                report.header = "unfinished"
            return
        report.rewritten = reader.rewritten
        if reader.map_damaged:
            report.index = "damaged"
        elif reader.index is not None and _describes(reader.index, report, columns):
            report.index = "fits"
        elif directory.files.stat(reader.index_path) is not None and reader.size > reader.header_bytes:
            used = reader.index is not None or was_a_map(directory.files, reader.index_path)
            report.index = "damaged" if used else "unusable"
        elif report.sealed and reader.size > reader.header_bytes:
            report.index = "missing"


def _describes(index: SegmentIndex, report: SegmentReport, columns: _Columns) -> bool:
    if report.defects or report.torn is not None or not report.records:
        return True  # its checksum is right and it is of this size: the records are what is damaged
    found = (report.records, columns.earliest, columns.latest)
    return found == (index.records, index.first_time, index.last_time)


# -- a log that is being appended to


def _is_live(directory: Directory) -> bool:
    """Whether an appender has the log open."""
    lock_path = f"{directory.path}/{APPEND_LOCK}"
    return directory.files.stat(lock_path) is not None and _is_locked(directory.files, lock_path)


def _is_locked(files: Files, path: str) -> bool:
    try:
        # Shared, and released at once: it keeps no verification waiting, and an appender only for an instant.
        files.lock(path, exclusive=False, timeout=0).release()
    except LockTimeout:
        return True
    return False


def _settle_torn(directory: Directory, segment: SegmentReport, report: VerifyReport) -> None:
    """Drop a torn tail that has changed since it was read: an appender was writing it, and has closed since."""
    if segment.torn is not None:
        seen = segment.torn.physical_offset + segment.torn.byte_count
        report.live = (directory.segment_bytes(segment.number) or 0) != seen


def _look_again_at_indexes(directory: Directory, report: VerifyReport) -> None:
    """Read indexes that looked damaged again: they may have been in the middle of being written."""
    for segment in report.segments:
        for _ in range(_INDEX_LOOKS):
            if segment.index not in ("damaged", "unusable"):
                break
            time.sleep(_INDEX_PAUSE_SECONDS)
            with contextlib.closing(SegmentReader(directory, segment.number)) as reader:
                if reader.index is not None and reader.index.records >= segment.records:
                    segment.index = "fits"


# -- the log as a whole


def _compare_mark(directory: Directory, report: VerifyReport, mark: Mark | None, numbers: list[int]) -> None:
    if mark is None or not mark.segment:
        return
    if (not numbers or numbers[-1] < mark.segment) and directory.last() < mark.segment:
        report.synced_segment_missing = mark.segment
    elif numbers and numbers[-1] == mark.segment:
        report.synced_bytes_missing = max(mark.offset - (directory.segment_bytes(mark.segment) or 0), 0)


def _sort_names(directory: Directory, report: VerifyReport) -> None:
    for name in sorted(directory.names()):
        number = directory.owner(name)
        if number is None:
            continue
        rest = name.removeprefix(directory.side_path(number, ".").rpartition("/")[2])
        if name.endswith((".rw", ".part")):
            report.rewrites.append(name)
        elif rest.split(".")[0] in ("torn", "broken"):
            report.evidence.append(name)
        elif indexed_bytes(name, directory.segment_name(number)) not in (None, directory.segment_bytes(number)):
            # Not the size that was read: an appender may have sealed the segment since.
            report.indexes_stale.append(name)
