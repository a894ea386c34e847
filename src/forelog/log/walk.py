"""The bulk path under all reading: segments as columns, block by block.

Cursors, scans, cleaning, verification and recovery all read through a `Walk`. It opens segments in order,
reads them in blocks, has the kernel turn each block into columns, and hands those out. It decides what a
defect is (a torn tail or damage) and does what its caller chose about damage. It holds one block at a
time, whatever the size of the log. Between two blocks segments may grow, roll and be rewritten.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from forelog.errors import BadPosition, CorruptRecord, ForelogError, HeaderMismatch
from forelog.formats import Block, Scan
from forelog.kernel.types import END, TRUNCATED
from forelog.log.damage import BLOCK_BYTES, BLOCK_ROWS, header_is_torn, is_boundary, is_torn, resync
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import read_end
from forelog.log.directory.foreign import check_position
from forelog.log.directory.place import TAIL_BYTES, read_exactly
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.watermark import read_mark
from forelog.log.metrics import Metrics
from forelog.log.position import Position
from forelog.log.seek import TimeBounds

logger = logging.getLogger("forelog")

Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all."""
OnCorruption = Literal["raise", "stop", "skip"]

DEFECTS_MAX = 1000
LOG_START = Position(0, 0)
BAD_MAP = "map"  # a rewritten segment's positions are unknown, though its records may all be right
_EVIDENCE_BYTES = 32


class Defect(NamedTuple):
    """A place where a segment's bytes are not whole records, and the number of such bytes."""

    position: Position
    """The position at which the place begins."""
    reason: str
    """One word or two for what is wrong."""
    path: str
    """The segment's file."""
    physical_offset: int
    """Where the place begins in the file."""
    byte_count: int
    """How many bytes the place has."""
    torn: bool
    """Whether it is the torn tail of the last segment, which opening the log to append cuts off."""

    def __str__(self) -> str:
        kind = "torn tail" if self.torn else "damage"
        return f"{self.position} {kind} ({self.reason}), {self.byte_count} bytes in {self.path}"


def check_on_corruption(choice: str) -> None:
    """Raise ValueError unless this is a valid choice for `on_corruption`."""
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
        at_record: bool = False,
    ) -> None:
        check_on_corruption(on_corruption)
        self.directory = directory
        self.position = start
        self._start = None if at_record else start
        """The start, if it isn't certain that a record begins there."""
        self.torn: Defect | None = None
        self.defects: list[Defect] = []
        self.done = False
        self._stop = stop
        bounded = since_ns is not None or until_ns is not None
        self._times = TimeBounds(directory, since_ns, until_ns) if bounded else None
        self._rest: tuple[Scan, int] | None = None
        """The rows of the last scan that are still to be looked at, from this one on."""
        self._on_corruption = on_corruption
        self._metrics = metrics or Metrics()
        self._block_bytes = block_bytes
        self._block_rows = block_rows
        self._numbers = numbers or []  # from a listing that the caller has made
        self._reader: SegmentReader | None = None
        self._at = 0  # physical offset of the next record to scan
        self._known: tuple[Position, bytes] | None = None
        """The bytes before the place that was read up to: if they are others by now, so is what follows them."""
        self._storage = bytearray(block_bytes)
        self._buffer = memoryview(self._storage)
        self._base = 0
        self._filled = 0

    # -- for callers

    def check_start(self) -> None:
        """Raise BadPosition for a start in a segment that doesn't exist yet: no such position was ever given
        out."""
        if self.position.segment <= read_end(self.directory).segment:
            return
        last = self.directory.last()
        if self.position.segment > last:
            raise BadPosition(
                f"position {self.position} lies past the end of the log, whose last segment is {last}: it "
                "belongs to another log, or to this one before it was made anew"
            )

    def __iter__(self) -> Iterator[Block]:
        while (block := self.next_block()) is not None:
            yield block

    def next_block(self) -> Block | None:
        """The next block of records; None at the end, for now or, if `done`, for ever."""
        while not self.done:
            reader = self._reader or self._open_next()
            if reader is None:
                return None
            if self._rest is not None:
                block = self._trim(reader, *self._rest)
                if block is not None:
                    return block
                continue
            scan, stop = self._scan(reader)
            if scan.offsets:
                block = self._trim(reader, scan, 0)
                if block is not None:
                    return block
            elif not self._past(reader, scan, stop):
                return None
        return None

    def revalidate(self) -> None:
        """Check for files that were replaced or cut while the lock was released.

        Raises BadPosition if the records that were read last are gone, because the place to continue is then
        unknown.
        """
        self._filled = 0
        reader = self._reader
        if reader is None:
            return
        if reader.replaced():
            self._close_reader()
        elif self._rest is None:  # or the buffer has rows that come first
            reader.refresh()
            self._check_known(reader)

    def _check_known(self, reader: SegmentReader) -> None:
        """Raise BadPosition if the records that were read last have changed. What follows them is read along
        with them."""
        if self._known is None or reader.rewritten or self._known[0] != reader.position(self._at):
            return
        known = self._known[1][-self._block_bytes :]
        want = min(self._block_bytes, len(known) + max(self._stop_offset(reader) - self._at, 0))
        whole = self._read(reader, want, self._at - len(known))
        if self._buffer[: min(len(known), self._filled)] != known:
            raise self._cut(reader)
        if not whole:
            self._filled = 0  # the next look finds out that the file has less than it said

    def close(self) -> None:
        self._close_reader()
        self.done = True

    # -- opening segments

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._filled = 0
        self._rest = None

    def _next_number(self, after: int) -> int | None:
        """The next segment, from the caller's listing or from the directory."""
        place = bisect_right(self._numbers, after)
        return self._numbers[place] if place < len(self._numbers) else self.directory.following(after)

    def _open_next(self) -> SegmentReader | None:
        after = self.position.segment - 1
        while True:
            number = self._next_number(after)
            if number is None:
                return None
            if self._stop is not None and Position(number, self.directory.format.header_bytes) >= self._stop:
                self.done = True
                return None
            after = number
            try:
                reader = SegmentReader(self.directory, number)
            except FileNotFoundError:
                continue  # cleaned away since it was listed: then there is one after it
            if number != self.position.segment:
                self.position = Position(number, 0)
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
        try:
            self.position = check_position(self.position, reader.index, reader.path, reader.header_bytes)
        except BadPosition:
            self._close_reader()
            raise
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
        self._check_known(reader)
        if self._times is not None:
            self._at = self._times.first_place(reader, self._at)
        return reader

    def _bad_header(self, reader: SegmentReader) -> bool:
        """Handle a segment with a bad header. Returns whether to continue with the next segment."""
        short = reader.size < reader.header_bytes
        if self._next_number(reader.number) is None and header_is_torn(reader):
            if reader.size:
                self._note_torn(reader, 0, "header")
            return False
        message = (
            f"{reader.path} {reader.header_defect}: it belongs to another log, or its header is damaged. "
            "`forelog verify` tells more"
        )
        if self._on_corruption == "raise":
            if not short:
                raise HeaderMismatch(message)
            raise self._corrupt(reader, 0, "header", message)
        logger.warning("%s", message)
        return self._skipped(reader, 0, "header", reader.size)

    def _bad_map(self, reader: SegmentReader) -> bool:
        """Handle a bad map. Returns whether to read the rewritten segment without it, as if nothing had moved."""
        message = (
            f"the map {reader.index_path} is damaged: {reader.path} was rewritten, and its positions can't be "
            "told. `forelog repair` makes a new map; on_corruption='skip' takes offsets in the file for positions"
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
            if not self._base <= self._at < self._base + self._filled and not self._fill(reader, stop, need):
                reader.refresh()  # the file is shorter than it was a moment ago
                stop = self._stop_offset(reader)
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

    def _fill(self, reader: SegmentReader, stop: int, need: int) -> bool:
        """Read the next bytes. Returns False if the file has become shorter."""
        return self._read(reader, min(max(self._block_bytes, need), max(stop - self._at, 0)), self._at)

    def _read(self, reader: SegmentReader, want: int, place: int) -> bool:
        """Read a number of bytes into the buffer. Returns False if there are fewer."""
        if len(self._storage) != max(want, self._block_bytes):
            self._buffer.release()
            self._storage = bytearray(max(want, self._block_bytes))
            self._buffer = memoryview(self._storage)
        self._base = place
        self._filled = reader.file.read_into(self._buffer[:want], place)
        return self._filled == want

    def _trim(self, reader: SegmentReader, scan: Scan, row: int) -> Block | None:
        """The next rows of a scan, from a row on, that are inside the time bounds; None if there are none."""
        first, last, self._rest = 0, len(scan.offsets), None
        if self._times is not None:
            first, last = self._times.rows(reader.number, self._buffer, self._base, scan, row)
            self.done = self._times.done
            if not self._times.order.holds(reader.number) and last < len(scan.offsets):
                self._rest = scan, last
        return self._block(reader, scan, first, last)

    def _block(self, reader: SegmentReader, scan: Scan, first: int, last: int) -> Block | None:
        before, self._at = self._at, self._base + scan.end
        offsets = reader.index.logical_column(scan.offsets) if reader.index else scan.offsets
        place = reader.position(self._at)
        self.position = Position(reader.number, offsets[last]) if last < len(offsets) else place
        self._known = place, bytes(self._buffer[max(scan.end - TAIL_BYTES, 0) : scan.end])
        self._metrics.add(records_read=last - first, bytes_read=self._at - before)
        if first == last:
            return None
        end = self.position.offset
        return Block(reader.number, reader.path, self._buffer, self._base, scan, offsets, first, last, end)

    # -- ends and defects

    def _past(self, reader: SegmentReader, scan: Scan, stop: int) -> bool:
        """Handle a place where no record could be read. Returns whether there is more to read."""
        if self._stop is not None and self._stop.segment == reader.number and self._at >= stop:
            self.done = True
            return False
        following = self._next_number(reader.number)
        if reader.refresh():
            self._filled = 0
            self._check_known(reader)
            return True  # it grew since the last look, or was cut
        if self._at > reader.size:
            raise self._cut(reader)
        if scan.reason == END:
            return self._leave(reader, following)
        return self._defect(reader, reader.directory.format.reasons[scan.reason], last=following is None)

    def _cut(self, reader: SegmentReader) -> BadPosition:
        return BadPosition(
            f"{reader.path} was read up to {reader.position(self._at)}, and what comes before that is different "
            "by now: it was cut or written anew, by another program or by a restore. Open a new cursor, at the "
            "start or at a position from before the change"
        )

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
        mark = read_mark(reader.directory)
        if not self._is_still_there(reader, place, reason):
            return True  # a record that was being written, and was finished since the first look
        if last and is_torn(reader, place, mark):
            self._note_torn(reader, place, reason)
            self._filled = 0
            return False
        if reader.position(place) == self._start and not is_boundary(reader, place):
            raise BadPosition(
                f"position {self._start} is inside of a record of {reader.path}: use a position that append, "
                "a record or a cursor of this log gave you"
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

    def _is_still_there(self, reader: SegmentReader, place: int, reason: str) -> bool:
        """Whether the defect is still there on a second reading. The mark of what was synced may be newer than
        the first."""
        self._filled = 0
        if reader.refresh():
            return False
        scan, _ = self._scan(reader)
        same = not scan.offsets and self._at == place <= reader.size and reason == self._reason(scan)
        self._filled = 0
        return same

    def _reason(self, scan: Scan) -> str | None:
        return self.directory.format.reasons.get(scan.reason)

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

    def _corrupt(self, reader: SegmentReader, place: int, reason: str, message: str = "") -> ForelogError:
        data = read_exactly(reader.file, min(_EVIDENCE_BYTES, max(reader.size - place, 0)), place)
        position = reader.position(place)
        text = message or (
            f"damaged record ({reason}) at {position}, byte {place} of {reader.path}: found {data.hex(' ')}. "
            "Read on with on_corruption='skip', or see `forelog repair`"
        )
        return CorruptRecord(
            text, position=position, reason=reason, path=reader.path, physical_offset=place, data=data
        )
