"""Who wants a message: subscriptions by filter, found by topic.

Filters lie in a tree by their levels, so that a topic is looked up by walking down its own levels and the
wildcards beside them; filters that don't match cost nothing, however many there are. What a topic matched is
remembered until subscriptions change, since most messages go to topics that were seen before.

>>> trie: Trie[str, int] = Trie()
>>> trie.add("sensors/+/temperature", "ann", 1)
>>> trie.add("sensors/#", "bob", 0)
>>> sorted(trie.match("sensors/attic/temperature"))
[('ann', 1), ('bob', 0)]
>>> trie.remove("sensors/#", "bob"), trie.match("sensors/cellar/humidity")
(0, ())
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from chiplog.broker.mqtt.topics import has_wildcards

__all__ = ["Trie"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_TOPIC_CHARS_CACHED = 256
"""Longer topics aren't remembered: they would be most of the memory and are hardly ever seen."""


class _Node(Generic[K, V]):
    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[K, V]] = {}
        """By level; the wildcard + is a level like the others."""
        self.here: dict[K, V] = {}
        """Subscribers to exactly this."""
        self.rest: dict[K, V] = {}
        """Subscribers to this and everything below it: the filter goes on with # only."""

    def is_empty(self) -> bool:
        return not (self.children or self.here or self.rest)


class Trie(Generic[K, V]):
    """Subscriptions: for each filter (without a prefix, and valid) its subscribers, and a value for each.

    `cache_max` bounds what is remembered: topics, and subscribers of them, together.
    """

    def __init__(self, *, cache_max: int = 1 << 16) -> None:
        self._root: _Node[K, V] = _Node()
        self._count = 0
        # Two generations: a young one that is full becomes the old one, and what is still asked for moves over.
        self._young: dict[str | bytes, tuple[tuple[K, V], ...]] = {}
        self._old: dict[str | bytes, tuple[tuple[K, V], ...]] = {}
        self._young_weight = 0
        self._weight_max = cache_max // 2

    def __len__(self) -> int:
        """How many subscriptions there are."""
        return self._count

    def __iter__(self) -> Iterator[tuple[str, K, V]]:
        """All of them, as filter, subscriber and value."""
        pending: list[tuple[list[str], _Node[K, V]]] = [([], self._root)]
        while pending:
            path, node = pending.pop()
            for levels, holders in ((path, node.here), ([*path, "#"], node.rest)):
                for key, value in holders.items():
                    yield "/".join(levels), key, value
            pending += [([*path, level], child) for level, child in node.children.items()]

    def add(self, filter: str, key: K, value: V) -> V | None:  # noqa: A002
        """Subscribe, or replace the subscription to the same filter: then its value so far is returned."""
        node, ends_open = self._root, False
        for level in filter.split("/"):
            if level == "#":
                ends_open = True
                break
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        holders = node.rest if ends_open else node.here
        before = holders.get(key)
        self._count += key not in holders
        holders[key] = value
        self._forget(filter)
        return before

    def remove(self, filter: str, key: K) -> V | None:  # noqa: A002
        """Unsubscribe; what the value was, or None if there is no such subscription."""
        path: list[tuple[_Node[K, V], str]] = []
        node, ends_open = self._root, False
        for level in filter.split("/"):
            if level == "#":
                ends_open = True
                break
            child = node.children.get(level)
            if child is None:
                return None
            path.append((node, level))
            node = child
        holders = node.rest if ends_open else node.here
        if key not in holders:
            return None
        value = holders.pop(key)
        self._count -= 1
        while path and node.is_empty():
            node, level = path.pop()
            del node.children[level]
        self._forget(filter)
        return value

    def match(self, topic: str | bytes) -> tuple[tuple[K, V], ...]:
        """The subscriptions that match a topic, as a text or in UTF-8; a subscriber may be there several times."""
        found = self._young.get(topic)
        if found is None:
            found = self._old.get(topic)
            if found is None:
                found = tuple(self._walk(topic if isinstance(topic, str) else topic.decode()))
            self._remember(topic, found)
        return found

    def _walk(self, topic: str) -> list[tuple[K, V]]:
        found: list[tuple[K, V]] = []
        nodes = [self._root]
        # A first level that starts with $ is the server's own, and matched by no wildcard there.
        is_open = not topic.startswith("$")
        for level in topic.split("/"):
            below = []
            for node in nodes:
                if node.rest and is_open:
                    found += node.rest.items()
                child = node.children.get(level)
                if child is not None:
                    below.append(child)
                if is_open:
                    child = node.children.get("+")
                    if child is not None:
                        below.append(child)
            nodes, is_open = below, True
            if not nodes:
                return found
        for node in nodes:
            found += node.here.items()
            found += node.rest.items()
        return found

    def _remember(self, topic: str | bytes, found: tuple[tuple[K, V], ...]) -> None:
        weight = 1 + len(found)
        if len(topic) > _TOPIC_CHARS_CACHED or weight > self._weight_max:
            return
        if self._young_weight + weight > self._weight_max:
            self._old, self._young, self._young_weight = self._young, {}, 0
        self._young[topic] = found
        self._young_weight += weight

    def _forget(self, filter: str) -> None:  # noqa: A002
        """A filter's subscribers have changed, and with them what is remembered of the topics that it matches."""
        if has_wildcards(filter):
            self._young, self._old, self._young_weight = {}, {}, 0
            return
        # The weight stays: it only bounds, and is right again with the next generation.
        for topic in (filter, filter.encode()):
            self._young.pop(topic, None)
            self._old.pop(topic, None)
