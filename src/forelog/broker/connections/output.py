"""What is sent to a client: written to its socket at once if it can be, else counted while it waits."""

from __future__ import annotations

import asyncio
import os
from typing import cast

from forelog.broker.connections.buffers import Buffering
from forelog.broker.connections.joined import Joined
from forelog.broker.connections.services import Services

_ANSWERS_MAX = 4
"""Unsent answers that a client may have before it isn't read any more, as a multiple of `out_bytes_max`."""


class Output:
    """A connection's way out."""

    transport: asyncio.Transport
    ready: bool
    owner: str
    _closing: bool
    _paused: bool

    def prepare_output(self, services: Services) -> None:
        """Nothing was sent yet."""
        self._out = services
        self._file = -1
        """The socket's file descriptor if bytes can be written to it directly, else -1."""
        self._tight = False
        self._unsent = 0
        """Bytes that wait for its socket, as of their last count."""
        self._joined = Joined(services.loop, self._write)

    def end_output(self) -> None:
        """The connection is lost."""
        self._joined.close()

    def send(self, data: bytes) -> None:
        """Send bytes. Writes to the socket directly if it can, because a transport would wait for the loop."""
        if self._closing or self.transport.is_closing():
            return
        self._out.traffic.sent += len(data)
        waiting = self.transport.get_write_buffer_size()
        if self._file >= 0 and not (waiting or self._joined):
            try:
                sent = os.write(self._file, data)
            except OSError:  # the socket is full or broken: the transport handles that
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self._joined.send(data, waiting)
        self.check_unsent()

    def flush(self) -> None:
        """Give the transport what waits beside it."""
        self._joined.flush()

    def _write(self, data: bytes | bytearray) -> int:
        """Give bytes to the transport; returns how many wait for the socket."""
        if not (self._closing or self.transport.is_closing()):
            if data:
                self.transport.write(data)
            return self.transport.get_write_buffer_size()
        return 0

    def check_unsent(self) -> None:
        """Count what waits for the socket after a write, and hold back the client if that is too much."""
        self._count_unsent()
        buffers = self._out.buffers
        if buffers.is_tight:
            self.hold_back()
            buffers.relieve()
        if not (self.ready or self._paused or self._closing):
            # Only answers are sent now. A client that doesn't read these either isn't read from.
            limit = 0 if buffers.is_tight else _ANSWERS_MAX * self._out.limits.out_bytes_max
            if self._unsent > limit:
                self._paused = True
                self.transport.pause_reading()

    def _count_unsent(self) -> None:
        self._unsent = self.transport.get_write_buffer_size() + len(self._joined)
        self._out.buffers.unsent.set(cast(Buffering, self), self.owner, self._unsent)

    def hold_back(self) -> None:
        """Count what waits for the socket. While all sockets together have much, add nothing to a full one."""
        self._count_unsent()
        tight = self._out.buffers.is_tight
        if tight != self._tight:
            self._tight = tight
            self.transport.set_write_buffer_limits(high=0 if tight else self._out.limits.out_bytes_max)
