"""Messages as columns: a batch that was just written to the log, or was read from it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

from forelog import kernel
from forelog.formats import Block
from forelog.formats.messages.msgpack import unpack
from forelog.log.position import Position

RETAIN, SLOW = 4, 8
"""Flags of a message besides its QoS, as the kernel's `messages_flags` sets them."""
PART_BYTES_MAX = 256 << 10
"""Bytes of messages that a client is given at a time: they wait in its buffer if its socket is full."""
_CHECKSUM_BYTES = 5
_BATCH_BYTES, _ROW_BYTES = 1000, 120
"""Memory of a batch besides its data, and of each message, about."""


class StoredMessage(NamedTuple):
    """One message as an object, for messages that aren't sent in bulk."""

    time_ns: int
    topic: str
    payload: bytes
    properties: dict[str, Any]

    @property
    def qos(self) -> int:
        """The QoS that it was published with."""
        return int(self.properties.get("qos", 0))


class MessageBatch:
    """Consecutive messages of one file of the log."""

    __slots__ = (
        "_codes",
        "_weight",
        "base",
        "data",
        "end",
        "flags",
        "flags_all",
        "payload_ends",
        "payload_starts",
        "property_ends",
        "property_starts",
        "segment",
        "sender",
        "starts",
        "topic_ends",
        "topic_starts",
    )

    def __init__(
        self,
        data: bytes,
        starts: array[int],
        topics: tuple[array[int], array[int]],
        payloads: tuple[array[int], array[int]],
        flags: bytes,
        sender: str | None = None,
        properties: tuple[array[int], array[int]] | None = None,
    ) -> None:
        self.data = data
        self.starts = starts
        self.topic_starts, self.topic_ends = topics
        self.payload_starts, self.payload_ends = payloads
        self.property_starts = None if properties is None else properties[0]
        self.property_ends = None if properties is None else properties[1]
        self.flags = flags
        self.flags_all = 0
        for flag in set(flags):
            self.flags_all |= flag
        self.sender = sender
        """The id of the client that published all of them; None if there were several."""
        self.segment = self.base = self.end = 0
        self._weight = 0
        self._codes: tuple[array[int], list[bytes]] | None = None

    @classmethod
    def of_block(cls, block: Block) -> MessageBatch:
        """The messages of a block that was read from the log."""
        first, last = block.first, block.last
        begin = block.scan.offsets[first] - block.base
        end = block.scan.offsets[last - 1] - block.base + block.frame_bytes(last - 1)
        data = bytes(block.buffer[begin:end])
        starts = array("q", [offset - block.base - begin for offset in block.scan.offsets[first:last]])
        columns = kernel.message_columns(data, starts, 0, 0, last - first)
        flags = kernel.messages_flags(data, columns[4], columns[5])
        batch = cls(data, starts, columns[:2], columns[2:4], flags, None, columns[4:6])
        batch.placed(block.segment, block.offsets[first])
        return batch

    def placed(self, segment: int, base: int) -> None:
        """Note the position at which the batch is in the log."""
        self.segment, self.base, self.end = segment, base, base + len(self.data)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def weight(self) -> int:
        """An estimate of its memory. For small messages, or long topics, this is much more than the data."""
        if self._weight == 0:
            topics = sum(map(len, self.topics[1]))
            self._weight = len(self.data) + topics + _BATCH_BYTES + _ROW_BYTES * len(self.starts)
        return self._weight

    @property
    def topics(self) -> tuple[array[int], list[bytes]]:
        """The distinct topics, and for each message the number of its topic."""
        if self._codes is None:
            self._codes = kernel.topic_codes(self.data, self.topic_starts, self.topic_ends)
        return self._codes

    def position(self, row: int) -> Position:
        """The position of a message; for the row after the last, the end of the batch."""
        offset = self.base + self.starts[row] if row < len(self.starts) else self.end
        return Position(self.segment, offset)

    def covers(self, position: Position) -> bool:
        """Whether a position lies within the batch."""
        return position.segment == self.segment and self.base <= position.offset < self.end

    def row_of(self, position: Position) -> int:
        """The first row at or after a position."""
        if position.segment != self.segment:
            return 0 if position.segment < self.segment else len(self.starts)
        return bisect_left(self.starts, position.offset - self.base)

    def part(self, first: int, rows_max: int, bytes_max: int = PART_BYTES_MAX) -> int:
        """The row after a part that begins at a row. A part has at most so many rows and bytes, and at least one
        row."""
        starts = self.starts
        last, limit = min(first + rows_max, len(starts)), starts[first] + bytes_max
        if (starts[last] if last < len(starts) else len(self.data)) <= limit:
            return last
        return max(bisect_right(starts, limit, first, last) - 1, first + 1)

    def message(self, row: int) -> StoredMessage:
        """One message as an object."""
        data, start = self.data, self.starts[row]
        if self.property_starts is None or self.property_ends is None:
            after = self.starts[row + 1] if row + 1 < len(self.starts) else len(data)
            properties = data[self.payload_ends[row] : after - _CHECKSUM_BYTES]
        else:
            properties = data[self.property_starts[row] : self.property_ends[row]]
        return StoredMessage(
            time_of(data, start),
            data[self.topic_starts[row] : self.topic_ends[row]].decode(),
            data[self.payload_starts[row] : self.payload_ends[row]],
            unpack(properties),
        )


def time_of(data: bytes, start: int) -> int:
    """The time of the message that starts at an offset of the data."""
    marker = data[start + 1]
    if marker < 0x80:
        return marker
    return int.from_bytes(data[start + 2 : start + 2 + (1 << (marker - 0xCC))], "big")
