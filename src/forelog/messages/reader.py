"""Read messages in order, from a position or from a time.

>>> import tempfile
>>> from forelog.messages import MessageLogWriter
>>> folder = tempfile.mkdtemp()
>>> with MessageLogWriter(folder) as log:
...     times = [log.write("plant/7/temp", payload) for payload in (b"21.5", b"21.6", b"21.7")]
>>> with MessageLogReader(folder) as reader:
...     reader.recv_as_of(times[1]).payload, reader.recv().payload, reader.recv()
(b'21.6', b'21.7', None)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from forelog.closing import AsyncClosing
from forelog.files import Files
from forelog.log.cursor import Cursor
from forelog.log.position import Position
from forelog.log.stream import PathLike, PositionLike, Stream, as_position
from forelog.log.walk import Defect, OnCorruption
from forelog.messages.message import Message, message_of
from forelog.times import TimeLike


class MessageLogReader(AsyncClosing):
    """Reads a log of messages, also while it is written.

    It starts at `start`, such as the `position` of an earlier reader, or at the beginning. `recv` returns None
    at the end; with `follow` it waits there for more. `filter` is called with each topic, and returns whether
    its messages are wanted. Damage raises CorruptRecord, or with `on_corruption="skip"` is skipped and listed
    in `defects`.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        start: PositionLike | None = None,
        follow: bool = False,
        filter: Callable[[str], bool] | None = None,  # noqa: A002 - the name that users know
        on_corruption: OnCorruption = "raise",
        timeout: float | None = None,
        files: Files | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.stream = Stream(path, format="messages", files=files, clock=clock)
        self._follow = follow
        self._filter = filter
        self._on_corruption: OnCorruption = on_corruption
        self._timeout = timeout
        self._cursor = self._open(start=None if start is None else as_position(start))

    def _open(self, *, start: Position | None = None, since_ns: int | None = None) -> Cursor:
        return Cursor(
            self.stream.directory,
            self.stream.metrics,
            start=start,
            since_ns=since_ns,
            follow=self._follow,
            on_corruption=self._on_corruption,
            timeout=self._timeout,
            frames=True,
        )

    # -- receiving

    def recv(self, timeout: float | None = None) -> Message | None:
        """The next message; None at the end, or with `follow` if none came for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            rest = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            record = self._cursor.read(rest)
            if record is None:
                return None
            message = message_of(record)
            if self._filter is None or self._filter(message.topic):
                return message

    def recv_as_of(self, as_of: TimeLike, timeout: float | None = None) -> Message | None:
        """The first message of a time or later; `recv` continues after it.

        A time is RFC 3339 as in `2026-11-15T18:00:00Z`, nanoseconds since 1970, a datetime with a zone, or `-15m`
        for a time ago. The file is found by its name, and the place in it by its index.
        """
        self.seek_time(as_of)
        return self.recv(timeout)

    def seek(self, position: PositionLike) -> None:
        """Continue at a position, such as a message's `position` or `next_position`."""
        self._replace(self._open(start=as_position(position)))

    def seek_time(self, as_of: TimeLike) -> None:
        """Continue at the first message of a time or later."""
        self._replace(self._open(since_ns=self.stream.bounds(since=as_of).since_ns))

    def _replace(self, cursor: Cursor) -> None:
        self._cursor.close()
        self._cursor = cursor

    async def recv_async(self, timeout: float | None = None) -> Message | None:
        """The next message, as recv() returns it, without blocking the event loop."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            rest = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            record = await self._cursor.read_async(rest)
            if record is None:
                return None
            message = message_of(record)
            if self._filter is None or self._filter(message.topic):
                return message

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self.recv()
        if message is None:
            raise StopIteration
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = await self.recv_async()
        if message is None:
            raise StopAsyncIteration
        return message

    # -- its state

    @property
    def position(self) -> Position:
        """Where to resume: the place after the last message that was read or filtered out."""
        return self._cursor.position

    @property
    def defects(self) -> list[Defect]:
        """The damage that was skipped since the reader was opened or moved; at most the first thousand places."""
        return self._cursor.defects

    # -- closing

    def close(self) -> None:
        """Release files and locks."""
        self._cursor.close()
