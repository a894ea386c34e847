"""Live cursors by topic.

Only connected clients and groups have routes. The route of a topic is cached until a subscription changes that
could match it. A subscription whose first level isn't a wildcard affects only topics with that first level.
"""

from __future__ import annotations

from collections.abc import Generator

from forelog.broker.mqtt.trie import Trie
from forelog.broker.sessions.session import Cursor, Sub, Verdict, judge

_TOPICS_MAX = 65_536
_BYTES_MAX = 16 << 20
"""Bytes of cached topics and their routes."""
_ENTRY_BYTES, _CURSOR_BYTES = 300, 80
_BRANCHING_MAX = 32
_EFFORT_EACH, _EFFORT_MAX = 4, 2000
"""The cost of one subscriber's verdict, besides its subscriptions; and the cost of one step."""

Route = tuple[tuple[Cursor, Verdict], ...]


class Routes:
    """Cursors by the filters of their subscriptions."""

    def __init__(self) -> None:
        self._trie: Trie[Cursor, Sub] = Trie()
        self._cache: dict[bytes, Route] = {}
        self._topics: dict[bytes, list[bytes]] = {}
        """Cached topics, by their first level."""
        self._bytes = 0
        self._changes = 0
        self._branching = 0
        """Subscriptions to filters with a +: besides the path of the topic, a lookup follows each of them."""

    def __len__(self) -> int:
        return len(self._trie)

    def add(self, cursor: Cursor, filter: str, sub: Sub) -> None:  # noqa: A002
        """Add a subscription."""
        if self._trie.add(filter, cursor, sub) is None and "+" in filter:
            self._branching += 1
        self._changed(filter)

    def remove(self, cursor: Cursor, filter: str) -> None:  # noqa: A002
        """Remove a subscription."""
        if self._trie.remove(filter, cursor) is not None:
            self._branching -= "+" in filter
            self._changed(filter)

    @property
    def are_easy(self) -> bool:
        """Whether the route of any topic is found quickly: few filters make a lookup branch."""
        return self._branching <= _BRANCHING_MAX

    def known(self, topic: bytes) -> Route | None:
        """All cursors that want a topic, each once, if that is cached."""
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
        """The route of a topic that isn't cached, with pauses, during which subscriptions may change."""
        changes = self._changes
        subs: dict[Cursor, list[Sub]] = {}
        for cursor, sub in (yield from self._trie.walk(topic)):
            subs.setdefault(cursor, []).append(sub)
        text = topic.decode()
        found: list[tuple[Cursor, Verdict]] = []
        effort = 0
        for cursor, those in subs.items():
            verdict = _verdict(cursor, text, those)
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

    # -- the cache

    def judge_again(self) -> None:
        """Forget all routes, because rights have changed."""
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
    """Bytes of a cached route."""
    identifiers = sum(len(verdict.properties) for _, verdict in route)
    return _ENTRY_BYTES + 2 * len(topic) + _CURSOR_BYTES * len(route) + identifiers


def _verdict(cursor: Cursor, text: str, subs: list[Sub]) -> Verdict | None:
    """How a topic is delivered to a cursor by its subscriptions that match; None if it may not be."""
    session = cursor.session  # members of a group are checked when a message is sent to one
    return judge(subs) if session is None or session.rights.may_read(text) else None
