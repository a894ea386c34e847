"""An append while nothing special is due. The oracle for `log/append.pxi`."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from forelog.kernel.types import REENTERED
from forelog.log.directory.end import END_COMMITTED, END_INTENDED, checked_offset
from tests.kernel.oracle.captain import captain_encode, captain_encode_many
from tests.kernel.oracle.shared import read_clock


class Shared(Protocol):
    """Words that other processes see: files.py."""

    def store(self, index: int, value: int) -> None: ...


class AppendCore:
    """Stamp, encode, hand to `write`, count: an append while nothing special is due, under its lock.

    The fields belong to whoever holds the lock, as a context manager; its holder can't take it twice. An
    append that finds `offset` at or past `rest_at`, or whose frame is over `frame_bytes_max`, is left to
    `rest(payload)`, without the lock. `undo(frame, written, error)` is called with the lock held when a write
    was short or failed, and either completes it or raises; until it has, `torn` is set and everything is left
    to `rest`. `descriptor`, unless -1, is what `write` writes to: the compiled core calls write(2) on it by
    itself.
    """

    def __init__(
        self,
        encode: Callable[[Any, int], bytes],
        undo: Callable[[bytes, int, OSError | None], None],
        rest: Callable[[Any], Any],
        kind: type[tuple[Any, ...]],
        clock: Callable[[], int] | None = None,
    ) -> None:
        if not issubclass(kind, tuple):
            raise TypeError("positions are tuples")
        self._encode = encode
        self._undo = undo
        self._rest = rest
        self._kind = kind
        self._clock = clock or time.time_ns
        self._mutex = threading.Lock()
        self._owner = 0
        self.segment = self.offset = self.time_ns = self.records = self.step_ns = 0
        self.rest_at = self.descriptor = -1
        self.frame_bytes_max = 2**63 - 1
        self.torn = False
        self.write: Callable[[Any], int] = len
        self._shared: Shared | None = None
        self._waits = False

    @property
    def locked(self) -> bool:
        """Whether somebody holds the lock, as of now."""
        return self._mutex.locked()

    def __enter__(self) -> Self:
        own = threading.get_ident()
        if self._owner == own:
            raise RuntimeError(REENTERED)
        self._mutex.acquire()
        self._owner = own
        return self

    def __exit__(self, *error: object) -> None:
        self._owner = 0
        self._mutex.release()

    def stamp(self) -> int:
        """The time for a record that is written now: the clock's, but at least `step_ns` after the last one's."""
        return max(read_clock(self._clock), self.time_ns + self.step_ns)

    def share_end(self, shared: Shared | None, waits: bool = False) -> None:
        """Tell through `shared` where each write will end, and then that it has; None to tell no more.

        With `waits` somebody else tells the second, once it is synced.
        """
        self._shared, self._waits = shared, waits

    def intend(self, end: int) -> None:
        """A write that ends there is about to begin."""
        if self._shared is not None:
            self._shared.store(END_INTENDED, checked_offset(end))

    def _settle(self) -> None:
        """What was written up to `offset` counts."""
        if self._shared is not None and not self._waits:
            self._shared.store(END_COMMITTED, checked_offset(self.offset))

    def advance(self, size: int, records: int, time_ns: int) -> None:
        """Count what somebody else has written, in one step as far as an interrupt is concerned."""
        self.offset += size
        self.records += records
        self.time_ns = time_ns
        self.torn = False
        self._settle()

    def append(self, payload: Any) -> Any:
        """Append one record; its position."""
        with self:
            offset = self.offset
            if offset < self.rest_at:
                now = self.stamp()
                frame = self._encode(payload, now)
                if len(frame) <= self.frame_bytes_max:
                    self._put(frame)
                    self.time_ns = now
                    self.offset = offset + len(frame)
                    self.records += 1
                    self._settle()
                    return tuple.__new__(self._kind, (self.segment, offset))
        return self._rest(payload)

    def append_many(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        """Append captain records of one time with one write: their segment, where it begins, and each in it.

        None, and nothing is done, where `rest_at` lies in between, or there is anything else to think of.
        """
        with self:
            offset = self.offset
            if self._encode is not captain_encode or not payloads or offset >= self.rest_at:
                return None
            now = self.stamp()
            data, starts = captain_encode_many(payloads, now)
            if len(data) > self.frame_bytes_max or offset + len(data) > self.rest_at:
                return None
            self._put(data)
            self.time_ns = now
            self.offset = offset + len(data)
            self.records += len(starts)
            self._settle()
            return self.segment, offset, starts

    def _put(self, frame: bytes) -> None:
        """Write all of it, or raise with nothing of it left."""
        failure: OSError | None = None
        self.intend(self.offset + len(frame))
        try:
            written = self.write(frame)
        except OSError as error:
            written, failure = 0, error
        if written != len(frame):
            rest_at, self.rest_at, self.torn = self.rest_at, -1, True
            self._undo(frame, written, failure)
            self.rest_at, self.torn = rest_at, False
