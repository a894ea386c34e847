"""The filters of one client that match a topic, found by their shapes.

The shape of a filter is its number of levels, and which of them are wildcards. A topic and a shape give one
filter, and one lookup tells whether the client has it. Clients have many filters and few shapes, so a topic costs
a few lookups. A shape takes little memory, and nothing has to be built when a client connects.

>>> shapes = Shapes()
>>> for n in range(1000):
...     shapes.add(f"house/{n}/+")
>>> shapes.add("street/#")
>>> len(shapes), sorted(shapes.matching("house/7/attic"))
(2, ['house/#', 'house/7/+', 'house/7/attic'])
"""

from __future__ import annotations

from collections.abc import Iterator

from forelog.broker.mqtt.topics import has_wildcards

Shape = tuple[int, tuple[int, ...], bool]
"""The number of levels before a #, which of them are +, and whether there is a #."""


class Shapes:
    """The shapes of some filters, each with the number of filters that have it."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Shape, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, filter: str) -> None:  # noqa: A002
        """Add a filter."""
        if has_wildcards(filter):
            shape = _shape(filter)
            self._counts[shape] = self._counts.get(shape, 0) + 1

    def remove(self, filter: str) -> None:  # noqa: A002
        """Remove a filter."""
        if has_wildcards(filter):
            shape = _shape(filter)
            left = self._counts[shape] - 1
            if left:
                self._counts[shape] = left
            else:
                del self._counts[shape]

    def matching(self, topic: str) -> Iterator[str]:
        """All filters that match a topic and have one of the shapes, or no wildcards. Safe from any thread."""
        yield topic
        levels = topic.split("/")
        count, is_hidden = len(levels), topic.startswith("$")
        for length, wildcards, is_open in tuple(self._counts):
            if count < length or (count > length and not is_open):
                continue
            if is_hidden and (not length or (wildcards and not wildcards[0])):
                continue  # a wildcard doesn't match a first level that starts with $
            found = levels[:length]
            for at in wildcards:
                found[at] = "+"
            if is_open:
                found.append("#")
            yield "/".join(found)


def _shape(filter: str) -> Shape:  # noqa: A002
    levels = filter.split("/")
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    return len(levels), tuple(at for at, level in enumerate(levels) if level == "+"), is_open
