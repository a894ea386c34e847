"""The entries of a log in M3's format, from its chunks, block by block.

The engine reads chunks, and finds and tells what is damaged. What the chunks say is decoded here, for each
file from its start: entries name their series by a number that only the series' first entry in the file
explains. So reading from a position in the middle of a file decodes what lies before it, and leaves that out.

A message may be wrong in a chunk that is right, or belong to a chunk that isn't there. That is told as damage
too, at the position of the chunk in which it begins.

>>> import tempfile
>>> from forelog.commitlog import CommitLog
>>> from forelog.formats.m3 import Datapoint, Series
>>> folder = tempfile.mkdtemp()
>>> with CommitLog(folder, format="m3") as log:
...     _ = log.write(Series(b"cpu"), Datapoint(1_000, 0.5), annotation=b"first")
>>> from forelog import Stream
>>> for position, entry in read_entries(Stream.open(folder)):
...     print(position, entry.series.id, entry.datapoint.value, entry.annotation)
000000001:0 b'cpu' 0.5 b'first'
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from forelog import kernel
from forelog.errors import CorruptRecord, UnknownFormat
from forelog.formats.m3 import M3, MESSAGE_REASONS, Datapoint, Entry, Series, Unit
from forelog.kernel.types import END, LIMIT, TIME_MAX, TIME_MIN, Entries
from forelog.log.directory.segments import READ_LOCK
from forelog.log.position import Position
from forelog.log.seek import TimeOrder, find_segment
from forelog.log.stream import Bound, PositionLike, Stream, as_position
from forelog.log.walk import DEFECTS_MAX, LOG_START, Block, Defect, OnCorruption, Walk
from forelog.times import TimeLike, in_column

logger = logging.getLogger("forelog")

_UNITS = {unit.value: unit for unit in Unit}


class SeriesTable:
    """The series of one file by their rows, each made when it is first asked for."""

    def __init__(self, decoder: kernel.M3Decoder) -> None:
        self._decoder = decoder
        self._made: dict[int, Series] = {}

    def __len__(self) -> int:
        """How many there are so far."""
        return len(self._decoder)

    def metadata(self) -> list[bytes]:
        """What the file says of each."""
        return self._decoder.metadata(0, len(self._decoder))

    def __getitem__(self, row: int) -> Series:
        found = self._made.get(row)
        if found is None:
            found = self._made[row] = Series.of_metadata(self._decoder.metadata(row, row + 1)[0])
        return found


class EntryBlock(NamedTuple):
    """Some entries of one file, as columns; those wanted are the rows from `first` up to `last`."""

    segment: int
    entries: Entries
    first: int
    last: int
    series: SeriesTable
    """What the entries' rows of series mean; the same table for all blocks of a file."""


class EntryWalk:
    """Goes from block to block of entries, forward.

    `defects` are those of chunks and of messages, as far as they were passed over; `torn` is what a crash, or
    a writer that is still at it, left at the end of the last file.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        start: PositionLike | None = None,
        until: Bound | None = None,
        since: TimeLike | None = None,
        on_corruption: OnCorruption = "raise",
    ) -> None:
        if not isinstance(stream.format, M3):
            raise UnknownFormat(
                f"{stream.path} is a log in the format {stream.format.name}: entries are in logs of the format "
                "m3, and a cursor reads the others"
            )
        self._start = LOG_START if start is None else as_position(start)
        self._stop, until_ns = stream._bounds(until)
        since_ns = stream._time(since)
        self._since_ns = TIME_MIN if since_ns is None else in_column(since_ns)
        self._last_ns = TIME_MAX if until_ns is None else max(in_column(until_ns) - 1, TIME_MIN)
        self._order = TimeOrder(stream._directory) if until_ns is not None else None
        self._on_corruption = on_corruption
        self._directory = stream._directory
        self._walk: Walk | None = None
        self._metrics = stream.metrics
        self._defects: list[Defect] = []
        self._segment, self._path = -1, ""
        self._expected = 0  # the offset after the last chunk
        self._decoder = kernel.M3Decoder()
        self._series = SeriesTable(self._decoder)
        self.done = False

    @property
    def pending(self) -> Position | None:
        """The chunk in which an entry begins that isn't whole yet, if there is one."""
        offset = self._decoder.pending_offset
        return None if offset < 0 else Position(self._segment, offset)

    def close(self) -> None:
        if self._walk is not None:
            self._walk.close()
        self.done = True

    def revalidate(self) -> None:
        """After time without a lock: look anew at files that may have been replaced."""
        if self._walk is not None:
            self._walk.revalidate()

    @property
    def chunk_defects(self) -> list[Defect]:
        """The first thousand places without right chunks that were passed over."""
        return [] if self._walk is None else self._walk.defects

    @property
    def message_defects(self) -> list[Defect]:
        """The first thousand places in right chunks whose messages were passed over."""
        return self._defects

    @property
    def defects(self) -> list[Defect]:
        return sorted(self.chunk_defects + self._defects)

    @property
    def torn(self) -> Defect | None:
        """The end of the last file, if it is no whole entry."""
        if self._walk is None:
            return None
        offset = self._decoder.pending_offset
        if offset < 0 or self._stop is not None:
            return self._walk.torn
        end = self._expected if self._walk.torn is None else self._walk.torn.physical_offset
        rest = 0 if self._walk.torn is None else self._walk.torn.byte_count
        position = Position(self._segment, offset)
        return Defect(position, "truncated", self._path, offset, end - offset + rest, torn=True)

    def __iter__(self) -> Iterator[EntryBlock]:
        """What there is as of now; more may have come when it is iterated over again."""
        walk = self._walk or self._begin()
        while not self.done and (block := walk.next_block()) is not None:
            for first, last in _runs(block):
                self._enter(block, first)
                yield from self._decode(block, first, last)
                self._expected = block.offsets[last - 1] + block.frame_bytes(last - 1)

    def _decode(self, block: Block, row: int, last: int) -> Iterator[EntryBlock]:
        while row < last and not self.done:
            entries = self._decoder.feed(
                block.buffer, block.scan.starts, block.scan.ends, block.offsets, row, last
            )
            row = entries.row
            yield from self._wanted(entries)
            self._tell(block, entries)

    def _begin(self) -> Walk:
        start = self._start
        if self._since_ns != TIME_MIN:
            start = max(start, find_segment(self._directory, self._since_ns))
        self._walk = Walk(
            self._directory,
            start=Position(start.segment, 0),
            stop=self._stop,
            on_corruption=self._on_corruption,
            metrics=self._metrics,
        )
        self._walk.check_start()
        return self._walk

    def _enter(self, block: Block, row: int) -> None:
        """Note where a chunk is: in the next file, after a gap, or where the last one ended."""
        if block.segment != self._segment:
            self._unfinished()
            self._segment, self._path, self._expected = block.segment, block.path, 0
            self._decoder = kernel.M3Decoder(self._on_corruption == "skip")
            self._series = SeriesTable(self._decoder)
        if block.offsets[row] != self._expected:
            self._unfinished()
            self._decoder.resync()

    def _unfinished(self) -> None:
        offset = self._decoder.pending_offset
        if offset >= 0:
            self._defect(offset, offset, "truncated message", self._expected - offset, b"")

    def _wanted(self, entries: Entries) -> Iterator[EntryBlock]:
        """The entries of a segment from the start on that are inside of the time bounds."""
        first, count = 0, len(entries.series)
        if self._segment == self._start.segment:
            first = bisect_left(entries.offsets, self._start.offset)
        while first < count:
            first, last = kernel.time_run(entries.created, first, self._since_ns, self._last_ns)
            if first < last:
                yield EntryBlock(self._segment, entries, first, last, self._series)
            if last < count and entries.created[last] > self._last_ns and self._is_past():
                self.done = True
                return
            first = last

    def _is_past(self) -> bool:
        """Whether what comes after an entry that is too late is too late as well."""
        return self._order is not None and self._order.holds(self._segment) and self._order.holds_to_the_end

    # -- defects

    def _tell(self, block: Block, entries: Entries) -> None:
        if self.done:
            return
        if entries.lost:
            row = bisect_left(block.offsets, entries.lost_offset)
            size = sum(block.frame_bytes(i) for i in range(row, row + entries.lost))
            self._defect_in(block, entries.lost_offset, 0, "begins inside of a lost message", size)
        if entries.unknown:
            what = "1 entry" if entries.unknown == 1 else f"{entries.unknown} entries"
            self._defect_in(block, entries.unknown_offset, 0, f"{what} of unknown series")
        if entries.reason not in (END, LIMIT):
            self._defect_in(block, entries.offset, entries.place, MESSAGE_REASONS[entries.reason])

    def _defect_in(self, block: Block, offset: int, place: int, reason: str, byte_count: int = 0) -> None:
        """A defect in a chunk of a block, or in one before it, in which a message began."""
        row = bisect_left(block.offsets, offset)
        if block.offsets[row] != offset:
            self._defect(offset, offset, reason, block.logical_end - offset, b"")
            return
        start, end = block.scan.starts[row] + place, block.scan.ends[row]
        found = bytes(block.buffer[min(start, end) : min(start + 32, end)])
        size = byte_count or block.frame_bytes(row)
        self._defect(offset, block.scan.offsets[row], reason, size, found)

    def _defect(self, offset: int, physical: int, reason: str, byte_count: int, found: bytes) -> None:
        position = Position(self._segment, offset)
        if self._on_corruption == "raise":
            raise CorruptRecord(
                f"damaged message ({reason}) in the chunk at {position}, byte {physical} of {self._path}"
                f"{': found ' + found.hex(' ') if found else ''}. Read on with on_corruption='skip'",
                position=position,
                reason=reason,
                path=self._path,
                physical_offset=physical,
                data=found,
            )
        defect = Defect(position, reason, self._path, physical, byte_count, torn=False)
        if len(self._defects) < DEFECTS_MAX:
            self._defects.append(defect)
        logger.warning("%s %s", "skipped" if self._on_corruption == "skip" else "stopped at", defect)
        self.done = self.done or self._on_corruption == "stop"


def _runs(block: Block) -> Iterator[tuple[int, int]]:
    """The rows of a block between gaps, which a file has from which repair took what was damaged."""
    first, last = 0, len(block.offsets)
    if block.offsets != block.scan.offsets:
        for row in range(1, last):
            if block.offsets[row] != block.offsets[row - 1] + block.frame_bytes(row - 1):
                yield first, row
                first = row
    yield first, last


def read_entries(
    stream: Stream,
    *,
    start: PositionLike | None = None,
    until: Bound | None = None,
    since: TimeLike | None = None,
    on_corruption: OnCorruption = "raise",
    timeout: float | None = None,
) -> Iterator[tuple[Position, Entry]]:
    """Entries one by one, each with the position of the chunk in which it begins.

    Bounds are as of `Stream.cursor`; times are those at which entries were created. For many entries
    `scan_datapoints` is the way: it makes no object of each.
    """
    walk = EntryWalk(stream, start=start, until=until, since=since, on_corruption=on_corruption)
    lock = stream._directory.files.lock(f"{stream.path}/{READ_LOCK}", exclusive=False, timeout=timeout)
    try:
        for block in walk:
            yield from entries_of(block)
    finally:
        walk.close()
        lock.release()


def entries_of(block: EntryBlock) -> Iterator[tuple[Position, Entry]]:
    """The wanted entries of a block."""
    entries, series = block.entries, block.series
    for i in range(block.first, block.last):
        note = entries.annotations[entries.annotation_offsets[i] : entries.annotation_offsets[i + 1]]
        yield (
            Position(block.segment, entries.offsets[i]),
            Entry(
                series[entries.series[i]],
                Datapoint(entries.timestamps[i], entries.values[i]),
                _UNITS.get(entries.units[i], entries.units[i]),
                note if entries.annotated[i] else None,
                entries.created[i],
            ),
        )
