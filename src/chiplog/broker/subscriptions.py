"""SUBSCRIBE and UNSUBSCRIBE: plain, shared, and replays of the past."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from chiplog.broker.mqtt import (
    MQTT_5_0,
    BadPacket,
    Filter,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    matches,
    parse_filter,
    replay_since_ns,
)
from chiplog.broker.routes import Group
from chiplog.broker.sessions import Cursor, Session, Sub, judge
from chiplog.broker.visits import reason_text
from chiplog.errors import ChiplogError
from chiplog.log.position import Position

if TYPE_CHECKING:
    from chiplog.broker.broker import Broker

__all__ = ["Subscriptions"]

logger = logging.getLogger("chiplog")


class Subscriptions:
    """Who wants what."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.groups: dict[str, Group] = {}

    def restore(self) -> None:
        """After a start: the groups that sessions share."""
        for session in self._broker.memory.sessions.values():
            for key in session.groups:
                self._group(key, parse_filter(key).filter).holders.add(session.client_id)

    # -- with a client's connection

    def join(self, session: Session) -> None:
        """A client is here: its cursors may be live."""
        for cursor in session.cursors.values():
            for name, sub in cursor.subs.items():
                self._broker.routes.add(cursor, name, sub)
        for key, sub in session.groups.items():
            group = self._group(key, parse_filter(key).filter)
            group.members[session] = sub
            group.judge_again()

    def leave(self, session: Session) -> None:
        """It isn't any more: others of its groups get what it hasn't acknowledged."""
        for cursor in session.cursors.values():
            for name in cursor.subs:
                self._broker.routes.remove(cursor, name)
        for key in session.groups:
            self._leave_group(session, key)

    def forget(self, session: Session) -> None:
        """It will not come back."""
        for key in list(session.groups):
            group = self.groups.get(key)
            if group is not None:
                group.holders.discard(session.client_id)
                group.judge_again()
                if not group.holders:
                    self._drop_group(group)
                elif not group.live:
                    self._broker.loop.call_soon(self._broker.delivery.pump, group)

    # -- SUBSCRIBE

    def subscribe(self, session: Session, packet: Subscribe) -> None:
        broker = self._broker
        connection = session.connection
        assert connection is not None
        broker.turn()  # what was published before is before
        identifier = (packet.properties.get("subscription_identifiers") or [0])[0]
        retained: list[tuple[str, Sub]] = []
        codes = [self._subscribe_one(session, wanted, identifier, retained) for wanted in packet.subscriptions]
        for wanted, code in zip(packet.subscriptions, codes, strict=True):
            if code >= 0x80:
                broker.visits.refused(
                    "subscribe refused", connection, filter=wanted.filter, reason=reason_text(code)
                )
        if session.durable:
            broker.memory.note_session(session)
            broker.memory.flush()
        connection.send_packet(Suback(packet.packet_id, codes))
        for name, sub in retained:
            self._send_retained(session, name, sub)
        broker.delivery.flush()
        broker.has_room(session)

    def _subscribe_one(
        self, session: Session, wanted: Subscription, identifier: int, retained: list[tuple[str, Sub]]
    ) -> int:
        broker = self._broker
        connection = session.connection
        assert connection is not None
        try:
            parsed = parse_filter(wanted.filter)
        except BadPacket as error:
            return error.reason_code if connection.version == MQTT_5_0 else ReasonCode.UNSPECIFIED_ERROR
        if not session.rights.may_subscribe(parsed.filter):
            return ReasonCode.NOT_AUTHORIZED
        if session.subscriptions() >= broker.limits.subscriptions_max:
            return ReasonCode.QUOTA_EXCEEDED
        sub = Sub(wanted.qos, wanted.no_local, wanted.retain_as_published, identifier, broker.history.end)
        if parsed.group is not None:
            if wanted.no_local:
                raise BadPacket(
                    ReasonCode.PROTOCOL_ERROR, "a shared subscription can't leave out the client's own"
                )
            self._share(session, wanted.filter, parsed.filter, sub)
            return wanted.qos
        if parsed.when is not None:
            return self._replay(session, wanted.filter, parsed, sub)
        before = session.main.subs.get(parsed.filter)
        if before is not None:
            sub = sub._replace(since=before.since)  # nothing is missed by subscribing again
        session.main.add(parsed.filter, sub)
        broker.routes.add(session.main, parsed.filter, sub)
        if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and before is None):
            retained.append((parsed.filter, sub))
        return wanted.qos

    def _send_retained(self, session: Session, name: str, sub: Sub) -> None:
        verdict = judge([sub])
        assert verdict is not None
        memory = self._broker.memory
        if "+" not in name and "#" not in name:
            found = [memory.retained[name]] if name in memory.retained else []
        else:
            found = [message for topic, message in memory.retained.items() if matches(name, topic)]
        found += self._broker.system.retained(name)
        found.sort(key=lambda message: message.time_ns)
        for number, message in enumerate(found):
            if not self._broker.delivery.send_retained(session, message, verdict):
                session.retained_left.extend((one.topic, verdict) for one in found[number:])
                return

    def send_retained_left(self, session: Session) -> None:
        """There is room again, for retained messages that had to wait."""
        while session.retained_left:
            topic, verdict = session.retained_left[0]
            message = self._broker.memory.retained.get(topic)
            if message is not None and not self._broker.delivery.send_retained(session, message, verdict):
                break
            session.retained_left.popleft()
        self._broker.delivery.flush()

    def _replay(self, session: Session, key: str, parsed: Filter, sub: Sub) -> int:
        """The past, and then the present: a cursor of its own."""
        broker = self._broker
        assert parsed.when is not None
        try:
            since_ns = replay_since_ns(parsed.when, now_ns=time.time_ns())
            start = Position(0, 0) if since_ns is None else broker.position_of(since_ns)
        except (ChiplogError, ValueError, OverflowError) as error:
            logger.info("broker: %s can't subscribe to %.100r: %s", session.client_id, key, error)
            return ReasonCode.TOPIC_FILTER_INVALID
        old = session.cursors.get(key)
        if old is not None:
            broker.routes.remove(old, parsed.filter)
        cursor = session.cursors[key] = Cursor(key, session, start)
        sub = sub._replace(since=Position(0, 0))
        cursor.add(parsed.filter, sub)
        broker.routes.add(cursor, parsed.filter, sub)
        return sub.qos

    # -- UNSUBSCRIBE

    def unsubscribe(self, session: Session, packet: Unsubscribe) -> None:
        broker = self._broker
        connection = session.connection
        assert connection is not None
        broker.turn()
        codes = [self._unsubscribe_one(session, name) for name in packet.filters]
        if session.durable:
            broker.memory.note_session(session)
            broker.memory.flush()
        connection.send_packet(Unsuback(packet.packet_id, codes))

    def judge_again(self) -> None:
        """Rights have changed: nothing that is remembered counts any more."""
        self._broker.routes.judge_again()
        for group in self.groups.values():
            group.judge_again()

    def _unsubscribe_one(self, session: Session, name: str) -> int:
        routes = self._broker.routes
        if name in session.groups:
            self._leave_group(session, name)
            del session.groups[name]
            group = self.groups[name]
            group.holders.discard(session.client_id)
            group.judge_again()
            if not group.holders:
                self._drop_group(group)
            return ReasonCode.SUCCESS
        if name and name in session.cursors:
            cursor = session.cursors.pop(name)
            for inner in cursor.subs:
                routes.remove(cursor, inner)
            return ReasonCode.SUCCESS
        if session.main.remove(name) is None:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        routes.remove(session.main, name)
        return ReasonCode.SUCCESS

    # -- groups

    def _group(self, key: str, name: str) -> Group:
        group = self.groups.get(key)
        if group is None:
            kept = self._broker.memory.groups.get(key)
            group = self.groups[key] = Group(key, name, self._broker.history.end if kept is None else kept)
            group.live = kept is None
            self._broker.routes.add(group, name, Sub(2))
            if kept is None:
                self._broker.memory.groups[key] = group.next
                self._broker.memory.note("group", key, *group.next)
        return group

    def _share(self, session: Session, key: str, name: str, sub: Sub) -> None:
        group = self._group(key, name)
        group.holders.add(session.client_id)
        group.members[session] = sub
        group.judge_again()
        session.groups[key] = sub
        self._broker.loop.call_soon(self._broker.delivery.pump, group)

    def _leave_group(self, session: Session, key: str) -> None:
        group = self.groups.get(key)
        if group is None or session not in group.members:
            return
        del group.members[session]
        group.judge_again()
        for packet_id, sent in list(session.in_flight.items()):
            if sent.cursor is group and sent.qos == 1:
                del session.in_flight[packet_id]
                group.returned.append(sent.position)
        if (not group.members and group.live) or (group.returned and group.live):
            group.fall_behind(self._broker.history.end)
        if group.members:
            self._broker.loop.call_soon(self._broker.delivery.pump, group)

    def _drop_group(self, group: Group) -> None:
        self._broker.routes.remove(group, group.filter)
        self.groups.pop(group.key, None)
        if self._broker.memory.groups.pop(group.key, None) is not None:
            self._broker.memory.note("ungroup", group.key)

    def group_at(self, group: Group, end: Position) -> Position:
        """Up to where everything of a group has been acknowledged."""
        places = [end if group.live else group.next, *group.returned]
        for member in group.members:
            places += [sent.position for sent in member.in_flight.values() if sent.cursor is group]
        return min(places)
