"""Decode the blocks of a log in M3's format into entries.

A log's records are chunks here. Each file is decoded from its start, because an entry names its series by a
number, and only the series' first entry in the file says what the number means.

A message in a good chunk may be invalid, or continue in a chunk that is missing. This is a `BadMessage`, at the
chunk in which the message begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from forelog import kernel
from forelog.formats.block import Block
from forelog.formats.m3.format import MESSAGE_REASONS
from forelog.formats.m3.values import Datapoint, Entry, Series, Unit
from forelog.kernel.types import END, LIMIT, Entries

_UNITS = {unit.value: unit for unit in Unit}


class SeriesTable:
    """The series of one file, by row. Each is made when it is first asked for."""

    def __init__(self, decoder: kernel.M3Decoder) -> None:
        self._decoder = decoder
        self._made: dict[int, Series] = {}

    def __len__(self) -> int:
        """The number of series so far."""
        return len(self._decoder)

    def metadata(self) -> list[bytes]:
        """The metadata of each series, from the file."""
        return self._decoder.metadata(0, len(self._decoder))

    def __getitem__(self, row: int) -> Series:
        found = self._made.get(row)
        if found is None:
            found = self._made[row] = Series.of_metadata(self._decoder.metadata(row, row + 1)[0])
        return found


class EntryBlock(NamedTuple):
    """Some entries of one file, as columns. The wanted entries are the rows from `first` up to `last`."""

    segment: int
    """The file's number."""
    entries: Entries
    """The columns."""
    first: int
    """The first wanted row."""
    last: int
    """The row after the last wanted one."""
    series: SeriesTable
    """What the entries' rows of series mean; the same table for all blocks of a file."""

    def rows(self) -> Iterator[tuple[int, Entry]]:
        """The wanted entries, each with the offset of the chunk in which it begins."""
        entries, series = self.entries, self.series
        for i in range(self.first, self.last):
            note = entries.annotations[entries.annotation_offsets[i] : entries.annotation_offsets[i + 1]]
            yield (
                entries.offsets[i],
                Entry(
                    series[entries.series[i]],
                    Datapoint(entries.timestamps[i], entries.values[i]),
                    _UNITS.get(entries.units[i], entries.units[i]),
                    note if entries.annotated[i] else None,
                    entries.created[i],
                ),
            )


class BadMessage(NamedTuple):
    """A place in good chunks whose messages can't be read."""

    offset: int
    """The offset of the chunk in its segment."""
    physical_offset: int
    """The place of the chunk in its file."""
    reason: str
    """One word or two for what is wrong."""
    byte_count: int
    """How many bytes can't be read."""
    data: bytes
    """The first bytes found there."""


class EntryDecoder:
    """Decodes blocks of chunks, in order, beginning at the start of a file.

    `on_bad` is called for each bad message, after the entries before it; it may raise, or set `stopped`. With
    `resumes` decoding continues after a bad message.
    """

    def __init__(self, on_bad: Callable[[BadMessage], None], *, resumes: bool) -> None:
        self._on_bad = on_bad
        self._resumes = resumes
        self._decoder = kernel.M3Decoder()
        self._series = SeriesTable(self._decoder)
        self.stopped = False
        """Set to end the decoding of the current block."""
        self.segment = -1
        self.path = ""
        """The file of the last block."""
        self.end = 0
        """The offset after the last chunk."""

    @property
    def pending_offset(self) -> int:
        """The offset of the chunk in which an incomplete entry begins; -1 if there is none."""
        offset: int = self._decoder.pending_offset
        return offset

    def decode(self, block: Block) -> Iterator[EntryBlock]:
        """Decode the entries of a block's chunks, until `stopped` is set."""
        for first, last in _runs(block):
            self._enter(block, first)
            row = first
            while row < last and not self.stopped:
                entries = self._decoder.feed(
                    block.buffer, block.scan.starts, block.scan.ends, block.offsets, row, last
                )
                row = entries.row
                yield EntryBlock(block.segment, entries, 0, len(entries.series), self._series)
                if not self.stopped:
                    self._report(block, entries)
            self.end = block.offsets[last - 1] + block.frame_bytes(last - 1)

    def finish(self) -> None:
        """Note that no more chunks follow. So an incomplete entry is a bad message."""
        offset = self.pending_offset
        if offset >= 0:
            self._on_bad(BadMessage(offset, offset, "truncated message", self.end - offset, b""))

    def _enter(self, block: Block, row: int) -> None:
        """Note whether a chunk is in the next file, after a gap, or right after the last one."""
        if block.segment != self.segment:
            self.finish()
            self.segment, self.path, self.end = block.segment, block.path, 0
            self._decoder = kernel.M3Decoder(self._resumes)
            self._series = SeriesTable(self._decoder)
        if block.offsets[row] != self.end:
            self.finish()
            self._decoder.resync()

    def _report(self, block: Block, entries: Entries) -> None:
        if entries.lost:
            row = bisect_left(block.offsets, entries.lost_offset)
            size = sum(block.frame_bytes(i) for i in range(row, row + entries.lost))
            self._bad(block, entries.lost_offset, 0, "begins inside of a lost message", size)
        if entries.unknown:
            what = "1 entry" if entries.unknown == 1 else f"{entries.unknown} entries"
            self._bad(block, entries.unknown_offset, 0, f"{what} of unknown series")
        if entries.reason not in (END, LIMIT):
            self._bad(block, entries.offset, entries.place, MESSAGE_REASONS[entries.reason])

    def _bad(self, block: Block, offset: int, place: int, reason: str, byte_count: int = 0) -> None:
        """Report a bad message, in a chunk of a block or in an earlier one in which the message began."""
        row = bisect_left(block.offsets, offset)
        if block.offsets[row] != offset:
            self._on_bad(BadMessage(offset, offset, reason, block.logical_end - offset, b""))
            return
        start, end = block.scan.starts[row] + place, block.scan.ends[row]
        found = bytes(block.buffer[min(start, end) : min(start + 32, end)])
        size = byte_count or block.frame_bytes(row)
        self._on_bad(BadMessage(offset, block.scan.offsets[row], reason, size, found))


def _runs(block: Block) -> Iterator[tuple[int, int]]:
    """The ranges of a block's rows between gaps. A file has gaps if repair removed damaged chunks."""
    first, last = 0, len(block.offsets)
    if block.offsets != block.scan.offsets:
        for row in range(1, last):
            if block.offsets[row] != block.offsets[row - 1] + block.frame_bytes(row - 1):
                yield first, row
                first = row
    yield first, last
