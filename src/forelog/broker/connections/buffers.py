"""Buffers that clients fill beside each other: half packets, and what waits for sockets. Each has a limit for all.

Past it, the owner that has most loses its oldest connection. No message is lost by that: what a durable session
hasn't got is in the log, and half a packet was never acknowledged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forelog.broker.limits import Limits
from forelog.broker.mqtt import ReasonCode
from forelog.serving.notices import Notices
from forelog.serving.shares import Shares

if TYPE_CHECKING:
    from forelog.broker.connections.connection import Connection

__all__ = ["SharedBuffers"]

LOOK_SECONDS = 0.1
"""Between two looks at what waits for all sockets."""


class SharedBuffers:
    """Who has how much of them."""

    def __init__(self, limits: Limits, notices: Notices) -> None:
        self._notices = notices
        self.partial: Shares[Connection] = Shares(max(limits.partial_bytes_max, limits.packet_bytes_max))
        """Packets that aren't there as a whole, of clients that are in."""
        self.unsent: Shares[Connection] = Shares(limits.out_total_bytes_max)
        """What waits for sockets, as of the last time that it was counted."""
        self._looked = 0.0

    def keep(self, connection: Connection, size: int) -> None:
        """A client has so many bytes of a packet that isn't whole."""
        self.partial.set(connection, connection.owner, size)
        while (other := self.partial.surplus()) is not None:
            self.partial.drop(other)
            other.refuse(ReasonCode.QUOTA_EXCEEDED, "too many packets of its user are under way and not whole")
            if other.outside:
                other.abort()  # its WebSocket would go on keeping them

    @property
    def is_tight(self) -> bool:
        """Whether so much waits for sockets that clients which don't read get nothing more."""
        return self.unsent.total > self.unsent.most // 2

    def relieve(self) -> None:
        """It is tight: whoever has unsent bytes waits. Past the limit, the owner that has most loses one."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for connection in self.unsent.holders():
                connection.hold_back()
        while (worst := self.unsent.surplus()) is not None:
            self._notices.warning("aborted", worst.peer_host, from_=worst.peer, reason="it doesn't read")
            self.unsent.drop(worst)
            worst.abort()
