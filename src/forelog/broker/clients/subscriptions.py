"""SUBSCRIBE and UNSUBSCRIBE: plain, shared, and replays of the past.

Work that grows with the number of subscriptions is done in slices: a SUBSCRIBE with many filters, a session that
comes back or leaves. Until its SUBSCRIBE is answered, no further packet of the client is handled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from forelog.broker.clients.groups import Groups
from forelog.broker.flow.catchup import CatchUp
from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.retained import RetainedDelivery
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.slices import Slices
from forelog.broker.flow.turns import Turns
from forelog.broker.limits import Limits
from forelog.broker.log.history import History
from forelog.broker.mqtt.packets import MQTT_5_0, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.mqtt.topics import Filter, parse_filter, replay_since_ns
from forelog.broker.notices import ClientNotices, reason_text
from forelog.broker.sessions.quotas import SessionQuotas
from forelog.broker.sessions.session import Cursor, Link, Session, Sub
from forelog.broker.sessions.store import SessionStore
from forelog.broker.tasks import Tasks
from forelog.errors import BadPacket, ForelogError
from forelog.log.position import Position
from forelog.serving.notices import text

logger = logging.getLogger("forelog")

Starts = dict[str, Position]
"""Where the replays of a SUBSCRIBE start, by filter as it was sent."""


@dataclass(eq=False, slots=True)
class Subscriptions:
    """Adds and removes subscriptions, and the routes of clients that come and go."""

    limits: Limits
    store: SessionStore
    quotas: SessionQuotas
    groups: Groups
    routes: Routes
    history: History
    delivery: Delivery
    catchup: CatchUp
    retained: RetainedDelivery
    turns: Turns
    slices: Slices
    tasks: Tasks
    executor: Executor
    notices: ClientNotices

    # -- sessions whose clients come and go

    def join(self, session: Session, connection: Link) -> None:
        """A client connects: add the routes of its subscriptions, then send what waits for it.

        Until then `resending` holds messages back. Messages in flight are sent first.
        """
        session.resending = True
        self._do(session, connection, self._joining(session, connection))

    def _joining(self, session: Session, connection: Link) -> Iterator[None]:
        for cursor in list(session.cursors.values()):
            if not cursor.live:
                session.behind[cursor] = None
            for name, sub in list(cursor.subs.items()):
                self.routes.add(cursor, name, sub)
                yield
        for key, sub in list(session.groups.items()):
            self.groups.join(session, key, sub)
            yield
        if session.in_flight or session.released:
            self.tasks.start(self._resume(session, connection))
        else:
            session.resending = False
            self.turns.resume(session)

    async def _resume(self, session: Session, connection: Link) -> None:
        await self.catchup.resend(session, connection)
        self.turns.resume(session)

    def leave(self, session: Session) -> None:
        """A client disconnects: remove its routes, and give what it hasn't acknowledged to other members."""
        returned = self.groups.take_back(session)
        self.slices.leave(session, self._leaving(session, returned))

    def _leaving(self, session: Session, returned: dict[Cursor, list[Position]]) -> Iterator[None]:
        for group, positions in returned.items():
            self.groups.give_back(group, positions)
            yield
        for cursor in list(session.cursors.values()):
            for name in list(cursor.subs):
                self.routes.remove(cursor, name)
                yield
        for key in list(session.groups):
            self.groups.leave(session, key)
            yield

    def forget(self, session: Session) -> None:
        """A session ends: remove it from its groups, then free it."""
        self.slices.leave(session, self._forgetting(session))

    def _forgetting(self, session: Session) -> Iterator[None]:
        for key in list(session.groups):
            self.groups.forget(session, key)
            yield
        session.let_go()

    def _do(self, session: Session, connection: Link, work: Iterator[None]) -> None:
        """Do work for a client. Its further packets wait until that is done."""
        held: Future[None] = Future()

        def run() -> Iterator[None]:
            if session.connection is not connection:
                return  # the client left before its turn came
            try:
                for _ in work:
                    yield
                    if session.connection is not connection:
                        return
            except BadPacket as error:
                connection.refuse(error.reason_code, str(error))
            except Exception as error:
                connection.fail(error)
            if held.running():
                held.set_result(None)
                connection.resume()

        if not self.slices.start(session, run()):
            held.set_running_or_notify_cancel()
            connection.hold(held)

    # -- SUBSCRIBE

    def subscribe(self, session: Session, packet: Subscribe) -> None:
        """SUBSCRIBE: answered once all of it has taken effect; retained messages follow the answer."""
        connection = session.connection
        assert connection is not None
        self.turns.run()  # what was published before doesn't match
        if any(wanted.filter.startswith("$replay/") for wanted in packet.subscriptions):
            held: Future[None] = Future()
            connection.hold(held)
            self.tasks.start(self._find_starts(session, connection, packet))
        else:
            self._do(session, connection, self._subscribing(session, connection, packet, {}))

    async def _find_starts(self, session: Session, connection: Link, packet: Subscribe) -> None:
        """Find where replays start, on another thread; then continue with the SUBSCRIBE."""
        loop, starts = asyncio.get_running_loop(), Starts()
        for wanted in packet.subscriptions:
            if wanted.filter.startswith("$replay/") and wanted.filter not in starts:
                try:
                    when = parse_filter(wanted.filter).when
                    since_ns = None if when is None else replay_since_ns(when, now_ns=time.time_ns())
                    starts[wanted.filter] = (
                        Position(0, 0)
                        if since_ns is None
                        else await loop.run_in_executor(self.executor, self.history.position_of, since_ns)
                    )
                except (ForelogError, ValueError, OverflowError) as error:
                    shown = text(session.client_id), text(wanted.filter)
                    logger.info("broker: %s can't subscribe to %s: %s", *shown, error)
        if session.connection is connection:
            work = self._subscribing(session, connection, packet, starts)
            connection.resume(lambda: self._do(session, connection, work))

    def _subscribing(
        self, session: Session, connection: Link, packet: Subscribe, starts: Starts
    ) -> Iterator[None]:
        identifier = (packet.properties.get("subscription_identifiers") or [0])[0]
        codes: list[int] = []
        retained: list[str] = []
        for wanted in packet.subscriptions:
            code = self._subscribe_one(session, connection, wanted, identifier, starts, retained)
            codes.append(code)
            if code >= 0x80:
                self.notices.refused(
                    "subscribe refused", connection, filter=wanted.filter, reason=reason_text(code)
                )
            yield
        if session.durable:
            self.store.flush()
        connection.send_packet(Suback(packet.packet_id, codes))
        for name in retained:
            session.retained_left.pop(name, None)
            session.retained_left[name] = None  # from the start, even if some were sent before
        self.retained.send(session)
        self.turns.resume(session)

    def _subscribe_one(
        self,
        session: Session,
        connection: Link,
        wanted: Subscription,
        identifier: int,
        starts: Starts,
        retained: list[str],
    ) -> int:
        try:
            parsed = parse_filter(wanted.filter)
        except BadPacket as error:
            return error.reason_code if connection.version == MQTT_5_0 else ReasonCode.UNSPECIFIED_ERROR
        if not session.rights.may_subscribe(parsed.filter):
            return ReasonCode.NOT_AUTHORIZED
        name = wanted.filter
        if not (name in session.main.subs or name in session.groups or name in session.cursors):
            full = session.subscriptions() >= self.limits.subscriptions_max
            if full or not self.quotas.subscribe(session, name):
                return ReasonCode.QUOTA_EXCEEDED
        sub = Sub(wanted.qos, wanted.no_local, wanted.retain_as_published, identifier, self.history.end)
        if parsed.group is not None:
            if wanted.no_local:
                raise BadPacket(ReasonCode.PROTOCOL_ERROR, "a shared subscription can't have No Local")
            self.groups.share(session, wanted.filter, parsed.filter, sub)
            self.store.note_sub(session, wanted.filter, sub, shared=True)
            return wanted.qos
        if parsed.when is not None:
            return self._replay(session, wanted.filter, parsed, sub, starts)
        before = session.main.subs.get(parsed.filter)
        if before is not None:
            sub = sub._replace(since=before.since)  # subscribing again misses no message
        self.delivery.settle(session.main)
        session.main.add(parsed.filter, sub)
        self.routes.add(session.main, parsed.filter, sub)
        self.store.note_sub(session, parsed.filter, sub)
        if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and before is None):
            retained.append(parsed.filter)
        return wanted.qos

    def _replay(self, session: Session, key: str, parsed: Filter, sub: Sub, starts: Starts) -> int:
        """Subscribe to the past and then the present, with a cursor of its own."""
        if key not in starts:
            return ReasonCode.TOPIC_FILTER_INVALID
        old = session.cursors.get(key)
        if old is not None:
            self.routes.remove(old, parsed.filter)
            session.behind.pop(old, None)
        cursor = session.cursors[key] = Cursor(key, session, starts[key])
        session.behind[cursor] = None
        sub = sub._replace(since=Position(0, 0))
        cursor.add(parsed.filter, sub)
        self.routes.add(cursor, parsed.filter, sub)
        self.store.note_replay(session, cursor)
        return sub.qos

    # -- UNSUBSCRIBE

    def unsubscribe(self, session: Session, packet: Unsubscribe) -> None:
        """UNSUBSCRIBE: answered once none of it has an effect any more."""
        connection = session.connection
        assert connection is not None
        self.turns.run()
        self._do(session, connection, self._unsubscribing(session, connection, packet))

    def _unsubscribing(self, session: Session, connection: Link, packet: Unsubscribe) -> Iterator[None]:
        codes = []
        for name in packet.filters:
            codes.append(self._unsubscribe_one(session, name))
            yield
        if session.durable:
            self.store.flush()
        connection.send_packet(Unsuback(packet.packet_id, codes))

    def _unsubscribe_one(self, session: Session, name: str) -> int:
        self.store.note_unsub(session, name)
        if name in session.groups or (name and name in session.cursors) or name in session.main.subs:
            self.quotas.unsubscribe(session, name)
        if name in session.groups:
            self.groups.unsubscribe(session, name)
            return ReasonCode.SUCCESS
        if name and name in session.cursors:
            cursor = session.cursors.pop(name)
            session.behind.pop(cursor, None)
            for inner in cursor.subs:
                self.routes.remove(cursor, inner)
            return ReasonCode.SUCCESS
        if session.main.remove(name) is None:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self.routes.remove(session.main, name)
        return ReasonCode.SUCCESS

    # -- rights

    def judge_again(self) -> None:
        """Forget everything that was concluded from rights, because they have changed."""
        self.delivery.abandon()
        self.routes.judge_again()
        self.slices.add(self, self.groups.judging_again())
