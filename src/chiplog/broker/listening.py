"""Where clients come in."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from chiplog.bounds import check_whole
from chiplog.broker.connection import Connection

if TYPE_CHECKING:
    from chiplog.broker.broker import Broker

__all__ = ["listen"]

BACKLOG = 1024
TLS_SECONDS = 10.0
"""For a client to get through its handshake."""


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
    make: Callable[[], asyncio.Protocol] = functools.partial(Connection, broker, plain=tls is None)
    if websockets:
        from chiplog.broker.websocket import WebSocket

        make = functools.partial(WebSocket, broker, tuple(origins))
    timeout = None if tls is None else TLS_SECONDS
    return await broker.loop.create_server(
        make, host, port, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=timeout
    )
