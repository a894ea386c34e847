"""Where clients connect: plain sockets, TLS, WebSockets.

A socket has a place among the pending connections, and a deadline, from the moment that it is accepted. The TLS
handshake therefore starts here, after that, and not in the server that accepts the socket.
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
from forelog.broker.connections.admission import Pending
from forelog.broker.connections.connection import Connection
from forelog.broker.connections.services import Services
from forelog.serving.handshakes import Handshakes
from forelog.serving.lobby import handshake_error, speaks_tls

if TYPE_CHECKING:
    from forelog.broker.connections.websocket import WebSocket

BACKLOG = 1024


async def listen(
    services: Services,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    websockets: bool,
    origins: Iterable[str],
) -> asyncio.Server:
    """Start a server for MQTT, or for MQTT over WebSockets.

    Pages in browsers may connect from this machine, and from the `origins` that are listed; "*" allows all.
    """
    check_whole("port", port, least=0, most=65_535)
    make: Callable[[], Connection | WebSocket] = functools.partial(Connection, services, plain=tls is None)
    if websockets:
        from forelog.broker.connections.websocket import WebSocket

        make = functools.partial(WebSocket, services, tuple(origins))
    accept: Callable[[], asyncio.BaseProtocol] = make
    if tls is not None:
        accept = functools.partial(_Handshake, services, tls, make, Handshakes())
    return await services.loop.create_server(accept, host, port, backlog=BACKLOG)


class _Handshake(asyncio.Protocol):
    """A socket that was accepted, until its TLS handshake is done."""

    def __init__(
        self,
        services: Services,
        tls: ssl.SSLContext,
        make: Callable[[], Connection | WebSocket],
        handshakes: Handshakes,
    ) -> None:
        self._services = services
        self._tls = tls
        self._make = make
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pending = self._services.admission.arrived(cast(asyncio.Transport, transport))
        if pending is None:
            return
        # The socket continues under another transport, with TLS. Nothing was read from it yet.
        own = transport.get_extra_info("socket")
        try:
            copy = socket.socket(own.family, own.type, own.proto, fileno=os.dup(own.fileno()))
        except OSError as error:  # there are too many open files
            self._failed(pending, error)
            return
        cast(asyncio.Transport, transport).abort()
        task = self._services.tasks.start(self._shake_hands(copy, pending))
        task.add_done_callback(lambda done: copy.close() if done.cancelled() else None)  # it may not have started
        pending.abort = task.cancel

    async def _shake_hands(self, copy: socket.socket, pending: Pending) -> None:
        services = self._services
        made = self._make()
        made.take_place(pending)
        try:
            copy.setblocking(False)
            if not await speaks_tls(copy):  # the deadline of pending connections ends this
                raise ssl.SSLError("the client does not speak TLS, which is expected here")
            async with self._handshakes.turn(pending.host):
                await services.loop.connect_accepted_socket(
                    lambda: made, copy, ssl=self._tls, ssl_handshake_timeout=services.limits.connect_seconds
                )
        except OSError as error:
            self._failed(pending, error)
            copy.close()
        except asyncio.CancelledError:
            services.admission.forget(pending)
            copy.close()
            raise

    def _failed(self, pending: Pending, error: OSError) -> None:
        self._services.admission.forget(pending)
        self._services.notices.warning(
            "no TLS handshake", pending.host, from_=pending.peer, reason=handshake_error(error)
        )
