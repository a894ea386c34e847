"""Short histories of cleaning, messages, a commit log and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forelog.commitlog.log import CommitLog
from forelog.errors import ForelogError
from forelog.formats.state import EVENT
from forelog.log.position import Position
from forelog.messages.writer import MessageLogWriter
from forelog.state.enumeration import Enumeration
from forelog.state.log import StateLog
from forelog.testing.ledger import Entry
from forelog.testing.registry import history
from forelog.testing.writer import Writer

_NEVER = 1 << 40


# -- cleaning


@history
def clean(writer: Writer) -> None:
    """Removes records from the middle of segments, then whole segments."""
    stream = writer.stream()
    with writer.appender(stream, segment_bytes=100) as log:
        for count in (3, 3, 3, 1):
            writer.append_many(log, count, 16)
        _clean(writer, stream, lambda payload: int(payload[:4]) % 2 == 0)
        writer.append(log)
        _clean(writer, stream, lambda payload: int(payload[:4]) <= 6)
        writer.append(log)


def _clean(writer: Writer, stream: Any, drop: Any) -> None:
    writer.forget(drop)
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: drop(record.payload))


# -- messages


def _messages(writer: Writer, **options: Any) -> MessageLogWriter:
    log = MessageLogWriter("log", flush_interval_ms=None, files=writer.disk, clock=writer.clock, **options)
    writer.shown(log.stream)
    return log


def flush(writer: Writer, log: MessageLogWriter, count: int, before: Sequence[Entry] = ()) -> list[Entry]:
    """Write some messages and flush them, with those already in the buffer."""
    entries = [*before, *writer.begin(writer.payloads(count))]
    for entry in entries[len(before) :]:
        log.write("t", entry.payload)
    starts, size = log.buffered_starts, log.buffered_bytes
    try:
        end = log.flush()
    except ForelogError:
        return entries  # they stay in the buffer
    writer.acknowledge(entries, [Position(end.segment, end.offset - size + start) for start in starts])
    return entries


@history
def messages(writer: Writer) -> None:
    """Messages in files that are named by their times."""
    with _messages(writer, file_bytes=60, sync="always") as log:
        for count in (1, 2, 3, 1, 2):
            flush(writer, log, count)


@history
def refused_messages(writer: Writer) -> None:
    """A flush without room, and a later one with the same messages."""
    with _messages(writer) as log:
        flush(writer, log, 1)
        with writer.full_after(50):
            entries = flush(writer, log, 4)
        flush(writer, log, 2, entries)


@history
def retention(writer: Writer) -> None:
    """Retention removes the oldest files."""
    with _messages(writer, file_bytes=40) as log:
        for _ in range(4):
            flush(writer, log, 2)
        known = {entry.payload: entry.position.segment for entry in writer.ledger.entries if entry.position}
        last = max(known.values())
        writer.forget(lambda payload: known[payload] < last)
        log.retain(byte_count=0)
        flush(writer, log, 2)


# -- a commit log


@history
def commit_log(writer: Writer) -> None:
    """Writes through a queue, a rotation by swap, and a write without room."""
    log = CommitLog("log", on_failure="ignore", files=writer.disk, clock=writer.clock)
    writer.shown(log.stream)
    writer.driven(log.appender)
    with log:
        writer.attempt(writer.payloads(2), log.write_batch)  # type: ignore[arg-type]
        log.rotate_logs()
        writer.attempt(writer.payloads(1), log.write_batch)  # type: ignore[arg-type]
        with writer.full_after(40):
            writer.attempt(writer.payloads(3), log.write_batch)  # type: ignore[arg-type]
        writer.attempt(writer.payloads(3), log.write_batch)  # type: ignore[arg-type]


# -- state


class _Things:
    """A program's state: some things, each with a number that every change replaces."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._names: list[str] = []
        writer.ledger.shape = lambda payload: payload[1:] if payload[:1] == EVENT else None

    def encode(self, event: bytes) -> bytes:
        return event

    def decode(self, data: bytes) -> bytes:
        return data

    def replay(self, event: bytes) -> None:
        pass

    def enumerate(self, log: Enumeration) -> None:
        """Write every thing again. Older records may be dropped from now on."""
        before = {entry.payload for entry in self._writer.ledger.entries}
        for _ in self._names:
            self._writer.attempt(self._writer.payloads(1), lambda payloads: [log.update(payloads[0])])
        self._writer.forget(before.__contains__)

    def log(self) -> StateLog:
        """A state log of them, which rotates when it is told to."""
        log = StateLog(
            "log",
            replay=self.replay,
            enumerate=self.enumerate,
            codec=self,
            rotate_bytes=_NEVER,
            files=self._writer.disk,
        )
        self._writer.shown(log.stream)
        return log

    def change(self, log: StateLog, count: int = 1) -> None:
        self._names += "x" * count
        self._writer.attempt(self._writer.payloads(count), log.update_many)


@history
def state(writer: Writer) -> None:
    """Updates, and rotations that drop what came before."""
    things = _Things(writer)
    with things.log() as log:
        things.change(log)
        things.change(log, 2)
        log.rotate()
        things.change(log)
        log.rotate()


@history
def refused_updates(writer: Writer) -> None:
    """Updates without room, while copies are kept."""
    things = _Things(writer)
    with things.log() as log:
        things.change(log)
        with writer.full_after(58):
            things.change(log, 4)
        things.change(log, 4)
        things.change(log)
