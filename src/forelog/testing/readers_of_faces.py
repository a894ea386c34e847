"""The readers of forelog's faces: Spark's planner, its stream, an ingest, and copies of a log.

They need no Spark session, but some need the packages of an extra. Without these they see nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from forelog.copies.identity import Identity
from forelog.copies.lineage import Lineage
from forelog.copies.shipping import Chunk, View, ship
from forelog.copies.slots import whole_slot
from forelog.copies.snapshot import Resume, Snapshot
from forelog.copies.targets import DirectoryTarget
from forelog.copies.transfers import Transfer, Transfers
from forelog.errors import LogNotFound
from forelog.formats import Format
from forelog.formats.state import FORMAT as STATE_FORMAT
from forelog.log.directory.place import TAIL_BYTES
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.messages.reader import MessageLogReader
from forelog.testing.disk import CrashDisk
from forelog.testing.ledger import NEVER
from forelog.testing.readers import see_all
from forelog.testing.registry import reader
from forelog.testing.sight import Sight, opened

_COLUMNS = ["segment", "offset", "payload"]


def _lacks_spark(sight: Sight) -> bool:
    """Whether the packages for Spark are missing. Then the reader sees nothing."""
    try:
        import pyarrow  # noqa: F401
        import pyspark.sql.datasource  # noqa: F401
    except ImportError:
        sight.sees_all = False
        return True
    return False


# -- Spark


def _log_of(sight: Sight) -> Any:
    """The log as Spark's planner finds it, on the disk that is looked at."""
    from forelog.spark.planning import Log

    stream = Stream.open(sight.path, files=sight.disk)
    if stream.format != sight.format:  # no header was there yet that would have told
        raise LogNotFound(f"there are no segments in {sight.path}")
    return Log(stream.path, "log", stream.format, stream)


def _codec_name(sight: Sight) -> str:
    return "messages" if sight.format.numbered_by_time else "records"


def _see_slice(sight: Sight, piece: Any) -> None:
    """Read what one task reads."""
    from forelog.spark.codecs import codec_of

    _see_batches(sight, codec_of(_codec_name(sight)).batches(piece, _COLUMNS, 100, "raise", []))


def _see_batches(sight: Sight, batches: Iterator[Any]) -> None:
    for arrays in batches:
        for row in zip(*(arrays[name].to_pylist() for name in _COLUMNS), strict=True):
            sight.see((Position(row[0], row[1]), row[2]))


@reader
def planner(sight: Sight) -> None:
    """A query: planned, and then each slice of the plan read by a task of its own."""
    if _lacks_spark(sight):
        return
    from forelog.spark.options import ReadOptions
    from forelog.spark.planning import plan

    for piece in plan(ReadOptions(sight.path, partition_bytes=64), [_log_of(sight)], splits=True):
        _see_slice(sight, piece)


@reader
def stream(sight: Sight) -> None:
    """A stream of Spark, kept: offsets, then the slices between them."""
    if _lacks_spark(sight):
        return
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from forelog.spark.options import ReadOptions
    from forelog.spark.stream import ForelogStreamReader
    from forelog.spark.tasks import Task

    if opened(sight, lambda: _log_of(sight)) is None:
        return

    class SeenStream(ForelogStreamReader):
        def _logs(self) -> list[Any]:
            return [_log_of(sight)]

    options = ReadOptions(sight.path, codec=_codec_name(sight), partition_bytes=64)
    source = SeenStream(options, {}, [])
    offset = source.initialOffset()
    try:
        while True:
            following = source.latestOffset(offset, ReadAllAvailable())
            for task in source.partitions(offset, following):
                if isinstance(task, Task) and task.piece is not None:
                    _see_slice(sight, task.piece)
            offset = following
            if not sight.pause():
                return
    finally:
        source.stop()


@reader
def ingest(sight: Sight) -> None:
    """An ingest, kept: it plans, writes and commits what is new, with the position reached."""
    if _lacks_spark(sight):
        return
    from forelog.spark.pipeline.ingest_files import write_piece
    from forelog.spark.pipeline.ingest_plan import Plan, continuity_of, new_pieces, shape_of

    if opened(sight, lambda: _log_of(sight)) is None:
        return
    plan = Plan(codec=_codec_name(sight), slice_bytes=64)
    shape, standing = shape_of(plan), continuity_of(plan)
    positions: dict[str, Position] = {}
    with contextlib.closing(standing):
        while True:
            table, pieces = _Table(), new_pieces(plan, [_log_of(sight)], positions, standing)
            if not all(write_piece(shape, piece, table, []) for piece in pieces):  # type: ignore[arg-type]
                continue  # some were cleaned away since they were planned
            for row in table.rows:
                sight.see(row)
            if pieces:
                positions["log"] = pieces[-1].after
            if not sight.pause():
                return


class _Table:
    """What an ingest writes to. A commit takes all of it, or nothing."""

    def __init__(self) -> None:
        self.rows: list[tuple[Position, bytes]] = []

    def add(self, batch: Any) -> None:
        columns = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in _COLUMNS]
        for segment, offset, payload in zip(*columns, strict=True):
            self.rows.append((Position(segment, offset), payload))


# -- the broker


@reader
def messages(sight: Sight) -> None:
    """A reader of messages, kept."""
    if not sight.format.numbered_by_time:
        sight.sees_all = False
        return
    found = opened(sight, lambda: MessageLogReader(sight.path, follow=True, files=sight.disk))
    if found is None:
        return
    with found:
        while True:
            while (message := found.recv(timeout=0)) is not None:
                sight.see((message.position, message.payload))
            if not sight.pause():
                return


# -- copies


class _Source:
    """The log, as the primary of copies sees it. Its first segment begins the last whole generation."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._first = 0
        self.identity = Identity(bytes(16), 1, 1, bytes(8))
        self.lineage = Lineage(self.identity, Position(0, 0))
        self.transfers = Transfers()
        self.path = sight.path

    def view(self) -> View | None:
        sight = self._sight
        found = sight.ledger.readable(sight.moment)
        if found and found[0].position is not None:
            self._first = found[0].position.segment
        begin = Position(self._first, sight.format.header_bytes)
        return View(sight.stream(), Snapshot(begin, begin)) if self._first else None


class _Copy:
    """A target that keeps what it is sent, and acknowledges it."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._end = Position(0, 0)
        self._tail = b""
        self.transfer = Transfer()

    def connect(self) -> Resume | None:
        return Resume(self._end, self._tail[-TAIL_BYTES:]) if self._tail else None

    def restart(self, position: Position) -> None:
        self._end, self._tail = position, b""
        self._sight.from_position = position
        self._sight.anew()

    def send(self, chunk: Chunk) -> None:
        data = bytes(chunk.data)
        for record in records_in(self._sight.format, chunk.position, data):
            self._sight.see(record)
        same = chunk.position.segment == self._end.segment
        self._tail = (self._tail if same else self._sight.format.header()) + data
        self._end = chunk.end

    def flush(self) -> Resume:
        return Resume(self._end, self._tail[-TAIL_BYTES:])

    def commit(self, snapshot: Snapshot) -> None:
        pass

    def close(self) -> None:
        pass


def records_in(fmt: Format, position: Position, data: bytes) -> Iterator[tuple[Position, bytes]]:
    """The records in bytes of a segment that begin at a position."""
    scan = fmt.scan(data, 0, len(data), 0, 1 << 20)
    for offset, start, end in zip(scan.offsets, scan.starts, scan.ends, strict=True):
        yield Position(position.segment, position.offset + offset), data[start:end]


def _wait_for_records(sight: Sight) -> bool:
    """Wait until there is something to send. False if there never will be, or if such logs have no copies.

    A log is shipped only if records leave it in whole segments, as the state log says. Other logs are rewritten.
    """
    if sight.format != STATE_FORMAT and any(entry.forgotten != NEVER for entry in sight.ledger.entries):
        sight.sees_all = False
        return False
    while not sight.ledger.readable(sight.moment):
        if not sight.pause():
            return False
    return True


def _ship(sight: Sight, target: Any, rest: Callable[[], bool]) -> None:
    """Ship until `rest` returns False. It is called whenever everything was sent."""
    source, over = _Source(sight), threading.Event()
    source.view()
    while not over.is_set():
        try:
            ship(
                source,
                target,
                woken=threading.Event(),
                stopped=over.is_set,
                acknowledged=lambda _: None,
                rest=lambda: None if rest() else over.set(),
            )
        except FileNotFoundError:  # a segment was dropped at the wrong moment: the next attempt finds another
            continue


@reader
def shipper(sight: Sight) -> None:
    """Ship what is appended, kept: over one connection as long as nothing fails."""
    if _wait_for_records(sight):
        _ship(sight, _Copy(sight), sight.pause)


@reader
def shipper_that_reconnects(sight: Sight) -> None:
    """Ship over a connection that breaks after each burst, and resume at the end of the copy."""
    target = _Copy(sight)
    if _wait_for_records(sight):
        while True:
            _ship(sight, target, lambda: False)
            if not sight.pause():
                return


@reader
def copy(sight: Sight) -> None:
    """Keep a copy in a directory, and read all of it after each burst, as a restore does."""
    if sight.format != STATE_FORMAT:
        sight.sees_all = False
        return
    if not _wait_for_records(sight):
        return
    files, source = CrashDisk(), _Source(sight)
    target = DirectoryTarget("copy", source, synced=True, files=files)

    def read_copy() -> bool:
        slot = whole_slot("copy", files)
        if slot is not None:
            sight.anew()
            see_all(sight, Stream(slot, format=STATE_FORMAT, files=files).cursor())
        return sight.pause()

    first = source.view()
    sight.from_position = first.snapshot.begin if first else None
    with contextlib.closing(target):
        _ship(sight, target, read_copy)
