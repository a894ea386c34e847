"""Wills: what a client wants published when it is lost.

A will is published for the user whose client left it, by the rules at that moment. It isn't published if the user
is gone, or may not publish to its topic any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from forelog.broker.access.control import Access
from forelog.broker.clients.publications import Publications
from forelog.broker.flow.translation import kept_properties
from forelog.broker.mqtt.packets import Will
from forelog.broker.notices import ClientNotices
from forelog.broker.sessions.session import Link, Session


class _Pending(NamedTuple):
    """A will, and the client that left it."""

    client_id: str
    user: str | None
    host: str
    will: Will


@dataclass(eq=False, slots=True)
class Wills:
    """Publishes wills, at once or after their delay."""

    loop: asyncio.AbstractEventLoop
    access: Access
    publications: Publications
    notices: ClientNotices
    _waiting: dict[str, tuple[asyncio.TimerHandle, _Pending]] = field(default_factory=dict, init=False)

    def left(self, session: Session, connection: Link, will: Will, *, taken_over: bool) -> None:
        """A client is lost: publish its will, now or after its delay."""
        delay = will.properties.get("will_delay_interval", 0)
        if taken_over and delay:
            return  # the client is back already
        pending = _Pending(session.client_id, connection.user, connection.peer_host, will)
        delay = min(delay, session.expiry_seconds) if session.durable else 0
        if not delay:
            self._publish(pending)
        else:
            timer = self.loop.call_later(delay, self.due, session.client_id)
            self._waiting[session.client_id] = timer, pending

    def cancel(self, client_id: str) -> None:
        """Don't publish the will of a client that is back in time."""
        if client_id in self._waiting:
            self._waiting.pop(client_id)[0].cancel()

    def due(self, client_id: str) -> None:
        """Publish the waiting will of a client, if there is one. Its delay is over, or its session has ended."""
        if client_id in self._waiting:
            timer, pending = self._waiting.pop(client_id)
            timer.cancel()
            self._publish(pending)

    def _publish(self, pending: _Pending) -> None:
        will, access = pending.will, self.access
        if not access.knows(pending.user) or not access.may_publish(pending.user, pending.client_id, will.topic):
            self.notices.warning(
                "will refused",
                pending.host,
                from_=pending.host,
                client=pending.client_id,
                user=pending.user,
                topic=will.topic,
                reason="not authorized",
            )
            return
        kept = kept_properties(will.properties, will.qos, sender=pending.client_id, retain=will.retain)
        self.publications.put(will.topic, will.payload, kept)
