"""The bulk path: from segments to columns, block by block.

Cursors, scans, cleaning, verification and recovery all read through a `Walk`. It opens segments in order,
reads them in blocks, has the kernel turn each block into columns, and hands those out; it decides what a
defect is (a torn tail or damage) and does what its caller chose about damage. It holds one block at a
time, whatever the size of the log, and between two blocks it survives that segments grow, roll and are
rewritten.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal, NamedTuple

from chiplog._kernel_py import END, NEED_MAX, TIME_MIN, TRUNCATED
from chiplog.errors import BadPosition, ChiplogError, CorruptRecord, HeaderMismatch
from chiplog.formats import Scan
from chiplog.log.metrics import Metrics
from chiplog.log.position import Position
from chiplog.log.seek import first_row, hop, seek_time
from chiplog.log.segments import Directory, SegmentReader, read_exactly
from chiplog.log.watermark import boot_digest, read_mark

logger = logging.getLogger("chiplog")

OnCorruption = Literal["raise", "stop", "skip"]

BLOCK_BYTES = 1 << 20
BLOCK_ROWS = 16_384
DEFECTS_MAX = 1000
LOG_START = Position(0, 0)
BAD_MAP = "map"  # why a rewritten segment's positions can't be told, where its records may all be right
_PROBE_BYTES = 1 << 16  # how far ahead a search for the next good record looks at first
_SEARCH_BYTES = 64 << 20  # and then at once
_EVIDENCE_BYTES = 32


class Defect(NamedTuple):
    """A place where a segment's bytes are not whole records, and how many bytes that concerns."""

    position: Position
    reason: str
    path: str
    physical_offset: int
    byte_count: int
    torn: bool
    """Whether it is the torn tail of the last segment, which opening the log to append cuts off."""

    def __str__(self) -> str:
        kind = "torn tail" if self.torn else "damage"
        return f"{self.position} {kind} ({self.reason}), {self.byte_count} bytes in {self.path}"


class Block(NamedTuple):
    """Some records of one segment, as columns. The buffer is valid until the next block is asked for."""

    segment: int
    path: str
    buffer: memoryview
    base: int
    """The physical offset of the buffer's first byte."""
    scan: Scan
    """Offsets in it are physical."""
    offsets: array[int]
    """The logical ones."""
    first: int
    """The rows that are wanted are those from `first` up to, not including, `last`."""
    last: int
    logical_end: int
    """The logical offset after the last wanted row."""

    def frame_bytes(self, row: int) -> int:
        """How many bytes the record in a row takes."""
        offsets = self.scan.offsets
        following = offsets[row + 1] if row + 1 < len(offsets) else self.base + self.scan.end
        return following - offsets[row]


def check_on_corruption(choice: str) -> None:
    """Refuse a choice that there isn't."""
    if choice not in ("raise", "stop", "skip"):
        raise ValueError(f"on_corruption is {choice!r}: expected 'raise', 'stop' or 'skip'")


class Walk:
    """Reads forward from `start` until `stop`, the first time past `until_ns`, or the end of the log."""

    def __init__(
        self,
        directory: Directory,
        *,
        start: Position = LOG_START,
        stop: Position | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        on_corruption: OnCorruption = "raise",
        metrics: Metrics | None = None,
        block_bytes: int = BLOCK_BYTES,
        block_rows: int = BLOCK_ROWS,
        numbers: list[int] | None = None,
    ) -> None:
        check_on_corruption(on_corruption)
        self.directory = directory
        self.position = start
        self._start = start
        self.torn: Defect | None = None
        self.defects: list[Defect] = []
        self.done = False
        self._stop = stop
        self._since_ns = since_ns
        self._until_ns = until_ns
        self._on_corruption = on_corruption
        self._metrics = metrics or Metrics()
        self._block_bytes = block_bytes
        self._block_rows = block_rows
        self._numbers = numbers or []  # as of a listing that the caller has made
        self._reader: SegmentReader | None = None
        self._at = 0  # physical offset of the next record to scan
        self._storage = bytearray(block_bytes)
        self._buffer = memoryview(self._storage)
        self._base = 0
        self._filled = 0

    # -- for callers

    def check_start(self) -> None:
        """Refuse a start in a segment that doesn't exist yet: nothing there was ever handed out."""
        numbers = self.directory.numbers()
        last = numbers[-1] if numbers else 0
        if self.position.segment > last:
            raise BadPosition(
                f"position {self.position} lies past the end of the log, whose last segment is {last}: it "
                "belongs to another log, or to this one before it was made anew"
            )

    def __iter__(self) -> Iterator[Block]:
        while (block := self.next_block()) is not None:
            yield block

    def next_block(self) -> Block | None:
        """The next records; None at the end, for now or, if `done`, for good."""
        while not self.done:
            reader = self._reader or self._open_next()
            if reader is None:
                return None
            scan, stop = self._scan(reader)
            if scan.offsets:
                block = self._trim(reader, scan)
                if block is not None:
                    return block
            elif not self._past(reader, scan, stop):
                return None
        return None

    def revalidate(self) -> None:
        """After time without a lock: look anew at files that cleaning may have replaced."""
        self._filled = 0
        if self._reader is not None and self._reader.replaced():
            self._close_reader()

    def close(self) -> None:
        self._close_reader()
        self.done = True

    # -- opening segments

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._filled = 0

    def _next_number(self, after: int) -> int | None:
        """The next segment; the directory is listed only if the last listing knows of none."""
        place = bisect_right(self._numbers, after)
        if place == len(self._numbers):
            self._numbers = self.directory.numbers()
            place = bisect_right(self._numbers, after)
        return self._numbers[place] if place < len(self._numbers) else None

    def _open_next(self) -> SegmentReader | None:
        while True:
            number = self._next_number(self.position.segment - 1)
            if number is None:
                return None
            if self._stop is not None and Position(number, self.directory.format.header_bytes) >= self._stop:
                self.done = True
                return None
            if number != self.position.segment:
                self.position = Position(number, 0)
            try:
                reader = SegmentReader(self.directory, number)
            except FileNotFoundError:
                self.position = Position(number + 1, 0)  # cleaned away since it was listed
                continue
            self._metrics.add(segments_opened=1)
            if reader.header_defect is None:
                return self._enter(reader)
            try:
                passed = self._bad_header(reader)
            finally:
                reader.close()
            if not passed:
                return None
            self.position = Position(number + 1, 0)

    def _enter(self, reader: SegmentReader) -> SegmentReader | None:
        self._reader = reader
        self._filled = 0
        if reader.map_damaged and not self._bad_map(reader):
            return None
        self._at = reader.physical(self.position.offset)
        if self._at > reader.size:
            if self._next_number(reader.number) is None and not reader.map_damaged:
                end = reader.position(reader.size)
                self._close_reader()
                raise BadPosition(
                    f"position {self.position} lies past the end of the log, which is {end}: it was given out "
                    "before a crash that lost unsynced records, or belongs to another log"
                )
            self._at = reader.size
        if self._since_ns is not None:
            self._at = seek_time(reader, self._at, self._since_ns)
        return reader

    def _bad_header(self, reader: SegmentReader) -> bool:
        """Whether to go on with the next segment."""
        short = reader.size < reader.header_bytes
        if self._next_number(reader.number) is None and header_is_torn(reader):
            if reader.size:
                self._note_torn(reader, 0, "header")
            return False
        message = (
            f"{reader.path} {reader.header_defect}: it belongs to another log, or its header is damaged. "
            "`chiplog verify` tells more"
        )
        if self._on_corruption == "raise":
            if not short:
                raise HeaderMismatch(message)
            raise self._corrupt(reader, 0, "header", message)
        logger.warning("%s", message)
        return self._skipped(reader, 0, "header", reader.size)

    def _bad_map(self, reader: SegmentReader) -> bool:
        """Whether to go on in a rewritten segment without its map, as if nothing in it had been moved."""
        message = (
            f"the map {reader.index_path} is damaged: {reader.path} was rewritten, and its positions can't be "
            "told. `chiplog repair` makes a new map; on_corruption='skip' takes offsets in the file for positions"
        )
        if self._on_corruption == "raise":
            error = self._corrupt(reader, 0, BAD_MAP, message)
            self._close_reader()
            raise error
        logger.warning("%s", message)
        passed = self._skipped(reader, 0, BAD_MAP, 0)
        if not passed:
            self._close_reader()
        return passed

    # -- reading and scanning

    def _stop_offset(self, reader: SegmentReader) -> int:
        if self._stop is not None and self._stop.segment == reader.number:
            return min(reader.size, reader.physical(self._stop.offset))
        return reader.size

    def _scan(self, reader: SegmentReader) -> tuple[Scan, int]:
        stop = self._stop_offset(reader)
        need = 0
        while True:
            if not self._base <= self._at < self._base + self._filled:
                self._fill(reader, stop, need)
            scan = self.directory.format.scan(
                self._buffer, self._at - self._base, self._filled, self._base, self._block_rows
            )
            at_end = self._base + self._filled >= stop
            if scan.offsets or at_end or scan.reason not in (END, TRUNCATED):
                return scan, stop
            # The buffer's end cut a record: take it whole, if the file has that many bytes at all.
            if scan.reason == TRUNCATED and scan.need > stop - self._at:
                return scan, stop
            need = scan.need + self.directory.format.record_tail_bytes_max
            self._filled = 0

    def _fill(self, reader: SegmentReader, stop: int, need: int) -> None:
        want = min(max(self._block_bytes, need), max(stop - self._at, 0))
        if len(self._storage) != max(want, self._block_bytes):
            self._buffer.release()
            self._storage = bytearray(max(want, self._block_bytes))
            self._buffer = memoryview(self._storage)
        self._base = self._at
        self._filled = reader.file.read_into(self._buffer[:want], self._at)

    def _trim(self, reader: SegmentReader, scan: Scan) -> Block | None:
        """The block with the rows inside the time bounds; None if there are none."""
        first, last = 0, len(scan.offsets)
        times = scan.times
        if self._since_ns is not None:
            first = first_row(self.directory.format, self._buffer, self._base, scan, 0, self._since_ns)
            if first < last:
                self._since_ns = None  # from here on everything counts
        if self._until_ns is not None:
            last = first_row(self.directory.format, self._buffer, self._base, scan, first, self._until_ns)
            self.done = last < len(times)
        self._at = self._base + scan.end
        offsets = reader.index.logical_column(scan.offsets) if reader.index else scan.offsets
        logical_end = offsets[last] if last < len(offsets) else reader.logical(self._at)
        self.position = Position(reader.number, logical_end)
        self._metrics.add(records_read=last - first, bytes_read=scan.end)
        if first == last:
            return None
        return Block(reader.number, reader.path, self._buffer, self._base, scan, offsets, first, last, logical_end)

    # -- ends and defects

    def _past(self, reader: SegmentReader, scan: Scan, stop: int) -> bool:
        """Nothing could be scanned at this place. Whether there is more to come."""
        if self._stop is not None and self._stop.segment == reader.number and self._at >= stop:
            self.done = True
            return False
        if scan.reason == END and self._at < stop:
            self._filled = 0  # the file is shorter than it said: somebody cut it
            return self._shrunk(reader)
        following = self._next_number(reader.number)
        if reader.refresh():
            self._filled = 0
            return True  # it grew since the last look
        if scan.reason == END:
            return self._leave(reader, following)
        return self._defect(reader, reader.directory.format.reasons[scan.reason], last=following is None)

    def _shrunk(self, reader: SegmentReader) -> bool:
        reader.refresh()
        if self._at > reader.size:
            raise BadPosition(f"{reader.path} was cut to {reader.size} bytes while it was read at {self._at}")
        return True

    def _leave(self, reader: SegmentReader, following: int | None) -> bool:
        if following is None:
            self._filled = 0
            if reader.size < reader.header_bytes:
                self._close_reader()
            return False
        self._close_reader()
        self.position = Position(following, 0)
        return True

    def _defect(self, reader: SegmentReader, reason: str, *, last: bool) -> bool:
        place = self._at
        if last and is_torn(reader, place):
            self._note_torn(reader, place, reason)
            self._filled = 0
            return False
        if reader.position(place) == self._start and not is_boundary(reader, place):
            raise BadPosition(
                f"position {self._start} is inside of a record of {reader.path}: positions are what append, "
                "records and cursors hand out, and belong to one log"
            )
        if self._on_corruption == "raise":
            raise self._corrupt(reader, place, reason)
        if self._on_corruption == "stop":
            logger.warning("stopped at damage (%s) at %s in %s", reason, reader.position(place), reader.path)
            return self._skipped(reader, place, reason, reader.size - place)
        following = resync(reader, place)
        self._skipped(reader, place, reason, following - place)
        self._at = following
        self._filled = 0
        self.position = reader.position(following)
        return True

    def _note_torn(self, reader: SegmentReader, place: int, reason: str) -> None:
        torn = Defect(
            reader.position(place) if place else Position(reader.number, 0),
            reason,
            reader.path,
            place,
            reader.size - place,
            torn=True,
        )
        if torn != self.torn:
            logger.info("the log ends in a torn tail: %s", torn)
        self.torn = torn

    def _skipped(self, reader: SegmentReader, place: int, reason: str, byte_count: int) -> bool:
        defect = Defect(reader.position(place), reason, reader.path, place, byte_count, torn=False)
        self._metrics.add(defects_skipped=1, defect_bytes_skipped=byte_count)
        if len(self.defects) < DEFECTS_MAX:
            self.defects.append(defect)
        if self._on_corruption == "stop":
            self.done = True
            return False
        logger.warning("skipped %s", defect)
        return True

    def _corrupt(self, reader: SegmentReader, place: int, reason: str, message: str = "") -> ChiplogError:
        data = read_exactly(reader.file, min(_EVIDENCE_BYTES, max(reader.size - place, 0)), place)
        position = reader.position(place)
        text = message or (
            f"damaged record ({reason}) at {position}, byte {place} of {reader.path}: found {data.hex(' ')}. "
            "Read on with on_corruption='skip', or see `chiplog repair`"
        )
        return CorruptRecord(
            text, position=position, reason=reason, path=reader.path, physical_offset=place, data=data
        )


def is_boundary(reader: SegmentReader, place: int) -> bool:
    """Whether the records before a place lead exactly there."""
    return place == reader.header_bytes or hop(reader, reader.header_bytes, reader.size, place) == place


def is_torn(reader: SegmentReader, place: int) -> bool:
    """Whether a defect in the last segment is a torn tail, and not damage to what had been synced."""
    mark = read_mark(reader.directory)
    if mark is not None:
        if mark.segment > reader.number or (mark.segment == reader.number and place < mark.offset):
            return False
        if mark.boot != boot_digest(reader.directory.files.boot_id()):
            return True  # power was lost: what was not synced may have got to the disk in any order
    # Since this boot, or by another program: torn only if nothing good comes after it.
    return resync(reader, place) >= reader.size


def header_is_torn(reader: SegmentReader) -> bool:
    """Whether a bad header of the last segment is what a crash left of a segment that was being created."""
    if reader.size < reader.header_bytes:
        return True
    mark = read_mark(reader.directory)
    if mark is not None:
        # The header is synced before the first record is written: with records behind it, it isn't torn.
        return mark.segment < reader.number and reader.size == reader.header_bytes
    return reader.header_blank and resync(reader, 0) >= reader.size


def resync(reader: SegmentReader, place: int) -> int:
    """The physical offset at which records go on after damage at `place`; the segment's end if nowhere."""
    fmt = reader.directory.format
    for reach in (_PROBE_BYTES, _SEARCH_BYTES):  # mostly the next record is near: look there first
        window = read_exactly(reader.file, min(reach, reader.size - place), place)
        # The damaged record's own length may still be right. Trusting it first keeps what its payload
        # contains, which could be records too, from being taken for the log's.
        after, reason, need = fmt.hop(window, 0, len(window), 1, TIME_MIN)
        if place + after == reader.size:
            return reader.size
        if after == 0 and reason == TRUNCATED and need < NEED_MAX and need > reader.size - place:
            after = need  # it would end past the end of the file, where nobody knows exactly
            break
        if reason not in (END, TRUNCATED) and after < len(window):
            probe = fmt.scan(window, after, len(window), 0, 1)
            if probe.reason == TRUNCATED and probe.need <= reader.size - place - after:
                want = min(probe.need + fmt.record_tail_bytes_max, reader.size - place - after)
                window = read_exactly(reader.file, want, place + after)  # a record larger than the window
                probe = fmt.scan(window, 0, len(window), 0, 1)
            if probe.offsets:
                return place + after
            break
    found = _search(reader, place)
    if place + after > reader.size and not _chain_ends(reader, found):
        # A record that the file is too short for, with records in it: its payload's, not the log's.
        return reader.size
    return found


def _chain_ends(reader: SegmentReader, place: int) -> bool:
    """Whether right records lead from a place exactly to the segment's end."""
    need = 0
    while place < reader.size:
        window = read_exactly(reader.file, min(max(BLOCK_BYTES, need), reader.size - place), place)
        scan = reader.directory.format.scan(window, 0, len(window), 0, BLOCK_ROWS)
        if not scan.offsets and (scan.reason != TRUNCATED or scan.need > reader.size - place):
            return False
        need = 0 if scan.offsets else scan.need + reader.directory.format.record_tail_bytes_max
        place += scan.end
    return True


def _search(reader: SegmentReader, place: int) -> int:
    """Look for a record at every byte after `place`, first nearby, then further."""
    fmt = reader.directory.format
    window = read_exactly(reader.file, min(_PROBE_BYTES, reader.size - place), place)
    final = place + len(window) == reader.size
    found = fmt.find(window, 1, len(window), final) if len(window) > 1 else -1
    if found >= 0 or final:
        return place + found if found >= 0 else reader.size
    window = read_exactly(reader.file, min(_SEARCH_BYTES, reader.size - place), place)
    final = place + len(window) == reader.size
    while True:
        found = fmt.find(window, 1, len(window), final) if len(window) > 1 else -1
        if found >= 0:
            return place + found
        if final:
            return reader.size
        place += max(len(window) - (1 << 20), 1)
        window = read_exactly(reader.file, min(_SEARCH_BYTES, reader.size - place), place)
        final = place + len(window) == reader.size
