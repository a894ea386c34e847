"""MQTT over WebSockets, for browsers and networks that allow only HTTP.

A connection behind a WebSocket is like any other: it gets the bytes of all frames, and what it writes goes out in
binary frames. The library `websockets` parses frames, with its part that does no I/O. Compression is off, because
a small frame could then become a large message and fill the memory.

A browser sends the origin of the page that connects. Only pages of this machine and of listed origins are
accepted. Otherwise any web page could talk to a broker that trusts everybody on the reader's machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from forelog.broker.connections.admission import Pending
from forelog.broker.connections.connection import Connection
from forelog.broker.connections.inputs import Input
from forelog.broker.connections.services import Services
from forelog.errors import MissingExtra

try:
    from websockets.frames import CloseCode, Frame, Opcode
    from websockets.http11 import Request
    from websockets.protocol import State
    from websockets.server import ServerProtocol
    from websockets.typing import Subprotocol
except ImportError as error:
    raise MissingExtra.needed("websockets", by="MQTT over WebSockets", extra="broker") from error

PATHS = ("/", "/mqtt")
HANDSHAKE_BYTES_MAX = 16 << 10
SLICE_BYTES = 4096
"""Bytes that are parsed at a time: frames may be as small as two bytes."""
SLICE_SECONDS = 0.005
"""How long frames are parsed before other clients have their turn."""
_LOGGER = logging.Logger("forelog.websockets", logging.CRITICAL + 1)
"""A logger for the library that is always silent: its messages would show frames with passwords."""


class WebSocket(Input):
    """A socket that carries frames, and the connection inside of it."""

    def __init__(self, services: Services, origins: Iterable[str] = ()) -> None:
        self._services = services
        self._inputs = services.inputs
        self._origins = frozenset(origins)
        self._protocol = ServerProtocol(
            subprotocols=[Subprotocol("mqtt")], max_size=services.limits.connect_bytes_max + 5, logger=_LOGGER
        )
        self._connection = Connection(services)
        self._handshake_bytes = 0
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._later = b""
        """Bytes to parse later; until then nothing more is read."""
        self._inside_paused = False
        self._closing: asyncio.TimerHandle | None = None

    def take_place(self, pending: Pending) -> None:
        """Take over the place that the socket got before the TLS handshake."""
        self._connection.take_place(pending)

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._connection.connection_made(_Inside(self, self.transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._later = b""
        self._inputs.drop(self)
        if self._closing is not None:
            self._closing.cancel()
        self._connection.connection_lost(error)
        self._connection.transport = self.transport  # so that neither refers to the other any more

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._later:  # earlier bytes come first
            self._later += data
            return
        begun = time.monotonic()
        for at in range(0, len(data), SLICE_BYTES):
            if at and (self._inside_paused or time.monotonic() - begun > SLICE_SECONDS):
                self._later = data[at:]
                self.transport.pause_reading()
                self._services.loop.call_soon(self._go_on)
                return
            if not self._take(data[at : at + SLICE_BYTES]):
                return

    def waits(self) -> bool:
        return bool(self._later) or self._inside_paused

    def _go_on(self) -> None:
        if self._inside_paused or not self._later:
            return
        data, self._later = self._later, b""
        if not self.transport.is_closing():
            self.data_received(data)
            self.go_on()

    def _take(self, data: bytes) -> bool:
        """Parse some bytes; False if no more are wanted."""
        protocol, connection = self._protocol, self._connection
        if protocol.state is State.CONNECTING:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self.transport.abort()
                return False
        protocol.max_message_size = connection.packet_limit + 5
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame):
                self._frame(event)
        self.send()
        kept = len(protocol.reader.buffer)
        if kept != connection.outside:
            connection.outside = kept
            connection.count_kept()
        return not self.transport.is_closing()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        self.send()
        return False

    # -- frames

    def _shake_hands(self, request: Request) -> None:
        protocol = self._protocol
        if request.path.partition("?")[0] not in PATHS:
            response = protocol.reject(404, f"MQTT is at {' and '.join(PATHS)}.\n")
        elif not all(map(self._is_welcome, request.headers.get_all("Origin"))):
            response = protocol.reject(403, "Pages from there may not connect: see --ws-origin.\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)

    def _is_welcome(self, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            return urlsplit(origin).hostname in ("localhost", "127.0.0.1", "::1")
        except ValueError:
            return False

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._connection.data_received(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT and self._protocol.state is State.OPEN:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is in binary frames")

    def send(self) -> None:
        """Send what the library has prepared; close the socket if it ends the connection."""
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self.transport.close()
        if self.transport.get_write_buffer_size():
            self._connection.check_unsent()  # the library's answers to pings count too

    def write(self, data: bytes) -> None:
        """Send bytes of the connection inside, as a frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self.send()

    def write_eof(self) -> None:
        """Ask the other side to close, once everything is sent."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self.send()
        elif self._protocol.state is State.CONNECTING:
            self.transport.close()

    def close(self) -> None:
        """Ask the other side to close, and wait for its answer for a while."""
        self.write_eof()
        self._closing = self._services.loop.call_later(self._services.limits.linger_seconds, self.transport.abort)

    def pause_reading(self) -> None:
        """Stop reading, because the connection inside takes nothing more for now."""
        self._inside_paused = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        self._inside_paused = False
        if self._later:
            self._services.loop.call_soon(self._go_on)
        else:
            self.transport.resume_reading()


class _Inside(asyncio.Transport):
    """The transport of the connection inside."""

    def __init__(self, outside: WebSocket, transport: asyncio.Transport) -> None:
        super().__init__()
        self._outside = outside
        self._transport = transport
        self._closed = False

    def write(self, data: Any) -> None:
        self._outside.write(data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outside.close()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._outside.write_eof()

    def abort(self) -> None:
        self._closed = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._outside.pause_reading()

    def resume_reading(self) -> None:
        self._outside.resume_reading()
