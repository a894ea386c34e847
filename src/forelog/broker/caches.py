"""What was found out once, kept for the next time, and bounded by its bytes.

A cache that is bounded by how many entries it has is as large as somebody makes its keys: topics may have 65,535
bytes. These count bytes, and don't keep what is long: it would be most of the memory, and hardly comes twice.

>>> cache: Cache[str, int] = Cache(1000)
>>> cache.put("topic", 1, len("topic"))
>>> cache.get("topic"), cache.get("other")
(1, None)
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Cache"]

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES = 200
"""What an entry takes beside its key and value, about."""
SIZE_MAX = 4096
"""Bytes of a key and its value; larger ones aren't kept."""


class Cache(Generic[K, V]):
    """Values by key, in two generations: a young one that is full becomes the old one, which is forgotten."""

    __slots__ = ("_most", "_old", "_young", "byte_count")

    def __init__(self, bytes_max: int) -> None:
        self._most = bytes_max // 2
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self.byte_count = 0
        """Bytes of the young generation; the old one has no more than half of the limit."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """What is kept for a key. Values that are None aren't told from nothing."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value whose key and value have so many bytes."""
        if size > SIZE_MAX or size + ENTRY_BYTES > self._most:
            return
        size += ENTRY_BYTES
        if self.byte_count + size > self._most:
            self._old, self._young, self.byte_count = self._young, {}, 0
        self._young[key] = value
        self.byte_count += size

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old, self.byte_count = {}, {}, 0
