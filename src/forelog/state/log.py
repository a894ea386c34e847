"""A log that keeps a program's state, and stays short by asking the program to enumerate itself.

The app calls `update(event)` before it makes a change, and holds the lock of what it changes. After a crash `open`
calls `replay(event)` for each event, in order. When the log has grown past a limit it rotates: a new generation
begins, and `enumerate(log)` is called on a thread of its own while updates continue. There the app calls
`log.update(event)` for everything in its state, each thing under its lock. Then a marker commits the generation,
and older generations are dropped. The state is never copied in memory.

    generation 1                         generation 2
    BEGIN e e e ... e COMMIT u u u u u u BEGIN e u e e u u e COMMIT u u u
                                         ^                   ^
                                         updates go on here  from here on, generation 1 is not needed

The app must keep three rules:

- Between `update(event)` and the change itself, no other thread updates or enumerates the same thing. So the log
  has the changes of each thing in their order.
- `enumerate` lists the things under the same lock. Otherwise a thing that was logged just before the generation
  began, and isn't in memory yet, would be missing from the list.
- A replay can meet an update of a thing that it has not seen yet, because its enumeration comes later in that
  generation. The app ignores such an update, or applies it if it holds the thing's whole value.

The kinds of records are drawn in forelog.formats.state. Each opening and each generation begins with a WRITER
record, which says who writes from here on, and which openings it continues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, Unpack

from forelog.bounds import AGE_SECONDS_MAX, check_number, check_whole
from forelog.copies.destinations import CopyOptions, Destinations, Health
from forelog.copies.identity import Identity
from forelog.copies.lineage import Lineage
from forelog.copies.shipping import View
from forelog.copies.slots import copies_around, read_identity, take_copies, whole_slot
from forelog.copies.snapshot import Snapshot
from forelog.copies.transfers import Transfers
from forelog.errors import AppenderClosed, ForelogError, LockTimeout
from forelog.files import Files, Lock, disk
from forelog.formats import Block
from forelog.formats.state import BEGIN, COMMIT, EVENT, FORMAT, RECORD_BYTES, WRITER, group
from forelog.log.appender import SEGMENT_BYTES, SYNC_INTERVAL_MS, Appender, Sync
from forelog.log.directory.directory import APPEND_LOCK, Directory
from forelog.log.directory.index import SegmentIndex
from forelog.log.position import Position, Positions
from forelog.log.stream import PathLike, Stream
from forelog.state.enumeration import Enumeration
from forelog.state.events import Codec, EventCodec
from forelog.state.replay import Replayer

logger = logging.getLogger("forelog")

ROTATE_BYTES = 10 << 20


@dataclass(frozen=True, slots=True)
class StateStats:
    """Figures of a state log since it was opened."""

    generation: int
    """The number of the current generation."""
    complete: bool
    """Whether the current generation is a whole snapshot."""
    restored: int
    """Events that were replayed when the log was opened."""
    updates: int
    """Events that were written since, without those of enumerations."""
    objects: int
    """Objects that the last enumeration wrote."""
    bytes_since_snapshot: int
    """Bytes that were written since the last snapshot was whole."""
    rotations: int
    """Snapshots that became whole."""
    error: str | None
    """Why the last rotation failed; None if it didn't."""


class StateLog:
    """A log that keeps a program's state: `with StateLog(path, replay=..., enumerate=...) as log: ...`.

    path              the log's directory; one that holds copies of a log opens the whole copy
    replay            called with each event when the log is opened
    enumerate         called with an Enumeration when the log rotates
    types             the types of events, for the codec; plain values need none
    codec             turns events into bytes and back; by default an EventCodec of `types`
    sync              when updates are synced to the disk: "os", "interval" or "always"
    sync_interval_ms  between two syncs, with sync="interval"
    rotate_bytes      the log rotates after so many bytes of updates
    rotate_seconds    and after this time; None for never
    segment_bytes     a new segment begins after so many bytes
    journal_bytes     the size of the journal for small synced writes; 0 for none
    timeout           seconds to wait for a log that another process has open; None to wait for ever
    promote           make this log the one to keep, of several with the same history: a copy that replaces its
                      log, or a restored backup. A new term begins, and copies refuse the logs of older terms
    files             the file system; by default that of the operating system
    mode              permissions of the files of a new log; 0o600 by default
    """

    def __init__(
        self,
        path: PathLike,
        *,
        replay: Callable[[Any], object],
        enumerate: Callable[[Enumeration], object],  # noqa: A002 - the name that users know
        types: Iterable[type] = (),
        codec: Codec | None = None,
        sync: Sync = "os",
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
        path = os.fspath(path)
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
        self._generation = 0
        self._complete = False
        self._begin_segment = 0
        self._restored = self._updates = self._objects = self._rotations = 0
        self._since_bytes = 0
        self._snapshot_at = time.monotonic()
        self._error: Exception | None = None
        self._promote = promote
        self._lineage: Lineage | None = None
        self._transfers = Transfers()
        self._view: View | None = None
        self._destinations = Destinations(self)

    # -- opening and closing

    def open(self, *, replay: bool = True) -> Self:
        """Restore the state, and be ready for updates. Raises LockTimeout if another process has the log open.

        `replay=False` is for an app that has the state in memory already, as a follower has.
        """
        if self._appender is not None:
            raise ValueError("this state log is open")
        if self._copies_path is not None:  # or a primary could still write to it as a copy
            lock = f"{self._copies_path}/{APPEND_LOCK}"
            self._copies_lock = self._files.lock(lock, exclusive=True, timeout=self._options["timeout"])
        try:
            self._appender = self.stream.appender(**self._options)
            replayer = Replayer(self.stream.path, self._codec, self._replay if replay else None)
            for block in self.stream.blocks():
                replayer.block(block)
            replayer.check_nothing_is_missing()
            self._take_over(replayer)
            if self._copies_path is not None:  # before any update: the old primary may come back at any time
                take_copies(self._copies_path, self.identity, self._files)
            if self._generation:
                self._appender.append(WRITER + self.lineage.encode())
                self._appender.sync()  # or after a power loss two openings could have the same epoch
            if not self._complete:
                self._snapshot(begin=self._generation == 0)
        except BaseException:
            self._let_go()
            raise
        self._drop()
        self.place = self._appender.place  # type: ignore[method-assign] # without a Python frame
        return self

    def _take_over(self, found: Replayer) -> None:
        self._generation, self._complete = found.generation, found.complete
        self._begin_segment = found.begin_segment
        self._restored, self._since_bytes = found.events, found.bytes_since_snapshot
        if found.snapshot is not None:
            self._seen(found.snapshot)
        self._lineage, self._transfers = self._next_lineage(found), Transfers()

    def _next_lineage(self, found: Replayer) -> Lineage:
        """The lineage of this opening, which is younger than every opening that has written the log.

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
        """Wait for a running rotation, sync, and close the log and its destinations."""
        self._destinations.close()
        with self._rotating:
            self._let_go()

    def _let_go(self) -> None:
        try:
            if self._appender is not None:
                appender, self._appender = self._appender, None
                vars(self).pop("place", None)
                appender.close()
        finally:
            if self._copies_lock is not None:
                self._copies_lock.release()

    def __enter__(self) -> Self:
        return self if self._appender is not None else self.open()  # promote() returns an open one

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- updates

    def update(self, event: Any) -> Position:
        """Log a change and return its position; then make the change. Hold the lock of what changes.

        After an error:

        - NotReplicated with a `position`: the log has the event, so make the change. The copy may lack it.
        - AppenderFailed: don't make the change. Only opening the log again tells whether it has the event.
        - Any other: don't make the change. The log does not have the event.
        """
        destinations = self._destinations
        if destinations:
            destinations.check()
        position = self._append(event)
        self._updates += 1
        if destinations:
            destinations.appended(position)
        if self._since_bytes >= self._rotate_bytes or self._is_old():
            self._rotate_soon()
        return position

    def update_many(self, events: Iterable[Any]) -> Positions:
        """Log several changes with one write and one sync, and return their positions.

        A process that is killed leaves all of them or none; a power loss may keep the first ones, in order.
        """
        encode = self._codec.encode
        payloads = [EVENT + encode(event) for event in events]
        return self._append_payloads(payloads, len(payloads))

    def update_together(self, events: Iterable[Any]) -> Position:
        """Log several changes as one record, and return its position: any crash leaves all of them or none.

        A replay gets the events one after another. There must be at least one.
        """
        encoded = [self._codec.encode(event) for event in events]
        if not encoded:
            raise ValueError("there is no event to log: a record needs at least one")
        return self._append_payloads([group(encoded)], len(encoded))[0]

    def _append_payloads(self, payloads: list[bytes], updates: int) -> Positions:
        appender = self._opened()
        destinations = self._destinations
        if destinations:
            destinations.check()
        positions = appender.append_many(payloads)
        self._updates += updates
        self._since_bytes += sum(map(len, payloads)) + len(payloads) * RECORD_BYTES
        if destinations and payloads:
            destinations.appended(positions[-1])
        if self._since_bytes >= self._rotate_bytes or self._is_old():
            self._rotate_soon()
        return positions

    def place(self) -> tuple[int, int]:
        """Where the next update goes, unless others come first. Doesn't wait for them."""
        return self._opened().place()

    def replay_since(self, position: tuple[int, int], replay: Callable[[Any], object]) -> None:
        """Call `replay` with each event from a position on: for memory that may lack some after an interrupt.

        Nobody may update or enumerate meanwhile. What interrupted threads have left to others is in the log when
        the first event is replayed.
        """
        appender = self._opened()
        appender.append_many(())  # settled after everything that was queued before
        appender.sync()  # and readers see it
        replayer = Replayer(self.stream.path, self._codec, replay)
        replayer.generation = self._generation
        for block in self.stream.blocks(start=position):
            replayer.block(block)

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
        """Begin a new generation, and wait until it is whole. Hold no lock that `enumerate` takes."""
        with self._rotating:
            self._snapshot(begin=self._complete)
            self._drop()

    def _rotate_soon(self) -> None:
        if self._rotating.locked():
            return
        self._since_bytes = 0  # even if it fails: not again at once
        self._snapshot_at = time.monotonic()
        # The thread takes the lock, and not this one: an interrupt that comes now would leave it locked for ever.
        thread = threading.Thread(target=self._rotate_aside, name="forelog-state", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started; the log has the update anyway
            self._not_rotated(error)

    def _rotate_aside(self) -> None:
        if not self._rotating.acquire(blocking=False):
            return
        try:
            if self._appender is not None:  # else it was closed before this thread began
                self._snapshot(begin=self._complete)
                self._drop()
        except Exception as error:
            self._not_rotated(error)
        finally:
            self._rotating.release()

    def _not_rotated(self, error: Exception) -> None:
        self._error = error
        logger.error(
            "%s: the state couldn't be enumerated; the log grows until it can", self.stream.path, exc_info=error
        )

    def _snapshot(self, *, begin: bool) -> None:
        """Enumerate everything into a new generation, or once more into the last one if that isn't whole."""
        appender = self._opened()
        if begin:
            self._complete = False
            appender.roll()
            self._generation += 1
            markers = [BEGIN + self._generation.to_bytes(8, "big"), WRITER + self.lineage.encode(whole=True)]
            self._begin_segment = appender.append_many(markers).segment
        enumeration = Enumeration(self._append, lambda: self._updates)
        self._enumerate(enumeration)
        commit = COMMIT + self._generation.to_bytes(8, "big")
        committed = appender.append(commit)
        appender.sync()  # before older generations are dropped
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
        """Note a whole generation. Older ones can be dropped."""
        number = snapshot.begin.segment - 1
        found = self.stream.segment_bytes(number)
        self._view = View(self.stream, snapshot, before=None if found is None else Position(number, found))

    def _drop(self) -> None:
        """Drop what came before the last whole generation; if somebody reads it, leave it to the next rotation."""
        try:
            with contextlib.suppress(LockTimeout), self.stream.cleaner(timeout=0) as cleaner:
                if self._view is not None:
                    cleaner.clean(_Before(self._view.snapshot.begin.segment))
        except (OSError, ForelogError) as error:
            logger.warning("%s: old generations couldn't be dropped: %s", self.stream.path, error)

    # -- destinations

    @property
    def path(self) -> str:
        """The log's directory. For a log in a slot of copies, the directory of both slots."""
        return self.stream.path if self._copies_path is None else self._copies_path

    @property
    def identity(self) -> Identity:
        """Which log this is, and the epoch and the word of this opening."""
        return self.lineage.identity

    @property
    def lineage(self) -> Lineage:
        """This opening of the log, and the openings that it continues."""
        if self._lineage is None:
            raise AppenderClosed(f"the state log {self.stream.path} has not been opened")
        return self._lineage

    @property
    def transfers(self) -> Transfers:
        """What this opening has sent to its destinations."""
        return self._transfers

    def view(self) -> View | None:
        """The log as its destinations read it; None while it has no whole generation."""
        return self._view

    def add_destination(
        self, where: PathLike, *, name: str | None = None, rotate: bool = True, **options: Unpack[CopyOptions]
    ) -> str:
        """Keep a copy of the log at an address from now on, and return the name to remove it by.

        `where` is a directory, `replica://HOST:PORT/LOG`, or a URL that fsspec knows, such as `s3://BUCKET/PATH`.
        The log rotates first, so that the copy begins with the state as it is now; with `rotate=False` it begins
        with the last snapshot. `forelog.copies.destinations.CopyOptions` describes the options.
        """
        self._opened()
        return self._destinations.add(where, name=name, first=self.rotate if rotate else None, **options)

    def remove_destination(self, name: str) -> None:
        """Stop updating a copy. The copy stays as it is."""
        self._destinations.remove(name)

    @property
    def failed(self) -> Exception | None:
        """The error after which the log takes no updates until it is opened again; None if there was none."""
        return None if self._appender is None else self._appender.failed

    def health(self) -> Health:
        """Whether the log and all of its destinations are healthy, and why not."""
        error = self._error if self._appender is None or self._appender.failed is None else self._appender.failed
        return self._destinations.health(None if error is None else f"{type(error).__name__}: {error}")

    def stats(self) -> StateStats:
        """Figures since the log was opened."""
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
    """A rule for the cleaner: remove the segments before a number."""

    needs_last = False

    def __init__(self, number: int) -> None:
        self._number = number

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:
        pass

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        return number >= self._number

    def keep(self, block: Block) -> bytearray:
        return bytearray(len(block.scan.offsets))
