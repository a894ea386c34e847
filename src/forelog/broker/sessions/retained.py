"""Retained messages, found by filter through the tree of their topics.

The topics are kept sorted level by level, which is the order in which one walks through a tree of levels: all that
lies below `a/b` follows it. A walk for a filter looks at the first topic that could match, and from there jumps to
the next one that could: whole branches that don't match are passed over in one step, and a level that only one
topic has costs no node. Where a walk has got to is a topic, so it can stop anywhere and go on after any change.

>>> from forelog.broker.flow.batches import Stored
>>> retained = RetainedMessages()
>>> for topic in ("house/attic/temperature", "house/attic/door", "house/cellar/temperature", "street"):
...     _ = retained.add(Stored(1, topic, b"x", {}))
>>> [message.topic for message in retained.match("house/+/temperature") if message is not None]
['house/attic/temperature', 'house/cellar/temperature']
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from typing import Any

from forelog.bounds import BYTES_MAX, COUNT_MAX
from forelog.broker.flow.batches import Stored
from forelog.broker.mqtt.topics import has_wildcards

__all__ = ["RetainedMessages"]

_BLOCK_MAX = 1000
"""Topics that lie together in one list: one that grows past it is cut into two."""
_MESSAGE_BYTES, _PAIR_BYTES = 700, 200
"""What a message takes beside its texts and bytes, and what a pair of its properties does, about."""
_ONE_BYTES_MAX = 128 << 20
"""Of one message: it is one event of a log, whose batches have at most twice as much."""
_BETWEEN, _AFTER = "\0", "\1"
"""In keys: between two levels, less than any character of a topic; and what comes after all that is below one."""


class RetainedMessages:
    """The message of each topic that has one."""

    def __init__(self, count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self.byte_count = 0
        """About what all of them take."""
        self._reserved: dict[str, int] = {}
        """Of messages that are being written: bytes by topic."""
        self._reserved_bytes = 0
        self._messages: dict[str, Stored] = {}
        self._blocks: list[list[str]] = []
        """The topics as sorted keys, a list of lists: to add one moves a few hundred, however many there are."""
        self._lasts: list[str] = []
        """The last key of each block."""

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, topic: str) -> bool:
        return topic in self._messages

    def __iter__(self) -> Iterator[str]:
        """All topics, in no order. They may not change meanwhile."""
        return iter(self._messages)

    def get(self, topic: str) -> Stored | None:
        """The message of a topic."""
        return self._messages.get(topic)

    # -- room

    def has_room(self, topic: str, payload: bytes, properties: Mapping[str, Any]) -> bool:
        """Whether a message may be kept for a topic. An empty one takes none; what is kept already stays."""
        if not payload:
            return True
        size = _bytes_of(Stored(0, topic, payload, dict(properties)))
        before, reserved = self._messages.get(topic), self._reserved.get(topic, 0)
        count = len(self._messages) + len(self._reserved)
        if before is None and not reserved and count >= self._count_max:
            return False
        taken = self.byte_count + self._reserved_bytes - reserved - (0 if before is None else _bytes_of(before))
        return taken + size <= self._bytes_max and size <= _ONE_BYTES_MAX

    def reserve(self, message: Stored) -> None:
        """A message for its topic is being written: until that is done, its room is taken."""
        if message.payload:
            self.release(message.topic)
            self._reserved[message.topic] = size = _bytes_of(message)
            self._reserved_bytes += size

    def release(self, topic: str) -> None:
        """It is written, or can't be."""
        self._reserved_bytes -= self._reserved.pop(topic, 0)

    # -- messages

    def add(self, message: Stored) -> Stored | None:
        """Keep a message for its topic; returns the one that it replaces."""
        before = self._messages.get(message.topic)
        self.byte_count += _bytes_of(message) - (0 if before is None else _bytes_of(before))
        self._messages[message.topic] = message
        if before is None:
            self._insert(_key(message.topic))
        return before

    def remove(self, topic: str) -> Stored | None:
        """Keep none for a topic any more; returns the one that was kept."""
        before = self._messages.pop(topic, None)
        if before is not None:
            self.byte_count -= _bytes_of(before)
            self._delete(_key(topic))
        return before

    def after(self, topic: str | None = None, count: int = 100) -> list[Stored]:
        """The next messages in the order of topics, after a topic, or the first ones."""
        found: list[Stored] = []
        number, at = (0, 0) if topic is None else self._place(_key(topic) + _BETWEEN)
        while number < len(self._blocks) and len(found) < count:
            some = self._blocks[number][at : at + count - len(found)]
            found += [self._messages[_topic(key)] for key in some]
            number, at = number + 1, 0
        return found

    def match(self, filter: str) -> Iterator[Stored | None]:  # noqa: A002
        """The messages whose topics match, each as it is when the walk gets there.

        None stands for a step that found nothing. Between any two steps messages may come and go: a walk finds all
        that are there throughout, and each topic at most once.
        """
        if not has_wildcards(filter):
            yield self._messages.get(filter)
            return
        wanted = filter.split("/")
        is_open = wanted[-1] == "#"
        if is_open:
            wanted.pop()
        place: str | None = ""
        while place is not None:
            key = self._first(place)
            if key is None:
                return
            found, place = _compare(key, wanted, is_open)
            yield self._messages[_topic(key)] if found else None

    # -- keys

    def _first(self, key: str) -> str | None:
        """The first key that is this one or comes after it."""
        number, at = self._place(key)
        return self._blocks[number][at] if number < len(self._blocks) else None

    def _place(self, key: str) -> tuple[int, int]:
        number = bisect_left(self._lasts, key)
        return number, bisect_left(self._blocks[number], key) if number < len(self._blocks) else 0

    def _insert(self, key: str) -> None:
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        number = min(bisect_right(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[number]
        insort(block, key)
        if len(block) > _BLOCK_MAX:
            half = block[_BLOCK_MAX // 2 :]
            del block[_BLOCK_MAX // 2 :]
            self._blocks.insert(number + 1, half)
            self._lasts.insert(number + 1, half[-1])
        self._lasts[number] = block[-1]

    def _delete(self, key: str) -> None:
        number, at = self._place(key)
        block = self._blocks[number]
        del block[at]
        if block:
            self._lasts[number] = block[-1]
        else:
            del self._blocks[number], self._lasts[number]


def _bytes_of(message: Stored) -> int:
    properties = message.properties
    more = sum(
        _PAIR_BYTES + len(name) + len(value)
        for name, value in properties.get("user", properties.get("user_properties", ()))
    )
    more += sum(len(value) for value in properties.values() if isinstance(value, str | bytes))
    return _MESSAGE_BYTES + 4 * len(message.topic) + len(message.payload) + more


def _key(topic: str) -> str:
    return topic.replace("/", _BETWEEN)


def _topic(key: str) -> str:
    return key.replace(_BETWEEN, "/")


def _compare(key: str, wanted: list[str], is_open: bool) -> tuple[bool, str | None]:
    """Whether a topic matches, and the lowest key after it that could; None if there is no such key."""
    levels = key.split(_BETWEEN)
    if key.startswith("$") and (not wanted or wanted[0] == "+"):
        return False, "%"  # what starts with $ is for filters that say so
    for at, want in enumerate(wanted):
        if at == len(levels):  # it is above what could match
            return False, f"{key}{_BETWEEN}{'' if want == '+' else want}"
        if want == "+" or want == levels[at]:
            continue
        if levels[at] < want:
            return False, _BETWEEN.join([*levels[:at], want])
        return False, _next_branch(levels, wanted[:at])
    if is_open:
        return True, key + _BETWEEN
    return len(levels) == len(wanted), _next_branch(levels, wanted)


def _next_branch(levels: list[str], wanted: list[str]) -> str | None:
    """The lowest key after all that lies below the last level for which a filter leaves a choice."""
    for at in range(len(wanted) - 1, -1, -1):
        if wanted[at] == "+":
            return _BETWEEN.join(levels[: at + 1]) + _AFTER
    return None
