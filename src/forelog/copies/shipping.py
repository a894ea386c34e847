"""From a log to a target: records are read from the log and sent on as they are appended.

There is no queue: the log itself holds what is still to be sent, so a slow or missing copy costs no memory. If the
log has dropped what a copy needs next, the copy gets the last whole generation, and everything after it.

Before it sends, `ship` compares the log with what it sent last. If the log was cut, repaired or rewritten, those
bytes are no longer there: this is logged, and a new copy is made. Acknowledgements are compared with what was sent
too (transfers.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from forelog.copies.identity import Identity
from forelog.copies.lineage import Lineage
from forelog.copies.snapshot import Resume, Snapshot
from forelog.copies.transfers import Transfer, Transfers
from forelog.formats import Block
from forelog.log.directory.place import if_there, tail_before
from forelog.log.position import Position
from forelog.log.stream import Stream

logger = logging.getLogger("forelog")

BURST_BYTES = 4 << 20  # sent before an acknowledgement is asked for
APART_BYTES = 1 << 20  # the same if it is copied first
IDLE_SECONDS = 1.0  # without new records, until the other side is asked whether it is still there


class Chunk(NamedTuple):
    """Whole records of one segment."""

    position: Position
    """The position at which the records begin."""
    data: memoryview
    """The bytes of the records, valid until the next chunk is read."""

    @property
    def end(self) -> Position:
        """The position after them."""
        return Position(self.position.segment, self.position.offset + len(self.data))


class View(NamedTuple):
    """A log at this moment."""

    stream: Stream
    """Reads the log."""
    snapshot: Snapshot
    """The last whole generation. What comes before it may be dropped at any time."""
    lineage: int = 0
    """A number that changes when another log takes its place, so that everything must be sent again."""
    before: Position | None = None
    """Where the generation before the snapshot ended, if known: a copy that ends there has missed nothing."""


class Source(Protocol):
    """A log that is shipped."""

    def view(self) -> View | None:
        """The log at this moment; None while it has no whole generation."""


class Owner(Source, Protocol):
    """A log that is shipped by its primary."""

    @property
    def identity(self) -> Identity:
        """The opening of the log by this primary."""

    @property
    def lineage(self) -> Lineage:
        """This opening, and the openings that it continues."""

    @property
    def transfers(self) -> Transfers:
        """What this opening has sent to its copies."""

    @property
    def path(self) -> str:
        """The log's directory. For a log in a slot of copies, the directory of both slots."""


class Target(Protocol):
    """Where a log is shipped to. An error ends the attempt; the next one begins with `connect`."""

    transfer: Transfer
    """What was sent to the target, over all attempts."""

    def connect(self) -> Resume | None:
        """Connect, and return the end of the copy; None if everything must be sent."""

    def restart(self, position: Position) -> None:
        """Begin a new copy: everything is sent again, from this position on."""

    def send(self, chunk: Chunk) -> None:
        """Send records that follow the last ones."""

    def flush(self) -> Resume:
        """Return the end of the whole copy; 0:0 before the first `commit` after a restart."""

    def commit(self, snapshot: Snapshot) -> None:
        """Tell it that it has a whole generation, and may remove what came before."""

    def close(self) -> None:
        """Disconnect. Closing again does nothing."""


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
    """Send the records of a source to a target until `stopped` returns true, or an error is raised.

    woken         set when records were appended
    acknowledged  called with the end of the whole copy
    caught_up     called with a time.monotonic(): the target has everything that was appended before
    rest          called when everything was sent; records that are appended meanwhile are sent together
    apart         read all of a burst before it is sent, so that a slow receiver doesn't delay cleaning
    """
    view = _wait_for_view(source, woken, stopped)
    if view is None:
        return
    sent, resume = target.transfer, target.connect()
    sent.begin(resume)
    lineage, committed = view.lineage, None
    held = None if resume is None else holds(view.stream, resume)
    at = resume.position if resume is not None and resume.tail and held else None
    if resume is not None and held is False:
        logger.warning(
            "%s lacks what a copy of it has up to %s. A new copy is made",
            view.stream.path,
            resume.position,
        )
    while not stopped():
        woken.clear()
        looked_at = time.monotonic()
        view = source.view() or view
        if at is not None and view.lineage == lineage and holds(view.stream, sent.end) is False:
            logger.error(
                "%s no longer has what was sent of it up to %s: it was cut, repaired or rewritten. A new copy is "
                "made", view.stream.path, at
            )  # fmt: skip
            at = None
        if at is None or view.lineage != lineage:
            at, lineage, committed = view.snapshot.begin, view.lineage, None
            target.restart(at)
            sent.begin(None)
        try:
            sent_to, more = _send(view, at, target, apart=apart)
        except _Gone:
            at = None
            continue
        acknowledged(_flush(target))
        if committed != view.snapshot and sent_to >= view.snapshot.end:
            target.commit(view.snapshot)
            committed = view.snapshot
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
    """Ask the target what it acknowledges, and check that against what was sent."""
    found = target.flush()
    target.transfer.settle(found)
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
    """The log has dropped the records that come next."""


def _send(view: View, at: Position, target: Target, *, apart: bool) -> tuple[Position, bool]:
    """Send a burst of what follows a position. Returns where it ends, and whether there may be more.

    The log can't drop anything while it is read, so a burst is short.
    """
    chunks = iter(_copied(view, at)) if apart else _chunks(view, at, BURST_BYTES)
    sent = 0
    for chunk in chunks:
        target.send(chunk)
        target.transfer.add(*chunk)
        at = chunk.end
        sent += len(chunk.data)
    return at, sent >= (APART_BYTES if apart else BURST_BYTES)


def _chunks(view: View, at: Position, byte_count: int) -> Iterator[Chunk]:
    """The records that follow a position, up to about so many bytes."""
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
    """The records of a burst, copied before any of them is sent."""
    return [chunk._replace(data=memoryview(bytes(chunk.data))) for chunk in _chunks(view, at, APART_BYTES)]


def _chunk(block: Block) -> Chunk:
    first, last = block.scan.offsets[block.first], block.scan.offsets[block.last - 1]
    data = block.buffer[first - block.base : last - block.base + block.frame_bytes(block.last - 1)]
    return Chunk(Position(block.segment, block.offsets[block.first]), data)


def _is_gone(view: View, at: Position) -> bool:
    return view.stream.segment_bytes(at.segment) is None


def holds(stream: Stream, end: Resume) -> bool | None:
    """Whether a log has the same bytes before a position; None if it doesn't have the segment."""
    with if_there(stream.directory.open_segment, end.position.segment) as file:
        if file is None or file.size() < end.position.offset:
            return None if file is None else False
        return tail_before(file, end.position.offset).endswith(end.tail)
