"""The door: connections whose CONNECT wasn't accepted yet, and those that are told to go.

Nobody knows who they are, so they get little: a few bytes, some seconds from the moment that the socket was
accepted, and a place only as long as there are places. When there are none left, the address that has most of them
loses its oldest one. So connections that say nothing keep out nobody who does, and an address that opens thousands
is in its own way only. A connection whose password is being checked has done its part and keeps its place.

A client that is disconnected for a reason gets some time to read it: its socket is closed in one direction, and
what the client still sends is read and dropped. Closed at once, the socket would answer that with a reset, which
takes the reason away from the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from forelog.serving.shares import Shares

if TYPE_CHECKING:
    from forelog.broker.broker import Broker
    from forelog.broker.connections.connection import Connection

__all__ = ["Door", "Guest"]

GOODBYE_SECONDS = 0.25
"""For clients to close their side when the broker stops."""
STOP_SECONDS = 2.0
"""For them to read what was sent before."""


class Guest:
    """A connection that isn't in yet."""

    __slots__ = ("abort", "held", "host", "peer", "since")

    def __init__(self, transport: asyncio.Transport, since: float) -> None:
        self.abort: Callable[[], object] = transport.abort
        """Closes the connection, wherever it has got to."""
        self.since = since
        self.held = False
        """Whether it waits for us: its password is being checked."""
        address = transport.get_extra_info("peername")
        known = isinstance(address, tuple)
        self.host = str(address[0]) if known else ""
        self.peer = f"{address[0]}:{address[1]}" if known else "a client"


class Door:
    """Who is before it, who is inside, and who is on the way out."""

    def __init__(self, broker: Broker) -> None:
        limits = broker.limits
        self._broker = broker
        self._limits = limits
        self._guests: Shares[Guest] = Shares(limits.unconnected_max)
        self._bytes: Shares[Guest] = Shares(limits.unconnected_bytes_max)
        self.inside = 0
        """Clients whose CONNECT was accepted."""
        self.lingering: set[Connection] = set()
        self.turned_away = 0
        """Connections that were closed before they were in."""

    def __len__(self) -> int:
        return len(self._guests)

    @property
    def unconnected_bytes(self) -> int:
        """What all that aren't in yet have sent, as far as it is kept."""
        return self._bytes.total

    def let_near(self, connection: Connection) -> bool:
        """Whether there is a place for a connection. One with TLS got it before its handshake."""
        if connection.guest is None:
            connection.guest = self.arrived(connection.transport)
        else:
            connection.guest.abort = connection.transport.abort
        return connection.guest is not None

    def arrived(self, transport: asyncio.Transport) -> Guest | None:
        """A socket was accepted. None if there is no place for it: then it is closed."""
        guest = Guest(transport, self._broker.now)
        self._guests.set(guest, guest.host, 1)
        if self._guests.sum_of(guest.host) > self._limits.unconnected_per_address_max:
            self._turn_away(self._guests.oldest_of(guest.host, _is_held) or guest, "too many from its address")
        elif (other := self._guests.surplus(_is_held)) is not None:
            self._turn_away(other, "too many that aren't connected yet")
        elif self._guests.total > self._guests.most:
            self._turn_away(guest, "too many that aren't connected yet")
        return guest if guest in self._guests else None

    def holds(self, guest: Guest, size: int) -> None:
        """So many bytes of a guest are kept, until there is a whole CONNECT."""
        if guest in self._guests:
            self._bytes.set(guest, guest.host, size)
            while (other := self._bytes.surplus()) is not None:
                self._turn_away(other, "too many bytes of those that aren't connected yet")

    def has_room(self) -> bool:
        """Whether one more client may come in."""
        return self.inside < self._limits.clients_max

    def entered(self, connection: Connection) -> None:
        """Its CONNECT was accepted."""
        if connection.guest is not None:
            self.forget(connection.guest)
            connection.guest, connection.inside = None, True
            self.inside += 1
            system = self._broker.system
            system.clients_max = max(system.clients_max, self.inside)

    def left(self, connection: Connection) -> None:
        """A connection is closed, or about to be."""
        if connection.guest is not None:
            self.forget(connection.guest)
        elif connection.inside:
            connection.inside = False
            self.inside -= 1

    def forget(self, guest: Guest) -> None:
        """It is gone, or in."""
        self._guests.drop(guest)
        self._bytes.drop(guest)

    def sweep(self, now: float) -> None:
        """Close whatever has been before the door for too long."""
        for guest in self._guests.holders():
            if now - guest.since <= self._limits.connect_seconds:
                break  # they are in the order in which they came
            if not guest.held:
                self._turn_away(guest, "no CONNECT came in time")

    def _turn_away(self, guest: Guest, why: str) -> None:
        self.forget(guest)
        self.turned_away += 1
        self._broker.visits.notices.warning("turned away", guest.host, from_=guest.peer, reason=why)
        guest.abort()

    async def see_off(self) -> None:
        """Give clients some time: to read what was sent, and a little to close their side."""
        clock, connections = self._broker.loop.time, self._broker.clients.connections
        begun = clock()
        while (waiting := {*connections, *self.lingering}) and clock() < begun + STOP_SECONDS:
            if clock() > begun + GOODBYE_SECONDS:
                for connection in waiting:
                    if not connection.transport.get_write_buffer_size():
                        connection.abort()
            await asyncio.sleep(0.01)
        self.close()
        for connection in list(connections):
            connection.abort()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Close everything that is before the door or on the way out."""
        for guest in self._guests.holders():
            self.forget(guest)
            guest.abort()
        for connection in list(self.lingering):
            connection.abort()


def _is_held(guest: Guest) -> bool:
    return guest.held
