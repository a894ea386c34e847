"""Limits on buffers that all clients share: incomplete packets, and bytes that wait for sockets.

Past a limit, the user with the most bytes loses its oldest connection. No message is lost by that: messages of a
durable session are in the log, and an incomplete packet was never acknowledged.
"""

from __future__ import annotations

import time
from typing import Protocol

from forelog.broker.limits import Limits
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.serving.notices import Notices
from forelog.serving.shares import Shares

CHECK_SECONDS = 0.1
"""Seconds between two counts of what waits for all sockets."""


class Buffering(Protocol):
    """A connection, as far as its buffers are concerned."""

    owner: str
    outside: int

    @property
    def peer(self) -> str: ...
    @property
    def peer_host(self) -> str: ...
    def hold_back(self) -> None: ...
    def refuse(self, reason: int, why: str) -> None: ...
    def abort(self) -> None: ...
    def __hash__(self) -> int: ...


class SharedBuffers:
    """Bytes in buffers, by connection and user."""

    def __init__(self, limits: Limits, notices: Notices) -> None:
        self._notices = notices
        self.partial: Shares[Buffering] = Shares(max(limits.partial_bytes_max, limits.packet_bytes_max))
        """Incomplete packets of clients whose CONNECT was accepted."""
        self.unsent: Shares[Buffering] = Shares(limits.out_total_bytes_max)
        """Bytes that wait for sockets, as of their last count."""
        self._checked = 0.0

    def keep(self, connection: Buffering, size: int) -> None:
        """Count the bytes of a client's incomplete packet. Past the limit, refuse a client."""
        self.partial.set(connection, connection.owner, size)
        while (other := self.partial.surplus()) is not None:
            self.partial.drop(other)
            other.refuse(ReasonCode.QUOTA_EXCEEDED, "incomplete packets of its user take too much memory")
            if other.outside:
                other.abort()  # its WebSocket would keep the bytes

    @property
    def is_tight(self) -> bool:
        """Whether so much waits for sockets that clients that don't read get nothing more."""
        return self.unsent.total > self.unsent.most // 2

    def relieve(self) -> None:
        """Hold back clients with unsent bytes. Past the limit, disconnect one."""
        now = time.monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            for connection in self.unsent.holders():
                connection.hold_back()
        while (worst := self.unsent.surplus()) is not None:
            self._notices.warning("aborted", worst.peer_host, from_=worst.peer, reason="it doesn't read")
            self.unsent.drop(worst)
            worst.abort()
