"""Who gets what: live cursors by topic, and groups that share their messages.

Only clients that are connected are in here. What a topic leads to is remembered until somebody subscribes,
unsubscribes, comes or goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from chiplog.broker.mqtt import Trie
from chiplog.broker.sessions import Cursor, Session, Sub, Verdict, judge
from chiplog.log.position import Position

__all__ = ["Group", "Routes"]

_CACHE_MAX = 65_536
_READERS_MAX = 4096
"""Topics for which a group remembers who may read them, each member counting as one."""
_READERS_CHARS_MAX = 256

Route = tuple[tuple[Cursor, Verdict], ...]


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
        self.holders: set[str] = set()
        """The ids of all whose sessions have it."""
        self.returned: list[Position] = []
        """What was sent to a member who left without acknowledging it."""
        self.waits_for: frozenset[Session] | None = None
        """The members that may read its next message, if not all may; none of them, if their clients are away."""
        self._readers: dict[bytes, Readers] = {}
        self._readers_weight = 0
        self._turn = 0
        self.add(filter, Sub(2))

    def judge_again(self) -> None:
        """Members have come or gone, or their rights have changed."""
        super().judge_again()
        self.waits_for = None
        self._readers.clear()
        self._readers_weight = 0

    def readers(self, topic: bytes, sessions: Mapping[str, Session]) -> Readers:
        """Who may read a topic, by the rules of now."""
        found = self._readers.get(topic)
        if found is None:
            text = topic.decode()
            some = frozenset(member for member in self.members if member.rights.may_read(text))
            everyone = len(some) == len(self.members)
            away = not everyone and any(
                session not in self.members and session.rights.may_read(text)
                for session in (sessions.get(client_id) for client_id in self.holders)
                if session is not None
            )
            found = Readers(everyone, frozenset() if everyone else some, away)
            self._readers_weight += 1 + len(found.some)
            if self._readers_weight > _READERS_MAX:
                self._readers.clear()
                self._readers_weight = 1 + len(found.some)
            if len(topic) <= _READERS_CHARS_MAX:
                self._readers[topic] = found
        return found

    def in_turn(self) -> list[Session]:
        """Members, beginning with another one each time."""
        members = list(self.members)
        self._turn += 1
        first = self._turn % len(members) if members else 0
        return members[first:] + members[:first]


class Routes:
    """Live cursors, by what they subscribed to."""

    def __init__(self) -> None:
        self._trie: Trie[Cursor, Sub] = Trie()
        self._cache: dict[bytes, Route] = {}

    def __len__(self) -> int:
        return len(self._trie)

    def add(self, cursor: Cursor, filter: str, sub: Sub) -> None:  # noqa: A002
        """A subscription counts from now on."""
        self._trie.add(filter, cursor, sub)
        self._cache.clear()

    def remove(self, cursor: Cursor, filter: str) -> None:  # noqa: A002
        """And no longer."""
        self._trie.remove(filter, cursor)
        self._cache.clear()

    def of(self, topic: bytes) -> Route:
        """All cursors that want a topic, each once."""
        route = self._cache.get(topic)
        if route is None:
            if len(self._cache) >= _CACHE_MAX:
                self._cache.clear()
            route = self._cache[topic] = self._find(topic)
        return route

    def judge_again(self) -> None:
        """Rights have changed: what a topic leads to is found anew."""
        self._cache.clear()

    def _find(self, topic: bytes) -> Route:
        subs: dict[Cursor, list[Sub]] = {}
        text = topic.decode()
        for cursor, sub in self._trie.match(topic):
            session = cursor.session  # of a group's members each is looked at when it is to get something
            if session is None or session.rights.may_read(text):
                subs.setdefault(cursor, []).append(sub)
        found = ((cursor, judge(those)) for cursor, those in subs.items())
        return tuple((cursor, verdict) for cursor, verdict in found if verdict is not None)
