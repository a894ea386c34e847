"""Who wants a message: subscriptions by filter, found by topic.

Filters lie in a tree by their levels, so that a topic is looked up by walking down its own levels and the
wildcards beside them; filters that don't match cost nothing, however many there are. Levels that only one way
leads through are one node: there are never more than two nodes for a filter, however many levels it has, and to
compare a topic with many levels is one step.

>>> trie: Trie[str, int] = Trie()
>>> trie.add("sensors/+/temperature", "ann", 1)
>>> trie.add("sensors/#", "bob", 0)
>>> sorted(trie.match("sensors/attic/temperature"))
[('ann', 1), ('bob', 0)]
>>> trie.remove("sensors/#", "bob"), trie.match("sensors/cellar/humidity")
(0, ())
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Trie"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Node(Generic[K, V]):
    __slots__ = ("children", "edge", "has_wildcards", "here", "rest")

    def __init__(self, edge: str) -> None:
        self.edge = edge
        """The levels that lead here from the node above, a wildcard + among them."""
        self.has_wildcards = "+" in edge
        self.children: dict[str, _Node[K, V]] = {}
        """By the first level of their edges."""
        self.here: dict[K, V] = {}
        """Subscribers to exactly this."""
        self.rest: dict[K, V] = {}
        """Subscribers to this and everything below it: the filter goes on with # only."""

    def is_empty(self) -> bool:
        return not (self.children or self.here or self.rest)

    def cut(self, levels: list[str], count: int) -> _Node[K, V]:
        """Put a node between this one and the one above, after so many of the levels of its edge; returns it."""
        upper: _Node[K, V] = _Node("/".join(levels[:count]))
        self.edge = "/".join(levels[count:])
        self.has_wildcards = "+" in self.edge
        upper.children[levels[count]] = self
        return upper


class Trie(Generic[K, V]):
    """Subscriptions: for each filter (without a prefix, and valid) its subscribers, and a value for each."""

    def __init__(self) -> None:
        self._root: _Node[K, V] = _Node("")
        self._count = 0
        self.steps = 0
        """Nodes that were looked at, in all."""

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
            pending += [([*path, child.edge], child) for child in node.children.values()]

    def add(self, filter: str, key: K, value: V) -> V | None:  # noqa: A002
        """Subscribe, or replace the subscription to the same filter: then its value so far is returned."""
        levels, is_open = _split(filter)
        node, at = self._root, 0
        while at < len(levels):
            child = node.children.get(levels[at])
            if child is None:
                child = node.children[levels[at]] = _Node("/".join(levels[at:]))
                at = len(levels)
            else:
                edge = child.edge.split("/")
                same = _same(edge, levels, at)
                if same < len(edge):
                    child = node.children[levels[at]] = child.cut(edge, same)
                at += same
            node = child
        holders = node.rest if is_open else node.here
        before = holders.get(key)
        self._count += key not in holders
        holders[key] = value
        return before

    def remove(self, filter: str, key: K) -> V | None:  # noqa: A002
        """Unsubscribe; what the value was, or None if there is no such subscription."""
        levels, is_open = _split(filter)
        path: list[tuple[_Node[K, V], str]] = []
        node, at = self._root, 0
        while at < len(levels):
            child = node.children.get(levels[at])
            if child is None:
                return None
            edge = child.edge.split("/")
            if edge != levels[at : at + len(edge)]:
                return None
            path.append((node, levels[at]))
            node, at = child, at + len(edge)
        holders = node.rest if is_open else node.here
        if key not in holders:
            return None
        value = holders.pop(key)
        self._count -= 1
        self._tidy(node, path)
        return value

    def _tidy(self, node: _Node[K, V], path: list[tuple[_Node[K, V], str]]) -> None:
        """Leave no node behind that nobody subscribed to and where nothing branches."""
        while path and node.is_empty():
            node, level = path.pop()
            del node.children[level]
        if path and len(node.children) == 1 and not node.here and not node.rest:
            (below,) = node.children.values()
            merged: _Node[K, V] = _Node(f"{node.edge}/{below.edge}")
            merged.children, merged.here, merged.rest = below.children, below.here, below.rest
            above, level = path[-1]
            above.children[level] = merged

    def match(self, topic: str | bytes) -> tuple[tuple[K, V], ...]:
        """The subscriptions that match a topic, as a text or in UTF-8; a subscriber may be there several times."""
        walk = self.walk(topic)
        while True:
            try:
                next(walk)
            except StopIteration as found:
                return tuple(found.value)

    def walk(self, topic: str | bytes, steps: int = 250) -> Generator[None, None, list[tuple[K, V]]]:
        """The same, with a break after every so many nodes, in which subscriptions may come and go."""
        text = topic if isinstance(topic, str) else topic.decode()
        levels, count = text.split("/"), 0
        found: list[tuple[K, V]] = []
        # A first level that starts with $ is the server's own, and matched by no wildcard there.
        if not text.startswith("$"):
            found += self._root.rest.items()
            pending = [(self._root.children.get("+"), 0), (self._root.children.get(levels[0]), 0)]
        else:
            pending = [(self._root.children.get(levels[0]), 0)]
        while pending:
            node, at = pending.pop()
            if node is None:
                continue
            count += 1
            if count % steps == 0:
                self.steps += steps
                yield
            at = _follow(node, levels, at)
            if at < 0:
                continue
            if node.rest:
                found += node.rest.items()
            if at == len(levels):
                if node.here:
                    found += node.here.items()
            elif node.children:
                pending.append((node.children.get("+"), at))
                if levels[at] != "+":
                    pending.append((node.children.get(levels[at]), at))
        self.steps += count % steps
        return found


def _split(filter: str) -> tuple[list[str], bool]:  # noqa: A002
    """The levels of a filter, and whether a # follows them."""
    levels = filter.split("/")
    if levels[-1] == "#":
        return levels[:-1], True
    return levels, False


def _same(edge: list[str], levels: list[str], at: int) -> int:
    """How many levels of an edge are those of a filter from a level on."""
    count, most = 1, min(len(edge), len(levels) - at)
    while count < most and edge[count] == levels[at + count]:
        count += 1
    return count


def _follow(node: _Node[K, V], levels: list[str], at: int) -> int:
    """The level of a topic after those that an edge matches; -1 if it doesn't."""
    edge = node.edge
    if "/" not in edge:  # it is one level, by which the node was found
        return at + 1
    wanted = edge.split("/")
    end = at + len(wanted)
    if end > len(levels):
        return -1
    if not node.has_wildcards:
        return end if levels[at:end] == wanted else -1
    for want, level in zip(wanted, levels[at:end], strict=True):
        if want != level and want != "+":
            return -1
    return end
