"""Shared subscriptions: clients join and leave groups, and groups keep their positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappush

from forelog.broker.flow.catchup import CatchUp
from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.routes import Routes
from forelog.broker.log.history import History
from forelog.broker.mqtt.topics import parse_filter
from forelog.broker.sessions.group import Group
from forelog.broker.sessions.session import Cursor, Session, Sub
from forelog.broker.sessions.store import SessionStore
from forelog.log.position import Position

MOVED_MAX = 1000
"""Groups whose positions are noted together. After a crash the others send some messages again."""


@dataclass(eq=False, slots=True)
class Groups:
    """Creates groups, changes their members, and notes their positions."""

    all: dict[str, Group]
    store: SessionStore
    history: History
    routes: Routes
    delivery: Delivery
    catchup: CatchUp
    moved: dict[Group, None]
    """Groups whose positions may have changed since they were last noted."""

    def restore(self) -> None:
        """After a start, create the groups that sessions share. Those that no session has are dropped."""
        store = self.store
        for session in store.sessions.values():
            for key in session.groups:
                self._group(key, parse_filter(key).filter).holders.add(session)
        for key in [key for key in store.groups if key not in self.all]:
            del store.groups[key]
            store.note("ungroup", key)

    def _group(self, key: str, name: str) -> Group:
        group = self.all.get(key)
        if group is None:
            kept = self.store.groups.get(key)
            group = self.all[key] = Group(key, name, self.history.end if kept is None else kept)
            group.live = kept is None
            self.routes.add(group, name, Sub(2))
            if kept is None:  # noted once it moves: until then it is where the first member subscribed
                self.store.groups[key] = group.next
        return group

    def share(self, session: Session, key: str, name: str, sub: Sub) -> None:
        """A client subscribes."""
        group = self._group(key, name)
        group.holders.add(session)
        group.add_member(session, sub)
        session.groups[key] = sub
        at = self.store.groups[key]
        if session.durable and at != sub.since:  # the other members' sessions may not survive a crash
            self.store.note("group", key, *at)
        if not group.live:
            self.catchup.resume(group)

    def join(self, session: Session, key: str, sub: Sub) -> None:
        """A client that has the subscription connects."""
        group = self._group(key, parse_filter(key).filter)
        group.holders.add(session)
        group.add_member(session, sub)
        if not group.live:
            self.catchup.resume(group)

    def unsubscribe(self, session: Session, key: str) -> None:
        """A connected client unsubscribes."""
        del session.groups[key]
        group = self.all.get(key)
        if group is not None:
            positions = _taken_back(session, {group}).get(group, [])
            group.remove_member(session)
            self.give_back(group, positions)
            self._forget(session, group)

    def take_back(self, session: Session) -> dict[Cursor, list[Position]]:
        """Take back what a client that leaves hasn't acknowledged, for other members of its groups."""
        return _taken_back(session, None)

    def give_back(self, group: Cursor, positions: list[Position]) -> None:
        """Have another member get messages that a member left unacknowledged."""
        assert isinstance(group, Group)
        for position in positions:
            heappush(group.returned, position)
        self.moved[group] = None
        self._settle(group)

    def leave(self, session: Session, key: str) -> None:
        """A member disconnects."""
        group = self.all.get(key)
        if group is not None:
            group.remove_member(session)
            self._settle(group)

    def _settle(self, group: Group) -> None:
        """Read from the log what members left, and what comes while no member is connected."""
        if group.live and (group.returned or not group.members):
            group.fall_behind(self.delivery.given(group))
        if group.members and not group.live:
            self.catchup.resume(group)

    def forget(self, session: Session, key: str) -> None:
        """A session that has the subscription ends."""
        group = self.all.get(key)
        if group is not None:
            self._forget(session, group)

    def _forget(self, session: Session, group: Group) -> None:
        group.holders.discard(session)
        group.judge_again()
        if group.holders:
            self._settle(group)
        else:
            self.routes.remove(group, group.filter)
            self.all.pop(group.key, None)
            self.moved.pop(group, None)
            if self.store.groups.pop(group.key, None) is not None:
                self.store.note("ungroup", group.key)

    def judging_again(self) -> Iterator[None]:
        """Resume groups, because rights have changed: a member may read what it couldn't before."""
        for group in list(self.all.values()):
            if not group.live:
                group.waits_for = None
                self.catchup.resume(group)
            yield

    def acknowledged(self, session: Session) -> None:
        """Note that a client has acknowledged messages, which groups may have sent."""
        for group in session.shares:
            assert isinstance(group, Group)
            self.moved[group] = None
        if len(session.shares) > len(session.in_flight):
            found = {sent.cursor: None for sent in session.in_flight.values()}
            session.shares = {cursor: None for cursor in found if isinstance(cursor, Group)}

    def note_moved(self, end: Position) -> None:
        """Note the positions of groups that have changed, for after a crash."""
        store = self.store
        for _ in range(min(len(self.moved), MOVED_MAX)):
            group = next(iter(self.moved))
            del self.moved[group]
            at = group.at(end)
            if store.groups.get(group.key) != at and group.key in self.all:
                store.groups[group.key] = at
                store.note("group", group.key, *at)


def _taken_back(session: Session, groups: set[Group] | None) -> dict[Cursor, list[Position]]:
    """Remove messages of QoS 1 that groups have in flight to a client; QoS 2 stays with the client."""
    returned: dict[Cursor, list[Position]] = {}
    for packet_id, sent in list(session.in_flight.items()):
        if sent.qos == 1 and isinstance(sent.cursor, Group) and (groups is None or sent.cursor in groups):
            del session.in_flight[packet_id]
            returned.setdefault(sent.cursor, []).append(sent.position)
    return returned
