"""The receiving end of a log that is shipped: frames into copies, and answers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from forelog.copies.slots import Slots
from forelog.copies.snapshot import Resume
from forelog.copies.wire import FRAME_BYTES_MAX, Body, Kind, Link, parse_data, parse_snapshot
from forelog.errors import BadFrame
from forelog.log.position import Position

__all__ = ["Receiver"]


def _nothing(*_: object) -> None:
    pass


class Receiver:
    """Takes what comes over a link into copies, until the other side closes.

    `arrived` is told of records once the whole copy has them, `renewed` when a copy was replaced by one that was
    made anew, and `changed` after either. `fits` raises if so many bytes more
    are too many. The lock is held while a copy is changed.
    """

    def __init__(
        self,
        link: Link,
        slots: Slots,
        lock: threading.RLock | threading.Lock,
        *,
        arrived: Callable[[Position, memoryview], None] = _nothing,
        renewed: Callable[[], None] = _nothing,
        changed: Callable[[], None] = _nothing,
        fits: Callable[[int], None] = _nothing,
    ) -> None:
        self._link = link
        self._slots = slots
        self._lock = lock
        self._arrived = arrived
        self._renewed = renewed
        self._changed = changed
        self._fits = fits
        link.frame_bytes_max = FRAME_BYTES_MAX

    def run(self, check: Callable[[], None] = _nothing) -> None:
        """Until the other side closes. `check` comes before each frame is taken, with the lock held.

        Nothing is sent with the lock held: whoever doesn't take its answers keeps nobody else waiting.
        """
        while self._next(check):
            pass

    def _next(self, check: Callable[[], None]) -> bool:
        """Take a frame, and forget it before the next one comes. False if there is none."""
        frame = self._link.receive()
        if frame is None:
            return False
        with self._lock:
            check()
            answer = self._take(frame.kind, frame.body)
        if answer is not None:
            self._link.send_ack(answer)
        return True

    def _take(self, kind: Kind, body: Body) -> Resume | None:
        """What to acknowledge, if anything."""
        slots = self._slots
        if kind is Kind.DATA:
            position, data = parse_data(body)
            self._fits(len(data))
            slots.growing.write(position, data)
            if slots.growing is slots.whole:
                self._arrived(position, data)
                self._changed()
        elif kind is Kind.FLUSH:
            return slots.flush(synced=body == b"\1")
        elif kind is Kind.COMMITTED:
            if slots.commit(parse_snapshot(body)):
                self._renewed()
            self._changed()
            return slots.flush(synced=False)
        elif kind is Kind.RESTART:
            slots.restart()
        else:
            raise BadFrame(f"{self._link.who} sends {kind.name}, which nobody asked for")
        return None
