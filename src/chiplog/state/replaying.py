"""From records to events: what a log says happened, in order."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from chiplog import kernel
from chiplog.errors import BadEvent
from chiplog.formats import Scan
from chiplog.log.position import Position
from chiplog.log.walk import BLOCK_ROWS, Block
from chiplog.state.events import Batch, Codec, EventCodec
from chiplog.state.identity import Identity
from chiplog.state.mirror import FORMAT, Snapshot

__all__ = ["BEGIN", "COMMIT", "EVENT", "MARKER_BYTES", "RECORD_BYTES", "WRITER", "Replayer"]

EVENT, BEGIN, COMMIT, WRITER = b"\x01", b"\x02", b"\x03", b"\x04"
RECORD_BYTES = 20  # that a record takes beside its payload, about
MARKER_BYTES = {BEGIN: 9, COMMIT: 9, WRITER: 33}
"""What a log has besides events, and how many bytes each has."""

Replay = Callable[[Any], object]

_BATCH_BYTES = 1 << 16  # of events that are decoded in one step


class Replayer:
    """Takes in a log's records, hands on its events, and keeps account of its generations.

    What comes before the first BEGIN belongs to a generation that is gone. Without a `replay` nothing is decoded.
    """

    def __init__(self, path: str, codec: Codec, replay: Replay | None) -> None:
        self._path = path
        self._codec = codec
        self._batch: Callable[[bytes], Batch | None] | None = None
        if isinstance(codec, EventCodec) and type(codec).decode is EventCodec.decode:
            self._batch = codec.batch
        self._replay = replay
        self.generation = 0
        self.complete = False
        self.identity: Identity | None = None
        self.snapshot: Snapshot | None = None
        """The last whole generation."""
        self.begin_segment = 0
        """Where the last generation begins."""
        self.events = 0
        self.bytes_since_snapshot = 0

    def block(self, block: Block) -> None:
        """Some records, as a log is read."""
        self._rows(block.segment, block.buffer, block.base, block.scan, block.first, block.last)

    def data(self, position: Position, data: memoryview) -> None:
        """Some records, as they are sent: all of them whole and right."""
        at = 0
        while at < len(data):
            scan = FORMAT.scan(data, at, len(data), position.offset, BLOCK_ROWS)
            self._rows(position.segment, data, position.offset, scan, 0, len(scan.offsets))
            at = scan.end

    def _rows(self, segment: int, buffer: memoryview, base: int, scan: Scan, row: int, last: int) -> None:
        while row < last:
            payload = bytes(buffer[scan.starts[row] : scan.ends[row]])
            if payload[:1] == EVENT:
                row = self._run(segment, buffer, base, scan, row, last, payload[1:])
            else:
                after = scan.offsets[row + 1] if row + 1 < len(scan.offsets) else base + scan.end
                self._marker(payload, Position(segment, scan.offsets[row]), Position(segment, after))
                row += 1

    def _run(
        self, segment: int, buffer: memoryview, base: int, scan: Scan, row: int, last: int, first: bytes
    ) -> int:
        """Replay a row and some after it, all of them events, and return the row after them."""
        replay = self._replay
        if not self.generation or replay is None:
            after = row + len(kernel.active.pieces_after(buffer, scan.starts, scan.ends, row, last, EVENT))
            if not self.generation:
                return after
        else:
            after = self._replay_at_once(replay, buffer, scan, row, last, first)
            if after == row:
                after = self._replay_each(replay, segment, buffer, scan, row, last)
        self.events += after - row
        self.bytes_since_snapshot += scan.ends[after - 1] + base - scan.offsets[row]
        return after

    def _replay_at_once(
        self, replay: Replay, buffer: memoryview, scan: Scan, row: int, last: int, first: bytes
    ) -> int:
        """Decode those of the first one's type in one step, and replay them; none if one can't be decoded."""
        batch = self._batch(first) if self._batch is not None else None
        if batch is None:
            return row
        count, data = kernel.active.msgpack_array(
            buffer, scan.starts, scan.ends, row, last, EVENT + batch.head, 1 + batch.skip, _BATCH_BYTES
        )
        try:
            events = batch.decode(data) if count else []
        except Exception:  # which one it is, and why, is found out by taking each by itself
            return row
        for event in events:
            replay(event)
        return row + count

    def _replay_each(
        self, replay: Replay, segment: int, buffer: memoryview, scan: Scan, row: int, last: int
    ) -> int:
        decode = self._codec.decode
        for data in kernel.active.pieces_after(buffer, scan.starts, scan.ends, row, last, EVENT):
            try:
                event = decode(data)
            except Exception as error:
                raise self._bad(Position(segment, scan.offsets[row]), str(error)) from error
            replay(event)
            row += 1
        return row

    def _marker(self, payload: bytes, position: Position, after: Position) -> None:
        kind = payload[:1]
        right = len(payload) == MARKER_BYTES.get(kind)
        if kind == BEGIN and right:
            self.generation, self.complete = int.from_bytes(payload[1:], "big"), False
            self.begin_segment = position.segment
        elif kind == COMMIT and right:
            if self.generation:  # or it is the end of one whose begin is gone
                self.complete, self.bytes_since_snapshot = True, 0
                self.snapshot = Snapshot(Position(self.begin_segment, FORMAT.header_bytes), after)
        elif kind == WRITER and right:
            try:
                self.identity = Identity.decode(payload[1:])
            except struct.error as error:
                raise self._bad(position, str(error)) from error
        else:
            raise self._bad(position, f"it begins with {payload[:9]!r}, expected an event or a marker")

    def _bad(self, position: Position, why: str) -> BadEvent:
        return BadEvent(f"the event at {position} of {self._path} can't be replayed: {why}", position=position)
