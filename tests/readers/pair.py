"""A reader beside a writer: one run.

start       the reader begins with an empty log
work        the writer appends, while the reader reads; then it pauses, and keeps the log open
has         the reader gets the last record that was acknowledged
            now both rest: the CPU time that the reader uses is measured, and a cleaner gets its lock at once
finish      both end; an appender gets its lock at once
seen, kept  what the reader has got, and what the log has, are compared with the ledger
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from forelog import LockTimeout, Stream
from forelog.files import OSFiles
from forelog.log.directory.directory import APPEND_LOCK, READ_LOCK
from tests.readers.ledger import Noted, read_ledger
from tests.readers.process import Child, cpu_seconds, wait_until
from tests.readers.records import Seen, as_seen, last_seen, reached_path
from tests.readers.verdict import IDLE_SHARE_MAX, Verdict, compare
from tests.readers.writer import Writer

LOCK_SECONDS = 2.0
CATCH_UP_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
"""For which a reader may get nothing new, and still be waited for."""
FINISH_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a run is."""

    seconds: float = 20.0
    """For which a writer writes that isn't killed."""
    kills: int = 30
    idle_seconds: float = 2.0
    """For which a reader is watched while nothing is written."""
    seed: int = 0


class Pair(ABC):
    """A reader and a writer. The log is in `place`, which may be small; all else is in `folder`."""

    reader: str
    exact = True
    """Whether the reader promises to get each record once."""
    resting: tuple[str, ...] = ()
    """Names of its processes whose CPU time isn't counted."""

    def __init__(self, way: str, place: Path, folder: Path, plan: Plan) -> None:
        self.way, self.place, self.folder, self.plan = way, place, folder, plan
        self.ledger = folder / "ledger"

    @property
    @abstractmethod
    def stream(self) -> Stream:
        """The log."""

    @abstractmethod
    def start(self) -> None:
        """Make an empty log, and have the reader read it."""

    @abstractmethod
    def work(self) -> None:
        """Have the writer write, up to its pause."""

    @abstractmethod
    def has(self, noted: Noted) -> bool:
        """Whether the reader has the last record that was acknowledged."""

    def alive(self) -> bool:
        """Whether the reader still reads."""
        return True

    def progress(self) -> object:
        """Something that changes while the reader gets anything."""
        return last_seen(self.folder)

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that read."""

    @abstractmethod
    def finish(self) -> str | None:
        """End both; what is wrong with how they ended."""

    @abstractmethod
    def seen(self) -> list[Seen]:
        """What the reader got, in order."""

    def kept(self) -> list[Seen]:
        """What the log has in the end."""
        with self.stream.cursor() as cursor:
            return as_seen((record.payload, record.position) for record in cursor)

    @abstractmethod
    def close(self) -> None:
        """Whatever happened, nothing is left running."""


class LogPair(Pair):
    """A reader of a log, in a process of its own: a module that says `ready` and ends with SIGTERM."""

    module: str
    crowd_files = 0
    """Other files in the folder of a log that rolls."""

    def __init__(self, way: str, place: Path, folder: Path, plan: Plan) -> None:
        super().__init__(way, place, folder, plan)
        self.path = place / "log"
        words = "--reached", reached_path(folder)
        said = folder / "writer.said"
        self.writer = Writer(way, self.path, self.ledger, *words, said=said, seed=plan.seed)
        self.child: Child | None = None

    @property
    def stream(self) -> Stream:
        return Stream(self.path)

    def start(self) -> None:
        self.stream.appender().close()
        crowd(self.path, self.crowd_files if self.way == "rolling" else 0)
        self.child = Child(self.module, self.path, self.folder, said=self.folder / "reader.said")
        self.child.wait_for("ready")

    def work(self) -> None:
        self.writer.work(self.plan.seconds, self.plan.kills)

    def alive(self) -> bool:
        return self.child is not None and self.child.process.poll() is None

    def pids(self) -> list[int]:
        return [] if self.child is None else [self.child.pid]

    def finish(self) -> str | None:
        assert self.child is not None
        reader = self.child.end(signal.SIGTERM)
        writer = self.writer.finish()
        return joined(reader and f"the reader: {reader}", writer and f"the writer: {writer}")

    def close(self) -> None:
        self.writer.close()
        if self.child is not None:
            self.child.close()


def crowd(folder: Path, count: int) -> None:
    """Have a folder as many names as a log with many segments: they are listed in several steps."""
    for number in range(count):
        os.close(os.open(folder / f"other.{number:06}", os.O_WRONLY | os.O_CREAT, 0o644))


def run(make: Callable[..., Pair], way: str, plan: Plan, place: Path | None = None) -> Verdict:
    """One run, in a folder of its own. The log is in `place`, or in that folder."""
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forelog-readers-")))
        pair = make(way, place or folder, folder, plan)
        stack.callback(pair.close)
        pair.start()
        pair.work()
        noted = read_ledger(pair.ledger)
        deadline = time.monotonic() + CATCH_UP_SECONDS
        wait_until(
            lambda: pair.has(noted) or not pair.alive() or time.monotonic() > deadline,
            PATIENCE_SECONDS,
            pair.progress,
        )
        idle = _idle_cpu(pair)
        held = _held(pair.stream.path, READ_LOCK)
        complaint = pair.finish()
        held = held or _held(pair.stream.path, APPEND_LOCK)
        seen, kept = pair.seen(), pair.kept()
        comparison = compare(noted, seen, kept, exact=pair.exact)
    return Verdict(
        pair.reader,
        way,
        noted,
        comparison,
        records=sum(row.number >= 0 for row in seen),
        segments=len(noted.segments | {row.position.segment for row in kept}),
        seconds=time.monotonic() - began,
        idle_cpu_seconds=idle,
        idle_seconds=plan.idle_seconds,
        held=held,
        complaint=complaint,
    )


def _idle_cpu(pair: Pair) -> float:
    """The CPU time of a reader at rest. It may have something to finish first, such as the merging of files."""
    seconds, deadline = pair.plan.idle_seconds, time.monotonic() + FINISH_SECONDS
    while True:
        before = cpu_seconds(pair.pids(), pair.resting)
        time.sleep(seconds)
        idle = cpu_seconds(pair.pids(), pair.resting) - before
        if idle <= IDLE_SHARE_MAX * seconds or time.monotonic() > deadline:
            return idle


def _held(path: str, name: str) -> str | None:
    """Whether nobody gets an exclusive lock, as a cleaner or an appender needs it."""
    try:
        OSFiles().lock(f"{path}/{name}", exclusive=True, timeout=LOCK_SECONDS).release()
    except LockTimeout:
        return f"{name} is held"
    return None


def joined(*complaints: str | None) -> str | None:
    """Those that there are, in one text."""
    return "; ".join(complaint for complaint in complaints if complaint) or None
