"""Small answers to a client whose socket is full, joined into larger pieces.

A transport keeps each piece that it can't send yet, with some hundred bytes around it. A client that asks much and
reads nothing would have answers of a few bytes kept that way, and cost far more memory than their bytes say. While
a socket is full, small answers are therefore collected here, and given to the transport some kilobytes at a time,
or when the socket is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SMALL_BYTES = 1024
"""A piece of this size or more is given to the transport as it is."""
JOINED_BYTES = 4096
WAIT_SECONDS, WAIT_SECONDS_MAX = 0.005, 1.0
"""The first and the longest pause before looking whether the socket is empty; each is twice the one before."""


class Joined:
    """The small answers that wait for one socket.

    `write` gives bytes to the transport, and returns how many bytes it hasn't sent yet.
    """

    __slots__ = ("_bytes", "_loop", "_pause", "_timer", "_write")

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes | bytearray], int]) -> None:
        self._loop = loop
        self._write = write
        self._bytes = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = WAIT_SECONDS

    def __len__(self) -> int:
        return len(self._bytes)

    def send(self, data: bytes, waiting: int) -> None:
        """Send bytes after all earlier ones, while so many of those wait for the socket."""
        if not (waiting or self._bytes):
            self._write(data)
            return
        if len(data) >= SMALL_BYTES:
            self.flush()
            self._write(data)
            return
        self._bytes += data
        if len(self._bytes) >= JOINED_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._pause, self._look)

    def flush(self) -> None:
        """Give everything to the transport."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._bytes:
            data, self._bytes = self._bytes, bytearray()
            self._write(data)

    def close(self) -> None:
        """Forget everything: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._bytes.clear()
        self._write = len  # the connection isn't referred to any more

    def _look(self) -> None:
        """Give it to the transport if the socket is empty."""
        self._timer = None
        if self._write(b""):
            self._pause = min(2 * self._pause, WAIT_SECONDS_MAX)
            self._timer = self._loop.call_later(self._pause, self._look)
        else:
            self._pause = WAIT_SECONDS
            self.flush()
