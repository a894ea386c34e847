"""What operators read about clients: who came, from where and as whom, what was refused, how it ended.

One line for each, at the level of a server, with the same fields everywhere::

    broker: connected from=10.0.0.7:50311 client=watch user=ann version=5 session=resumed expiry=100 keep_alive=60
    broker: disconnected from=10.0.0.7:50311 client=watch user=ann seconds=12.3 reason="connection lost"
    broker: publish refused from=10.0.0.7:50311 client=watch user=ann topic=a/b reason="not authorized"

Nothing that a client sent is in them besides its id, its name, topics and filters.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forelog.broker.access.passwords import Password
from forelog.broker.mqtt import Connect, ReasonCode
from forelog.serving.notices import Notices

if TYPE_CHECKING:
    from forelog.broker.connections.connection import Connection

__all__ = ["REFUSALS", "Visit", "Visits", "reason_text"]

REFUSALS = {
    "logins": "login refused",
    "connects": "connect refused",
    "takeovers": "takeover refused",
    "publishes": "publish refused",
    "subscriptions": "subscribe refused",
    "wills": "will refused",
}
"""What is refused, and the words of its lines."""


class Visit:
    """A connection, as it is told of."""

    def __init__(self) -> None:
        self.user: str | None = None
        """As whom it came; before it was let in, whom it says to be."""
        self.client_id: str | None = None
        self.known: Password | None = None
        """The line of the file of users by which it was let in."""
        self.event = "connect refused"
        """What it is called if it is turned away now."""
        self.why = ""
        """Why it ended, if that is known."""
        self.began = time.monotonic()

    def claims(self, packet: Connect) -> None:
        """Take down whom a client says to be."""
        self.user, self.client_id = packet.user_name, packet.client_id


class Visits:
    """The lines, and how many there were of each."""

    def __init__(self) -> None:
        self.notices = Notices("broker")

    def refusals(self) -> dict[str, int]:
        """How often something was refused, by what it was."""
        return {what: self.notices.counts.get(event, 0) for what, event in REFUSALS.items()}

    def refused(self, event: str, connection: Connection, **fields: object) -> None:
        """A client may not do what it asked for."""
        self._tell(self.notices.warning, event, connection, fields)

    def happened(self, event: str, connection: Connection, **fields: object) -> None:
        """A client did something, or is gone."""
        self._tell(self.notices.info, event, connection, fields)

    def ended(self, connection: Connection) -> None:
        """A connection that was let in is no more."""
        visit = connection.visit
        seconds = round(time.monotonic() - visit.began, 1)
        self.happened("disconnected", connection, seconds=seconds, reason=visit.why or "connection lost")

    def _tell(self, log: object, event: str, connection: Connection, fields: dict[str, object]) -> None:
        visit = connection.visit
        assert callable(log)
        log(event, connection.peer_host, from_=connection.peer, client=visit.client_id, user=visit.user, **fields)


def reason_text(code: int) -> str:
    """A reason code, as words.

    >>> reason_text(0x87)
    'not authorized'
    """
    return ReasonCode(code).name.lower().replace("_", " ")
