"""A shared subscription: its members, and a position in the log that they share.

Each message goes to one member. Members take turns. A member that can't take anything is skipped until it has room
again, so a group costs no more with ten thousand idle members than with one. Messages that a member hasn't
acknowledged when it leaves go to another one.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from forelog.broker.sessions.session import Cursor, Session, Sub
from forelog.log.position import Position

_NUMBERS = count()
_READERS_MAX = 4096
"""Topics whose readers a group caches, plus the members in those entries."""
_READERS_CHARS_MAX = 256


class Readers(NamedTuple):
    """The members of a group that may read a topic."""

    all: bool
    """Whether every connected member may."""
    some: frozenset[Session]
    """The connected members that may, if not all may."""
    away: bool
    """Whether a member may that isn't connected."""


class Group(Cursor):
    """A shared subscription: each message goes to one member."""

    def __init__(self, key: str, filter: str, position: Position) -> None:  # noqa: A002
        super().__init__(key, None, position)
        self.filter = filter
        self.members: dict[Session, Sub] = {}
        """The connected members."""
        self.holders: set[Session] = set()
        """All sessions that have the subscription."""
        self.ready: OrderedDict[Session, None] = OrderedDict()
        """Members that may have room; the first is next."""
        self.returned: list[Position] = []
        """A heap of messages that members left unacknowledged."""
        self.fetching: Position | None = None
        """The one of them that is being read from the log."""
        self._out: list[tuple[Position, int, Session, int]] = []
        """A heap of messages in flight: position, serial number, member, packet id."""
        self._out_max = 1000
        self.waits_for: frozenset[Session] | None = None
        """The connected members that may read the next message; None if all may."""
        self._reads_all: bool | None = None
        self._rights_edition = 0
        self._readers: dict[bytes, Readers] = {}
        self._readers_weight = 0
        self.add(filter, Sub(2))

    # -- rights

    def judge_again(self) -> None:
        """Forget verdicts, because members or their rights have changed."""
        super().judge_again()
        self.waits_for = self._reads_all = None
        self._readers.clear()
        self._readers_weight = 0

    def _check_edition(self) -> None:
        """Forget verdicts if the rules have been read again since."""
        edition = next((one.rights.edition for one in self.holders), 0)
        if edition != self._rights_edition:
            self._rights_edition = edition
            self.judge_again()

    def reads_all(self) -> bool:
        """Whether every member may read every topic."""
        self._check_edition()
        if self._reads_all is None:
            self._reads_all = all(member.rights.reads_all for member in self.members)
        return self._reads_all

    def readers(self, topic: bytes) -> Readers:
        """The members that may read a topic, by the current rules."""
        self._check_edition()
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
        """The member whose turn it is; None if none has room."""
        if not self.ready:
            return None
        member = next(iter(self.ready))
        self.ready.move_to_end(member)
        return member

    def skip(self, member: Session) -> None:
        """Skip a member until it has room."""
        if self.ready.pop(member, 0) is None:
            member.waiting[self] = None

    def unskip(self, member: Session) -> None:
        """A member has room again."""
        if member in self.members:
            self.ready[member] = None

    def add_member(self, member: Session, sub: Sub) -> None:
        """Add a connected client."""
        self.members[member] = sub
        self.judge_again()
        if member not in self.ready:
            member.waiting.pop(self, None)
            self.ready[member] = None

    def remove_member(self, member: Session) -> None:
        """Remove a client that unsubscribed or disconnected."""
        self.judge_again()
        self.members.pop(member, None)
        self.ready.pop(member, None)
        member.waiting.pop(self, None)

    def sent(self, member: Session, packet_id: int, position: Position) -> None:
        """Note that a message was sent to a member."""
        heappush(self._out, (position, next(_NUMBERS), member, packet_id))
        if len(self._out) > self._out_max:  # a message that is never acknowledged would keep all after it
            self._out = [one for one in self._out if self._is_out(one)]
            heapify(self._out)
            self._out_max = 2 * len(self._out) + 1000

    def at(self, end: Position) -> Position:
        """The position up to which everything is acknowledged."""
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
