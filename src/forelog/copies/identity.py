"""Whose log it is, and which of its primaries writes it.

A log has an id, drawn when it is made, which all of its copies share. Each opening is a run of its own, and each
promotion of a copy begins a new term; together they are the epoch, and the higher one is the younger primary. Each
opening also draws a word. A log that was copied, restored or cloned can be opened twice with the same epoch, but
not with the same word. Whoever keeps a copy remembers the last opening that wrote it, and refuses an older epoch,
and the same epoch with another word (claim.py).

>>> first = Identity(bytes(16), 1, 1, bytes(8))
>>> first.next_run().epoch > first.epoch, first.next_term().epoch > first.next_run().next_run().epoch
(True, True)
>>> first.next_run() == first.next_run()
False
>>> Identity.decode(first.encode()) == first
True
>>> str(first)
'1.1-0000000000000000 of log 00000000'
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple, Self

from forelog.errors import ReplicaError

__all__ = ["EPOCH_MAX", "IDENTITY_BYTES", "TERM_STEP_MAX", "WORD_BYTES", "Identity", "check_term", "new_word"]

WORD_BYTES = 8
_LAYOUT = struct.Struct(f">16sQQ{WORD_BYTES}s")
IDENTITY_BYTES = _LAYOUT.size


EPOCH_MAX = 2**40
"""The highest term, and the highest run, that there can be."""
TERM_STEP_MAX = 1000
"""Terms that a primary may be ahead of a copy: as many promotions may have happened that the copy didn't see."""
_FIRST_TERM_MAX = 2**32


def new_word() -> bytes:
    """A word that nobody else has."""
    return os.urandom(WORD_BYTES)


class Identity(NamedTuple):
    """A log's id, the epoch of an opening of it, and the word that this opening drew."""

    id: bytes
    term: int
    run: int
    word: bytes

    @classmethod
    def new(cls) -> Self:
        """The identity of the first opening of a new log."""
        return cls(os.urandom(16), 1, 1, new_word())

    def next_run(self) -> Identity:
        """The same primary, opened again."""
        return Identity(self.id, self.term, self.run + 1, new_word())

    def next_term(self) -> Identity:
        """Another primary, which replaces this one."""
        return Identity(self.id, self.term + 1, 1, new_word())

    @property
    def epoch(self) -> tuple[int, int]:
        """What tells the younger of two primaries."""
        return self.term, self.run

    @property
    def opening(self) -> str:
        """The epoch and the word, as text: `1.3-2c26b46b68ffc68f`."""
        return f"{self.term}.{self.run}-{self.word.hex()}"

    def encode(self) -> bytes:
        """As bytes."""
        return _LAYOUT.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; struct.error if they are none."""
        return cls(*_LAYOUT.unpack(data))

    def __str__(self) -> str:
        return f"{self.opening} of log {self.id.hex()[:8]}"


def check_term(where: str, identity: Identity, known: Identity | None) -> None:
    """Raise ReplicaError if a primary's term is further ahead of a copy's than promotions can have brought it.

    Or whoever may write a copy once could end its history for ever, with a term that has none after it.
    """
    most = _FIRST_TERM_MAX if known is None else min(known.term + TERM_STEP_MAX, EPOCH_MAX)
    if identity.term > most:
        so_far = "a new copy takes" if known is None else f"it is in term {known.term}, and takes"
        raise ReplicaError(
            f"{where} takes nothing from term {identity.term}: {so_far} terms up to {most}. If the term is right, "
            "remove the copy there, and it is made anew"
        )
