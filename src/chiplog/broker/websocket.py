"""MQTT inside of WebSockets, for browsers and for whoever may only speak HTTP.

A connection behind a WebSocket is the same as any other: it gets bytes, whatever frames they came in, and what it
writes goes out in binary frames. The frames themselves are the library's (`websockets`, its part without I/O).
Nothing is compressed: a small frame that becomes a large message would be somebody's way to fill the memory.

A browser tells where the page is from that connects: only pages of this machine may, and those from origins that
are listed. Else any page that a person looks at could speak to a broker that trusts everybody on that machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from chiplog.broker.connection import Connection
from chiplog.errors import MissingExtra

try:
    from websockets.frames import CloseCode, Frame, Opcode
    from websockets.http11 import Request
    from websockets.protocol import State
    from websockets.server import ServerProtocol
    from websockets.typing import Subprotocol
except ImportError as error:
    raise MissingExtra("websockets is not installed: pip install '.[broker]' in chiplog's folder") from error

if TYPE_CHECKING:
    from chiplog.broker.broker import Broker

__all__ = ["WebSocket"]

PATHS = ("/", "/mqtt")
HANDSHAKE_BYTES_MAX = 64 << 10
CLOSE_SECONDS = 1.0
"""For a client to answer that it is to close, before the socket is."""
_LOGGER = logging.Logger("chiplog.websockets", logging.CRITICAL + 1)
"""For the library, which would log every frame, passwords too. It is in no hierarchy: nothing turns it on."""


class WebSocket(asyncio.Protocol):
    """A socket with frames, and the connection inside of it."""

    def __init__(self, broker: Broker, origins: Iterable[str] = ()) -> None:
        self._broker = broker
        self._origins = frozenset(origins)
        self._protocol = ServerProtocol(
            subprotocols=[Subprotocol("mqtt")], max_size=broker.limits.packet_bytes_max + 5, logger=_LOGGER
        )
        self._connection = Connection(broker)
        self._handshake_bytes = 0
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._closing: asyncio.TimerHandle | None = None

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._connection.connection_made(_Inside(self, self._transport))

    def connection_lost(self, error: Exception | None) -> None:
        if self._closing is not None:
            self._closing.cancel()
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._protocol.state is State.CONNECTING:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self._transport.abort()
                return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame):
                self._frame(event)
        self.send()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        self.send()
        return False

    # -- frames

    def _shake_hands(self, request: Request) -> None:
        protocol = self._protocol
        if request.path.partition("?")[0] not in PATHS:
            response = protocol.reject(404, f"MQTT is at {' and '.join(PATHS)}.\n")
        elif not self._is_welcome(request.headers.get("Origin")):
            response = protocol.reject(403, "Pages from there may not connect: see --ws-origin.\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)

    def _is_welcome(self, origin: str | None) -> bool:
        if origin is None or "*" in self._origins or origin in self._origins:
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
        """What the protocol has to say; an end of it ends the connection."""
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._transport.close()

    def write(self, data: bytes) -> None:
        """Bytes of the connection inside, as a frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self.send()

    def close(self) -> None:
        """After what is to be sent is: ask the other side to close, and don't wait for long."""
        if self._protocol.state is not State.OPEN:
            self._transport.close()
            return
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self.send()
        self._closing = self._broker.loop.call_later(CLOSE_SECONDS, self._transport.abort)


class _Inside(asyncio.Transport):
    """What the connection inside takes for its socket."""

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
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
