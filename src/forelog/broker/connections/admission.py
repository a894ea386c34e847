"""Connections whose CONNECT isn't accepted yet, and connections that are being closed.

A client without an accepted CONNECT isn't known, so it gets little: a few bytes, some seconds from when its socket
was accepted, and a place while there are places. When none is left, the address with the most pending connections
loses its oldest one. Silent connections therefore keep nobody out, and an address that opens thousands only harms
itself. A connection whose password is being checked keeps its place.

A client that is refused gets some time to read why. Its socket is closed in one direction, and what it still sends
is read and dropped. Otherwise the socket would answer with a reset, and the client would never see the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Protocol

from forelog.broker.limits import Limits
from forelog.serving.notices import Notices
from forelog.serving.shares import Shares

GOODBYE_SECONDS = 0.25
"""How long a broker that stops waits for clients to close their side."""
STOP_SECONDS = 2.0
"""How long a broker that stops waits for clients to read what was sent."""


class Pending:
    """A connection whose CONNECT isn't accepted yet."""

    __slots__ = ("abort", "held", "host", "peer", "since")

    def __init__(self, transport: asyncio.Transport, since: float) -> None:
        self.abort: Callable[[], object] = transport.abort
        """Closes the connection, whatever its state."""
        self.since = since
        self.held = False
        """Whether its password is being checked."""
        address = transport.get_extra_info("peername")
        known = isinstance(address, tuple)
        self.host = str(address[0]) if known else ""
        self.peer = f"{address[0]}:{address[1]}" if known else "a client"


class Closing(Protocol):
    """What admission needs of a connection that is being closed."""

    transport: asyncio.Transport

    def abort(self) -> None: ...


class Arriving(Closing, Protocol):
    """What admission needs of a new connection."""

    pending: Pending | None
    inside: bool


class Admission:
    """Counts connections before their CONNECT, accepted clients, and connections being closed."""

    def __init__(self, limits: Limits, notices: Notices) -> None:
        self._limits = limits
        self._notices = notices
        self._pending: Shares[Pending] = Shares(limits.unconnected_max)
        self._bytes: Shares[Pending] = Shares(limits.unconnected_bytes_max)
        self._is_closed = False
        self.inside = 0
        """Clients whose CONNECT was accepted."""
        self.inside_max = 0
        """The most of these at any time."""
        self.lingering: set[Closing] = set()
        """Connections that have been refused, while their clients may read why."""
        self.turned_away = 0
        """Connections that were closed before their CONNECT was accepted."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Bytes that are kept of pending connections."""
        return self._bytes.total

    def admit(self, connection: Arriving) -> bool:
        """Give a new connection a place; False if there is none. A connection with TLS has its place since
        before the handshake."""
        if connection.pending is None:
            connection.pending = self.arrived(connection.transport)
        else:
            connection.pending.abort = connection.transport.abort
        return connection.pending is not None and not self._is_closed

    def arrived(self, transport: asyncio.Transport) -> Pending | None:
        """Give a socket that was accepted a place. None if there is none; then it is closed."""
        pending = Pending(transport, time.monotonic())
        self._pending.set(pending, pending.host, 1)
        if self._pending.sum_of(pending.host) > self._limits.unconnected_per_address_max:
            self._turn_away(
                self._pending.oldest_of(pending.host, _is_held) or pending, "too many from its address"
            )
        elif (other := self._pending.surplus(_is_held)) is not None:
            self._turn_away(other, "too many that aren't connected yet")
        elif self._pending.total > self._pending.most:
            self._turn_away(pending, "too many that aren't connected yet")
        return pending if pending in self._pending else None

    def holds(self, pending: Pending, size: int) -> None:
        """Count the bytes that are kept of an incomplete CONNECT."""
        if pending in self._pending:
            self._bytes.set(pending, pending.host, size)
            while (other := self._bytes.surplus()) is not None:
                self._turn_away(other, "too many bytes of those that aren't connected yet")

    def is_full(self) -> bool:
        """Whether no more clients may be accepted."""
        return self.inside >= self._limits.clients_max

    def entered(self, connection: Arriving) -> None:
        """Count a connection whose CONNECT was accepted."""
        if connection.pending is not None:
            self.forget(connection.pending)
            connection.pending, connection.inside = None, True
            self.inside += 1
            self.inside_max = max(self.inside_max, self.inside)

    def left(self, connection: Arriving) -> None:
        """Forget a connection that is closed."""
        if connection.pending is not None:
            self.forget(connection.pending)
        elif connection.inside:
            connection.inside = False
            self.inside -= 1

    def forget(self, pending: Pending) -> None:
        """Free the place of a pending connection."""
        self._pending.drop(pending)
        self._bytes.drop(pending)

    def sweep(self, now: float) -> None:
        """Close connections that have been pending for too long."""
        for pending in self._pending.holders():
            if now - pending.since <= self._limits.connect_seconds:
                break  # they are in the order in which they came
            if not pending.held:
                self._turn_away(pending, "no CONNECT came in time")

    def _turn_away(self, pending: Pending, why: str) -> None:
        self.forget(pending)
        self.turned_away += 1
        self._notices.warning("turned away", pending.host, from_=pending.peer, reason=why)
        pending.abort()

    # -- stopping

    def close(self) -> None:
        """Admit no more connections."""
        self._is_closed = True

    async def see_off(self, connections: Collection[Closing]) -> None:
        """Close all connections, after some time for clients to read what was sent and to close their side."""
        clock = time.monotonic
        begun = clock()
        while (waiting := {*connections, *self.lingering}) and clock() < begun + STOP_SECONDS:
            if clock() > begun + GOODBYE_SECONDS:
                for connection in waiting:
                    if not connection.transport.get_write_buffer_size():
                        connection.abort()
            await asyncio.sleep(0.01)
        for pending in self._pending.holders():
            self.forget(pending)
            pending.abort()
        for connection in [*self.lingering, *connections]:
            connection.abort()
        await asyncio.sleep(0)


def _is_held(pending: Pending) -> bool:
    return pending.held
