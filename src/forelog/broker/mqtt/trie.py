"""Subscriptions by filter, found by topic.

Filters form a tree by their levels. A lookup walks down the levels of the topic, and the wildcards beside them, so
filters that don't match cost nothing. Levels without a branch are merged into one node. A filter therefore has at
most two nodes, however many levels it has, and comparing a topic with all of them is one step.

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

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Node(Generic[K, V]):
    __slots__ = ("children", "edge", "has_wildcards", "here", "rest")

    def __init__(self, edge: str) -> None:
        self.edge = edge
        """The levels from the node above to this one; they may include +."""
        self.has_wildcards = "+" in edge
        self.children: dict[str, _Node[K, V]] = {}
        """Children by the first level of their edges."""
        self.here: dict[K, V] = {}
        """Subscribers of the filter that ends here."""
        self.rest: dict[K, V] = {}
        """Subscribers of the filter that ends here with a #."""

    def is_empty(self) -> bool:
        return not (self.children or self.here or self.rest)

    def cut(self, levels: list[str], count: int) -> _Node[K, V]:
        """Split the edge after so many levels with a new node above this one; returns the new node."""
        upper: _Node[K, V] = _Node("/".join(levels[:count]))
        self.edge = "/".join(levels[count:])
        self.has_wildcards = "+" in self.edge
        upper.children[levels[count]] = self
        return upper


class Trie(Generic[K, V]):
    """Subscriptions: the subscribers of each valid filter without a prefix, with a value for each."""

    def __init__(self) -> None:
        self._root: _Node[K, V] = _Node("")
        self._count = 0
        self.steps = 0
        """Nodes that lookups visited."""

    def __len__(self) -> int:
        """The number of subscriptions."""
        return self._count

    def __iter__(self) -> Iterator[tuple[str, K, V]]:
        """All subscriptions, as filter, subscriber and value."""
        pending: list[tuple[list[str], _Node[K, V]]] = [([], self._root)]
        while pending:
            path, node = pending.pop()
            for levels, holders in ((path, node.here), ([*path, "#"], node.rest)):
                for key, value in holders.items():
                    yield "/".join(levels), key, value
            pending += [([*path, child.edge], child) for child in node.children.values()]

    def add(self, filter: str, key: K, value: V) -> V | None:  # noqa: A002
        """Subscribe to a filter; returns the value of a subscription that is replaced."""
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
        """Unsubscribe; returns the value, or None if there is no such subscription."""
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
        """Remove nodes without subscribers and branches."""
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
        """The subscriptions that match a topic, given as text or UTF-8. A subscriber may match several times."""
        walk = self.walk(topic)
        while True:
            try:
                next(walk)
            except StopIteration as found:
                return tuple(found.value)

    def walk(self, topic: str | bytes, steps: int = 250) -> Generator[None, None, list[tuple[K, V]]]:
        """Do what `match` does, with a pause after some nodes each. Subscriptions may change during a pause."""
        text = topic if isinstance(topic, str) else topic.decode()
        levels, count = text.split("/"), 0
        found: list[tuple[K, V]] = []
        # A wildcard doesn't match a first level that starts with $.
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
    """The number of levels that an edge and a filter, from a level on, have in common."""
    count, most = 1, min(len(edge), len(levels) - at)
    while count < most and edge[count] == levels[at + count]:
        count += 1
    return count


def _follow(node: _Node[K, V], levels: list[str], at: int) -> int:
    """The level of a topic after those that an edge matches; -1 if it doesn't match."""
    edge = node.edge
    if "/" not in edge:  # one level, by which the node was found
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
