"""Shared subscriptions: groups whose members share their messages, and a place in the log that they share.

Each message goes to one member. Members take turns; one that can't take anything now is left out until it has room
again, so that a group costs as little with ten thousand idle members as with one. What a member hasn't
acknowledged when it leaves comes back, and goes to another one.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from forelog.broker.mqtt import parse_filter
from forelog.broker.sessions.session import Cursor, Session, Sub
from forelog.log.position import Position

if TYPE_CHECKING:
    from forelog.broker.broker import Broker

__all__ = ["Group", "Groups", "Readers"]

_NUMBERS = count()
MOVED_MAX = 1000
"""Groups whose places are noted together. After a crash the others give some messages again."""
_READERS_MAX = 4096
"""Topics for which a group remembers who may read them, each member counting as one."""
_READERS_CHARS_MAX = 256


class Readers(NamedTuple):
    """Who of a group may read a topic."""

    all: bool
    """Whether every member that is connected may."""
    some: frozenset[Session]
    """Otherwise those that may."""
    away: bool
    """Whether one may whose client isn't here."""


class Group(Cursor):
    """A shared subscription: each message goes to one of those who share it."""

    def __init__(self, key: str, filter: str, position: Position) -> None:  # noqa: A002
        super().__init__(key, None, position)
        self.filter = filter
        self.members: dict[Session, Sub] = {}
        """Those who are connected."""
        self.holders: set[Session] = set()
        """All whose sessions have it."""
        self.ready: OrderedDict[Session, None] = OrderedDict()
        """Members that may have room, beginning with the one whose turn is next."""
        self.returned: list[Position] = []
        """A heap of what was sent to a member that left without acknowledging it."""
        self.fetching: Position | None = None
        """What of that is being read from the log."""
        self._out: list[tuple[Position, int, Session, int]] = []
        """A heap of what is under way to members: where it is in the log, a number, the member, the packet id."""
        self._out_max = 1000
        self.waits_for: frozenset[Session] | None = None
        """The members that may read its next message, if not all may; none of them, if their clients are away."""
        self._reads_all: bool | None = None
        self._readers: dict[bytes, Readers] = {}
        self._readers_weight = 0
        self.add(filter, Sub(2))

    # -- rights

    def judge_again(self) -> None:
        """Members have come or gone, or their rights have changed."""
        super().judge_again()
        self.waits_for = self._reads_all = None
        self._readers.clear()
        self._readers_weight = 0

    def reads_all(self) -> bool:
        """Whether every member may read every topic."""
        if self._reads_all is None:
            self._reads_all = all(member.rights.reads_all for member in self.members)
        return self._reads_all

    def readers(self, topic: bytes) -> Readers:
        """Who may read a topic, by the rules of now."""
        found = self._readers.get(topic)
        if found is None:
            text = topic.decode()
            some = frozenset(member for member in self.members if member.rights.may_read(text))
            everyone = len(some) == len(self.members)
            away = not everyone and any(
                session not in self.members and session.rights.may_read(text) for session in self.holders
            )
            found = Readers(everyone, frozenset() if everyone else some, away)
            self._readers_weight += 1 + len(found.some)
            if self._readers_weight > _READERS_MAX:
                self._readers.clear()
                self._readers_weight = 1 + len(found.some)
            if len(topic) <= _READERS_CHARS_MAX:
                self._readers[topic] = found
        return found

    # -- members

    def next_member(self) -> Session | None:
        """The member whose turn it is; None if all wait for room."""
        if not self.ready:
            return None
        member = next(iter(self.ready))
        self.ready.move_to_end(member)
        return member

    def has_no_room(self, member: Session) -> None:
        """Leave a member out until it has room."""
        if self.ready.pop(member, 0) is None:
            member.waiting[self] = None

    def has_room(self, member: Session) -> None:
        """It has room again."""
        if member in self.members:
            self.ready[member] = None

    def add_member(self, member: Session, sub: Sub) -> None:
        """A client that is connected shares it."""
        self.members[member] = sub
        self.judge_again()
        if member not in self.ready:
            member.waiting.pop(self, None)
            self.ready[member] = None

    def remove_member(self, member: Session) -> None:
        """It doesn't any more."""
        self.judge_again()
        self.members.pop(member, None)
        self.ready.pop(member, None)
        member.waiting.pop(self, None)

    def sent(self, member: Session, packet_id: int, position: Position) -> None:
        """A message is under way to a member."""
        heappush(self._out, (position, next(_NUMBERS), member, packet_id))
        if len(self._out) > self._out_max:  # one that is never acknowledged would keep all after it
            self._out = [one for one in self._out if self._is_out(one)]
            heapify(self._out)
            self._out_max = 2 * len(self._out) + 1000

    def at(self, end: Position) -> Position:
        """Up to where everything has been acknowledged."""
        while self._out and not self._is_out(self._out[0]):
            heappop(self._out)
        places = [end if self.live else self.next]
        if self._out:
            places.append(self._out[0][0])
        if self.returned:
            places.append(self.returned[0])
        if self.fetching is not None:
            places.append(self.fetching)
        return min(places)

    def _is_out(self, one: tuple[Position, int, Session, int]) -> bool:
        position, _, member, packet_id = one
        found = member.in_flight.get(packet_id)
        return found is not None and found.cursor is self and found.position == position


class Groups:
    """All groups, by what was subscribed to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.all: dict[str, Group] = {}
        self.moved: dict[Group, None] = {}
        """Those that have given something to a member, or got something back, since it was last noted."""

    def __len__(self) -> int:
        return len(self.all)

    def restore(self) -> None:
        """After a start: the groups that sessions share. Those that no session has any more are dropped."""
        memory = self._broker.memory
        for session in memory.sessions.values():
            for key in session.groups:
                self._group(key, parse_filter(key).filter).holders.add(session)
        for key in [key for key in memory.groups if key not in self.all]:
            del memory.groups[key]
            memory.note("ungroup", key)

    def _group(self, key: str, name: str) -> Group:
        group = self.all.get(key)
        if group is None:
            kept = self._broker.memory.groups.get(key)
            group = self.all[key] = Group(key, name, self._broker.history.end if kept is None else kept)
            group.live = kept is None
            self._broker.routes.add(group, name, Sub(2))
            if kept is None:  # its place is noted once it has moved: until then it is where it was first asked for
                self._broker.memory.groups[key] = group.next
        return group

    def share(self, session: Session, key: str, name: str, sub: Sub) -> None:
        """A client subscribes."""
        group = self._group(key, name)
        group.holders.add(session)
        group.add_member(session, sub)
        session.groups[key] = sub
        at = self._broker.memory.groups[key]
        if session.durable and at != sub.since:  # others share it, who may not outlive a crash
            self._broker.memory.note("group", key, *at)
        if not group.live:
            self._broker.catchup.resume(group)

    def join(self, session: Session, key: str, sub: Sub) -> None:
        """A client that subscribed before is here again."""
        group = self._group(key, parse_filter(key).filter)
        group.holders.add(session)
        group.add_member(session, sub)
        if not group.live:
            self._broker.catchup.resume(group)

    def unsubscribe(self, session: Session, key: str) -> None:
        """A client that is here doesn't want it any more."""
        del session.groups[key]
        group = self.all.get(key)
        if group is not None:
            positions = _taken_back(session, {group}).get(group, [])
            group.remove_member(session)
            self.give_back(group, positions)
            self._forget(session, group)

    def take_back(self, session: Session) -> dict[Cursor, list[Position]]:
        """A client leaves: what others of its groups are to get instead."""
        return _taken_back(session, None)

    def give_back(self, group: Cursor, positions: list[Position]) -> None:
        """These were sent to a member that has left: another one gets them."""
        assert isinstance(group, Group)
        for position in positions:
            heappush(group.returned, position)
        self.moved[group] = None
        self._settle(group)

    def leave(self, session: Session, key: str) -> None:
        """A member isn't connected any more."""
        group = self.all.get(key)
        if group is not None:
            group.remove_member(session)
            self._settle(group)

    def _settle(self, group: Group) -> None:
        """What comes back, or what comes while nobody is there, is read from the log."""
        if group.live and (group.returned or not group.members):
            group.fall_behind(self._broker.delivery.given(group))
        if group.members and not group.live:
            self._broker.catchup.resume(group)

    def forget(self, session: Session, key: str) -> None:
        """A session that had it has ended."""
        group = self.all.get(key)
        if group is not None:
            self._forget(session, group)

    def _forget(self, session: Session, group: Group) -> None:
        group.holders.discard(session)
        group.judge_again()
        if group.holders:
            self._settle(group)
        else:
            self._broker.routes.remove(group, group.filter)
            self.all.pop(group.key, None)
            self.moved.pop(group, None)
            if self._broker.memory.groups.pop(group.key, None) is not None:
                self._broker.memory.note("ungroup", group.key)

    def judge_again(self) -> None:
        """Rights have changed: members may get other messages than before."""
        for group in self.all.values():
            group.judge_again()
            if not group.live:
                self._broker.catchup.resume(group)

    def acknowledged(self, session: Session) -> None:
        """A client has acknowledged something, maybe of groups."""
        for group in session.shares:
            assert isinstance(group, Group)
            self.moved[group] = None
        if len(session.shares) > len(session.in_flight):
            found = {sent.cursor: None for sent in session.in_flight.values()}
            session.shares = {cursor: None for cursor in found if isinstance(cursor, Group)}

    def note_moved(self, end: Position) -> None:
        """Where those that have moved are, for after a crash."""
        memory = self._broker.memory
        for _ in range(min(len(self.moved), MOVED_MAX)):
            group = next(iter(self.moved))
            del self.moved[group]
            at = group.at(end)
            if memory.groups.get(group.key) != at and group.key in self.all:
                memory.groups[group.key] = at
                memory.note("group", group.key, *at)


def _taken_back(session: Session, groups: set[Group] | None) -> dict[Cursor, list[Position]]:
    """What of QoS 1 is under way to a client by groups: it is no longer. QoS 2 stays with the client."""
    returned: dict[Cursor, list[Position]] = {}
    for packet_id, sent in list(session.in_flight.items()):
        if sent.qos == 1 and isinstance(sent.cursor, Group) and (groups is None or sent.cursor in groups):
            del session.in_flight[packet_id]
            returned.setdefault(sent.cursor, []).append(sent.position)
    return returned
