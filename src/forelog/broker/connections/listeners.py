"""Where clients come in.

A socket counts from the moment that it was accepted: one that never gets through its TLS handshake has a place
before the door, too, and a deadline. That is why the handshake begins here, and not in the server that accepts.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from forelog.bounds import check_whole
from forelog.broker.connections.connection import Connection
from forelog.serving.lobby import handshake_error, speaks_tls

if TYPE_CHECKING:
    from forelog.broker.broker import Broker
    from forelog.broker.connections.door import Guest
    from forelog.broker.connections.websocket import WebSocket

__all__ = ["listen"]

BACKLOG = 1024


async def listen(
    broker: Broker,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    websockets: bool,
    origins: Iterable[str],
) -> asyncio.Server:
    """A server for clients, in MQTT or in MQTT inside of WebSockets.

    Pages in browsers may connect from this machine, and from the `origins` that are listed; "*" is anywhere.
    """
    check_whole("port", port, least=0, most=65_535)
    make: Callable[[], Connection | WebSocket] = functools.partial(Connection, broker, plain=tls is None)
    if websockets:
        from forelog.broker.connections.websocket import WebSocket

        make = functools.partial(WebSocket, broker, tuple(origins))
    accept: Callable[[], asyncio.Protocol] = make
    if tls is not None:
        accept = functools.partial(_Lobby, broker, tls, make)
    return await broker.loop.create_server(accept, host, port, backlog=BACKLOG)


class _Lobby(asyncio.Protocol):
    """A socket that was accepted, until its TLS handshake is done."""

    def __init__(self, broker: Broker, tls: ssl.SSLContext, make: Callable[[], Connection | WebSocket]) -> None:
        self._broker = broker
        self._tls = tls
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        guest = self._broker.door.arrived(cast(asyncio.Transport, transport))
        if guest is None:
            return
        # The socket goes on under another transport, with TLS: this one hasn't read anything of it yet.
        own = transport.get_extra_info("socket")
        try:
            copy = socket.socket(own.family, own.type, own.proto, fileno=os.dup(own.fileno()))
        except OSError as error:  # there are no more files
            self._failed(guest, error)
            return
        cast(asyncio.Transport, transport).abort()
        task = self._broker.later(self._shake_hands(copy, guest))
        task.add_done_callback(lambda done: copy.close() if done.cancelled() else None)  # it may not have begun
        guest.abort = task.cancel

    async def _shake_hands(self, copy: socket.socket, guest: Guest) -> None:
        broker = self._broker
        made = self._make()
        made.take_place(guest)
        try:
            copy.setblocking(False)
            if not await speaks_tls(copy):  # the door's deadline ends that
                raise ssl.SSLError("the client does not speak TLS, which is expected here")
            await broker.loop.connect_accepted_socket(
                lambda: made, copy, ssl=self._tls, ssl_handshake_timeout=broker.limits.connect_seconds
            )
        except OSError as error:
            self._failed(guest, error)
            copy.close()

    def _failed(self, guest: Guest, error: OSError) -> None:
        self._broker.door.forget(guest)
        self._broker.visits.notices.warning(
            "no TLS handshake", guest.host, **{"from": guest.peer, "reason": handshake_error(error)}
        )
