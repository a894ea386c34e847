"""Log lines about clients, for operators: connects, disconnects and refusals.

Each event is one line of the logger `forelog`, always with the same fields::

    broker: connected from=10.0.0.7:50311 client=watch user=ann version=5 session=resumed expiry=100 keep_alive=60
    broker: disconnected from=10.0.0.7:50311 client=watch user=ann seconds=12.3 reason="connection lost"
    broker: publish refused from=10.0.0.7:50311 client=watch user=ann topic=a/b reason="not authorized"

Of what a client sent, only its id, its name, topics and filters are logged.
"""

from __future__ import annotations

import time
from typing import Protocol

from forelog.broker.access.passwords import Password
from forelog.broker.mqtt.packets import Connect
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.serving.notices import Notices

REFUSALS = {
    "logins": "login refused",
    "connects": "connect refused",
    "takeovers": "takeover refused",
    "publishes": "publish refused",
    "subscriptions": "subscribe refused",
    "wills": "will refused",
}
"""What can be refused, and the event that is logged for it."""


class Visit:
    """What the log lines about one connection say of it."""

    def __init__(self) -> None:
        self.user: str | None = None
        """The name that the client gave."""
        self.client_id: str | None = None
        self.known: Password | None = None
        """The entry in the file of users by which it was let in."""
        self.event = "connect refused"
        """The event to log if it is refused now."""
        self.why = ""
        """Why it ended; empty if that isn't known."""
        self.began = time.monotonic()

    def claims(self, packet: Connect) -> None:
        """Note the user and the client id of a CONNECT."""
        self.user, self.client_id = packet.user_name, packet.client_id


class Visited(Protocol):
    """A connection, as far as it is logged."""

    visit: Visit

    @property
    def peer(self) -> str:
        """The client's address and port."""

    @property
    def peer_host(self) -> str:
        """The client's address."""


class ClientNotices(Notices):
    """Logs and counts events of clients."""

    def __init__(self) -> None:
        super().__init__("broker")

    def refusals(self) -> dict[str, int]:
        """How often each thing was refused."""
        return {what: self.counts.get(event, 0) for what, event in REFUSALS.items()}

    def refused(self, event: str, connection: Visited, **fields: object) -> None:
        """Log that a client was refused something."""
        visit = connection.visit
        shown = {"from": connection.peer, "client": visit.client_id, "user": visit.user}
        self.warning(event, connection.peer_host, **shown, **fields)

    def happened(self, event: str, connection: Visited, **fields: object) -> None:
        """Log what a client did."""
        visit = connection.visit
        shown = {"from": connection.peer, "client": visit.client_id, "user": visit.user}
        self.info(event, connection.peer_host, **shown, **fields)

    def ended(self, connection: Visited) -> None:
        """Log the end of a connection whose CONNECT was accepted."""
        visit = connection.visit
        seconds = round(time.monotonic() - visit.began, 1)
        self.happened("disconnected", connection, seconds=seconds, reason=visit.why or "connection lost")


def reason_text(code: int) -> str:
    """A reason code in words.

    >>> reason_text(0x87)
    'not authorized'
    """
    return ReasonCode(code).name.lower().replace("_", " ")
