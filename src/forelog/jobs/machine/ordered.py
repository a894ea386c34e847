"""Items in order by a key. Any slice is found fast, however many there are.

They are in blocks, a list of lists: adding or removing one moves a few hundred others, and finding a slice skips
whole blocks. Each item has a key of its own, which stays the same while the item is here.

>>> names = Ordered(str)
>>> for name in ("mail", "report", "backup"):
...     names.add(name)
>>> names.remove("mail")
>>> names.some(0, 10), names.some(1, 10), names.some(2, 10)
(['backup', 'report'], ['report'], [])
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_BLOCK_MAX = 1000


class Ordered(Generic[T]):
    """Items in the order of `key`."""

    __slots__ = ("_blocks", "_key")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._blocks: list[list[T]] = []

    def add(self, item: T) -> None:
        """Put in an item."""
        blocks, key = self._blocks, self._key
        if not blocks:
            blocks.append([item])
            return
        number = min(self._number(item), len(blocks) - 1)
        block = blocks[number]
        if key(item) > key(block[-1]):
            block.append(item)
        else:
            insort(block, item, key=key)
        if len(block) > _BLOCK_MAX:
            # Items that come in order fill their blocks. Elsewhere both halves have room for more.
            at = _BLOCK_MAX if block[-1] is item and number == len(blocks) - 1 else _BLOCK_MAX // 2
            blocks.insert(number + 1, block[at:])
            del block[at:]

    def remove(self, item: T) -> None:
        """Take out an item that is here."""
        number = self._number(item)
        block = self._blocks[number]
        del block[bisect_left(block, self._key(item), key=self._key)]
        if not block:
            del self._blocks[number]

    def some(self, offset: int, limit: int) -> list[T]:
        """A slice: up to `limit` items, after the first `offset`."""
        found: list[T] = []
        for block in self._blocks:
            if offset >= len(block):
                offset -= len(block)
                continue
            found += block[offset : offset + limit - len(found)]
            if len(found) >= limit:
                break
            offset = 0
        return found

    def _number(self, item: T) -> int:
        """The block that an item belongs to; the number of blocks if it comes after all."""
        blocks, key = self._blocks, self._key
        return 0 if len(blocks) == 1 else bisect_left(blocks, key(item), key=lambda block: key(block[-1]))
