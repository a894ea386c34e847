"""The entries of a log in M3's format: one by one, or as Arrow columns.

The engine reads chunks, and reports those that are damaged. `forelog.formats.m3` decodes the entries in them,
each file from its start. So reading from a position in the middle of a file also decodes the entries before it,
and leaves them out.

>>> import tempfile
>>> from forelog import Stream
>>> from forelog.commitlog import CommitLog
>>> from forelog.formats.m3 import Datapoint, Series
>>> folder = tempfile.mkdtemp()
>>> with CommitLog(folder, format="m3") as log:
...     _ = log.write(Series(b"cpu", tags={b"host": b"a"}), Datapoint(1_000, 0.5), annotation=b"first")
...     _ = log.write(Series(b"mem"), (2_000, 0.25))
>>> for position, entry in read_entries(Stream.open(folder)):
...     print(position, entry.series.id, entry.datapoint.value, entry.annotation)
000000001:0 b'cpu' 0.5 b'first'
000000001:91 b'mem' 0.25 None
>>> for batch in scan_datapoints(Stream.open(folder), ["id", "value"]):
...     print(batch.to_pydict())
{'id': [b'cpu', b'mem'], 'value': [0.5, 0.25]}
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from forelog import kernel
from forelog.errors import CorruptRecord, UnknownFormat
from forelog.formats.columns import check_columns, load_pyarrow
from forelog.formats.m3 import Entry
from forelog.formats.m3.columns import COLUMNS, DEFAULT_COLUMNS, EntryColumns, datapoints_schema
from forelog.formats.m3.entries import BadMessage, EntryBlock, EntryDecoder
from forelog.kernel.types import TIME_MAX, TIME_MIN
from forelog.log.position import Position
from forelog.log.seek import TimeOrder, find_segment
from forelog.log.stream import Bound, Bounds, PositionLike, Stream
from forelog.log.walk import DEFECTS_MAX, Defect, OnCorruption, Walk
from forelog.times import TimeLike, in_column

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("forelog")


class EntryWalk:
    """An iterator over blocks of entries, forward. For callers that hold the read lock.

    `defects` are the chunks and messages that were skipped. `torn` is the unfinished entry that a crash, or a
    writer at work, left at the end of the last file.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        start: PositionLike | None = None,
        until: Bound | None = None,
        since: TimeLike | None = None,
        on_corruption: OnCorruption = "raise",
    ) -> None:
        if not stream.format.holds_entries:
            raise UnknownFormat(
                f"{stream.path} is a log in the format {stream.format.name}: only logs in the format m3 have "
                "entries. Read this one with a cursor"
            )
        self._stream = stream
        self._bounds = bounds = stream.bounds(start=start, until=until, since=since)
        self._since_ns = TIME_MIN if bounds.since_ns is None else in_column(bounds.since_ns)
        self._last_ns = TIME_MAX if bounds.until_ns is None else max(in_column(bounds.until_ns) - 1, TIME_MIN)
        self._order = TimeOrder(stream.directory) if bounds.until_ns is not None else None
        self._on_corruption = on_corruption
        self._walk: Walk | None = None
        self._defects: list[Defect] = []
        self._decoder = EntryDecoder(self._note, resumes=on_corruption == "skip")

    @property
    def done(self) -> bool:
        """Whether the end was reached, and no entry can follow."""
        return self._decoder.stopped

    @property
    def pending(self) -> Position | None:
        """The chunk in which an incomplete entry begins, if there is one."""
        offset = self._decoder.pending_offset
        return None if offset < 0 else Position(self._decoder.segment, offset)

    def close(self) -> None:
        if self._walk is not None:
            self._walk.close()
        self._decoder.stopped = True

    def finish(self) -> None:
        """Note that the file that was read last is finished. So an incomplete entry in it is a defect."""
        self._decoder.finish()

    def revalidate(self) -> None:
        """Check for files that were replaced. Call it whenever the lock was released for a while."""
        if self._walk is not None:
            self._walk.revalidate()

    @property
    def chunk_defects(self) -> list[Defect]:
        """The damaged chunks that were skipped; at most the first thousand."""
        return [] if self._walk is None else self._walk.defects

    @property
    def message_defects(self) -> list[Defect]:
        """The damaged messages in good chunks that were skipped; at most the first thousand."""
        return self._defects

    @property
    def defects(self) -> list[Defect]:
        """All defects, in order."""
        return sorted(self.chunk_defects + self._defects)

    @property
    def torn(self) -> Defect | None:
        """The end of the last file, if that is an incomplete entry."""
        if self._walk is None:
            return None
        decoder, torn = self._decoder, self._walk.torn
        offset = decoder.pending_offset
        if offset < 0 or self._bounds.stop is not None:
            return torn
        end, rest = (decoder.end, 0) if torn is None else (torn.physical_offset, torn.byte_count)
        position = Position(decoder.segment, offset)
        return Defect(position, "truncated", decoder.path, offset, end - offset + rest, torn=True)

    def __iter__(self) -> Iterator[EntryBlock]:
        """Iterate over the entries so far. Iterating again returns those that came since."""
        walk = self._walk or self._begin()
        while not self.done and (block := walk.next_block()) is not None:
            for found in self._decoder.decode(block):
                yield from self._wanted(found)

    def _begin(self) -> Walk:
        # From the start of a file, and without times: those of chunks are not those of entries.
        start = self._bounds.start
        if self._since_ns != TIME_MIN:
            start = max(start, find_segment(self._stream.directory, self._since_ns))
        whole = Bounds(Position(start.segment, 0), self._bounds.stop, None, None)
        self._walk = self._stream.walk(whole, on_corruption=self._on_corruption)
        self._walk.check_start()
        return self._walk

    def _wanted(self, block: EntryBlock) -> Iterator[EntryBlock]:
        """The entries of a block that are within the bounds."""
        first, count, entries = 0, block.last, block.entries
        if block.segment == self._bounds.start.segment:
            first = bisect_left(entries.offsets, self._bounds.start.offset)
        while first < count:
            first, last = kernel.time_run(entries.created, first, self._since_ns, self._last_ns)
            if first < last:
                yield block._replace(first=first, last=last)
            if last < count and entries.created[last] > self._last_ns and self._is_past(block.segment):
                self._decoder.stopped = True
                return
            first = last

    def _is_past(self, segment: int) -> bool:
        """Whether all entries that follow a late one are late as well."""
        return self._order is not None and self._order.holds(segment) and self._order.holds_to_the_end

    def _note(self, bad: BadMessage) -> None:
        position, path = Position(self._decoder.segment, bad.offset), self._decoder.path
        if self._on_corruption == "raise":
            raise CorruptRecord(
                f"damaged message ({bad.reason}) in the chunk at {position}, byte {bad.physical_offset} of "
                f"{path}{': found ' + bad.data.hex(' ') if bad.data else ''}. Read on with "
                "on_corruption='skip'",
                position=position,
                reason=bad.reason,
                path=path,
                physical_offset=bad.physical_offset,
                data=bad.data,
            )
        defect = Defect(position, bad.reason, path, bad.physical_offset, bad.byte_count, torn=False)
        if len(self._defects) < DEFECTS_MAX:
            self._defects.append(defect)
        logger.warning("%s %s", "skipped" if self._on_corruption == "skip" else "stopped at", defect)
        if self._on_corruption == "stop":
            self._decoder.stopped = True


def entries_of(block: EntryBlock) -> Iterator[tuple[Position, Entry]]:
    """The wanted entries of a block, each with the position of the chunk in which it begins."""
    for offset, entry in block.rows():
        yield Position(block.segment, offset), entry


def read_entries(
    stream: Stream,
    *,
    start: PositionLike | None = None,
    until: Bound | None = None,
    since: TimeLike | None = None,
    on_corruption: OnCorruption = "raise",
    timeout: float | None = None,
) -> Iterator[tuple[Position, Entry]]:
    """Entries one by one, each with the position of the chunk in which it begins.

    Bounds are those of `Stream.cursor`; times are those at which entries were created. For many entries use
    `scan_datapoints`, which makes no object per entry.
    """
    walk = EntryWalk(stream, start=start, until=until, since=since, on_corruption=on_corruption)
    with stream.directory.read_lock(timeout=timeout), contextlib.closing(walk):
        for block in walk:
            yield from entries_of(block)


def scan_datapoints(
    stream: Stream,
    columns: Sequence[str] | None = None,
    *,
    start: PositionLike | None = None,
    until: Bound | None = None,
    since: TimeLike | None = None,
    on_corruption: OnCorruption = "raise",
    defects: list[Defect] | None = None,
    timeout: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a log, or a range of it, as Arrow record batches. Bounds are those of `read_entries`.

    Columns are those of `forelog.formats.m3.columns`, by default the first nine. Damage raises CorruptRecord,
    ends the scan ("stop") or is skipped ("skip"). At the end, what was skipped is added to `defects`.
    """
    wanted = check_columns(DEFAULT_COLUMNS if columns is None else columns, COLUMNS)
    schema = datapoints_schema(wanted)
    walk = EntryWalk(stream, start=start, until=until, since=since, on_corruption=on_corruption)
    stream.directory.names()

    def batches() -> Iterator[pa.RecordBatch]:
        pa = load_pyarrow()
        builder = EntryColumns(schema)
        with stream.directory.read_lock(timeout=timeout):
            try:
                for block in walk:
                    arrays = [builder.column(name, block) for name in wanted]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            finally:
                if defects is not None:
                    defects.extend(walk.defects)
                walk.close()

    return batches()
