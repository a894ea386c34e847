"""The receiving end of a shipped log: it writes frames into a copy, and acknowledges them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from forelog.copies.slots import Slots
from forelog.copies.snapshot import Resume
from forelog.copies.wire import FRAME_BYTES_MAX, Body, Kind, Link, parse_data, parse_snapshot
from forelog.errors import BadFrame
from forelog.log.position import Position


def _nothing(*_: object) -> None:
    pass


@dataclass(eq=False, slots=True)
class Receiver:
    """Writes the records that come over a link into slots, until the other side closes.

    arrived   called with records once the whole copy has them
    renewed   called when a new copy has replaced the whole one
    changed   called after either
    fits      called with a number of bytes; raises if there is no space for them

    The lock is held while a copy is changed.
    """

    link: Link
    slots: Slots
    lock: threading.RLock | threading.Lock
    arrived: Callable[[Position, memoryview], None] = _nothing
    renewed: Callable[[], None] = _nothing
    changed: Callable[[], None] = _nothing
    fits: Callable[[int], None] = _nothing

    def __post_init__(self) -> None:
        self.link.frame_bytes_max = FRAME_BYTES_MAX

    def run(self, check: Callable[[], None] = _nothing) -> None:
        """Receive until the other side closes. `check` is called before each frame, with the lock held.

        Acknowledgements are sent without the lock: a client that doesn't read them delays no other.
        """
        while self._next(check):
            pass

    def _next(self, check: Callable[[], None]) -> bool:
        """Take one frame, and release it before the next one comes. False at the end."""
        frame = self.link.receive()
        if frame is None:
            return False
        with self.lock:
            check()
            answer = self._take(frame.kind, frame.body)
        if answer is not None:
            self.link.send_ack(answer)
        return True

    def _take(self, kind: Kind, body: Body) -> Resume | None:
        """Carry a frame out. Returns what to acknowledge; None if the frame asks for no acknowledgement."""
        slots = self.slots
        if kind is Kind.DATA:
            position, data = parse_data(body)
            self.fits(len(data))
            slots.growing.write(position, data)
            if slots.growing is slots.whole:
                self.arrived(position, data)
                self.changed()
        elif kind is Kind.FLUSH:
            return slots.flush(synced=body == b"\1")
        elif kind is Kind.COMMITTED:
            if slots.commit(parse_snapshot(body)):
                self.renewed()
            self.changed()
            return slots.flush(synced=False)
        elif kind is Kind.RESTART:
            slots.restart()
        else:
            raise BadFrame(f"{self.link.who} sends an unexpected {kind.name}")
        return None
