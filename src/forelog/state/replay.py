"""From a log's records to its events, generations and openings, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forelog import kernel
from forelog.copies import lineage
from forelog.copies.identity import Identity
from forelog.copies.snapshot import Snapshot
from forelog.errors import BadEvent, CorruptRecord
from forelog.formats import Block, Scan
from forelog.formats.state import BEGIN, COMMIT, EVENT, FORMAT, GROUP, MARKER_BYTES, WRITER, events_in
from forelog.log.damage import BLOCK_ROWS
from forelog.log.position import Position
from forelog.state.events import Batch, Codec, EventCodec

Replay = Callable[[Any], object]
ReplayGroup = Callable[[list[Any]], object]

_BATCH_BYTES = 1 << 16  # of events decoded in one step


def is_marker(payload: bytes) -> bool:
    """Whether a record is a BEGIN, COMMIT or WRITER record of a valid size."""
    if payload[:1] == WRITER:
        return lineage.is_encoded(len(payload) - 1)
    return payload[:1] in (BEGIN, COMMIT) and len(payload) == MARKER_BYTES


class Replayer:
    """Reads a log's records, calls `replay` with each event, and tracks the generations.

    Records before the first BEGIN belong to a generation that was dropped. Without a `replay` nothing is decoded.
    Events of a group are all decoded before the first is replayed; `replay_group` gets them as one list.
    """

    def __init__(
        self, path: str, codec: Codec, replay: Replay | None, replay_group: ReplayGroup | None = None
    ) -> None:
        self._path = path
        self._codec = codec
        self._batch: Callable[[bytes], Batch | None] | None = None
        if isinstance(codec, EventCodec) and type(codec).decode is EventCodec.decode:
            self._batch = codec.batch
        self._replay = replay
        self._replay_group = replay_group or self._replay_in_turn
        self.generation = 0
        """The number of the newest generation."""
        self.complete = False
        """Whether that generation is whole."""
        self.identity: Identity | None = None
        """The opening that wrote last."""
        self.openings: tuple[lineage.Opening, ...] = ()
        """The openings of the same term that came before that one."""
        self.end = Position(0, 0)
        """The position after the last record."""
        self.snapshot: Snapshot | None = None
        """The last whole generation."""
        self.begin_segment = 0
        """The segment where the newest generation begins."""
        self.events = 0
        """Events that were replayed."""
        self.bytes_since_snapshot = 0
        self._first: int | None = None
        """The number of the first BEGIN that was read; None before that."""
        self._last_segment = 0
        self._holes: list[int] = []
        """Segments that follow a missing segment."""

    def block(self, block: Block) -> None:
        """Take records that were read from the log."""
        if self._last_segment and block.segment > self._last_segment + 1 and not _begins_an_opening(block):
            self._holes.append(block.segment)
        self._last_segment = block.segment
        self._rows(block.segment, block.buffer, block.base, block.scan, block.first, block.last)
        self.end = Position(block.segment, block.logical_end)

    def data(self, position: Position, data: memoryview) -> None:
        """Take records that were received from a log: whole and checked."""
        at = 0
        while at < len(data):
            scan = FORMAT.scan(data, at, len(data), position.offset, BLOCK_ROWS)
            self._rows(position.segment, data, position.offset, scan, 0, len(scan.offsets))
            at = scan.end

    def _rows(self, segment: int, buffer: memoryview, base: int, scan: Scan, row: int, last: int) -> None:
        rows = len(scan.offsets)
        while row < last:
            payload = bytes(buffer[scan.starts[row] : scan.ends[row]])
            if payload[:1] == EVENT:
                row = self._run(segment, buffer, base, scan, row, last, payload[1:])
            else:
                begin, after = scan.offsets[row], scan.offsets[row + 1] if row + 1 < rows else base + scan.end
                if payload[:1] == GROUP:
                    self._group(payload, Position(segment, begin))
                    self.bytes_since_snapshot += after - begin if self.generation else 0
                else:
                    self._marker(payload, Position(segment, begin), Position(segment, after))
                row += 1
            self.end = Position(segment, scan.offsets[row] if row < rows else base + scan.end)

    def _run(
        self, segment: int, buffer: memoryview, base: int, scan: Scan, row: int, last: int, first: bytes
    ) -> int:
        """Replay the events from a row on, and return the first row that was not replayed."""
        replay = self._replay
        if not self.generation or replay is None:
            after = row + len(kernel.pieces_after(buffer, scan.starts, scan.ends, row, last, EVENT))
            if not self.generation:
                return after
        else:
            after = self._replay_at_once(replay, buffer, scan, row, last, first)
            if after == row:
                after = self._replay_each(replay, segment, buffer, scan, row, last)
        self.events += after - row
        self.bytes_since_snapshot += scan.ends[after - 1] + base - scan.offsets[row]
        return after

    def _group(self, payload: bytes, position: Position) -> None:
        """Replay the events of a group: all of them, or none if one can't be decoded."""
        if not self.generation:
            return
        try:
            events = events_in(payload)
            found = [] if self._replay is None else [self._codec.decode(data) for data in events]
        except Exception as error:
            raise self._bad(position, str(error)) from error
        if self._replay is not None:
            self._replay_group(found)
        self.events += len(events)

    def _replay_in_turn(self, events: list[Any]) -> None:
        assert self._replay is not None
        for event in events:
            self._replay(event)

    def _replay_at_once(
        self, replay: Replay, buffer: memoryview, scan: Scan, row: int, last: int, first: bytes
    ) -> int:
        """Decode the events of the first one's type in one step, and replay them; none if one can't be decoded."""
        batch = self._batch(first) if self._batch is not None else None
        if batch is None:
            return row
        count, data = kernel.msgpack_array(
            buffer, scan.starts, scan.ends, row, last, EVENT + batch.head, 1 + batch.skip, _BATCH_BYTES
        )
        try:
            events = batch.decode(data) if count else []
        except Exception:  # the caller decodes each by itself, and finds out which one fails
            return row
        for event in events:
            replay(event)
        return row + count

    def _replay_each(
        self, replay: Replay, segment: int, buffer: memoryview, scan: Scan, row: int, last: int
    ) -> int:
        decode = self._codec.decode
        for data in kernel.pieces_after(buffer, scan.starts, scan.ends, row, last, EVENT):
            try:
                event = decode(data)
            except Exception as error:
                raise self._bad(Position(segment, scan.offsets[row]), str(error)) from error
            replay(event)
            row += 1
        return row

    def _marker(self, payload: bytes, position: Position, after: Position) -> None:
        kind = payload[:1]
        if not is_marker(payload):
            raise self._bad(position, f"it begins with {payload[:9]!r}, expected an event or a marker")
        if kind == BEGIN:
            self.generation, self.complete = int.from_bytes(payload[1:], "big"), False
            self.begin_segment = position.segment
            self._first = self._first or self.generation
        elif kind == COMMIT:
            if self.generation:  # else its BEGIN was dropped
                self.complete, self.bytes_since_snapshot = True, 0
                self.snapshot = Snapshot(Position(self.begin_segment, FORMAT.header_bytes), after)
        else:
            self._writer(payload[1:])

    def _writer(self, data: bytes) -> None:
        identity, openings = lineage.decode(data)
        before = self.openings if self.identity is None or self.identity.term == identity.term else ()
        self.identity, self.openings = identity, lineage.merged(before, openings)

    def check_nothing_is_missing(self) -> None:
        """Raise if segments are missing from a log that was read to its end. The rest is not its state."""
        if self._last_segment and self.snapshot is None and self._first != 1:
            raise self._missing(self._last_segment, "its first segments")
        start = self.begin_segment if self.snapshot is None else self.snapshot.begin.segment
        for segment in self._holes:
            if segment > start:
                raise self._missing(segment, f"the segments before {FORMAT.segment_name(segment)}")

    def _missing(self, segment: int, what: str) -> CorruptRecord:
        return CorruptRecord(
            f"{self._path} can't be opened: {what} are missing. Nothing was dropped. Put the files back, or open "
            "a copy; `forelog state inspect --events` shows what is left",
            position=Position(segment, FORMAT.header_bytes),
            reason="missing",
            path=f"{self._path}/{FORMAT.segment_name(segment)}",
            physical_offset=0,
            data=b"",
        )

    def _bad(self, position: Position, why: str) -> BadEvent:
        return BadEvent(f"the event at {position} of {self._path} can't be replayed: {why}", position=position)


def _begins_an_opening(block: Block) -> bool:
    """Whether a block begins with a WRITER record. An opening may skip a segment's number."""
    return bytes(block.buffer[block.scan.starts[block.first] :][:1]) == WRITER
