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
        return max(read_clock(self._clock), self.time_ns + self.step_ns)

    def share_end(self, shared: Shared | None, waits: bool = False) -> None:
        self._shared, self._waits = shared, waits

    def intend(self, end: int) -> None:
        if self._shared is not None:
            self._shared.store(END_INTENDED, checked_offset(end))

    def _settle(self) -> None:
        """What was written up to `offset` counts."""
        if self._shared is not None and not self._waits:
            self._shared.store(END_COMMITTED, checked_offset(self.offset))

    def advance(self, size: int, records: int, time_ns: int) -> None:
        self.offset += size
        self.records += records
        self.time_ns = time_ns
        self.torn = False
        self._settle()

    def append(self, payload: Any) -> Any:
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
