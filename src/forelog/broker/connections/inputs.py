"""Reads what clients send, in turns, so that one that sends much, or many that send at once, don't hold up others.

In a round of the event loop, the clients that have sent something are read one after the other, until the time or
the bytes of the round are used up. Everybody else is read a little, to know that it is there. What was read waits,
and so does the rest in the client's socket. In later rounds these clients come first, in the order in which they
began to wait.

All clients are read into the same memory, so a connection that has sent nothing has no buffer.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Protocol

ROUND_SECONDS = 0.005
ROUND_BYTES = 4 << 20
READ_BYTES = 64 << 10
LITTLE_BYTES = 2048
"""Bytes that are read of a client that has to wait: only a read shows whether its socket is readable."""


class Source(Hashable, Protocol):
    """What `Inputs` needs of a client."""

    def pause_input(self) -> None:
        """Read nothing more from its socket."""

    def data_received(self, data: bytes) -> None:
        """Handle what was read."""

    def go_on(self) -> None:
        """Read its socket again, unless there are other reasons to wait."""


class Inputs:
    """Reads the clients that have sent something, in turns. `call_soon` is the event loop's."""

    def __init__(
        self,
        call_soon: Callable[..., Any],
        *,
        seconds: float = ROUND_SECONDS,
        bytes_max: int = ROUND_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._clock = clock
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._little = self._buffer[:LITTLE_BYTES]
        self.buffer = self._buffer
        """Where to read what a client has sent, before `read` is called; small once the round is used up."""
        self._deadline: float | None = None
        """When the time of this round is used up; None before anything was read in it."""
        self._left = 0
        """Bytes that may still be read in this round."""
        self._waiting: OrderedDict[Source, bytearray] = OrderedDict()
        """Clients that wait for their turn, with what was read of them."""

    def __len__(self) -> int:
        """The number of clients that wait for their turn."""
        return len(self._waiting)

    def read(self, client: Source, size: int) -> None:
        """Handle what was read into the buffer, or let the client wait for its turn."""
        data = bytes(self._buffer[:size])
        if self._deadline is None:
            self._begin()
        elif self._left <= 0 or self._clock() >= self._deadline:
            self.buffer = self._little
        if self.buffer is self._buffer and not (self._waiting and client in self._waiting):
            self._left -= size
            client.data_received(data)
        else:
            self._waiting.setdefault(client, bytearray()).extend(data)
            client.pause_input()

    def drop(self, client: Source) -> None:
        """Forget a client whose connection is closed."""
        self._waiting.pop(client, None)

    def _has_room(self) -> bool:
        return self._deadline is None or (self._left > 0 and self._clock() < self._deadline)

    def _begin(self) -> None:
        """Begin a round, unless one is under way."""
        if self._deadline is None:
            self._deadline, self._left = self._clock() + self._seconds, self._bytes_max
            self._call_soon(self._end)

    def _end(self) -> None:
        """End a round, and begin the next with those that wait."""
        self._deadline = None
        self.buffer = self._buffer
        while self._waiting and self._has_room():
            self._begin()
            client, data = self._waiting.popitem(last=False)
            self._left -= len(data)
            client.data_received(bytes(data))
            client.go_on()


class Input(asyncio.BufferedProtocol):
    """A protocol whose client takes its turn."""

    transport: asyncio.Transport
    _inputs: Inputs

    def data_received(self, data: bytes) -> None:
        """Handle what was read."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether the client has reasons of its own not to be read now."""
        raise NotImplementedError

    def pause_input(self) -> None:
        self.transport.pause_reading()

    def go_on(self) -> None:
        if not (self.waits() or self.transport.is_closing()):
            self.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._inputs.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._inputs.read(self, nbytes)
