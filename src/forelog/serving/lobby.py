"""Where a socket waits on an event loop until its TLS handshake is done.

A server that listens with TLS accepts plain sockets, and hands them here. Each socket has a deadline, and the
number of places is limited. If all are taken, the socket that has waited longest is closed: a client that shakes
hands at once gets in. A client that doesn't speak TLS is logged, and gets an answer in its own protocol where that
is possible.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from forelog.serving.addresses import shown
from forelog.serving.handshakes import Handshakes
from forelog.serving.notices import Notices
from forelog.serving.tls import explain

HANDSHAKE_SECONDS = 10.0
PLACES = 1000
_HANDSHAKE = 0x16


@dataclass(eq=False, slots=True)
class Lobby:
    """`loop.create_server(lobby.accept, ...)`: clients get a protocol that `make` makes once they speak TLS."""

    tls: ssl.SSLContext
    make: Callable[[], asyncio.Protocol]
    notices: Notices
    seconds: float = HANDSHAKE_SECONDS
    places: int = PLACES
    to_plain: bytes = b""
    """What a client that doesn't speak TLS is sent."""
    _waiting: dict[asyncio.Task[None], str] = field(default_factory=dict, init=False)
    _handshakes: Handshakes = field(default_factory=Handshakes, init=False)

    @property
    def waiting(self) -> int:
        """How many sockets are here."""
        return len(self._waiting)

    def accept(self) -> asyncio.Protocol:
        """A protocol for a socket that was accepted."""
        return _Accepted(self)

    def close(self) -> None:
        """Let everybody go."""
        for task in list(self._waiting):
            task.cancel()

    def take(self, sock: socket.socket, peer: str) -> None:
        """A socket has come."""
        if len(self._waiting) >= self.places:
            first = next(iter(self._waiting))
            gone = self._waiting.pop(first)
            first.cancel()
            self.notices.warning("no TLS handshake", _host(gone), from_=gone, reason="others need its place")
        task = asyncio.get_running_loop().create_task(self._shake_hands(sock, peer))
        self._waiting[task] = peer

        def done(task: asyncio.Task[None]) -> None:
            self._waiting.pop(task, None)
            if task.cancelled():  # it may not have begun
                sock.close()

        task.add_done_callback(done)

    async def _shake_hands(self, sock: socket.socket, peer: str) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                if not await speaks_tls(sock):
                    with contextlib.suppress(OSError):
                        sock.recv(1 << 16)  # or closing it would be a reset, and the answer lost
                        sock.send(self.to_plain)
                        sock.shutdown(socket.SHUT_WR)
                    raise ssl.SSLError("the client does not speak TLS, which is expected here")
                async with self._handshakes.turn(_host(peer)):
                    await asyncio.get_running_loop().connect_accepted_socket(
                        self.make, sock, ssl=self.tls, ssl_handshake_timeout=self.seconds
                    )
        except (OSError, TimeoutError) as error:
            sock.close()
            self.notices.warning("TLS refused", _host(peer), from_=peer, reason=handshake_error(error))


class _Accepted(asyncio.Protocol):
    """A socket of which nothing was read yet."""

    def __init__(self, lobby: Lobby) -> None:
        self._lobby = lobby

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The socket continues under another transport, with TLS.
        own = transport.get_extra_info("socket")
        name = transport.get_extra_info("peername") or ("-", 0)
        try:
            sock = socket.socket(own.family, own.type, own.proto, fileno=os.dup(own.fileno()))
        except OSError:  # there are no more files
            return
        finally:
            cast(asyncio.Transport, transport).abort()
        sock.setblocking(False)
        self._lobby.take(sock, shown(*name[:2]))


async def speaks_tls(sock: socket.socket) -> bool:
    """Whether the first byte that comes is one of a TLS handshake; it stays there. OSError if none comes."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await _readable(loop, sock)
            continue
        if not first:
            raise ConnectionResetError("closed before the TLS handshake")
        return first[0] == _HANDSHAKE


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


def handshake_error(error: BaseException) -> str:
    """Why there was no TLS handshake."""
    if isinstance(error, TimeoutError):
        return "not in time"
    if isinstance(error, ssl.SSLError):
        return explain(error)
    return str(error) or type(error).__name__


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]
