"""Messages on their way into the log: what publishers sent since the last turn, and what each is to be answered.

All that the clients of one turn of the event loop have published is written with one write, and synced with one
sync if the policy says so. Only then is anybody answered, and only then is anything sent on.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chiplog import kernel
from chiplog.broker.batches import Batch
from chiplog.formats.messages import Messages
from chiplog.log.appender import Appender

if TYPE_CHECKING:
    from chiplog.broker.connection import Connection

__all__ = ["Chunk", "Intake"]

_FORMAT = Messages()


class Chunk:
    """Messages of one publisher, as bytes for the log, and what happens when they are in it, or can't be."""

    __slots__ = ("acks", "connection", "data", "failed", "flags", "found", "starts", "written")

    def __init__(
        self, connection: Connection | None, data: bytes, starts: array[int], flags: bytes, acks: bytes, found: Any
    ) -> None:
        self.connection = connection
        self.data = data
        self.starts = starts
        self.flags = flags
        self.acks = acks
        self.found = found
        """Where topics and payloads lie, if the kernel has told."""
        self.written: Callable[[], object] | None = None
        self.failed: Callable[[], object] | None = None


class Intake:
    """What is to be written."""

    def __init__(self, open_appender: Callable[[], Appender]) -> None:
        self._open_appender = open_appender
        self.appender = open_appender()
        self.chunks: list[Chunk] = []
        self.pending_bytes = 0
        self.messages = 0
        self._failed: list[Chunk] = []
        self._last_ns = 0
        self.written_ns = 0
        """The time of the last message in the log, or later."""

    def next_time(self) -> int:
        """The time of the next message: the clock's, unless that would go back."""
        now = time.time_ns()
        if now <= self._last_ns:
            now = self._last_ns + 1
        return now

    def start(self) -> None:
        """From the end of the log on."""
        self._last_ns = self.written_ns = self.appender.next_time()

    def add(self, chunk: Chunk, first_ns: int) -> None:
        """Messages whose times begin here, one nanosecond after the other."""
        self._last_ns = first_ns + len(chunk.starts) - 1
        self.chunks.append(chunk)
        self.pending_bytes += len(chunk.data)

    def encode(
        self, topic: str, payload: bytes, properties: dict[str, Any], connection: Connection | None, acks: bytes
    ) -> tuple[Chunk, int]:
        """One message, and its time."""
        now = self.next_time()
        data = _FORMAT.encode(_FORMAT.item(topic, payload, properties), now)
        starts = array("q", [0])
        columns = kernel.active.message_columns(data, starts, 0, 0, 1)
        flags = kernel.active.messages_flags(data, columns.property_starts, columns.property_ends)
        return Chunk(connection, data, starts, flags, acks, columns), now

    def write(self) -> tuple[list[Chunk], Batch]:
        """All of it, with one write. If that fails it raises, and nothing of it is in the log."""
        chunks, self.chunks = self.chunks, []
        self.pending_bytes = 0
        try:
            batch = _one(chunks[0]) if len(chunks) == 1 else _together(chunks)
            positions = self.appender.append_encoded(batch.data, batch.starts)
        except BaseException:
            for chunk in chunks:
                if chunk.failed is not None:
                    chunk.failed()
            self._failed = chunks
            raise
        batch.placed(*positions[0])
        self.messages += len(batch.starts)
        self.written_ns = self._last_ns
        return chunks, batch

    def failed_connections(self) -> list[Connection]:
        """Whose messages the last write was to have."""
        found = {chunk.connection: None for chunk in self._failed if chunk.connection is not None}
        self._failed = []
        return list(found)

    def reopen(self) -> None:
        """After a failure that is final: look at what is really there, and go on."""
        self.appender.close()
        self.appender = self._open_appender()


def _one(chunk: Chunk) -> Batch:
    found, connection = chunk.found, chunk.connection
    session = None if connection is None else connection.session
    return Batch(
        chunk.data,
        chunk.starts,
        (found.topic_starts, found.topic_ends),
        (found.payload_starts, found.payload_ends),
        chunk.flags,
        None if session is None else session.client_id,
    )


def _together(chunks: list[Chunk]) -> Batch:
    """The messages of several publishers, behind each other."""
    data = b"".join([chunk.data for chunk in chunks])
    starts, shift = array("q"), 0
    for chunk in chunks:
        if len(chunk.starts) == 1:
            starts.append(shift)
        else:
            starts.extend([shift + start for start in chunk.starts])
        shift += len(chunk.data)
    columns = kernel.active.message_columns(data, starts, 0, 0, len(starts))
    flags = b"".join([chunk.flags for chunk in chunks])
    return Batch(data, starts, columns[:2], columns[2:4], flags)
