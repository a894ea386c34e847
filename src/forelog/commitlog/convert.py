"""From one format to another: a new log with what another one says, times and all.

    m3       ->  captain     a record per datapoint, its payload the JSON of exchange.py, its time when the
                             entry was created
    captain  ->  m3          the same back. Payloads that are no such JSON become annotations of entries of one
                             series, if it is named; their datapoint is 0 at the record's time
    captain  ->  captain     with another magic number or version
    m3       ->  m3          with every series' metadata where it belongs, and without what can't be read

The new log is written beside its place, synced, read back in full, and only then put there: a log that is
there is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from forelog.bounds import check_whole
from forelog.commitlog.check import check_entries
from forelog.commitlog.entries import EntryWalk, entries_of
from forelog.commitlog.exchange import NotADatapoint, from_json, to_json
from forelog.errors import ForelogError
from forelog.files import File, OSFiles, write_all
from forelog.files.modes import PRIVATE
from forelog.formats import Captain, Format
from forelog.formats.m3 import M3, Datapoint, Series, Unit
from forelog.log.directory.directory import READ_LOCK
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.verify import verify
from forelog.log.walk import OnCorruption, Walk

SEGMENT_BYTES = 64 << 20
_BATCH_ITEMS = 4096

Progress = Callable[[int, int], None]
Timed = tuple[Any, int]
"""An item of the target's format, and its time."""


class ConvertReport(NamedTuple):
    """What a conversion did."""

    target: str
    records: int
    segments: int
    byte_count: int
    skipped: int
    """Places in the source that can't be read."""
    torn: bool
    """Whether the source ends in a torn tail, which was left out."""


class ConvertFailed(ForelogError):
    """A log can't be converted as asked. Nothing is left of the attempt."""


def convert(
    source: Stream,
    target: str | os.PathLike[str],
    fmt: Format,
    *,
    series: Series | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    on_corruption: OnCorruption = "raise",
    progress: Progress | None = None,
    timeout: float | None = None,
    mode: int = PRIVATE,
) -> ConvertReport:
    """Write a new log at `target`, which must not exist or be empty. `series` is for payloads of their own."""
    check_whole("segment_bytes", segment_bytes)
    place = os.path.abspath(os.fspath(target))
    if os.path.exists(place) and (not os.path.isdir(place) or os.listdir(place)):
        raise ConvertFailed(f"{target} is there already and not empty: a conversion makes a new log")
    part = f"{place}.part"
    if os.path.exists(part):
        raise ConvertFailed(f"{part} is there already: an interrupted conversion left it. Remove it first")
    reader = _reader(source, fmt, series, on_corruption)
    with source.directory.read_lock(timeout=timeout), contextlib.closing(reader):
        writer = _Writer(part, fmt, segment_bytes, mode)
        try:
            writer.open()
            _copy(reader, writer, sum(info.byte_count for info in source.segments()), progress)
            writer.finish()
            _check(writer)
            os.rename(part, place)
            OSFiles().sync_dir(os.path.dirname(place))
        except BaseException:
            writer.close()
            shutil.rmtree(part, ignore_errors=True)
            raise
    return ConvertReport(
        os.fspath(target), writer.records, writer.segments, writer.byte_count, reader.skipped, reader.torn
    )


def _copy(reader: _Reader, writer: _Writer, total: int, progress: Progress | None) -> None:
    for items, done in reader.batches():
        writer.write(items)
        if progress is not None:
            progress(min(done, total), total)


def _check(writer: _Writer) -> None:
    """Read back what was written."""
    stream = Stream(writer.folder, format=writer.format)
    report = verify(stream)
    found = report.records
    problems = report.problems()
    if isinstance(writer.format, M3):
        entries = check_entries(stream)
        found = entries.entries
        problems += [str(defect) for defect in [*entries.defects, *([entries.torn] if entries.torn else [])]]
    os.remove(f"{writer.folder}/{READ_LOCK}")
    if problems or found != writer.records:
        what = problems[0] if problems else f"{found} of {writer.records} records are there"
        raise ConvertFailed(f"what was written is not what is on the disk: {what}")


# -- reading


class _Reader(Protocol):
    """Items for the target, some at a time, with how many bytes of the source they took."""

    @property
    def skipped(self) -> int: ...
    @property
    def torn(self) -> bool: ...
    def batches(self) -> Iterator[tuple[list[Timed], int]]: ...
    def close(self) -> None: ...


def _reader(source: Stream, fmt: Format, series: Series | None, on_corruption: OnCorruption) -> _Reader:
    if isinstance(source.format, M3):
        return _EntryReader(source, fmt, on_corruption)
    return _RecordReader(source, fmt, series, on_corruption)


class _EntryReader:
    """The entries of a log in M3's format."""

    def __init__(self, source: Stream, fmt: Format, on_corruption: OnCorruption) -> None:
        self._walk = EntryWalk(source, on_corruption=on_corruption)
        self._format = fmt
        self._sizes = {info.number: info.byte_count for info in source.segments()}

    @property
    def skipped(self) -> int:
        return len(self._walk.defects)

    @property
    def torn(self) -> bool:
        return self._walk.torn is not None

    def batches(self) -> Iterator[tuple[list[Timed], int]]:
        fmt = self._format
        for block in self._walk:
            before = sum(size for number, size in self._sizes.items() if number < block.segment)
            entries = (entry for _, entry in entries_of(block))
            if isinstance(fmt, M3):
                items = [(_item(fmt, e.series, e.datapoint, e.unit, e.annotation), e.created_ns) for e in entries]
            else:
                items = [(to_json(entry), entry.created_ns) for entry in entries]
            yield items, before + block.entries.offsets[-1]

    def close(self) -> None:
        self._walk.close()


class _RecordReader:
    """The records of a log in the captain format."""

    def __init__(self, source: Stream, fmt: Format, series: Series | None, on_corruption: OnCorruption) -> None:
        self._walk = Walk(source.directory, on_corruption=on_corruption)
        self._exact_time = source.format.exact_time
        self._format = fmt
        self._series = series
        self._sizes = {info.number: info.byte_count for info in source.segments()}

    @property
    def skipped(self) -> int:
        return len(self._walk.defects)

    @property
    def torn(self) -> bool:
        return self._walk.torn is not None

    def batches(self) -> Iterator[tuple[list[Timed], int]]:
        for block in self._walk:
            before = sum(size for number, size in self._sizes.items() if number < block.segment)
            items = []
            for row in range(block.first, block.last):
                place = block.scan.offsets[row] - block.base
                time_ns = self._exact_time(bytes(block.buffer[place : place + 16]))
                payload = bytes(block.buffer[block.scan.starts[row] : block.scan.ends[row]])
                items.append((self._item(payload, time_ns, Position(block.segment, block.offsets[row])), time_ns))
            yield items, before + block.base + block.scan.end

    def _item(self, payload: bytes, time_ns: int, position: Position) -> Any:
        if not isinstance(self._format, M3):
            return payload
        if not -(2**63) <= time_ns < 2**63:
            raise ConvertFailed(f"the record at {position} has a time that M3's nanoseconds can't express")
        try:
            found = from_json(payload)
        except NotADatapoint as error:
            if self._series is None:
                raise ConvertFailed(
                    f"the record at {position} is no datapoint ({error}): name a series to keep such payloads "
                    "as annotations of its entries"
                ) from None
            return _item(self._format, self._series, Datapoint(time_ns, 0.0), Unit.NANOSECOND, payload)
        return _item(
            self._format, found.series, Datapoint(found.timestamp_ns, found.value), found.unit, found.annotation
        )

    def close(self) -> None:
        self._walk.close()


def _item(fmt: M3, series: Series, datapoint: Datapoint, unit: int, annotation: bytes | None) -> Any:
    """An item with whatever unit its source has, also one that M3 gives no meaning to."""
    item = fmt.item(series, datapoint, annotation=annotation)
    return (*item[:3], int(unit), *item[4:])


# -- writing


class _Writer:
    """Segments of a new log, each record with a time of its own, which an appender would stamp anew."""

    def __init__(self, path: str, fmt: Format, segment_bytes: int, mode: int) -> None:
        self.format = fmt
        self.folder = f"{path}/{fmt.folder}" if fmt.folder else path
        self.records = self.segments = self.byte_count = 0
        self._segment_bytes = segment_bytes
        self._files = OSFiles(mode)
        self._number = 0 if isinstance(fmt, M3) else 1
        self._file: File | None = None
        self._size = 0

    def open(self) -> None:
        """Make the folder and its first segment."""
        self._files.make_dir(self.folder)
        self._open()

    def _open(self) -> None:
        self._file = self._files.open_append(f"{self.folder}/{self.format.segment_name(self._number)}")
        self._encoder = self.format.encoder(self._number)
        self._number += 1
        self.segments += 1
        self._size = 0
        self._put(self.format.header())

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        write_all(self._file, data)
        self._size += len(data)
        self.byte_count += len(data)

    def write(self, items: list[Timed]) -> None:
        for first in range(0, len(items), _BATCH_ITEMS):
            batch = items[first : first + _BATCH_ITEMS]
            if self._size >= self._segment_bytes:
                self._seal()
                self._open()
            self._put(self._encoded(batch))
            self.records += len(batch)

    def _encoded(self, batch: list[Timed]) -> bytes:
        if isinstance(self.format, Captain):
            return b"".join(self.format.encode(item, time_ns) for item, time_ns in batch)
        data, _ = self._encoder.encode_many([(*item[:5], time_ns) for item, time_ns in batch], 0)
        self._encoder.accept()
        return data

    def _seal(self) -> None:
        assert self._file is not None
        self._file.sync()
        self.close()

    def finish(self) -> None:
        """Everything is on the disk after this."""
        self._seal()
        self._files.sync_dir(self.folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
