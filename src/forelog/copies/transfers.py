"""What was sent to each copy, as far as it takes to recognise it there.

With each acknowledgement, and whenever it connects, a primary compares the end of the copy with what it has sent.
Other bytes at the same position come from another primary.

>>> transfer = Transfer()
>>> transfer.begin(None)
>>> transfer.add(Position(1, 8), b"ten bytes.")
>>> transfer.settle(Resume(Position(1, 18), b"ten bytes."))
>>> transfer.knows(Resume(Position(1, 18), b"ten bytes.")), transfer.knows(Resume(Position(1, 18), b"others...."))
(True, False)
>>> transfer.settle(Resume(Position(1, 18), b"others...."))
Traceback (most recent call last):
    ...
forelog.errors.ReplicaError: the copy ends at 000000001:18 with other bytes than were sent: another primary \
writes to it
"""

from __future__ import annotations

import threading

from forelog.copies.snapshot import Resume
from forelog.errors import ReplicaError
from forelog.log.directory.place import TAIL_BYTES
from forelog.log.position import Position

NOWHERE = Position(0, 0)
TRANSFERS_MAX = 64  # remembered by an opening, of destinations that come and go


class Transfer:
    """What was sent to one copy: where it ends, and the ends that the copy may have."""

    def __init__(self) -> None:
        self.end = Resume(NOWHERE, b"")
        """The position up to which everything was sent, and the last bytes before it."""
        self.acknowledged = NOWHERE
        """The highest position that the copy has acknowledged."""
        self._whole: dict[Position, bytes] = {}
        """The end of the whole copy, when it was last known."""
        self._since: dict[Position, bytes] = {}
        """The ends of what was sent since then."""

    def begin(self, resume: Resume | None) -> None:
        """Continue after what the copy has; with None, from nothing."""
        self.end = resume or Resume(NOWHERE, b"")

    def add(self, position: Position, data: bytes | memoryview) -> None:
        """Note that records were sent."""
        tail = bytes(data[-TAIL_BYTES:])
        if position == self.end.position:
            tail = (self.end.tail + tail)[-TAIL_BYTES:]
        self.end = Resume(Position(position.segment, position.offset + len(data)), tail)
        self._since[self.end.position] = tail

    def found(self, end: Resume | None) -> None:
        """Note that the copy ends here, and that the log has the same bytes."""
        self._whole = {} if end is None else {end.position: end.tail}

    def settle(self, acknowledged: Resume) -> None:
        """Take an acknowledgement; raise if it isn't for what was sent. 0:0 is a copy that isn't whole yet."""
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
        """Whether the copy can have got this end from this transfer."""
        return any(
            end.position in ends and _agree(end.tail, ends[end.position]) for ends in (self._whole, self._since)
        )


class Transfers:
    """What one opening of a log has sent to all of its copies, also to destinations that were removed since."""

    def __init__(self) -> None:
        self._all: list[tuple[str, Transfer]] = []
        self._lock = threading.Lock()

    def new(self, where: str) -> Transfer:
        """Begin a transfer to an address."""
        transfer = Transfer()
        with self._lock:
            self._all = [*self._all, (where, transfer)][-TRANSFERS_MAX:]
        return transfer

    def knows(self, end: Resume) -> bool:
        """Whether a copy can have got this end from this opening."""
        return any(transfer.knows(end) for _, transfer in self._all)

    def acknowledged(self, where: str) -> Position:
        """The highest position that the copy at an address has acknowledged."""
        return max((transfer.acknowledged for place, transfer in self._all if place == where), default=NOWHERE)


def _agree(one: bytes, other: bytes) -> bool:
    """Whether two tails are equal, as far as both reach."""
    return one.endswith(other) if len(one) >= len(other) else other.endswith(one)
