"""How much memory sessions take: their ids, wills and subscriptions, in bytes, each session and all together.

Nothing that was granted is taken back. A session at its limit gets no more, and a user gets more only while more
than the user already has is free (see `Quota`). Sizes are estimates of whole objects, not of their texts alone.
"""

from __future__ import annotations

from forelog.broker.limits import Limits
from forelog.broker.mqtt.packets import Will
from forelog.broker.sessions.session import Session
from forelog.broker.sessions.windows import Window
from forelog.serving.shares import Quota

SESSION_BYTES = 3000
"""Memory of an empty session."""
SUBSCRIPTION_BYTES = 1000
"""Memory of a subscription, besides its filter."""


class SessionQuotas:
    """The quotas of all users, for the bytes and for the number of their sessions."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = Quota(limits.sessions_bytes_max)
        self._durable = Quota(limits.sessions_max)
        self.flights = Quota(limits.flights_bytes_max)
        """Memory of messages in flight."""

    @property
    def byte_count(self) -> int:
        """Bytes of all sessions."""
        return self._bytes.total

    def restore(self, session: Session) -> None:
        """Count a session that was restored; it stays, whatever the limits are now."""
        session.window, session.window_in = self.windows(session.owner or "")
        session.settle()
        names = [*session.main.subs, *filter(None, session.cursors), *session.groups]
        session.held_by, session.held_base = session.owner or "", _base(session)
        self._change(session, session.held_base + sum(map(_bytes_of, names)))
        self.settle(session)

    def begin(self, session: Session, owner: str, will: Will | None, *, durable: bool) -> bool:
        """Count a session whose client connects; False if there is no room for it."""
        more = _base(session) + _will_bytes(will) - session.held_base
        if not self._bytes.has_room(owner, max(more, 0)):
            return False
        if durable and not session.held_durable and not self._durable.has_room(owner, 1):
            return False
        if session.held_by != owner:
            self._bytes.add(session.held_by, -session.held_bytes)
            self._durable.add(session.held_by, -session.held_durable)
            session.held_by = owner
            self._bytes.add(owner, session.held_bytes)
            self._durable.add(owner, session.held_durable)
        self._change(session, more)
        session.held_base += more
        return True

    def windows(self, owner: str) -> tuple[Window, Window]:
        """The windows of a new session."""
        return Window(self.flights, owner), Window(self.flights, owner)

    def settle(self, session: Session) -> None:
        """Count a session as durable or not, when that was set or has changed."""
        durable = int(session.durable)
        self._durable.add(session.held_by, durable - session.held_durable)
        session.held_durable = durable

    def subscribe(self, session: Session, name: str) -> bool:
        """Count a subscription; False if there is no room for it."""
        size = _bytes_of(name)
        if session.held_bytes + size > self._limits.session_bytes_max:
            return False
        if not self._bytes.has_room(session.held_by, size):
            return False
        self._change(session, size)
        return True

    def unsubscribe(self, session: Session, name: str) -> None:
        """Count a subscription no longer."""
        self._change(session, -_bytes_of(name))

    def end(self, session: Session) -> None:
        """Count a session no longer."""
        self._change(session, -session.held_bytes)
        self._durable.add(session.held_by, -session.held_durable)
        session.held_durable = session.held_base = 0
        session.window.settle(0)
        session.window_in.settle(0)

    def _change(self, session: Session, size: int) -> None:
        session.held_bytes += size
        self._bytes.add(session.held_by, size)


def _bytes_of(name: str) -> int:
    return SUBSCRIPTION_BYTES + 3 * len(name)


def _base(session: Session) -> int:
    return SESSION_BYTES + 4 * len(session.client_id)


def _will_bytes(will: Will | None) -> int:
    if will is None:
        return 0
    texts = [one for one in will.properties.values() if isinstance(one, str | bytes)]
    pairs = will.properties.get("user_properties", ())
    return (
        len(will.payload)
        + 4 * len(will.topic)
        + sum(4 * len(one) if isinstance(one, str) else len(one) for one in texts)
        + sum(200 + 4 * (len(name) + len(value)) for name, value in pairs)
    )
