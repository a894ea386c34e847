"""An append while nothing special is due. The oracle for `log/append.pxi`."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from forelog.kernel.types import REENTERED
from forelog.log.directory.end import END_COMMITTED, END_INTENDED, checked_offset
from tests.kernel.oracle.captain import captain_encode, captain_encode_many
from tests.kernel.oracle.crc import crc32c
from tests.kernel.oracle.figures import Distribution
from tests.kernel.oracle.queue import OwnedLock
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
        self._ended = False
        self.rest_at = self.descriptor = -1
        self.frame_bytes_max = 2**63 - 1
        self.torn = False
        self.write: Callable[[Any], int] = len
        self._shared: Shared | None = None
        self._waits = False
        self.synced = self.settled = self.syncs = self.journal_syncs = self._committed = 0
        self.alone = self._disowned = False
        self.sync_lock = OwnedLock()
        self.sync_error: OSError | None = None
        self.sync: Callable[[], None] = lambda: None
        self.cover: Callable[[int, int, int], bool] | None = None
        self.restart: Callable[[int], None] | None = None
        self.note: Callable[[int, int], None] | None = None
        self.fail: Callable[[OSError], Any] = lambda error: None
        self.timing: Distribution | None = None
        self.one_timing: Distribution | None = None
        self.many_timing: Distribution | None = None
        self.mark_at, self.mark_bytes = 2**63 - 1, 1
        self._marks: array[int] | None = None
        self._noted = (0, 0)
        self._mark: tuple[int, bytes, int] = (-1, b"", 0)

    @property
    def locked(self) -> bool:
        return self._mutex.locked()

    @property
    def held(self) -> bool:
        return self._owner == threading.get_ident() or self.sync_lock.held

    def place(self) -> tuple[int, int]:
        return self.segment, self.offset

    def disown(self) -> None:
        self._disowned = True
        self.end()

    def end(self) -> None:
        self._ended, self.rest_at, self.alone = True, -1, False

    @property
    def rest_at(self) -> int:
        return self._rest_at

    @rest_at.setter
    def rest_at(self, offset: int) -> None:
        self._rest_at = -1 if self._ended else offset

    def __enter__(self) -> Self:
        if self._disowned:
            return self
        own = threading.get_ident()
        if self._owner == own or self.sync_lock.held:
            raise RuntimeError(REENTERED)
        self._mutex.acquire()
        self._owner = own
        return self

    def __exit__(self, *error: object) -> None:
        if not self._disowned:
            self._owner = 0
            self._mutex.release()

    def unshare(self) -> None:
        self._shared, self._mark, self.note = None, (-1, b"", 0), None

    def begin(self, segment: int, offset: int, marks: array[int], mark_at: int) -> None:
        self._marks, self.mark_at = marks, mark_at
        self.segment = segment
        self.offset = self.synced = self.settled = self._committed = offset

    def share_mark(self, descriptor: int, mark: bytes, place: int) -> None:
        if len(mark) != 56:
            raise ValueError(f"a mark of {len(mark)} bytes: expected 56")
        self._mark = (descriptor, mark, place)

    def note_synced(self, segment: int, offset: int) -> None:
        if (segment, offset) < self._noted:
            return
        self._noted = segment, offset
        descriptor, mark, place = self._mark
        if descriptor < 0:
            if self.note is not None:
                self.note(segment, offset)
            return
        body = mark[:16] + struct.pack(">QQ", segment, offset) + mark[32:52]
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, body + crc32c(body).to_bytes(4, "big"), place)

    def finish_sync(self, segment: int, end: int, settled: bool) -> None:
        self.syncs += 1
        self.journal_syncs += not settled
        if segment == self.segment:
            if self._waits and end > self._committed and self._shared is not None:
                self._shared.store(END_COMMITTED, checked_offset(end))
            if self._waits:
                self._committed = max(self._committed, end)
            self.synced = max(self.synced, end)
            if settled:
                self.settled = max(self.settled, end)
        if settled:
            self.note_synced(segment, end)

    def fail_sync(self, error: OSError) -> None:
        self.sync_error = self.sync_error or error
        self.end()

    def _sync_alone(self) -> None:
        with self.sync_lock:
            if self.sync_error is not None:
                self.fail(self.sync_error)
            if self.synced >= self.offset:
                return
            begun, settled = time.monotonic(), True
            try:
                if self.cover is not None and self.cover(self.segment, self.synced, self.offset):
                    settled = False
                else:
                    self.sync()
            except OSError as error:
                self.fail_sync(error)
                self.fail(error)
            if self.timing is not None:
                self.timing.add(time.monotonic() - begun)
            if settled and self.restart is not None:
                self.restart(self.segment)
            self.finish_sync(self.segment, self.offset, settled)

    def append_synced(self, payload: Any) -> Any:
        with self:
            if not self.alone or self.offset >= self.rest_at:
                return None
            position = self._append_one(payload)
            if position is not None:
                self._sync_alone()
            return position

    def append_many_synced(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        with self:
            found = self._append_several(payloads) if self.alone else None
            if found is not None:
                self._sync_alone()
            return found

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

    def mark_batch(self, starts: array[int], base: int, time_ns: int) -> None:
        for start in starts if self._marks is not None else ():
            if base + start >= self.mark_at:
                self._marks.extend((base + start, time_ns))
                self.mark_at = ((base + start) // self.mark_bytes + 1) * self.mark_bytes

    def advance(self, size: int, records: int, time_ns: int) -> None:
        self.offset += size
        self.records += records
        self.time_ns = time_ns
        self.torn = False
        self._settle()

    def append(self, payload: Any) -> Any:
        with self:
            position = self._append_one(payload) if self.offset < self.rest_at else None
        return self._rest(payload) if position is None else position

    def _append_one(self, payload: Any) -> Any:
        offset, now = self.offset, self.stamp()
        frame = self._encode(payload, now)
        if len(frame) > self.frame_bytes_max:
            return None
        self._put(frame)
        self.mark_batch(array("q", [0]), offset, now)
        self.advance(len(frame), 1, now)
        return tuple.__new__(self._kind, (self.segment, offset))

    def append_many(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        with self:
            return self._append_several(payloads)

    def _append_several(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        offset = self.offset
        if self._encode is not captain_encode or not payloads or offset >= self.rest_at:
            return None
        now = self.stamp()
        data, starts = captain_encode_many(payloads, now)
        if len(data) > self.frame_bytes_max or offset + len(data) > self.rest_at:
            return None
        self._put(data)
        self.mark_batch(starts, offset, now)
        self.advance(len(data), len(starts), now)
        return self.segment, offset, starts

    def _put(self, frame: bytes) -> None:
        """Write all of it, or raise with nothing of it left."""
        failure: OSError | None = None
        self.intend(self.offset + len(frame))
        try:
            written = self.write(frame)
        except OSError as error:
            written, failure = 0, error
        except BaseException:
            self.rest_at, self.torn = -1, True
            raise
        if written != len(frame):
            rest_at, self.rest_at, self.torn = self.rest_at, -1, True
            self._undo(frame, written, failure)
            self.rest_at, self.torn = rest_at, False
