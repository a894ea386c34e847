"""The connections of a server: who may come in, who has to go, and what is logged of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Protocol

from forelog.jobs.machine.queue import Job, Leaser, Waiter
from forelog.jobs.server.door import STRANGERS_MAX, Door
from forelog.jobs.server.replies import TOO_MANY, second
from forelog.serving.notices import Notices
from forelog.serving.shares import Shares

CLIENTS_MAX = 10_000
BUFFERS_BYTES_MAX = 256 << 20
_LATE_LOOK_SECONDS = 5.0
_DOOR_LOOK_SECONDS = 1.0


class Peer(Hashable, Protocol):
    """A connection, as code without sockets sees it."""

    def address(self) -> str:
        """The client's host and port."""

    def is_late(self, now: float) -> bool:
        """Whether a command or a reply has been under way for too long."""

    def close(self) -> None:
        """End it, once all replies are sent."""

    def abort(self) -> None:
        """End it at once."""

    def try_writing(self) -> None:
        """Write what its client has changed at once, to find out whether it can be written."""

    def has_time(self) -> bool:
        """Whether its client may do another command in this turn. If not, it is lined up for the next ones."""


class Asker(Protocol):
    """The session of a client, as those see it who do its commands."""

    connection: Peer
    waiting: Leaser | Waiter | None
    """The client's wait, if it is in one."""

    def reply(self, reply: bytes) -> None:
        """Reply to a command that changes nothing."""

    def change(self, reply: bytes) -> None:
        """Reply to a command that has changed something."""

    def fetch(self, job: Job, inspects: bool, then: Callable[[bytes], None] | None = None) -> None:
        """Wait for the job's payload or result to be read from the log. It is the reply, or what `then` gets."""


class Clients:
    """All connections of a server."""

    def __init__(
        self,
        started_ns: int,
        *,
        token: bytes | None = None,
        clients_max: int = CLIENTS_MAX,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self.started = second(started_ns)
        """When the server was started, as clients are told."""
        self.token = token
        """What a client has to show first, if anything."""
        self.notices = Notices("jobs")
        """Log lines, of which there are only so many for each address."""
        self.door: Door[Peer] = Door(strangers_max)
        self.buffers: Shares[Peer] = Shares(BUFFERS_BYTES_MAX)
        """Bytes of commands that are not complete or have to wait, and of replies that clients do not take."""
        self._connections: set[Peer] = set()
        self._clients_max = clients_max
        self._closing = False

    def __len__(self) -> int:
        return len(self._connections)

    def enter(self, connection: Peer) -> bytes | None:
        """A connection has come. Returns its refusal, if it is refused."""
        self._connections.add(connection)
        if self.token is None:
            return self.admit(connection)
        crowded = self.door.enter(connection, _host(connection))
        if crowded is not None:
            self._end(crowded, "too many without a token")
        return None

    def admit(self, connection: Peer) -> bytes | None:
        """A connection has shown the token, if one is needed. Returns its refusal, if there are too many
        clients."""
        self.door.leave(connection)
        if len(self._connections) - len(self.door) > self._clients_max or self._closing:
            self.notices.warning("too many clients", _host(connection), from_=connection.address())
            return TOO_MANY
        self.notices.info("connected", _host(connection), from_=connection.address())
        return None

    def refuse(self, connection: Peer, tried: bool) -> float:
        """A connection has shown a wrong token, or none. Returns how many seconds to delay its refusal."""
        host = _host(connection)
        why = "a wrong token" if tried else "no token"
        self.notices.warning("refused", host, from_=connection.address(), reason=why)
        return self.door.delay(host) if tried else 0.0

    def complain(self, connection: Peer, what: str) -> None:
        """Log that a client breaks the protocol."""
        self.notices.warning("protocol error", _host(connection), from_=connection.address(), reason=what)

    def keep(self, connection: Peer, size: int) -> None:
        """Note how many bytes a connection holds, in and out. If all hold too many, some are closed."""
        self.buffers.set(connection, _host(connection), size)
        while size and (other := self.buffers.surplus()) is not None:
            self.buffers.drop(other)
            self._end(other, "too many bytes wait for its address")

    def leave(self, connection: Peer) -> None:
        """A connection is gone."""
        self.buffers.drop(connection)
        self._connections.discard(connection)
        self.door.leave(connection)

    async def watch(self) -> None:
        """End connections that do not finish a command, or do not take their replies."""
        while True:
            await asyncio.sleep(_LATE_LOOK_SECONDS)
            self.notices.sweep()
            now = time.monotonic()
            for connection in [found for found in self._connections if found.is_late(now)]:
                self._end(connection, "too slow")

    async def watch_door(self) -> None:
        """End connections that do not show a token."""
        while True:
            await asyncio.sleep(_DOOR_LOOK_SECONDS)
            for connection in self.door.late():
                self._end(connection, "no token in time")

    def _end(self, connection: Peer, why: str) -> None:
        self.notices.warning("disconnected", _host(connection), from_=connection.address(), reason=why)
        connection.abort()

    def refuse_more(self) -> None:
        """Refuse new clients, because the server stops."""
        self._closing = True

    async def dismiss(self, seconds: float) -> None:
        """Close all connections once their replies are sent, or after `seconds`."""
        self.notices.close()
        deadline = time.monotonic() + seconds
        for connection in list(self._connections):
            connection.close()
        while self._connections and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        for connection in list(self._connections):
            connection.abort()


def _host(connection: Peer) -> str:
    return connection.address().rpartition(":")[0]
