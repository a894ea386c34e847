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

    __slots__ = ("acks", "batch", "connection", "failed", "written")

    def __init__(
        self,
        batch: Batch,
        connection: Connection | None,
        acks: bytes = b"",
        written: Callable[[], object] | None = None,
        failed: Callable[[], object] | None = None,
    ) -> None:
        self.batch = batch
        self.connection = connection
        self.acks = acks
        self.written = written
        self.failed = failed


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

    def next_time(self) -> int:
        """The time of the next message: the clock's, unless that would go back."""
        now = time.time_ns()
        if now <= self._last_ns:
            now = self._last_ns + 1
        return now

    def start(self) -> None:
        """From the end of the log on."""
        self._last_ns = self.appender.next_time()

    def add(self, chunk: Chunk, first_ns: int) -> None:
        """Messages whose times begin here, one nanosecond after the other."""
        self._last_ns = first_ns + len(chunk.batch) - 1
        self.chunks.append(chunk)
        self.pending_bytes += len(chunk.batch.data)

    def encode(
        self, topic: str, payload: bytes, properties: dict[str, Any], sender: str | None
    ) -> tuple[Batch, int]:
        """One message, and its time."""
        now = self.next_time()
        data = _FORMAT.encode(_FORMAT.item(topic, payload, properties), now)
        starts = array("q", [0])
        columns = kernel.active.message_columns(data, starts, 0, 0, 1)
        flags = kernel.active.messages_flags(data, columns[4], columns[5])
        return Batch(data, starts, columns[:2], columns[2:4], flags, sender, columns[4:6]), now

    def write(self) -> list[Chunk]:
        """All of it, with one write. If that fails it raises, and nothing of it is in the log."""
        chunks, self.chunks = self.chunks, []
        self.pending_bytes = 0
        try:
            if len(chunks) == 1:
                data, starts = chunks[0].batch.data, chunks[0].batch.starts
            else:
                data, starts = b"".join([chunk.batch.data for chunk in chunks]), array("q")
                shift = 0
                for chunk in chunks:
                    starts.extend(shift + start for start in chunk.batch.starts)
                    shift += len(chunk.batch.data)
            positions = self.appender.append_encoded(data, starts)
        except BaseException:
            for chunk in chunks:
                if chunk.failed is not None:
                    chunk.failed()
            self._failed = chunks
            raise
        segment, base = positions[0]
        for chunk in chunks:
            chunk.batch.placed(segment, base)
            base += len(chunk.batch.data)
        self.messages += len(starts)
        return chunks

    def failed_connections(self) -> list[Connection]:
        """Whose messages the last write was to have."""
        found = {chunk.connection: None for chunk in self._failed if chunk.connection is not None}
        self._failed = []
        return list(found)

    def reopen(self) -> None:
        """After a failure that is final: look at what is really there, and go on."""
        self.appender.close()
        self.appender = self._open_appender()
