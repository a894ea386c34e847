"""Who gets what: live cursors by topic.

Only clients that are connected are in here, and groups. What a topic leads to is remembered until a subscription
changes that could match it: one whose first level is a word leaves the topics of all other first levels alone.
"""

from __future__ import annotations

from collections.abc import Generator

from forelog.broker.mqtt import Trie
from forelog.broker.sessions.session import Cursor, Sub, Verdict, judge

__all__ = ["Routes"]

_TOPICS_MAX = 65_536
_BYTES_MAX = 16 << 20
"""Of topics that are remembered, with what they lead to."""
_ENTRY_BYTES, _CURSOR_BYTES = 300, 80
_EFFORT_EACH, _EFFORT_MAX = 4, 2000
"""To find out what a subscriber gets, in subscriptions; and after how much of that others have their turn."""

Route = tuple[tuple[Cursor, Verdict], ...]


class Routes:
    """Live cursors, by what they subscribed to."""

    def __init__(self) -> None:
        self._trie: Trie[Cursor, Sub] = Trie()
        self._cache: dict[bytes, Route] = {}
        self._topics: dict[bytes, list[bytes]] = {}
        """Topics that are remembered, by their first level."""
        self._bytes = 0
        self._changes = 0

    def __len__(self) -> int:
        return len(self._trie)

    def add(self, cursor: Cursor, filter: str, sub: Sub) -> None:  # noqa: A002
        """A subscription counts from now on."""
        self._trie.add(filter, cursor, sub)
        self._changed(filter)

    def remove(self, cursor: Cursor, filter: str) -> None:  # noqa: A002
        """A subscription counts no longer."""
        if self._trie.remove(filter, cursor) is not None:
            self._changed(filter)

    def known(self, topic: bytes) -> Route | None:
        """All cursors that want a topic, each once, if that is remembered."""
        return self._cache.get(topic)

    def of(self, topic: bytes) -> Route:
        """All cursors that want a topic, each once."""
        route = self._cache.get(topic)
        if route is None:
            finding = self.find(topic)
            while route is None:
                try:
                    next(finding)
                except StopIteration as found:
                    route = found.value
        return route

    def find(self, topic: bytes) -> Generator[None, None, Route]:
        """The same for a topic that isn't remembered, with breaks: it may take long, and things may change."""
        changes = self._changes
        subs: dict[Cursor, list[Sub]] = {}
        for cursor, sub in (yield from self._trie.walk(topic)):
            subs.setdefault(cursor, []).append(sub)
        text = topic.decode()
        found: list[tuple[Cursor, Verdict]] = []
        effort = 0
        for cursor, those in subs.items():
            verdict = what_it_gets(cursor, text, those)
            if verdict is not None:
                found.append((cursor, verdict))
            effort += _EFFORT_EACH + len(those)
            if effort > _EFFORT_MAX:
                effort = 0
                yield
        route = tuple(found)
        if changes == self._changes:
            self._remember(topic, route)
        return route

    # -- what is remembered

    def judge_again(self) -> None:
        """What any topic leads to may have changed, as after a change of rights."""
        self._cache.clear()
        self._topics.clear()
        self._bytes = 0
        self._changes += 1

    def _remember(self, topic: bytes, route: Route) -> None:
        weight = _weight(topic, route)
        if weight > _BYTES_MAX // 4:
            return
        if len(self._cache) >= _TOPICS_MAX or self._bytes + weight > _BYTES_MAX:
            self.judge_again()
        self._cache[topic] = route
        self._topics.setdefault(topic.partition(b"/")[0], []).append(topic)
        self._bytes += weight

    def _changed(self, filter: str) -> None:  # noqa: A002
        first = filter.partition("/")[0]
        if first in ("+", "#"):
            self.judge_again()
            return
        self._changes += 1
        for topic in self._topics.pop(first.encode(), ()):
            route = self._cache.pop(topic, None)
            if route is not None:
                self._bytes -= _weight(topic, route)


def _weight(topic: bytes, route: Route) -> int:
    """Bytes that it takes to remember a topic."""
    identifiers = sum(len(verdict.properties) for _, verdict in route)
    return _ENTRY_BYTES + 2 * len(topic) + _CURSOR_BYTES * len(route) + identifiers


def what_it_gets(cursor: Cursor, text: str, subs: list[Sub]) -> Verdict | None:
    """What a cursor gets of a topic, by its subscriptions that match; None if nothing."""
    session = cursor.session  # of a group's members each is looked at when it is to get something
    return judge(subs) if session is None or session.rights.may_read(text) else None
