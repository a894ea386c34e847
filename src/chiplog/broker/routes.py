"""Who gets what: live cursors by topic, and groups that share their messages.

Only clients that are connected are in here. What a topic leads to is remembered until somebody subscribes,
unsubscribes, comes or goes.
"""

from __future__ import annotations

from chiplog.broker.mqtt import Trie
from chiplog.broker.sessions import Cursor, Session, Sub, Verdict, judge
from chiplog.log.position import Position

__all__ = ["Group", "Routes"]

_CACHE_MAX = 65_536

Route = tuple[tuple[Cursor, Verdict], ...]


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
        self._turn = 0
        self.add(filter, Sub(2))

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

    def _find(self, topic: bytes) -> Route:
        subs: dict[Cursor, list[Sub]] = {}
        for cursor, sub in self._trie.match(topic):
            subs.setdefault(cursor, []).append(sub)
        found = ((cursor, judge(those)) for cursor, those in subs.items())
        return tuple((cursor, verdict) for cursor, verdict in found if verdict is not None)
