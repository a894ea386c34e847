"""One side of a connection of a process: what asyncio calls a transport."""

from __future__ import annotations

import asyncio
import errno
import os
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from forelog.testing.world.core import Core, Steps

_WINDOW_BYTES = 64 << 10
"""Bytes that may be on their way in one direction: sent, and not yet read by the other program."""


def reset_error() -> ConnectionResetError:
    """The error of a broken connection."""
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class Wired(Steps, Protocol):
    """What a transport needs of its process."""

    transports: dict[Transport, None]

    @property
    def label(self) -> str:
        """The machine's name and the process's."""

    @property
    def machine_name(self) -> str:
        """The machine's name, which is its address."""

    @property
    def ahead_ns(self) -> int:
        """How much time the current step has taken so far."""

    def call(self, callback: Callable[[], None]) -> None:
        """Call a function in the next step of the process."""


class Links(Protocol):
    """What a transport needs of the network."""

    def takes(self, source: str, target: str) -> int:
        """How long a piece takes from one machine to another."""

    def piece(self, available: int) -> int:
        """How many of these bytes travel together, or are read at once."""

    def passes(self, source: str, target: str) -> bool:
        """Whether a link lets anything through."""

    def carry(self, source: Transport, arrive: Callable[[], None], due_ns: int) -> None:
        """Deliver something to the other side of a connection, not before what was sent earlier."""


class Transport(asyncio.Transport):
    """One side of a connection."""

    peer: Transport

    def __init__(self, core: Core, network: Links, host: Wired, address: tuple[str, int]) -> None:
        super().__init__()
        self._core = core
        self._network = network
        self._host = host
        self.machine = host.machine_name
        self.address = address
        self.label = f"{host.label}:{address[1]}"
        self._protocol: Any = None
        self._out = bytearray()
        self._queue: list[Callable[[], None]] = []
        """What is on its way to the other side, in order."""
        self._in = bytearray()
        self._under_way = 0
        self._last_ns = 0
        """The earliest arrival of what is sent next: that of the last thing sent."""
        self._reading = True
        self._scheduled = False
        self._writing_paused = False
        self._low, self._high = 16 << 10, 64 << 10
        self._closing = False
        self._eof_wanted = self._eof_sent = self._eof_came = self._eof_told = False
        self.is_gone = False
        """Whether this side has closed it. Whatever still arrives is answered with a reset."""
        self.is_forgotten = False
        """Whether its machine has lost power since it was opened."""
        host.transports[self] = None

    # -- its life

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Start serving a protocol."""
        if not self.is_gone:
            self._protocol = protocol
            protocol.connection_made(self)
            self._wake()

    def orphan(self, *, tell: bool) -> None:
        """Outlive its process. With `tell` the machine is still there, and closes the connection."""
        self.is_forgotten = not tell
        if self.is_gone:
            return
        if tell:
            if self._in:
                self._reset_peer()
            elif not self._eof_sent:
                self._send_end()
        self._vanish()

    def broken(self, error: OSError) -> None:
        """End the connection with an error."""
        if not self.is_gone:
            self._vanish()
            self._lost(error)

    def _vanish(self) -> None:
        self.is_gone = self._closing = True
        self._host.transports.pop(self, None)
        self._in.clear()

    def _lost(self, error: Exception | None) -> None:
        if self._host.alive and self._protocol is not None:
            self._host.call(lambda: self._protocol.connection_lost(error))

    # -- what asyncio's transports have

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer.address
        if name == "sockname":
            return self.address
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        found: asyncio.BaseProtocol = self._protocol
        return found

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._wake()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 << 10 if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not self._host.alive:
            return
        self._core.step_out(self._host, "send")
        self._out += data
        self._pump()
        if len(self._out) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._closing and not self._eof_wanted:
            self._eof_wanted = True
            self._pump()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self._out:
            self._finish()

    def abort(self) -> None:
        if self.is_gone:
            return
        self._reset_peer()
        self._vanish()
        self._lost(None)

    # -- sending

    def _pump(self) -> None:
        while self._out and self._under_way < _WINDOW_BYTES and not self.is_gone:
            count = self._network.piece(min(len(self._out), _WINDOW_BYTES - self._under_way))
            data = bytes(self._out[:count])
            del self._out[:count]
            self._under_way += count
            self._core.note("send", f"{self.label} {self.peer.label} {count} {zlib.crc32(data):08x}")
            self._carry(lambda data=data: self.peer.arrived(data))  # type: ignore[misc]
        if self._out or self.is_gone:
            return
        if self._eof_wanted and not self._eof_sent:
            self._send_end()
        if self._closing:
            self._finish()

    def _carry(self, arrive: Callable[[], None]) -> None:
        core, network = self._core, self._network
        takes_ns = network.takes(self.machine, self.peer.machine)
        self._queue.append(arrive)
        self._last_ns = max(self._last_ns + 1, core.now_ns + self._host.ahead_ns + takes_ns)
        network.carry(self, self._next_arrives, self._last_ns)

    def _next_arrives(self) -> None:
        """Handle the first thing on its way. Pieces that overtook it wait, as in TCP."""
        self._queue.pop(0)()

    def _send_end(self) -> None:
        self._eof_sent = True
        self._carry(lambda: self.peer.ended())

    def _reset_peer(self) -> None:
        peer, network = self.peer, self._network
        delay_ns = self._host.ahead_ns + network.takes(self.machine, peer.machine)
        if network.passes(self.machine, peer.machine):
            self._core.after(delay_ns, lambda: peer.broken(reset_error()))

    def _finish(self) -> None:
        """Close, because everything was sent."""
        if not self._eof_sent:
            if self._in:
                self._reset_peer()
            else:
                self._send_end()
        if not self.is_gone:
            self._host.transports.pop(self, None)
            self.is_gone = True
            self._lost(None)

    def _read_by_peer(self, count: int) -> None:
        """Note that the other side's program has read this many bytes."""
        self._under_way -= count
        if not self.is_gone and self._host.alive:
            self._host.call(self._room)

    def _room(self) -> None:
        if self.is_gone:
            return
        self._pump()
        if self._writing_paused and len(self._out) <= self._low:
            self._writing_paused = False
            self._protocol.resume_writing()

    # -- receiving

    def arrived(self, data: bytes) -> None:
        """Handle bytes that have arrived."""
        if self.is_gone:
            self._reset_peer()
            return
        self._in += data
        self._wake()

    def ended(self) -> None:
        """Handle the end of what the other side sends."""
        if not self.is_gone:
            self._eof_came = True
            self._wake()

    def _wake(self) -> None:
        ready = self._in or (self._eof_came and not self._eof_told)
        if ready and self._reading and not self._scheduled and self._protocol is not None and not self.is_gone:
            self._scheduled = True
            self._host.call(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self.is_gone or not self._reading:
            return
        if self._in:
            count = self._network.piece(len(self._in))
            data = bytes(self._in[:count])
            del self._in[:count]
            peer = self.peer
            delay_ns = self._network.takes(self.machine, peer.machine)
            self._core.after(delay_ns, lambda: peer._read_by_peer(count))
            self._hand_over(data)
        elif self._eof_came and not self._eof_told:
            self._eof_told = True
            if not self._protocol.eof_received():
                self.close()
        self._wake()

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        try:
            if isinstance(protocol, asyncio.BufferedProtocol):
                while data:
                    buffer = protocol.get_buffer(len(data))
                    count = min(len(buffer), len(data))  # type: ignore[arg-type]
                    memoryview(buffer)[:count] = data[:count]
                    protocol.buffer_updated(count)
                    data = data[count:]
            else:
                protocol.data_received(data)
        except Exception:
            self.abort()
            raise
