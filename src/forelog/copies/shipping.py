"""From a log to a copy of it: whatever is appended is sent on, as far as the other side has got.

There is no queue: what is to be sent lies in the log. A copy that is slow or away costs no memory. One that has
fallen so far behind that the log has dropped what comes next gets the last whole generation, and everything
since.

Before anything more is sent, the log is compared with what was sent last. If the log was cut, repaired or
rewritten since, it doesn't have those bytes any more. This is logged, and the copy is made anew. What a copy
acknowledges is compared with what was sent, too (sent.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from forelog.copies.identity import Identity
from forelog.copies.lineage import Lineage
from forelog.copies.mirror import Resume, Snapshot, tail_before
from forelog.copies.sent import Memory, Sent
from forelog.formats import Block
from forelog.log.position import Position
from forelog.log.stream import Stream

__all__ = ["Chunk", "Owner", "Source", "Target", "View", "holds", "ship"]

logger = logging.getLogger("forelog")

BURST_BYTES = 4 << 20  # sent before an acknowledgement is asked for
APART_BYTES = 1 << 20  # the same where it is copied first
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
    """Where what came before the snapshot has ended, if known: a copy that ends there has missed nothing."""


class Source(Protocol):
    """What is shipped."""

    def view(self) -> View | None:
        """The log, or None while it has no whole generation."""


class Owner(Source, Protocol):
    """The log that is shipped, and whose it is."""

    @property
    def identity(self) -> Identity:
        """Its id, and the epoch and word of its primary."""

    @property
    def lineage(self) -> Lineage:
        """The openings that its history consists of."""

    @property
    def memory(self) -> Memory:
        """What this opening of it has sent to its copies."""

    @property
    def path(self) -> str:
        """Its directory, or that of the copies which it is one of."""


class Target(Protocol):
    """Where it is shipped to. Whatever it raises ends the attempt; the next one begins with `connect`."""

    sent: Sent
    """What it was sent, over all attempts."""

    def connect(self) -> Resume | None:
        """Get it ready. What it has, or None if it is to be given everything."""

    def restart(self, position: Position) -> None:
        """Everything comes again, from this position on."""

    def send(self, chunk: Chunk) -> None:
        """Records that follow those before."""

    def flush(self) -> Resume:
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
    apart: bool = False,
) -> None:
    """Keep a target up with a source until told to stop, or until something raises.

    Whoever appends sets `woken`. When all was sent, `caught_up` gets the time of time.monotonic() up to which the
    target has everything that was appended. Then a `rest` is taken: what is appended meanwhile goes together.
    `apart` reads first and sends then: whoever takes its time to receive doesn't keep the log from being cleaned.
    """
    view = _wait_for_view(source, woken, stopped)
    if view is None:
        return
    sent, resume = target.sent, target.connect()
    sent.begin(resume)
    lineage, told = view.lineage, None
    held = None if resume is None else holds(view.stream, resume)
    at = resume.position if resume is not None and resume.tail and held else None
    if resume is not None and held is False:
        logger.warning(
            "%s doesn't have what a copy of it has up to %s. The copy is made anew",
            view.stream.path,
            resume.position,
        )
    while not stopped():
        woken.clear()
        looked_at = time.monotonic()
        view = source.view() or view
        if at is not None and view.lineage == lineage and holds(view.stream, sent.end) is False:
            logger.error(
                "%s no longer has what was sent of it up to %s: it was cut, repaired or rewritten. The copy is "
                "made anew", view.stream.path, at
            )  # fmt: skip
            at = None
        if at is None or view.lineage != lineage:
            at, lineage, told = view.snapshot.begin, view.lineage, None
            target.restart(at)
            sent.begin(None)
        try:
            sent_to, more = _send(view, at, target, apart=apart)
        except _Gone:
            at = None
            continue
        acknowledged(_flush(target))
        if told != view.snapshot and sent_to >= view.snapshot.end:
            target.commit(view.snapshot)
            told = view.snapshot
            acknowledged(_flush(target))
        idle, at = sent_to == at, sent_to
        if caught_up is not None and not more:
            caught_up(looked_at)
        if rest is not None:
            if not more:
                rest()
        elif idle:
            woken.wait(IDLE_SECONDS)


def _flush(target: Target) -> Position:
    """What the target acknowledges, once it is known to be what it was sent."""
    found = target.flush()
    target.sent.settle(found)
    return found.position


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


def _send(view: View, at: Position, target: Target, *, apart: bool) -> tuple[Position, bool]:
    """Send up to a burst of what follows a position, and return where it ends, and whether there may be more.

    While a log is read nothing is dropped from it: so this doesn't go on for long.
    """
    chunks = iter(_copied(view, at)) if apart else _chunks(view, at, BURST_BYTES)
    sent = 0
    for chunk in chunks:
        target.send(chunk)
        target.sent.add(*chunk)
        at = chunk.end
        sent += len(chunk.data)
    return at, sent >= (APART_BYTES if apart else BURST_BYTES)


def _chunks(view: View, at: Position, byte_count: int) -> Iterator[Chunk]:
    """What follows a position, until that is so much or all."""
    begun, read = at, 0
    for block in view.stream.blocks(start=at):
        if begun is at and block.segment != at.segment and at != view.before and _is_gone(view, at):
            raise _Gone
        chunk = _chunk(block)
        yield chunk
        at = chunk.end
        read += len(chunk.data)
        if read >= byte_count:
            break


def _copied(view: View, at: Position) -> list[Chunk]:
    """The same, read before any of it is sent."""
    return [chunk._replace(data=memoryview(bytes(chunk.data))) for chunk in _chunks(view, at, APART_BYTES)]


def _chunk(block: Block) -> Chunk:
    first, last = block.scan.offsets[block.first], block.scan.offsets[block.last - 1]
    data = block.buffer[first - block.base : last - block.base + block.frame_bytes(block.last - 1)]
    return Chunk(Position(block.segment, block.offsets[block.first]), data)


def _is_gone(view: View, at: Position) -> bool:
    return view.stream.segment_bytes(at.segment) is None


def holds(stream: Stream, end: Resume) -> bool | None:
    """Whether a log has the same last bytes before a position; None if its segment isn't there."""
    try:
        file = stream.directory.open_segment(end.position.segment)
    except FileNotFoundError:
        return None
    try:
        if file.size() < end.position.offset:
            return False
        return tail_before(file, end.position.offset).endswith(end.tail)
    finally:
        file.close()
