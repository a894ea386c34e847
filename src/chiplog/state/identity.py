"""Whose log it is, and which of its primaries writes it.

A log has an id, drawn when it is made, which all of its copies share. Each opening is a run of its own, and each
promotion of a copy begins a new term; together they are the epoch, and the higher one is the younger primary. Who
keeps a copy remembers the highest epoch that it has seen, and takes nothing from a lower one.

>>> first = Identity(bytes(16), 1, 1)
>>> first.next_run() > first, first.next_term() > first.next_run().next_run()
(True, True)
>>> Identity.decode(first.encode()) == first
True
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple, Self

__all__ = ["Identity"]

_LAYOUT = struct.Struct(">16sQQ")


class Identity(NamedTuple):
    """A log's id and the epoch of who writes it. Of one log, the higher one is the younger."""

    id: bytes
    term: int
    run: int

    @classmethod
    def new(cls) -> Self:
        """That of a log that is being made."""
        return cls(os.urandom(16), 1, 1)

    def next_run(self) -> Identity:
        """The same primary, opened again."""
        return Identity(self.id, self.term, self.run + 1)

    def next_term(self) -> Identity:
        """Another primary, which replaces this one."""
        return Identity(self.id, self.term + 1, 1)

    @property
    def epoch(self) -> tuple[int, int]:
        """What tells the younger of two primaries."""
        return self.term, self.run

    def encode(self) -> bytes:
        """As bytes."""
        return _LAYOUT.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; struct.error if they are none."""
        return cls(*_LAYOUT.unpack(data))

    def __str__(self) -> str:
        return f"{self.id.hex()[:8]} epoch {self.term}.{self.run}"
