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

A record is one byte, then: 1 an event, 2 BEGIN and 3 COMMIT with the generation's number in eight bytes, 4 WRITER,
which each opening and each generation begins with: who writes from here on, and which openings it continues
(lineage.py).
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

from forelog.bounds import AGE_SECONDS_MAX, check_number, check_whole
from forelog.copies.destinations import Destinations, Health
from forelog.copies.identity import Identity
from forelog.copies.lineage import Lineage
from forelog.copies.mirror import FORMAT, Snapshot
from forelog.copies.sent import Memory
from forelog.copies.shipping import View
from forelog.copies.slots import copies_around, read_identity, take_copies, whole_slot
from forelog.errors import AppenderClosed, ForelogError, LockTimeout
from forelog.files import Files, Lock, disk
from forelog.formats import Block
from forelog.log.appender import SEGMENT_BYTES, SYNC_INTERVAL_MS, Appender
from forelog.log.directory.directory import APPEND_LOCK, Directory
from forelog.log.directory.index import SegmentIndex
from forelog.log.position import Position, Positions
from forelog.log.stream import Stream
from forelog.state.events import Codec, EventCodec
from forelog.state.replay import BEGIN, COMMIT, EVENT, RECORD_BYTES, WRITER, Replayer

__all__ = ["Enumeration", "StateLog", "StateStats"]

logger = logging.getLogger("forelog")

ROTATE_BYTES = 10 << 20
TURN_SECONDS = 0.00005  # how long an enumeration computes before it pauses ...
PAUSE_SECONDS = 0.00002  # ... for as short as the system can ...
PAUSES_MAX = 8.0  # ... and for so many times as long as it computes, in all
QUIET_SECONDS = 0.01  # without an update for so long it doesn't pause

T = TypeVar("T")


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
    """A state log. `with StateLog(path, replay=..., enumerate=...) as log: log.update(event)`.

    `promote=True` makes this log the one to keep: a copy that takes the place of its log, or a backup that
    replaces what came after it. A new term begins. Copies take nothing from the log before it any more.
    """

    def __init__(
        self,
        path: str,
        *,
        replay: Callable[[Any], object],
        enumerate: Callable[[Enumeration], object],  # noqa: A002 - the name that users know
        types: Iterable[type] = (),
        codec: Codec | None = None,
        sync: str = "os",
        sync_interval_ms: int = SYNC_INTERVAL_MS,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_seconds: float | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        journal_bytes: int = 0,
        timeout: float | None = 0,
        promote: bool | Identity = False,
        files: Files | None = None,
        mode: int | None = None,
    ) -> None:
        check_whole("rotate_bytes", rotate_bytes)
        check_number(
            "rotate_seconds", rotate_seconds, above=True, most=AGE_SECONDS_MAX, or_none="for rotate_bytes alone"
        )
        self._files = disk(files, mode)
        slot = whole_slot(path, self._files)
        self.stream = Stream(path if slot is None else slot, format=FORMAT, files=self._files)
        self._copies_path = copies_around(path, self._files)
        self._copies_lock: Lock | None = None
        self._replay = replay
        self._enumerate = enumerate
        self._codec: Codec = EventCodec(types) if codec is None else codec
        self._options: dict[str, Any] = {
            "sync": sync,
            "sync_interval_ms": sync_interval_ms,
            "segment_bytes": segment_bytes,
            "journal_bytes": journal_bytes,
            "timeout": timeout,
        }
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._appender: Appender | None = None
        self._rotating = threading.Lock()
        self._dropping = threading.Lock()  # one rotation drops while the next one has begun
        self._thread: threading.Thread | None = None
        self._generation = 0
        self._complete = False
        self._begin_segment = 0
        self._restored = self._updates = self._objects = self._rotations = 0
        self._since_bytes = 0
        self._snapshot_at = time.monotonic()
        self._error: Exception | None = None
        self._promote = promote
        self._lineage: Lineage | None = None
        self._memory = Memory()
        self._view: View | None = None
        self._destinations = Destinations(self)

    # -- opening and closing

    def open(self, *, replay: bool = True) -> Self:
        """Restore, then take updates. Raises LockTimeout if another process has the log.

        `replay=False` is for an app that has the state already, as a follower has.
        """
        if self._appender is not None:
            raise ValueError("this state log is open")
        if self._copies_path is not None:  # or it could be written to as the copy that it was
            lock = f"{self._copies_path}/{APPEND_LOCK}"
            self._copies_lock = self._files.lock(lock, exclusive=True, timeout=self._options["timeout"])
        try:
            self._appender = self.stream.appender(**self._options)
            replayer = Replayer(self.stream.path, self._codec, self._replay if replay else None)
            for block in self.stream.blocks():
                replayer.block(block)
            replayer.check_nothing_is_missing()
            self._take_over(replayer)
            if self._copies_path is not None:  # before any update: its old primary may be back at any time
                take_copies(self._copies_path, self.identity, self._files)
            if self._generation:
                self._appender.append(WRITER + self.lineage.encode())
                self._appender.sync()  # or a power loss could have two openings with the same epoch
            if not self._complete:
                self._snapshot(begin=self._generation == 0)
        except BaseException:
            self._let_go()
            raise
        self._drop()
        return self

    def _take_over(self, found: Replayer) -> None:
        self._generation, self._complete = found.generation, found.complete
        self._begin_segment = found.begin_segment
        self._restored, self._since_bytes = found.events, found.bytes_since_snapshot
        if found.snapshot is not None:
            self._seen(found.snapshot)
        self._lineage, self._memory = self._next_lineage(found), Memory()

    def _next_lineage(self, found: Replayer) -> Lineage:
        """The lineage of this opening, which is younger than all that have written the log.

        If the log is a copy, it is also younger than the last opening that the copy has accepted.
        """
        wrote, let = found.identity, None
        if self._copies_path is not None:
            let = read_identity(self._copies_path, self._files)
        known = [one for one in (wrote, let) if one is not None and (wrote is None or one.id == wrote.id)]
        if isinstance(self._promote, Identity):
            identity = self._promote
        elif not known:
            identity = Identity.new()
        else:
            identity = max(known).next_term() if self._promote else max(known).next_run()
        if not known:
            return Lineage(identity, found.end)
        return Lineage(known[0], found.end, found.openings).next(identity, found.end, *known[1:])

    def close(self) -> None:
        """Wait for a rotation that is under way, sync, and let go of the log and its destinations."""
        self._destinations.close()
        if (thread := self._thread) is not None:
            thread.join()
        self._let_go()

    def _let_go(self) -> None:
        try:
            if self._appender is not None:
                appender, self._appender = self._appender, None
                appender.close()
        finally:
            if self._copies_lock is not None:
                self._copies_lock.release()

    def __enter__(self) -> Self:
        return self if self._appender is not None else self.open()  # promote() gives one that is open

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- updates

    def update(self, event: Any) -> Position:
        """Write what is about to change, and return its position; then change it. Hold the lock of what changes.

        An error means one of three things. NotReplicated with a `position`: the log has it, so change it; whether
        the copy that was to acknowledge it has it isn't known. AppenderFailed: whether the log has it isn't known
        before it is opened again; don't change it. Any other: the log doesn't have it, so don't change it either.
        """
        destinations = self._destinations
        if destinations:
            destinations.check()
        position = self._append(event)
        self._updates += 1
        if destinations:
            destinations.told(position)
        if self._since_bytes >= self._rotate_bytes or self._is_old():
            self._rotate_soon()
        return position

    def update_many(self, events: Iterable[Any]) -> Positions:
        """update() for several changes, which are written and synced together: all of them, or none."""
        appender = self._opened()
        destinations = self._destinations
        if destinations:
            destinations.check()
        encode = self._codec.encode
        payloads = [EVENT + encode(event) for event in events]
        positions = appender.append_many(payloads)
        self._updates += len(payloads)
        self._since_bytes += sum(map(len, payloads)) + len(payloads) * RECORD_BYTES
        if destinations and payloads:
            destinations.told(positions[-1])
        if self._since_bytes >= self._rotate_bytes or self._is_old():
            self._rotate_soon()
        return positions

    def _opened(self) -> Appender:
        if self._appender is None:
            raise AppenderClosed(f"the state log {self.stream.path} is not open: use it in a with statement")
        return self._appender

    def _append(self, event: Any) -> Position:
        appender = self._opened()
        payload = EVENT + self._codec.encode(event)
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
        before = self._thread
        # Before it runs: once it has let go of the lock, another thread may rotate, and put its own here.
        self._thread = threading.Thread(target=self._rotate_aside, name="forelog-state", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # there is no room for a thread; the log has the update all the same
            self._thread = before
            self._not_rotated(error)
            self._rotating.release()

    def _rotate_aside(self) -> None:
        try:
            self._snapshot(begin=self._complete)
        except Exception as error:
            self._not_rotated(error)
        finally:
            self._rotating.release()
        self._drop()

    def _not_rotated(self, error: Exception) -> None:
        self._error = error
        logger.error(
            "%s: the state couldn't be enumerated; the log grows until it can", self.stream.path, exc_info=error
        )

    def _snapshot(self, *, begin: bool) -> None:
        """Enumerate everything into a new generation, or again into one that isn't whole."""
        appender = self._opened()
        if begin:
            self._complete = False
            appender.roll()
            self._generation += 1
            markers = [BEGIN + self._generation.to_bytes(8, "big"), WRITER + self.lineage.encode(whole=True)]
            self._begin_segment = appender.append_many(markers).segment
        enumeration = Enumeration(self)
        self._enumerate(enumeration)
        commit = COMMIT + self._generation.to_bytes(8, "big")
        committed = appender.append(commit)
        appender.sync()  # before anything older goes
        self._complete = True
        self._objects = enumeration.objects
        self._since_bytes = 0
        self._snapshot_at = time.monotonic()
        end = Position(committed.segment, committed.offset + len(FORMAT.encode(commit, 0)))
        self._seen(Snapshot(Position(self._begin_segment, FORMAT.header_bytes), end))
        self._rotations += 1
        self._error = None
        self._destinations.wake()

    def _seen(self, snapshot: Snapshot) -> None:
        """There is a whole generation: what lies before it is to be dropped."""
        number = snapshot.begin.segment - 1
        found = self.stream.segment_bytes(number)
        self._view = View(self.stream, snapshot, before=None if found is None else Position(number, found))

    def _drop(self) -> None:
        """Forget what came before the last whole generation. Who reads it makes it wait until the next time."""
        try:
            with self._dropping, contextlib.suppress(LockTimeout), self.stream.cleaner(timeout=0) as cleaner:
                if self._view is not None:
                    cleaner.clean(_Before(self._view.snapshot.begin.segment))
        except (OSError, ForelogError) as error:
            logger.warning("%s: old generations couldn't be dropped: %s", self.stream.path, error)

    # -- destinations

    @property
    def path(self) -> str:
        """Its directory; of one of two copies, the directory of both."""
        return self.stream.path if self._copies_path is None else self._copies_path

    @property
    def identity(self) -> Identity:
        """Which log this is, and the epoch and the word of this opening of it."""
        return self.lineage.identity

    @property
    def lineage(self) -> Lineage:
        """This opening of the log, and those that it continues."""
        if self._lineage is None:
            raise AppenderClosed(f"the state log {self.stream.path} has not been opened")
        return self._lineage

    @property
    def memory(self) -> Memory:
        """What this opening has sent to its destinations, as far as it takes to recognise it."""
        return self._memory

    def view(self) -> View | None:
        """The log as its destinations see it."""
        return self._view

    def add_destination(self, where: str, *, name: str | None = None, rotate: bool = True, **options: Any) -> str:
        """Keep a copy of the log somewhere else, from now on; returns the name to remove it by.

        `where` is a directory, `replica://HOST:PORT/LOG`, or a URL that fsspec knows, as `s3://BUCKET/PATH`. The
        log is rotated first, so that the copy begins with a snapshot of now; `rotate=False` sends the last one.
        For the options see `forelog.copies.destinations.Destinations.add`.
        """
        self._opened()
        return self._destinations.add(where, name=name, first=self.rotate if rotate else None, **options)

    def remove_destination(self, name: str) -> None:
        """Keep that copy up no longer. It stays as it is."""
        self._destinations.remove(name)

    @property
    def failed(self) -> Exception | None:
        """The error after which nothing can be written before the log is opened again, if there was one."""
        return None if self._appender is None else self._appender.failed

    def health(self) -> Health:
        """Whether all is well, here and at every destination."""
        error = self._error if self._appender is None or self._appender.failed is None else self._appender.failed
        return self._destinations.health(None if error is None else f"{type(error).__name__}: {error}")

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
