"""What a history writes with: a disk that is recorded, and a ledger of what came of each append."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from forelog.errors import AppenderFailed, ForelogError
from forelog.formats import Format
from forelog.log.appender import Appender
from forelog.log.directory.spare import Spare
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.testing.disk import Operation
from forelog.testing.ledger import Entry, Ledger
from forelog.testing.timeline import Killed, Recorder, Timeline

CLOCK_NS = 1_700_000_000_000_000_000
_TICK_NS = 1_000_000

History = Callable[["Writer"], None]


class Writer:
    """The one who writes. A history is a function that gets one, and uses its disk as a program would.

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
        self._spares: list[Spare] = []

    # -- what it works with

    def clock(self) -> int:
        """A clock that is a millisecond later each time."""
        self._ticks += _TICK_NS
        return self._ticks

    def stream(self, path: str = "log", **options: Any) -> Stream:
        """The log that is written, and that readers read; options are those of `Stream`."""
        stream = Stream(path, files=self.disk, clock=self.clock, **options)
        self.shown(stream)
        return stream

    def shown(self, stream: Stream) -> None:
        """This is the log that readers read."""
        self.path, self.format = stream.path, stream.format
        self.disk.cut_records_of(stream.format)

    def payload(self, byte_count: int = 8) -> bytes:
        """A payload that no other record has."""
        self._payloads += 1
        return b"%04d" % self._payloads + b"." * (byte_count - 4)

    def payloads(self, count: int, byte_count: int = 8) -> list[bytes]:
        """Some of them."""
        return [self.payload(byte_count) for _ in range(count)]

    def appender(self, stream: Stream, **options: Any) -> Appender:
        """`stream.appender()`, whose spare does its work when it is waited for, and not on a thread of its own."""
        return self.driven(stream.appender(**options))

    def driven(self, appender: Appender) -> Appender:
        """An appender whose spare, if it has one, does its work when it is waited for."""
        spare = appender.active.spare
        if spare is not None:
            spare.__class__ = DrivenSpare
            self._spares.append(spare)
        return appender

    # -- writing

    def append(self, log: Any, byte_count: int = 8, **told: Any) -> Position | None:
        """Append one record; its position, or None if it was refused or that isn't known."""
        found = self.attempt([self.payload(byte_count)], lambda payloads: [log.append(payloads[0])], **told)
        return found[0] if found else None

    def append_many(self, log: Any, count: int = 3, byte_count: int = 8, **told: Any) -> Sequence[Position] | None:
        """Append records in one call."""
        return self.attempt(self.payloads(count, byte_count), log.append_many, **told)

    def attempt(
        self,
        payloads: Sequence[bytes],
        append: Callable[[Sequence[bytes]], Iterable[Position]],
        *,
        readable: bool = True,
    ) -> Sequence[Position] | None:
        """Call something that appends these payloads in one go, and note what came of it.

        An AppenderFailed leaves it in doubt, any other error of forelog's or of the disk's is a refusal. With
        `readable=False` it can't be read at once, as what is in a spare that has no name yet.
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
        """These are about to be handed over in one call."""
        return self.ledger.begin(payloads, self.disk.now(), self._ticks + 1)

    def acknowledge(
        self, entries: Sequence[Entry], positions: Iterable[Position], *, readable: bool = True
    ) -> None:
        """They have been appended at these positions."""
        self.ledger.acknowledge(entries, positions, self.disk.now(), readable=readable)

    def expose(self) -> None:
        """What was acknowledged can be read from now on."""
        self.ledger.expose(self.disk.now())

    def forget(self, which: Callable[[bytes], bool]) -> None:
        """From now on records with these payloads may be gone, because cleaning begins."""
        self.ledger.forget(which, self.disk.now())

    def lose(self) -> None:
        """From now on what wasn't synced may be gone, because a sync failed."""
        self.ledger.lose(self.disk.now())

    @contextmanager
    def full_after(self, byte_count: int) -> Iterator[None]:
        """In here the next write to a segment takes so many bytes; the rest of it finds no room."""
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
        """The process ends at the first operation in here that matches, or at the end of this at the latest.

        Of a write, its first `byte_count` bytes are written. What the process had open is not closed.
        """
        self.disk.kill(when, byte_count)
        try:
            yield
        except Killed:
            pass
        except RuntimeError:  # from a commit that another thread led
            if not self.disk.dead:
                raise
        self.disk.bury()
        for spare in self._spares:
            spare.abandon()  # their threads have nobody left who would end them
        self._spares.clear()


def to_segment(kind: str, number: int = 0) -> Callable[[Operation], bool]:
    """Whether an operation is of a kind, and on a segment; the `number`th of them."""
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
    """What is wrong with the log in the end."""


def record(history: History) -> Recording:
    """Run a history, on a thread of its own so that it leads its own commits, and keep every moment of it."""
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
    """All records of the log as it is in the end."""
    disk = writer.disk.killed()
    disk.boot = writer.disk.boot
    try:
        with Stream(writer.path, format=writer.format, files=disk).cursor() as cursor:
            return list(cursor), []
    except ForelogError as error:
        return [], [f"the log can't be read in the end: {type(error).__name__}: {error}"]


class DrivenSpare(Spare):
    """A spare whose work is done by whoever waits for it, so that a history takes the same course each time."""

    _pending = False

    def begin(self, work: Callable[[], None]) -> None:
        self._work, self._pending = work, True

    def wait_named(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        self._drive()
        return True

    def wait_idle(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        self._drive()
        return True

    def take(self) -> Any:
        self._drive()
        return super().take()

    @property
    def named(self) -> bool:
        return not self._pending

    def close(self) -> None:
        self._drive()
        super().close()

    def _drive(self) -> None:
        if self._pending and self._work is not None:
            self._pending = False
            self._work()
            self._file = self._make()
