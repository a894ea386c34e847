"""Wills: what a client wants published when it is lost.

A will is published for the user whose client left it, by the rules of the moment in which it is published: not if
that user is gone, or may not publish there any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from forelog.broker.flow.outgoing import kept_properties
from forelog.broker.mqtt import Will

if TYPE_CHECKING:
    from forelog.broker.broker import Broker
    from forelog.broker.connections.connection import Connection
    from forelog.broker.sessions.session import Session

__all__ = ["Wills"]


class _Left(NamedTuple):
    """A will, and whose it is."""

    client_id: str
    user: str | None
    host: str
    will: Will


class Wills:
    """Those that are due later, and how each is published."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[str, tuple[asyncio.TimerHandle, _Left]] = {}

    def left(self, session: Session, connection: Connection, will: Will, *, taken_over: bool) -> None:
        """A client is lost: publish its will, now or after its delay."""
        delay = will.properties.get("will_delay_interval", 0)
        if taken_over and delay:
            return  # it is back already
        left = _Left(session.client_id, connection.user, connection.peer_host, will)
        delay = min(delay, session.expiry_seconds) if session.durable else 0
        if not delay:
            self._publish(left)
        else:
            timer = self._broker.loop.call_later(delay, self.due, session.client_id)
            self._waiting[session.client_id] = timer, left

    def cancel(self, client_id: str) -> None:
        """Its client is back in time."""
        if client_id in self._waiting:
            self._waiting.pop(client_id)[0].cancel()

    def due(self, client_id: str) -> None:
        """Publish one that waits: its time has come, or its session ends, which is the latest moment for it."""
        if client_id in self._waiting:
            timer, left = self._waiting.pop(client_id)
            timer.cancel()
            self._publish(left)

    def _publish(self, left: _Left) -> None:
        broker, will = self._broker, left.will
        access = broker.access
        if not access.knows(left.user) or not access.may_publish(left.user, left.client_id, will.topic):
            broker.visits.notices.warning(
                "will refused",
                left.host,
                from_=left.host,
                client=left.client_id,
                user=left.user,
                topic=will.topic,
                reason="not authorized",
            )
            return
        kept = kept_properties(will.properties, will.qos, sender=left.client_id, retain=will.retain)
        broker.put(will.topic, will.payload, kept)
