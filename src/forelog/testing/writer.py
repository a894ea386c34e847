"""What a history writes with: a recorded disk, and a ledger of what became of each append."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict, Unpack, cast

from forelog.errors import AppenderFailed, ForelogError
from forelog.formats import Format, FormatName
from forelog.log.appender import Appender, Sync, Visible
from forelog.log.position import Position
from forelog.log.stream import PathLike, Stream
from forelog.testing.disk import Operation
from forelog.testing.ledger import Entry, Ledger
from forelog.testing.spare import DrivenSpare
from forelog.testing.timeline import Killed, Recorder, Timeline

CLOCK_NS = 1_700_000_000_000_000_000
_TICK_NS = 1_000_000

History = Callable[["Writer"], None]


class AppenderOptions(TypedDict, total=False):
    """The options of `Stream.appender`, which says what each is for."""

    sync: Sync
    sync_interval_ms: int
    segment_bytes: int
    batch_bytes_max: int
    journal_bytes: int
    spare: bool
    visible: Visible | None
    timeout: float | None
    blocking: bool


class Writer:
    """Writes a log. A history is a function that gets a writer, and uses its disk as a program would.

    `append` and `append_many` note what comes of each record. A program that appends by itself notes it with
    `attempt`.
    """

    def __init__(self) -> None:
        self.disk = Recorder()
        self.ledger = Ledger()
        self.path = "log"
        self.format: Format = Stream("log").format
        self._ticks = CLOCK_NS
        self._payloads = 0
        self._spares: list[DrivenSpare] = []

    # -- the log

    def clock(self) -> int:
        """A clock that advances by a millisecond with each call."""
        self._ticks += _TICK_NS
        return self._ticks

    def stream(self, path: PathLike = "log", *, format: FormatName | Format = "captain") -> Stream:  # noqa: A002
        """Make the log that is written and read."""
        stream = Stream(path, format=format, files=self.disk, clock=self.clock)
        self.shown(stream)
        return stream

    def shown(self, stream: Stream) -> None:
        """Set the log that readers read."""
        self.path, self.format = stream.path, stream.format
        self.disk.cut_records_of(stream.format)

    def payload(self, byte_count: int = 8) -> bytes:
        """A new payload, which no other record has."""
        self._payloads += 1
        return b"%04d" % self._payloads + b"." * (byte_count - 4)

    def payloads(self, count: int, byte_count: int = 8) -> list[bytes]:
        """Several new payloads."""
        return [self.payload(byte_count) for _ in range(count)]

    def appender(self, stream: Stream, **options: Unpack[AppenderOptions]) -> Appender:
        """`Stream.appender`, with a spare that works when it is waited for, without a thread."""
        return self.driven(stream.appender(**options))

    def driven(self, appender: Appender) -> Appender:
        """Make the spare of an appender, if it has one, work when it is waited for."""
        spare = appender.active.spare
        if spare is not None:
            spare.__class__ = DrivenSpare
            self._spares.append(cast(DrivenSpare, spare))
        return appender

    # -- writing

    def append(self, log: Any, byte_count: int = 8, *, readable: bool = True) -> Position | None:
        """Append one record. Returns its position; None if it was refused, or if that is unknown."""
        found = self.attempt(
            [self.payload(byte_count)], lambda payloads: [log.append(payloads[0])], readable=readable
        )
        return found[0] if found else None

    def append_many(
        self, log: Any, count: int = 3, byte_count: int = 8, *, readable: bool = True
    ) -> Sequence[Position] | None:
        """Append records in one call."""
        return self.attempt(self.payloads(count, byte_count), log.append_many, readable=readable)

    def attempt(
        self,
        payloads: Sequence[bytes],
        append: Callable[[Sequence[bytes]], Iterable[Position]],
        *,
        readable: bool = True,
    ) -> Sequence[Position] | None:
        """Call a function that appends these payloads, and note what became of them.

        An AppenderFailed leaves them in doubt. Any other error of forelog or of the disk means that they were
        refused. With `readable=False` readers can't read them yet, because they are in a spare without a name.
        """
        entries = self.begin(payloads)
        try:
            positions = list(append(payloads))
        except AppenderFailed:
            self.ledger.doubt(entries)
        except (ForelogError, OSError):
            self.ledger.refuse(entries)
        except BaseException:
            self.ledger.doubt(entries)
            raise
        else:
            self.acknowledge(entries, positions, readable=readable)
            return positions
        return None

    def begin(self, payloads: Iterable[bytes]) -> list[Entry]:
        """Note that a call is about to append these payloads."""
        return self.ledger.begin(payloads, self.disk.now(), self._ticks + 1)

    def acknowledge(
        self, entries: Sequence[Entry], positions: Iterable[Position], *, readable: bool = True
    ) -> None:
        """Note that they were appended at these positions."""
        self.ledger.acknowledge(entries, positions, self.disk.now(), readable=readable)

    def expose(self) -> None:
        """Note that readers can read from now on what was acknowledged."""
        self.ledger.expose(self.disk.now())

    def forget(self, which: Callable[[bytes], bool]) -> None:
        """Note that records with these payloads may be gone from now on, because cleaning begins."""
        self.ledger.forget(which, self.disk.now())

    def lose(self) -> None:
        """Note that unsynced records may be gone from now on, because a sync failed."""
        self.ledger.lose(self.disk.now())

    @contextmanager
    def full_after(self, byte_count: int) -> Iterator[None]:
        """In this block the disk is full once the next write to a segment has written `byte_count` bytes."""
        faults = [
            self.disk.fail(to_segment("write", 1), errno.ENOSPC),
            self.disk.write_short(to_segment("write"), byte_count),
        ]
        try:
            yield
        finally:
            for fault in faults:
                fault.stop()

    @contextmanager
    def killed(self, when: Callable[[Operation], bool], byte_count: int | None = None) -> Iterator[None]:
        """Kill the process at the first operation in this block that matches, or at the end of the block.

        A write that is hit leaves its first `byte_count` bytes. What the process had open isn't closed.
        """
        self.disk.kill(when, byte_count)
        try:
            yield
        except Killed:
            pass
        except RuntimeError:  # raised by a commit that another thread led
            if not self.disk.dead:
                raise
        self.disk.bury()
        for spare in self._spares:
            spare.abandon()  # or their threads would never end
        self._spares.clear()


def to_segment(kind: str, number: int = 0) -> Callable[[Operation], bool]:
    """A predicate for the `number`th operation of a kind on a segment."""
    count = -1

    def matches(operation: Operation) -> bool:
        nonlocal count
        if operation.kind != kind or not operation.path.endswith((".log", ".dat", ".spare", ".new")):
            return False
        count += 1
        return count >= number

    return matches


class Recording(NamedTuple):
    """A history that has been run."""

    timeline: Timeline
    ledger: Ledger
    path: str
    format: Format
    errors: list[str]
    """The defects of the log at the end."""


def record(history: History) -> Recording:
    """Run a history and record it. It runs on a separate thread, so that it leads its own commits."""
    writer, failures = Writer(), []

    def run() -> None:
        try:
            history(writer)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="forelog-history")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    timeline = writer.disk.timeline()
    found, errors = _read(writer)
    writer.ledger.settle(found)
    return Recording(timeline, writer.ledger, writer.path, writer.format, errors)


def _read(writer: Writer) -> tuple[list[Any], list[str]]:
    """All records of the log at the end."""
    disk = writer.disk.killed()
    disk.boot = writer.disk.boot
    try:
        with Stream(writer.path, format=writer.format, files=disk).cursor() as cursor:
            return list(cursor), []
    except ForelogError as error:
        return [], [f"the log can't be read in the end: {type(error).__name__}: {error}"]
