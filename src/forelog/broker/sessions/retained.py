"""Retained messages, found by filter.

Topics are sorted level by level, so everything below `a/b` directly follows it. A search for a filter goes to the
first topic that could match, and from each topic jumps to the next one that could. A branch that doesn't match is
skipped in one step. The state of a search is a topic, so it can pause anywhere and resume after any change.

>>> from forelog.broker.log.batch import StoredMessage
>>> retained = RetainedMessages()
>>> for topic in ("house/attic/temperature", "house/attic/door", "house/cellar/temperature", "street"):
...     _ = retained.add(StoredMessage(1, topic, b"x", {}))
>>> [message.topic for message in retained.match("house/+/temperature") if message is not None]
['house/attic/temperature', 'house/cellar/temperature']
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from typing import Any

from forelog.bounds import BYTES_MAX, COUNT_MAX
from forelog.broker.log.batch import StoredMessage
from forelog.broker.mqtt.topics import has_wildcards
from forelog.broker.sessions.session import Kept

_BLOCK_MAX = 1000
"""Topics in one list; a longer list is split in two."""
_MESSAGE_BYTES, _PAIR_BYTES = 700, 200
"""Memory of a message besides its texts and bytes, and of each user property."""
_ONE_BYTES_MAX = 128 << 20
"""The largest message: it is one event of a log whose batches have at most twice as much."""
CHARS_MAX = 1 << 18
"""Characters of topics that `after` looks at."""
_BETWEEN, _AFTER = "\0", "\1"
"""What a key has between levels, lower than any character of a topic; and a suffix after all subtopics."""


class RetainedMessages:
    """The retained message of each topic that has one."""

    def __init__(self, count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self.byte_count = 0
        """Memory of all messages, estimated."""
        self._reserved: dict[str, int] = {}
        """Bytes by topic of messages that are being written."""
        self._reserved_bytes = 0
        self._messages: dict[str, StoredMessage] = {}
        self._kept: dict[str, Kept] = {}
        """The messages that clients have had in flight, by topic."""
        self._blocks: list[list[str]] = []
        """The topics as sorted keys in a list of lists, so that adding one moves only a few hundred."""
        self._lasts: list[str] = []
        """The last key of each block."""

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, topic: str) -> bool:
        return topic in self._messages

    def __iter__(self) -> Iterator[str]:
        """All topics, unordered. They must not change meanwhile."""
        return iter(self._messages)

    def get(self, topic: str) -> StoredMessage | None:
        """The message of a topic; None if it has none."""
        return self._messages.get(topic)

    # -- room

    def has_room(self, topic: str, payload: bytes, properties: Mapping[str, Any]) -> bool:
        """Whether there is room for a message. An empty message needs none."""
        if not payload:
            return True
        size = _bytes_of(StoredMessage(0, topic, payload, dict(properties)))
        before, reserved = self._messages.get(topic), self._reserved.get(topic, 0)
        count = len(self._messages) + len(self._reserved)
        if before is None and not reserved and count >= self._count_max:
            return False
        taken = self.byte_count + self._reserved_bytes - reserved - (0 if before is None else _bytes_of(before))
        return taken + size <= self._bytes_max and size <= _ONE_BYTES_MAX

    def reserve(self, message: StoredMessage) -> None:
        """Reserve room for a message while it is being written."""
        if message.payload:
            self.release(message.topic)
            self._reserved[message.topic] = size = _bytes_of(message)
            self._reserved_bytes += size

    def release(self, topic: str) -> None:
        """Release what `reserve` took, once the message is written or has failed."""
        self._reserved_bytes -= self._reserved.pop(topic, 0)

    # -- messages

    def add(self, message: StoredMessage) -> StoredMessage | None:
        """Keep a message for its topic; returns the one that it replaces."""
        before = self._messages.get(message.topic)
        self.byte_count += _bytes_of(message) - (0 if before is None else _bytes_of(before))
        self._messages[message.topic] = message
        self._replaced(message.topic)
        if before is None:
            self._insert(_key(message.topic))
        return before

    def remove(self, topic: str) -> StoredMessage | None:
        """Remove the message of a topic; returns it."""
        before = self._messages.pop(topic, None)
        if before is not None:
            self.byte_count -= _bytes_of(before)
            self._replaced(topic)
            self._delete(_key(topic))
        return before

    def kept(self, message: StoredMessage) -> Kept:
        """A retained message for whoever has it in flight; nothing once it isn't retained any more."""
        found = self._kept.get(message.topic)
        if found is None or found.message is not message:
            found = Kept(message)
            if self._messages.get(message.topic) is message:
                self._kept[message.topic] = found
        return found

    def _replaced(self, topic: str) -> None:
        if (kept := self._kept.pop(topic, None)) is not None:
            kept.message = None

    def after(self, topic: str | None = None, count: int = 100, chars_max: int = CHARS_MAX) -> list[StoredMessage]:
        """The messages of the topics after a topic, or of the first ones, in the order of topics.

        At most `count`, and fewer if their topics are long; none only if there are no more.
        """
        found: list[StoredMessage] = []
        number, at = (0, 0) if topic is None else self._place(_key(topic) + _BETWEEN)
        while number < len(self._blocks) and len(found) < count and chars_max > 0:
            for key in self._blocks[number][at : at + count - len(found)]:
                found.append(self._messages[_topic(key)])
                chars_max -= len(key)
                if chars_max <= 0:
                    break
            number, at = number + 1, 0
        return found

    def match(self, filter: str) -> Iterator[StoredMessage | None]:  # noqa: A002
        """The messages whose topics match a filter; None for each step that finds nothing.

        Messages may be added and removed between two steps. Each topic is found at most once, and a message that
        stays throughout is found.
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
        """The first key that isn't lower than this one."""
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


def _bytes_of(message: StoredMessage) -> int:
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
        return False, "%"  # a wildcard doesn't match a first level that starts with $
    for at, want in enumerate(wanted):
        if at == len(levels):  # its subtopics could match
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
    """The lowest key after the branch of the last level that matched a +."""
    for at in range(len(wanted) - 1, -1, -1):
        if wanted[at] == "+":
            return _BETWEEN.join(levels[: at + 1]) + _AFTER
    return None
