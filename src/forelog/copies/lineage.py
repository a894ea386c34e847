"""The openings that wrote a log, one after the other.

Each opening writes a WRITER record: its identity, and the opening that it continues, with the position where the
log ended then. The WRITER record at the start of a generation lists all openings of the term, so a log knows them
even after it has dropped what they wrote. A promotion begins a new list.

If an opening is in the list and ended at or after a position, the log has everything that this opening wrote up to
the position. So a copy can tell whether a primary continues it, or was restored from a backup (claim.py).

::

    WRITER record, after its kind
      identity     40    id, term, run, word (identity.py)
      openings   n × 32    run 8, word 8, segment 8, offset 8: an opening, and the position after its last record

>>> first = Lineage(Identity(bytes(16), 1, 1, b"one12345"), Position(0, 0))
>>> second = first.next(Identity(bytes(16), 1, 2, b"two12345"), Position(3, 500))
>>> second.find(first.identity)
Opening(run=1, word=b'one12345', end=Position(segment=3, offset=500))
>>> decode(second.encode())
(Identity(id=b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', term=1, run=2, \
word=b'two12345'), (Opening(run=1, word=b'one12345', end=Position(segment=3, offset=500)),))
>>> second.next(second.identity.next_term(), Position(4, 8)).openings
()
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from forelog.copies.identity import IDENTITY_BYTES, Identity
from forelog.log.position import Position

OPENINGS_MAX = 4096
"""Openings that a log remembers. If a copy missed more of them, the primary is refused until a promotion."""
_OPENING = struct.Struct(">Q8sQQ")


class Opening(NamedTuple):
    """An opening that has ended."""

    run: int
    """The number of the opening in its term."""
    word: bytes
    """The opening's random word."""
    end: Position
    """The position after the last record that it wrote."""


class Lineage(NamedTuple):
    """An opening, and the earlier ones of its term."""

    identity: Identity
    """The opening."""
    began: Position
    """Where the log ended when it was opened."""
    openings: tuple[Opening, ...] = ()
    """The earlier openings, by run."""

    def next(self, identity: Identity, end: Position, *others: Identity) -> Lineage:
        """The lineage of the next opening of a log, which ends at a position.

        `others` are openings that the log accepted as a copy, but that wrote nothing.
        """
        over = [Opening(one.run, one.word, end) for one in (self.identity, *others) if one.term == identity.term]
        before = self.openings if self.identity.term == identity.term else ()
        return Lineage(identity, end, merged(before, over))

    def find(self, known: Identity) -> Opening | None:
        """The entry of an earlier opening; None if this log doesn't continue it."""
        for opening in reversed(self.openings):
            if known.term == self.identity.term and (opening.run, opening.word) == (known.run, known.word):
                return opening
        return None

    def encode(self, *, whole: bool = False) -> bytes:
        """The content of a WRITER record: the openings that this one continues directly, or all with `whole`."""
        openings = [one for one in self.openings if whole or one.end == self.began]
        return self.identity.encode() + b"".join(_OPENING.pack(one.run, one.word, *one.end) for one in openings)


def merged(openings: Iterable[Opening], more: Iterable[Opening]) -> tuple[Opening, ...]:
    """The openings of both lists, each once; only the last ones if there are too many."""
    found = {(one.run, one.word): one for one in (*openings, *more)}
    return tuple(sorted(found.values())[-OPENINGS_MAX:])


def is_encoded(count: int) -> bool:
    """Whether the content of a WRITER record can have this size."""
    return count >= IDENTITY_BYTES and (count - IDENTITY_BYTES) % _OPENING.size == 0


def decode(data: bytes) -> tuple[Identity, tuple[Opening, ...]]:
    """The identity and the openings in a WRITER record; struct.error if it isn't one."""
    openings = (
        Opening(run, word, Position(segment, offset))
        for run, word, segment, offset in _OPENING.iter_unpack(data[IDENTITY_BYTES:])
    )
    return Identity.decode(data[:IDENTITY_BYTES]), tuple(openings)
