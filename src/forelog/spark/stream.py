"""Reading logs as streams.

A stream's offset is a position for each log, as JSON: `{"orders": "000000007:1048576 5d2c41f7"}`, with a digest of
what the log has before it. Positions survive cleaning and are never used twice, so an offset means the same after
any restart. The digest shows whether the log was cut, restored or replaced since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from forelog.formats import Block
from forelog.log.directory.trace import trace
from forelog.log.position import Position
from forelog.log.seek import find_segment
from forelog.log.walk import Walk
from forelog.spark.codecs import codec_of
from forelog.spark.continuity import Continuity, Phrases
from forelog.spark.lag import bytes_between, seconds_between
from forelog.spark.options import ReadOptions
from forelog.spark.planning import Log, Slice, between_entries, cut, end_of, logs_of
from forelog.spark.slices import read_slice
from forelog.spark.tasks import bundles_of, must_stay, tasks_in, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, str]


_WORDS = Phrases("the stream stood at", "Start with a new checkpoint", "failOnDataLoss=false")


class ForelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of one log, or of all logs in a folder, with those that are added later."""

    def __init__(self, options: ReadOptions, columns: dict[str, str], names: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._names = names
        self._ends: dict[str, Position] = {}
        """The last known end of each log, from where to look for more."""
        self._until: Offset | None = None
        """Where the stream ends, if it reads only what was there at its start."""
        self._continuity = Continuity(_WORDS, fails=options.fail_on_data_loss)
        self._known: dict[str, Log] = {}
        """The logs that were found last, by path."""
        self._reached: dict[str, Position] = {}
        """Where the last batch ends in each log."""
        self._moved: dict[str, tuple[Position, Position]] = {}
        """For each log the start of the last batch, and where that was when its segment was gone."""

    # -- offsets

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        logs = self._logs()
        return _offset({log.name: self._first(log) for log in logs}, logs, {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.records_per_batch is not None:
            return ReadMaxRows(self._options.records_per_batch)
        if self._options.bytes_per_batch is not None:
            return ReadMaxBytes(self._options.bytes_per_batch)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.records_per_batch
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.bytes_per_batch
        positions = {name: _parse(text)[0] for name, text in start.items()}
        logs = [log for log in self._logs() if self._until is None or log.name in self._until]
        for waiting, log in zip(range(len(logs), 0, -1), logs, strict=True):
            begin = positions.get(log.name) or self._first(log)
            stop = _parse(self._until[log.name])[0] if self._until else None
            begin = self._go_on(log, begin, start)
            # The rest of the limit is shared among the remaining logs: none waits until the others are read.
            share = (None if rows is None else -(-rows // waiting), None if room is None else -(-room // waiting))
            end, taken, size = self._advance(log, begin, stop, *share)
            positions[log.name] = between_entries(log, begin, end)
            if positions[log.name] == begin < end:  # one entry is larger than a batch: it is taken whole
                positions[log.name] = between_entries(log, begin, stop or self._end(log))
            self._continuity.stand(log, begin, positions[log.name])
            self._reached[log.name] = positions[log.name]
            rows = None if rows is None else max(rows - taken, 0)
            room = None if room is None else max(room - size, 0)
        return _offset(positions, logs, start if self._options.fail_on_data_loss else {})

    def _go_on(self, log: Log, begin: Position, start: Offset) -> Position:
        """Where a batch that starts at an offset begins to read, once it is sure that nothing was missed."""
        known = self._moved.get(log.name)
        if known is not None and known[0] == begin:
            begin = known[1]  # whose segment is still held open, not that of the one before
        moved = self._continuity.go_on(log, begin, _parse(start.get(log.name, ""))[1])
        self._moved[log.name] = (_parse(start[log.name])[0] if log.name in start else begin, moved)
        return moved

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The ends of the logs, and how far the last batch is behind them: `000000007:99 behind 20 bytes 1.5 s`.

        It is only shown: nothing starts from here.
        """
        texts = {}
        for log in sorted(self._logs(), key=lambda log: log.name):
            end = self._end(log)
            begin = self._reached.get(log.name, end)
            texts[log.name] = str(end)
            if begin < end:
                seconds = seconds_between(log, begin, end)
                texts[log.name] += f" behind {bytes_between(log, begin, end)} bytes {seconds:.3f} s"
        return texts

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        logs = self._logs()
        self._until = {log.name: str(self._end(log)) for log in logs}

    def _logs(self) -> list[Log]:
        found = logs_of(self._options, known=self._known)
        self._known = {log.path: log for log in found}
        return found

    def _first(self, log: Log) -> Position:
        """Where to begin in a log that was never read."""
        options = self._options
        directory = log.stream().directory
        numbers = directory.numbers()
        if options.latest and log.name not in self._ends:
            return self._end(log)
        if options.start is not None:
            return options.start
        if options.since_ns is not None:
            return find_segment(directory, options.since_ns)
        if not numbers or not log.stream().segment_bytes(numbers[0]):
            return Position(0, 0)  # an empty file of messages can be replaced by another one
        return Position(numbers[0], 0)

    def _first_planned(self, log: Log) -> Position:
        """Where a log begins that this batch is the first to read."""
        known = self._moved.get(log.name)
        return self._first(log) if known is None else known[0]

    def _end(self, log: Log) -> Position:
        """The end of a log now, looked for from where it was last time."""
        self._ends[log.name] = end_of(log.stream(), self._ends.get(log.name, Position(0, 0)))
        return self._ends[log.name]

    def _advance(
        self, log: Log, begin: Position, stop: Position | None, rows: int | None, room: int | None
    ) -> tuple[Position, int, int]:
        """The end of a batch, and how many records and bytes it has."""
        if rows is None and room is None:
            return max(begin, stop or self._end(log)), 0, 0
        if rows == 0 or room == 0:
            return begin, 0, 0
        walk = Walk(log.stream().directory, start=begin, stop=stop, on_corruption="skip", block_rows=8192)
        taken = size = 0
        try:
            for block in walk:
                row = _last_row(
                    block, None if rows is None else rows - taken, None if room is None else room - size
                )
                places = block.scan.offsets
                end = places[row] if row < len(places) else block.base + block.scan.end
                taken += row - block.first
                size += end - places[block.first]
                if row < block.last:
                    return Position(block.segment, block.offsets[row]), taken, size
                if taken == rows or (room is not None and size >= room):
                    break
            return max(begin, walk.position), taken, size
        finally:
            walk.close()

    # -- reading

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        codec = codec_of(self._options.codec)
        pieces: list[Slice] = []
        for log in self._logs():
            if log.name in end:
                first = _parse(start[log.name])[0] if log.name in start else self._first_planned(log)
                stop = _parse(end[log.name])[0]
                if first < stop:
                    first = self._go_on(log, first, start)  # also for a batch that is repeated after a restart
                    pieces += cut(log, log.stream(), first, stop, self._options, splits=codec.splits)
        tasks = tasks_of(pieces, self._options)
        return bundles_of(must_stay(tasks) if self._options.fail_on_data_loss else tasks, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for task in tasks_in(partition):
            assert task.piece is not None
            with task.piece.log.stream().directory.read_lock():
                task.check()
                yield from read_slice(task.piece, self._options, self._columns, self._names)

    def commit(self, end: Offset) -> None:
        """Nothing to do: cleaning removes records, not reading."""

    def stop(self) -> None:
        self._continuity.close()


def _offset(positions: dict[str, Position], logs: Iterable[Log], start: Offset) -> Offset:
    """An offset in a fixed order, because Spark compares offsets as strings.

    A log to which nothing has come keeps its text from the start of the batch, with which it was compared.
    """
    streams = {log.name: log.stream() for log in logs}
    texts = {}
    for name in sorted(positions):
        if name in start and _parse(start[name])[0] == positions[name]:
            texts[name] = start[name]
            continue
        found = trace(streams[name].directory, positions[name]) if name in streams else None
        texts[name] = f"{positions[name]} {found}" if found else str(positions[name])
    return texts


def _parse(text: str) -> tuple[Position, str | None]:
    """The position in a log's offset, and the trace of the log there, if any."""
    position, _, known = text.partition(" ")
    return Position.parse(position) if position else Position(0, 0), known or None


def _last_row(block: Block, rows: int | None, room: int | None) -> int:
    """The row before which a batch ends, for so many records and bytes. The last row may exceed the bytes."""
    row = block.last if rows is None else min(block.last, block.first + rows)
    if room is not None:
        places = block.scan.offsets
        row = min(row, bisect_left(places, places[block.first] + room, block.first, block.last))
    return row
