"""From a log to a copy of it: whatever is appended is sent on, as far as the other side has got.

There is no queue: what is to be sent lies in the log. Who is slow or away costs no memory, and who has fallen so
far behind that the log has dropped what comes next is given the last whole generation, and everything since.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from chiplog.log.position import Position
from chiplog.log.segments import Directory
from chiplog.log.stream import Stream
from chiplog.log.walk import Block
from chiplog.state.mirror import Resume, Snapshot, tail_before

__all__ = ["Chunk", "Source", "Target", "View", "ship"]

BURST_BYTES = 4 << 20  # sent before an acknowledgement is asked for
IDLE_SECONDS = 1.0  # without anything new, before the other side is asked whether it is still there


class Chunk(NamedTuple):
    """Whole records, as their segment has them. The data is valid until the next chunk is asked for."""

    position: Position
    data: memoryview

    @property
    def end(self) -> Position:
        """The position after them."""
        return Position(self.position.segment, self.position.offset + len(self.data))


class View(NamedTuple):
    """A log as it is at the moment."""

    stream: Stream
    snapshot: Snapshot
    """The last whole generation: what lies before it may be dropped at any time."""
    lineage: int = 0
    """Changes when the log is another one, of which nothing that was sent holds any more."""
    before: Position | None = None
    """Where what came before the snapshot has ended, if that is known: who has got there has missed nothing."""


class Source(Protocol):
    """What is shipped."""

    def view(self) -> View | None:
        """The log, or None while it has no whole generation."""


class Target(Protocol):
    """Where it is shipped to. Whatever it raises ends the attempt; the next one begins with `connect`."""

    def connect(self) -> Resume | None:
        """Get it ready. What it has, or None if it is to be given everything."""

    def restart(self, position: Position) -> None:
        """Everything comes again, from this position on."""

    def send(self, chunk: Chunk) -> None:
        """Records that follow those before."""

    def flush(self) -> Position:
        """Up to where a restore from it would get everything; 0:0 before the first `commit` after a restart."""

    def commit(self, snapshot: Snapshot) -> None:
        """It has a whole generation, and may forget what came before that."""

    def close(self) -> None:
        """Let go of it. Closing again does nothing."""


def ship(
    source: Source,
    target: Target,
    *,
    woken: threading.Event,
    stopped: Callable[[], bool],
    acknowledged: Callable[[Position], None],
    caught_up: Callable[[float], object] | None = None,
    rest: Callable[[], object] | None = None,
) -> None:
    """Keep a target up with a source until told to stop, or until something raises.

    Whoever appends sets `woken`. When all was sent `caught_up` is told since when: what had been appended by that
    moment, of time.monotonic(), the target has. Then a `rest` is taken: what is appended meanwhile goes together.
    """
    view = _wait_for_view(source, woken, stopped)
    if view is None:
        return
    resume = target.connect()
    at = resume.position if resume is not None and _has(view.stream, resume) else None
    lineage, told = view.lineage, None
    while not stopped():
        woken.clear()
        looked_at = time.monotonic()
        view = source.view() or view
        if at is None or view.lineage != lineage:
            at, lineage, told = view.snapshot.begin, view.lineage, None
            target.restart(at)
        try:
            sent_to, more = _send(view, at, target)
        except _Gone:
            at = None
            continue
        acknowledged(target.flush())
        if told != view.snapshot and sent_to >= view.snapshot.end:
            target.commit(view.snapshot)
            told = view.snapshot
            acknowledged(target.flush())
        idle, at = sent_to == at, sent_to
        if caught_up is not None and not more:
            caught_up(looked_at)
        if rest is not None:
            if not more:
                rest()
        elif idle:
            woken.wait(IDLE_SECONDS)


def _wait_for_view(source: Source, woken: threading.Event, stopped: Callable[[], bool]) -> View | None:
    while not stopped():
        woken.clear()
        view = source.view()
        if view is not None:
            return view
        woken.wait(0.5)
    return None


class _Gone(Exception):
    """What comes next has been dropped."""


def _send(view: View, at: Position, target: Target) -> tuple[Position, bool]:
    """Send up to a burst of what follows a position, and return where it ends, and whether there may be more.

    While a log is read nothing is dropped from it: so this doesn't go on for long.
    """
    begun, sent = at, 0
    for block in view.stream.blocks(start=at):
        if at is begun and block.segment != at.segment and at != view.before and _is_gone(view, at):
            raise _Gone
        chunk = _chunk(block)
        target.send(chunk)
        at = chunk.end
        sent += len(chunk.data)
        if sent >= BURST_BYTES:
            break
    return at, sent >= BURST_BYTES


def _chunk(block: Block) -> Chunk:
    first, last = block.scan.offsets[block.first], block.scan.offsets[block.last - 1]
    data = block.buffer[first - block.base : last - block.base + block.frame_bytes(block.last - 1)]
    return Chunk(Position(block.segment, block.offsets[block.first]), data)


def _is_gone(view: View, at: Position) -> bool:
    return at.segment not in _directory(view.stream).numbers()


def _has(stream: Stream, resume: Resume) -> bool:
    """Whether a log has what the other side has: the same bytes up to the same position."""
    directory = _directory(stream)
    if resume.position.segment not in directory.numbers():
        return False
    file = directory.open_segment(resume.position.segment)
    try:
        if file.size() < resume.position.offset:
            return False
        return bool(resume.tail) and tail_before(file, resume.position.offset).endswith(resume.tail)
    finally:
        file.close()


def _directory(stream: Stream) -> Directory:
    return stream._directory
