"""SUBSCRIBE and UNSUBSCRIBE: plain, shared, and replays of the past.

What takes longer the more a client has subscribed to is done in slices (slices.py): a SUBSCRIBE with many filters,
a session that comes back or leaves. Until its SUBSCRIBE is answered, a client is asked nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain
from typing import TYPE_CHECKING, Any

from forelog.broker.connections.visits import reason_text
from forelog.broker.mqtt import (
    MQTT_5_0,
    BadPacket,
    Filter,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    parse_filter,
    replay_since_ns,
)
from forelog.broker.sessions.groups import Groups
from forelog.broker.sessions.session import Cursor, Session, Sub, judge
from forelog.errors import ForelogError
from forelog.log.position import Position
from forelog.serving.notices import text

if TYPE_CHECKING:
    from forelog.broker.broker import Broker
    from forelog.broker.connections.connection import Connection

__all__ = ["Subscriptions"]

logger = logging.getLogger("forelog")

Starts = dict[str, Position]
"""Where the replays of a SUBSCRIBE begin, by what was asked for."""


class Subscriptions:
    """Who wants what."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.groups = Groups(broker)

    # -- with a client's connection

    def join(self, session: Session, connection: Connection) -> None:
        """A client is here: its cursors may be live, once all of its subscriptions count again.

        Until then `resending` holds messages back. Then comes what was under way when it left, and then the rest.
        """
        session.resending = True
        self._do(session, connection, self._joining(session))

    def _joining(self, session: Session) -> Iterator[None]:
        broker, connection = self._broker, session.connection
        assert connection is not None
        for cursor in list(session.cursors.values()):
            if not cursor.live:
                session.behind[cursor] = None
            for name, sub in list(cursor.subs.items()):
                broker.routes.add(cursor, name, sub)
                yield
        for key, sub in list(session.groups.items()):
            self.groups.join(session, key, sub)
            yield
        if session.in_flight or session.released:
            broker.later(broker.clients.resume(session, connection))
        else:
            session.resending = False
            broker.has_room(session)

    def leave(self, session: Session) -> None:
        """It isn't any more: others of its groups get what it hasn't acknowledged."""
        returned = self.groups.take_back(session)
        self._broker.slices.start(session, self._leaving(session, returned))

    def _leaving(self, session: Session, returned: dict[Cursor, list[Position]]) -> Iterator[None]:
        routes = self._broker.routes
        for group, positions in returned.items():
            self.groups.give_back(group, positions)
            yield
        for cursor in list(session.cursors.values()):
            for name in list(cursor.subs):
                routes.remove(cursor, name)
                yield
        for key in list(session.groups):
            self.groups.leave(session, key)
            yield

    def forget(self, session: Session) -> None:
        """A session whose client is away will not come back."""
        self._broker.slices.start(session, self._forgetting(session))

    def _forgetting(self, session: Session) -> Iterator[None]:
        for key in list(session.groups):
            self.groups.forget(session, key)
            yield

    def _do(self, session: Session, connection: Connection, work: Iterator[None]) -> None:
        """Do some work for a client, which is asked nothing more before that is done."""
        held: Future[None] = Future()

        def run() -> Iterator[None]:
            if session.connection is not connection:
                return  # it left before its turn came
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
                connection.go_on(_nothing, None)

        if not self._broker.slices.start(session, run()):
            held.set_running_or_notify_cancel()
            connection.hold(held)

    # -- SUBSCRIBE

    def subscribe(self, session: Session, packet: Subscribe) -> None:
        """Answers when all of it counts; retained messages come after that."""
        broker = self._broker
        connection = session.connection
        assert connection is not None
        broker.turn()  # what was published before is before
        if any(wanted.filter.startswith("$replay/") for wanted in packet.subscriptions):
            held: Future[None] = Future()
            connection.hold(held)
            broker.later(self._find_starts(session, connection, packet))
        else:
            self._do(session, connection, self._subscribing(session, connection, packet, {}))

    async def _find_starts(self, session: Session, connection: Connection, packet: Subscribe) -> None:
        """Look up where replays begin, on another thread. Then the rest of the SUBSCRIBE is done."""
        broker, starts = self._broker, Starts()
        for wanted in packet.subscriptions:
            if wanted.filter.startswith("$replay/") and wanted.filter not in starts:
                try:
                    when = parse_filter(wanted.filter).when
                    since_ns = None if when is None else replay_since_ns(when, now_ns=time.time_ns())
                    starts[wanted.filter] = (
                        Position(0, 0)
                        if since_ns is None
                        else await broker.loop.run_in_executor(broker.executor, broker.position_of, since_ns)
                    )
                except (ForelogError, ValueError, OverflowError) as error:
                    shown = text(session.client_id), text(wanted.filter)
                    logger.info("broker: %s can't subscribe to %s: %s", *shown, error)
        if session.connection is connection:
            work = self._subscribing(session, connection, packet, starts)
            connection.go_on(lambda *_: self._do(session, connection, work), None)

    def _subscribing(
        self, session: Session, connection: Connection, packet: Subscribe, starts: Starts
    ) -> Iterator[None]:
        broker = self._broker
        identifier = (packet.properties.get("subscription_identifiers") or [0])[0]
        codes: list[int] = []
        retained: list[str] = []
        for wanted in packet.subscriptions:
            code = self._subscribe_one(session, connection, wanted, identifier, starts, retained)
            codes.append(code)
            if code >= 0x80:
                broker.visits.refused(
                    "subscribe refused", connection, filter=wanted.filter, reason=reason_text(code)
                )
            yield
        if session.durable:
            broker.memory.flush()
        connection.send_packet(Suback(packet.packet_id, codes))
        for name in retained:
            session.retained_left.pop(name, None)
            session.retained_left[name] = None  # from the start, also if some of it was sent before
        self.send_retained(session)
        broker.has_room(session)

    def _subscribe_one(
        self,
        session: Session,
        connection: Connection,
        wanted: Subscription,
        identifier: int,
        starts: Starts,
        retained: list[str],
    ) -> int:
        broker = self._broker
        try:
            parsed = parse_filter(wanted.filter)
        except BadPacket as error:
            return error.reason_code if connection.version == MQTT_5_0 else ReasonCode.UNSPECIFIED_ERROR
        if not session.rights.may_subscribe(parsed.filter):
            return ReasonCode.NOT_AUTHORIZED
        name = wanted.filter
        if not (name in session.main.subs or name in session.groups or name in session.cursors):
            full = session.subscriptions() >= broker.limits.subscriptions_max
            if full or not broker.holdings.subscribe(session, name):
                return ReasonCode.QUOTA_EXCEEDED
        sub = Sub(wanted.qos, wanted.no_local, wanted.retain_as_published, identifier, broker.history.end)
        if parsed.group is not None:
            if wanted.no_local:
                raise BadPacket(
                    ReasonCode.PROTOCOL_ERROR, "a shared subscription can't leave out the client's own"
                )
            self.groups.share(session, wanted.filter, parsed.filter, sub)
            broker.memory.note_sub(session, wanted.filter, sub, shared=True)
            return wanted.qos
        if parsed.when is not None:
            return self._replay(session, wanted.filter, parsed, sub, starts)
        before = session.main.subs.get(parsed.filter)
        if before is not None:
            sub = sub._replace(since=before.since)  # nothing is missed by subscribing again
        broker.delivery.settle(session.main)
        session.main.add(parsed.filter, sub)
        broker.routes.add(session.main, parsed.filter, sub)
        broker.memory.note_sub(session, parsed.filter, sub)
        if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and before is None):
            retained.append(parsed.filter)
        return wanted.qos

    def _replay(self, session: Session, key: str, parsed: Filter, sub: Sub, starts: Starts) -> int:
        """The past, and then the present: a cursor of its own."""
        broker = self._broker
        if key not in starts:
            return ReasonCode.TOPIC_FILTER_INVALID
        old = session.cursors.get(key)
        if old is not None:
            broker.routes.remove(old, parsed.filter)
            session.behind.pop(old, None)
        cursor = session.cursors[key] = Cursor(key, session, starts[key])
        session.behind[cursor] = None
        sub = sub._replace(since=Position(0, 0))
        cursor.add(parsed.filter, sub)
        broker.routes.add(cursor, parsed.filter, sub)
        broker.memory.note_replay(session, cursor)
        return sub.qos

    # -- retained messages

    def send_retained(self, session: Session) -> None:
        """Go on with the retained messages that a client is still to get, as long as it has room for them."""
        if session.retained_left and not session.retained_sending:
            session.retained_sending = True
            self._broker.slices.start(session, self._sending_retained(session))

    def _sending_retained(self, session: Session) -> Iterator[None]:
        """Filter by filter. Each message is sent as it is at that moment, if the subscription is still there."""
        sender, memory, system = self._broker.sender, self._broker.memory, self._broker.system
        left = session.retained_left
        try:
            while left and sender.can_take(session):
                name = next(iter(left))
                sub, walk = session.main.subs.get(name), left[name]
                if sub is None:
                    del left[name]
                    continue
                if walk is None:
                    walk = left[name] = chain(memory.retained.match(name), system.retained(name))
                try:
                    message = next(walk)
                except StopIteration:
                    del left[name]
                    continue
                verdict = judge([sub])
                if message is not None and verdict is not None:
                    sender.send_retained(session, message, verdict)
                yield
        finally:
            session.retained_sending = False

    # -- UNSUBSCRIBE

    def unsubscribe(self, session: Session, packet: Unsubscribe) -> None:
        """Answers when nothing more of it counts."""
        connection = session.connection
        assert connection is not None
        self._broker.turn()
        self._do(session, connection, self._unsubscribing(session, connection, packet))

    def _unsubscribing(self, session: Session, connection: Connection, packet: Unsubscribe) -> Iterator[None]:
        broker, codes = self._broker, []
        for name in packet.filters:
            codes.append(self._unsubscribe_one(session, name))
            yield
        if session.durable:
            broker.memory.flush()
        connection.send_packet(Unsuback(packet.packet_id, codes))

    def judge_again(self) -> None:
        """Rights have changed: nothing that is remembered counts any more."""
        self._broker.delivery.abandon()
        self._broker.routes.judge_again()
        self.groups.judge_again()

    def _unsubscribe_one(self, session: Session, name: str) -> int:
        routes = self._broker.routes
        self._broker.memory.note_unsub(session, name)
        if name in session.groups or (name and name in session.cursors) or name in session.main.subs:
            self._broker.holdings.unsubscribe(session, name)
        if name in session.groups:
            self.groups.unsubscribe(session, name)
            return ReasonCode.SUCCESS
        if name and name in session.cursors:
            cursor = session.cursors.pop(name)
            session.behind.pop(cursor, None)
            for inner in cursor.subs:
                routes.remove(cursor, inner)
            return ReasonCode.SUCCESS
        if session.main.remove(name) is None:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        routes.remove(session.main, name)
        return ReasonCode.SUCCESS


def _nothing(*_: Any) -> None:
    pass
