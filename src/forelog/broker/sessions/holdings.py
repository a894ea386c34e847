"""What sessions take of the memory: their ids, wills and subscriptions, in bytes, each and all together.

What was promised stays: a session that has much gets no more, and an owner gets more only while more than it has
itself is free (`Quota`). Bytes are about what the objects take, not only their texts.
"""

from __future__ import annotations

from forelog.broker.limits import Limits
from forelog.broker.mqtt import Will
from forelog.broker.sessions.session import Session
from forelog.serving.shares import Quota

__all__ = ["Holdings"]

SESSION_BYTES = 3000
"""Of a session without anything."""
SUBSCRIPTION_BYTES = 1000
"""Of a subscription, beside its filter."""


class Holdings:
    """Who holds how much."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = Quota(limits.sessions_bytes_max)
        self._durable = Quota(limits.sessions_max)

    @property
    def byte_count(self) -> int:
        """What all sessions take."""
        return self._bytes.total

    def restore(self, session: Session) -> None:
        """A session from before: it stays, whatever the limits are now."""
        names = [*session.main.subs, *filter(None, session.cursors), *session.groups]
        session.held_by, session.held_base = session.owner or "", _base(session)
        self._change(session, session.held_base + sum(map(_bytes_of, names)))
        self.settle(session)

    def begin(self, session: Session, owner: str, will: Will | None, *, durable: bool) -> bool:
        """A client is here; False if there is no room for its session."""
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

    def settle(self, session: Session) -> None:
        """Whether a session outlives its connection is known now, or has changed."""
        durable = int(session.durable)
        self._durable.add(session.held_by, durable - session.held_durable)
        session.held_durable = durable

    def subscribe(self, session: Session, name: str) -> bool:
        """One more subscription; False if there is no room for it."""
        size = _bytes_of(name)
        if session.held_bytes + size > self._limits.session_bytes_max:
            return False
        if not self._bytes.has_room(session.held_by, size):
            return False
        self._change(session, size)
        return True

    def unsubscribe(self, session: Session, name: str) -> None:
        """One less."""
        self._change(session, -_bytes_of(name))

    def end(self, session: Session) -> None:
        """There is no such session any more."""
        self._change(session, -session.held_bytes)
        self._durable.add(session.held_by, -session.held_durable)
        session.held_durable = session.held_base = 0

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
