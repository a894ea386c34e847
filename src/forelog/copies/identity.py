"""Which log it is, and which of its openings writes it.

A log draws an id when it is made, and all of its copies share it. Each opening is a new *run*, and each promotion
of a copy begins a new *term*. Term and run together are the *epoch*: the higher epoch is the younger primary. Each
opening also draws a random *word*. A log that was copied, restored or cloned can be opened twice with the same
epoch, but not with the same word. A copy remembers the last opening that wrote it. It refuses an older epoch, and
the same epoch with another word (claim.py).

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

WORD_BYTES = 8
_LAYOUT = struct.Struct(f">16sQQ{WORD_BYTES}s")
IDENTITY_BYTES = _LAYOUT.size


EPOCH_MAX = 2**40
"""The highest term, and the highest run, that there can be."""
TERM_STEP_MAX = 1000
"""Terms that a primary may be ahead of a copy: the copy may have missed so many promotions."""
_FIRST_TERM_MAX = 2**32


def new_word() -> bytes:
    """Draw a word that no other opening has."""
    return os.urandom(WORD_BYTES)


class Identity(NamedTuple):
    """One opening of a log."""

    id: bytes
    """The id of the log, and of all of its copies."""
    term: int
    """How many promotions there were, plus one."""
    run: int
    """The number of the opening in its term."""
    word: bytes
    """A random word that only this opening has."""

    @classmethod
    def new(cls) -> Self:
        """The identity of the first opening of a new log."""
        return cls(os.urandom(16), 1, 1, new_word())

    def next_run(self) -> Identity:
        """The identity of the next opening by the same primary."""
        return Identity(self.id, self.term, self.run + 1, new_word())

    def next_term(self) -> Identity:
        """The identity of another primary, which replaces this one."""
        return Identity(self.id, self.term + 1, 1, new_word())

    @property
    def epoch(self) -> tuple[int, int]:
        """Term and run: the higher one is the younger primary."""
        return self.term, self.run

    @property
    def opening(self) -> str:
        """The epoch and the word, as text: `1.3-2c26b46b68ffc68f`."""
        return f"{self.term}.{self.run}-{self.word.hex()}"

    def encode(self) -> bytes:
        """The identity as bytes."""
        return _LAYOUT.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The identity that `encode` turned into these bytes. Raises struct.error if they aren't one."""
        return cls(*_LAYOUT.unpack(data))

    def __str__(self) -> str:
        return f"{self.opening} of log {self.id.hex()[:8]}"


def check_term(where: str, identity: Identity, known: Identity | None) -> None:
    """Raise ReplicaError if a primary's term is too far ahead of a copy's.

    Without this limit, a single primary could end the history of a copy with the highest possible term.
    """
    most = _FIRST_TERM_MAX if known is None else min(known.term + TERM_STEP_MAX, EPOCH_MAX)
    if identity.term > most:
        so_far = "a new copy takes" if known is None else f"it is in term {known.term}, and takes"
        raise ReplicaError(
            f"{where} takes nothing from term {identity.term}: {so_far} terms up to {most}. If the term is right, "
            "remove the copy there: a new one is made"
        )
