"""When more of what a client has sent is taken: after that of others, if it has sent much.

A client waits for its turn if it has sent packets that take time, and all clients together have used up what the
event loop has for these. It waits for delivery if the messages that it published last are still being delivered.
Until then its bytes stay where they are, and the more of them there are, in its socket.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forelog.broker.connections.connection import Connection

__all__ = ["RUNS_MAX", "Pace"]

RUNS_MAX = 100
"""Of messages or acknowledgements that are taken together, in one read: after them a client may have to wait."""
_PUBLISH = 0x30


class Pace:
    """Of one client."""

    __slots__ = ("_connection", "_turn")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = 0
        """The turn with which its last messages are written."""

    def must_wait(self, first: int, runs: int) -> bool:
        """Whether a packet has to wait: its first byte, and how many runs were taken. Its client is held then."""
        connection = self._connection
        slices, delivery = connection.broker.slices, connection.broker.delivery
        if runs >= RUNS_MAX and not slices.has_time():
            connection.hold(Future())
            self._later()
            return True
        if first & 0xF0 == _PUBLISH:
            if delivery.owes(self._turn):
                connection.hold(Future())
                delivery.when_through(self._later)
                return True
            self._turn = delivery.turn
        return False

    def _later(self) -> None:
        """When others have had their turn."""
        connection = self._connection
        connection.broker.slices.later(connection, lambda: connection.go_on(lambda *_: None, None))
