"""Figures about a broker, for `$SYS` topics and for Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from forelog.broker.connections.admission import Admission
from forelog.broker.flow.intake import Intake
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.sender import Sender
from forelog.broker.notices import ClientNotices
from forelog.broker.retention import Retention
from forelog.broker.sessions.presence import Presence
from forelog.broker.sessions.store import SessionStore
from forelog.broker.traffic import Traffic
from forelog.log.stream import Stream


class Figure(NamedTuple):
    """A count, which only grows, or a measurement."""

    topic: str
    """The topic below $SYS/broker/."""
    counts: bool
    """Whether the figure is a count."""
    help: str


FIGURES = {
    "uptime_seconds": Figure("uptime", False, "seconds since the start"),
    "clients_connected": Figure("clients/connected", False, "clients that are connected"),
    "clients_total": Figure(
        "clients/total", False, "clients that are connected, and sessions whose clients are away"
    ),
    "clients_disconnected": Figure("clients/disconnected", False, "sessions whose clients are away"),
    "clients_maximum": Figure("clients/maximum", False, "the most clients that were connected at a time"),
    "clients_behind": Figure("clients/behind", False, "connected clients that read older messages"),
    "messages_received": Figure("messages/received", True, "messages that clients published, and wills"),
    "messages_sent": Figure("messages/sent", True, "messages that were sent to subscribers"),
    "messages_dropped": Figure(
        "messages/dropped", True, "messages that couldn't be sent to a subscriber, because of a bug"
    ),
    "messages_in_flight": Figure("messages/inflight", False, "messages that subscribers haven't acknowledged"),
    "bytes_received": Figure("bytes/received", True, "bytes of all packets from clients"),
    "bytes_sent": Figure("bytes/sent", True, "bytes of all packets to clients"),
    "stored_bytes": Figure("store/messages/bytes", True, "bytes that were written to the log of messages"),
    "log_files": Figure("log/files", False, "files of the log of messages"),
    "log_bytes": Figure("log/bytes", False, "bytes of the log of messages"),
    "retention_files": Figure("log/files/removed", True, "files that retention has removed"),
    "retention_kept": Figure(
        "log/files/overdue", False, "files that retention keeps because a session or group needs them"
    ),
    "subscriptions": Figure("subscriptions/count", False, "subscriptions of connected clients and of groups"),
    "groups": Figure("shared_subscriptions/count", False, "shared subscriptions"),
    "retained_messages": Figure("retained messages/count", False, "topics with a retained message"),
    "write_failures": Figure("log/failures", True, "writes to the log that failed"),
    "refused_logins": Figure(
        "refused/logins", True, "clients that were refused because of their name or password"
    ),
    "refused_connects": Figure("refused/connects", True, "clients that were refused for another reason"),
    "refused_takeovers": Figure(
        "refused/takeovers", True, "clients that were refused because their id is another user's"
    ),
    "refused_publishes": Figure("refused/publishes", True, "messages that were refused"),
    "refused_subscriptions": Figure("refused/subscriptions", True, "subscriptions that were refused"),
    "refused_wills": Figure("refused/wills", True, "wills that were refused when they were due"),
}


@dataclass(eq=False, slots=True)
class Figures:
    """Reads the figures from the parts that count them."""

    stream: Stream
    store: SessionStore
    presence: Presence
    routes: Routes
    intake: Intake
    sender: Sender
    admission: Admission
    traffic: Traffic
    retention: Retention
    notices: ClientNotices
    started: float = field(default_factory=time.monotonic, init=False)

    def read(self) -> dict[str, float]:
        """All figures, as of now, by their names in `FIGURES`."""
        sessions = list(self.store.sessions.values())
        connected = sum(session.connection is not None for session in sessions)
        log_files, log_bytes = self.retention.size
        return {
            "uptime_seconds": int(time.monotonic() - self.started),
            "clients_connected": connected,
            "clients_total": len(sessions),
            "clients_disconnected": len(sessions) - connected,
            "clients_maximum": self.admission.inside_max,
            "clients_behind": sum(
                session.connection is not None and not session.main.live for session in sessions
            ),
            "messages_received": self.intake.messages,
            "messages_sent": self.sender.delivered,
            "messages_dropped": self.sender.dropped,
            "messages_in_flight": sum(len(session.in_flight) for session in sessions),
            "bytes_received": self.traffic.received,
            "bytes_sent": self.traffic.sent,
            "stored_bytes": self.stream.metrics.snapshot()["bytes_appended"],
            "log_files": log_files,
            "log_bytes": log_bytes,
            "retention_files": self.retention.removed,
            "retention_kept": self.retention.overdue,
            "subscriptions": len(self.routes),
            "groups": len(self.presence.groups),
            "retained_messages": len(self.store.retained),
            "write_failures": self.intake.failures,
            **{f"refused_{what}": count for what, count in self.notices.refusals().items()},
        }
