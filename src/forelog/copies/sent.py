"""What a copy was sent, as far as it takes to recognise it again.

A primary compares what a copy says that it has with what it has sent there, with each acknowledgement and whenever
it connects. Other bytes at the same position come from another primary.

>>> sent = Sent()
>>> sent.begin(None)
>>> sent.add(Position(1, 8), b"ten bytes.")
>>> sent.settle(Resume(Position(1, 18), b"ten bytes."))
>>> sent.knows(Resume(Position(1, 18), b"ten bytes.")), sent.knows(Resume(Position(1, 18), b"others...."))
(True, False)
>>> sent.settle(Resume(Position(1, 18), b"others...."))
Traceback (most recent call last):
    ...
forelog.errors.ReplicaError: the copy ends at 000000001:18 with other bytes than were sent: another primary \
writes to it
"""

from __future__ import annotations

import threading

from forelog.copies.mirror import TAIL_BYTES, Resume
from forelog.errors import ReplicaError
from forelog.log.position import Position

__all__ = ["NOWHERE", "Memory", "Sent"]

NOWHERE = Position(0, 0)
SENT_MAX = 64  # that an opening remembers, of destinations that come and go


class Sent:
    """The end of what was sent to one copy, and the ends that this copy may have."""

    def __init__(self) -> None:
        self.end = Resume(NOWHERE, b"")
        """Up to where everything was sent, and the last bytes before that."""
        self.acknowledged = NOWHERE
        """The highest position that the copy has acknowledged."""
        self._whole: dict[Position, bytes] = {}
        """The end of the whole copy, when it was last known."""
        self._since: dict[Position, bytes] = {}
        """The ends of what was sent since."""

    def begin(self, resume: Resume | None) -> None:
        """Go on from what the copy has; None, or a restart, is from nothing."""
        self.end = resume or Resume(NOWHERE, b"")

    def add(self, position: Position, data: bytes | memoryview) -> None:
        """Records were sent."""
        tail = bytes(data[-TAIL_BYTES:])
        if position == self.end.position:
            tail = (self.end.tail + tail)[-TAIL_BYTES:]
        self.end = Resume(Position(position.segment, position.offset + len(data)), tail)
        self._since[self.end.position] = tail

    def found(self, end: Resume | None) -> None:
        """The copy has this, and it was seen to be ours."""
        self._whole = {} if end is None else {end.position: end.tail}

    def settle(self, acknowledged: Resume) -> None:
        """The copy says that it has this; raise if it isn't what was sent. 0:0 is a copy that isn't whole yet."""
        position, tail = acknowledged
        self._since = {self.end.position: self.end.tail} if self.end.tail else {}
        if position == NOWHERE:
            return
        if position != self.end.position:
            raise ReplicaError(
                f"the copy ends at {position}, not at {self.end.position}: another primary writes to it"
            )
        if not _agree(tail, self.end.tail):
            raise ReplicaError(
                f"the copy ends at {position} with other bytes than were sent: another primary writes to it"
            )
        self.acknowledged = max(self.acknowledged, position)
        self.found(acknowledged)

    def knows(self, end: Resume) -> bool:
        """Whether the copy may have got this from here."""
        return any(
            end.position in ends and _agree(end.tail, ends[end.position]) for ends in (self._whole, self._since)
        )


class Memory:
    """What an opening has sent to all of its copies. It outlives a destination that is removed and added again."""

    def __init__(self) -> None:
        self._all: list[tuple[str, Sent]] = []
        self._lock = threading.Lock()

    def new(self, where: str) -> Sent:
        """For what is sent somewhere from now on."""
        sent = Sent()
        with self._lock:
            self._all = [*self._all, (where, sent)][-SENT_MAX:]
        return sent

    def knows(self, end: Resume) -> bool:
        """Whether a copy may have got this from here."""
        return any(sent.knows(end) for _, sent in self._all)

    def acknowledged(self, where: str) -> Position:
        """The highest position that the copy there has acknowledged."""
        return max((sent.acknowledged for place, sent in self._all if place == where), default=NOWHERE)


def _agree(one: bytes, other: bytes) -> bool:
    """Whether the bytes before a position are the same, as far as both are known."""
    return one.endswith(other) if len(one) >= len(other) else other.endswith(one)
