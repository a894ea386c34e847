"""A log that keeps a program's state, and stays short by asking the program to enumerate itself.

The app calls `update(event)` for every change, before it makes it, under the lock of what is changed. After a
crash `open` calls `replay(event)` for each, in order. When the log has grown past a limit it rotates: a new
generation begins, and `enumerate(log)` is called on a thread of its own, beside the updates that go on. The app
calls `log.update(event)` in it for everything that there is, each under its lock. Once that is done a marker
commits the generation, and what came before it is dropped. There is no copy of the state.

    generation 1                         generation 2
    BEGIN e e e ... e COMMIT u u u u u u BEGIN e u e e u u e COMMIT u u u
                                         ^                   ^
                                         updates go on here  from here on, generation 1 is not needed

Two rules are the app's to keep. Between an update and the change it tells of, nobody else may update the same
thing, and that holds for enumerating it too: then the log has the changes of each thing in their order. And a
replay may meet an update of something that it hasn't seen: in a generation that began while it was there, its
enumeration comes later. Such an update is to be passed over, or taken, if it says all that there is to say.

A record is one byte, then: 1 an event, 2 BEGIN and 3 COMMIT with the generation's number in eight bytes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from chiplog import kernel
from chiplog.errors import AppenderClosed, BadEvent, ChiplogError, LockTimeout
from chiplog.files import Files
from chiplog.log.appender import SEGMENT_BYTES, SYNC_INTERVAL_MS, Appender
from chiplog.log.index import SegmentIndex
from chiplog.log.position import Position
from chiplog.log.segments import Directory
from chiplog.log.stream import Stream
from chiplog.log.walk import Block
from chiplog.state.events import Codec, EventCodec

__all__ = ["Enumeration", "StateLog", "StateStats"]

logger = logging.getLogger("chiplog")

MAGIC = 0x63707374  # "cpst"
VERSION = 1
ROTATE_BYTES = 10 << 20
RECORD_BYTES = 20  # that a record takes beside its payload, about
TURN_SECONDS = 0.00005  # how long an enumeration computes before it pauses ...
PAUSE_SECONDS = 0.00002  # ... for as short as the system can ...
PAUSES_MAX = 8.0  # ... and for so many times as long as it computes, in all
QUIET_SECONDS = 0.01  # without an update for so long it doesn't pause
_EVENT, _BEGIN, _COMMIT = b"\x01", b"\x02", b"\x03"

T = TypeVar("T")
Replay = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class StateStats:
    """What a state log has done since it was opened."""

    generation: int
    complete: bool
    """Whether the generation is a whole snapshot."""
    restored: int
    """Events that were replayed."""
    updates: int
    objects: int
    """Events that the last enumeration gave."""
    bytes_since_snapshot: int
    rotations: int
    error: str | None
    """Why the last rotation failed, if it did."""


class Enumeration:
    """What `enumerate` gets: it calls `update` for everything that there is."""

    def __init__(self, log: StateLog) -> None:
        self._log = log
        self.objects = 0

    def update(self, event: Any) -> Position:
        """A thing as it is now. Hold its lock."""
        self.objects += 1
        return self._log._append(event)

    def each(self, things: Iterable[T]) -> Iterator[T]:
        """Go through things, and leave the interpreter to other threads every now and then. Hold no lock here.

        Without it a thread that updates may wait for the interpreter for milliseconds, as it does beside any
        thread that computes. While nobody updates it doesn't pause.
        """
        log, clock = self._log, time.perf_counter
        updates, busy_until, paused = log._updates, 0.0, 0.0
        computed_before, turn_ends = time.thread_time(), clock() + TURN_SECONDS
        for thing in things:
            yield thing
            now = clock()
            if now < turn_ends:
                continue
            if log._updates != updates:
                updates, busy_until = log._updates, now + QUIET_SECONDS
            # Where others leave nothing of the interpreter pauses are long: with a limit, or it would never end.
            if now < busy_until and paused <= PAUSES_MAX * (time.thread_time() - computed_before):
                time.sleep(PAUSE_SECONDS)
                before, now = now, clock()
                paused += now - before
            turn_ends = now + TURN_SECONDS


class StateLog:
    """A state log. `with StateLog(path, replay=..., enumerate=...) as log: log.update(event)`."""

    def __init__(
        self,
        path: str,
        *,
        replay: Replay,
        enumerate: Callable[[Enumeration], object],  # noqa: A002 - the name that users know
        types: Iterable[type] = (),
        codec: Codec | None = None,
        sync: str = "os",
        sync_interval_ms: int = SYNC_INTERVAL_MS,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_seconds: float | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        timeout: float | None = 0,
        files: Files | None = None,
    ) -> None:
        if rotate_bytes < 1 or (rotate_seconds is not None and rotate_seconds <= 0):
            raise ValueError("rotate_bytes and rotate_seconds are limits: expected more than nothing")
        self.stream = Stream(path, magic=MAGIC, version=VERSION, files=files)
        self._replay = replay
        self._enumerate = enumerate
        self._codec: Codec = EventCodec(types) if codec is None else codec
        self._options: dict[str, Any] = {
            "sync": sync,
            "sync_interval_ms": sync_interval_ms,
            "segment_bytes": segment_bytes,
            "timeout": timeout,
        }
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._appender: Appender | None = None
        self._rotating = threading.Lock()
        self._thread: threading.Thread | None = None
        self._generation = 0
        self._complete = False
        self._begin_segment = 0
        self._first_segment = 0
        """Where the last complete generation begins: what lies before it is to be dropped."""
        self._restored = self._updates = self._objects = self._rotations = 0
        self._since_bytes = 0
        self._snapshot_at = time.monotonic()
        self._error: Exception | None = None

    # -- opening and closing

    def open(self) -> Self:
        """Restore, then take updates. Raises LockTimeout if another process has the log."""
        if self._appender is not None:
            raise ValueError("this state log is open")
        self._appender = self.stream.appender(**self._options)
        try:
            for block in self.stream.blocks():
                self._restore(block)
            if not self._complete:
                self._snapshot(begin=self._generation == 0)
        except BaseException:
            self._appender.close()
            self._appender = None
            raise
        self._drop()
        return self

    def close(self) -> None:
        """Wait for a rotation that is under way, sync, and let go of the log."""
        if (thread := self._thread) is not None:
            thread.join()
        if self._appender is not None:
            appender, self._appender = self._appender, None
            appender.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _restore(self, block: Block) -> None:
        """Replay a block. What comes before the first BEGIN belongs to a generation that is gone."""
        scan, row, last = block.scan, block.first, block.last
        while row < last:
            payload = bytes(block.buffer[scan.starts[row] : scan.ends[row]])
            kind = payload[:1]
            if kind == _EVENT:
                row = self._replay_run(block, row, payload[1:])
                continue
            if kind == _BEGIN and len(payload) == 9:
                self._generation, self._complete = int.from_bytes(payload[1:], "big"), False
                self._begin_segment = block.segment
            elif kind == _COMMIT and len(payload) == 9:
                self._complete, self._since_bytes = True, 0
                self._first_segment = self._begin_segment
            else:
                raise self._bad(block, row, f"it begins with {payload[:9]!r}, expected an event or a marker")
            row += 1

    def _replay_run(self, block: Block, row: int, first: bytes) -> int:
        """Replay this row and those after it that are of the same type, and return the row after them."""
        codec, scan, replay = self._codec, block.scan, self._replay
        head, decode = codec.run(first) if isinstance(codec, EventCodec) else (b"", codec.decode)
        rests = kernel.active.pieces_after(block.buffer, scan.starts, scan.ends, row, block.last, _EVENT + head)
        after: int = row + len(rests)
        if not self._generation:
            return after
        for rest in rests:
            try:
                event = decode(rest)
            except Exception as error:
                raise self._undecoded(block, row, error) from error
            replay(event)
            row += 1
        self._restored += len(rests)
        self._since_bytes += scan.ends[after - 1] - scan.offsets[after - len(rests)] + block.base
        return after

    def _undecoded(self, block: Block, row: int, error: Exception) -> BadEvent:
        """What is wrong with an event, in the codec's own words."""
        payload = bytes(block.buffer[block.scan.starts[row] : block.scan.ends[row]])
        try:
            self._codec.decode(payload[1:])
        except Exception as told:
            error = told
        return self._bad(block, row, str(error))

    def _bad(self, block: Block, row: int, why: str) -> BadEvent:
        position = Position(block.segment, block.offsets[row])
        return BadEvent(
            f"the event at {position} of {self.stream.path} can't be replayed: {why}", position=position
        )

    # -- updates

    def update(self, event: Any) -> Position:
        """Write what is about to change, and return its position; then change it. Hold the lock of what changes.

        An error means that the log doesn't have it: then don't change it either.
        """
        position = self._append(event)
        self._updates += 1
        if self._since_bytes >= self._rotate_bytes or self._is_old():
            self._rotate_soon()
        return position

    def _append(self, event: Any) -> Position:
        appender = self._appender
        if appender is None:
            raise AppenderClosed(f"the state log {self.stream.path} is not open")
        payload = _EVENT + self._codec.encode(event)
        position = appender.append(payload)
        self._since_bytes += len(payload) + RECORD_BYTES
        return position

    def _is_old(self) -> bool:
        return self._rotate_seconds is not None and time.monotonic() - self._snapshot_at >= self._rotate_seconds

    # -- rotating

    def rotate(self) -> None:
        """Begin a new generation and wait until it is whole. Don't hold a lock that `enumerate` takes."""
        with self._rotating:
            self._snapshot(begin=self._complete)
        self._drop()

    def _rotate_soon(self) -> None:
        if not self._rotating.acquire(blocking=False):
            return
        self._since_bytes = 0  # whatever comes of it, not again at once
        self._snapshot_at = time.monotonic()
        self._thread = threading.Thread(target=self._rotate_aside, name="chiplog-state", daemon=True)
        self._thread.start()

    def _rotate_aside(self) -> None:
        try:
            self._snapshot(begin=self._complete)
        except Exception as error:
            self._error = error
            logger.exception("%s: the state couldn't be enumerated; the log grows until it can", self.stream.path)
        finally:
            self._rotating.release()
        self._drop()

    def _snapshot(self, *, begin: bool) -> None:
        """Enumerate everything into a new generation, or again into one that isn't whole."""
        appender = self._appender
        if appender is None:
            raise AppenderClosed(f"the state log {self.stream.path} is not open")
        if begin:
            self._complete = False
            appender.roll()
            self._generation += 1
            self._begin_segment = appender.append(_BEGIN + self._generation.to_bytes(8, "big")).segment
        enumeration = Enumeration(self)
        self._enumerate(enumeration)
        appender.append(_COMMIT + self._generation.to_bytes(8, "big"))
        appender.sync()  # before anything older goes
        self._complete = True
        self._objects = enumeration.objects
        self._since_bytes = 0
        self._snapshot_at = time.monotonic()
        self._first_segment = self._begin_segment
        self._rotations += 1
        self._error = None

    def _drop(self) -> None:
        """Forget what came before the last whole generation. Who reads it makes it wait until the next time."""
        try:
            with contextlib.suppress(LockTimeout), self.stream.cleaner(timeout=0) as cleaner:
                cleaner.clean(_Before(self._first_segment))
        except (OSError, ChiplogError) as error:
            logger.warning("%s: old generations couldn't be dropped: %s", self.stream.path, error)

    def stats(self) -> StateStats:
        """Figures since it was opened."""
        return StateStats(
            self._generation,
            self._complete,
            self._restored,
            self._updates,
            self._objects,
            self._since_bytes,
            self._rotations,
            None if self._error is None else f"{type(self._error).__name__}: {self._error}",
        )


class _Before:
    """A cleaner's rule: segments before a number go, whole."""

    needs_last = False

    def __init__(self, number: int) -> None:
        self._number = number

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:
        pass

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        return number >= self._number

    def keep(self, block: Block) -> bytearray:
        return bytearray(len(block.scan.offsets))
