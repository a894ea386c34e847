"""Convert a log to another format: a new log with the same records and times.

    m3       ->  captain     a record per datapoint, its payload the JSON of exchange.py, its time when the
                             entry was created
    captain  ->  m3          the reverse. Any other payload becomes the annotation of an entry of one series, if
    that is named, with a datapoint of 0 at the record's time
    captain  ->  captain     with another magic number or version
    m3       ->  m3          with every series' metadata where it belongs, and without what can't be read

The new log is written beside its place, synced, and read back in full. Only then it is moved there. So a log in
that place is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from forelog.bounds import check_whole
from forelog.commitlog.check import check_entries
from forelog.commitlog.entries import EntryWalk, entries_of
from forelog.errors import ConvertFailed
from forelog.files import Files, built_beside, disk, in_the_way
from forelog.formats import Format
from forelog.formats.m3 import Datapoint, Entry, Series, Unit
from forelog.formats.m3.exchange import Exchanged, NotADatapoint, from_json, to_json
from forelog.log.directory.directory import READ_LOCK, Directory
from forelog.log.directory.segment import SegmentWriter
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.verify import verify
from forelog.log.walk import OnCorruption, Walk

SEGMENT_BYTES = 64 << 20
_BATCH_ITEMS = 4096

Progress = Callable[[int, int], None]
Batch = tuple[Sequence[Any], Sequence[int], int]
"""Items of the target's format, their times, and how many bytes of the source have been read."""


class ConvertReport(NamedTuple):
    """The result of a conversion."""

    target: str
    """The new log."""
    records: int
    """How many records or entries it has."""
    segments: int
    """How many segments."""
    byte_count: int
    """The size of these."""
    skipped: int
    """Places in the source that can't be read."""
    torn: bool
    """Whether the source ends in a torn tail, which was left out."""


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
    files: Files | None = None,
    mode: int | None = None,
) -> ConvertReport:
    """Write a new log at `target`, which must not exist or be empty. `series` is for payloads that aren't
    datapoints.

    `files` is the disk that the new log is on, the operating system's by default, and `mode` that of its files.
    """
    check_whole("segment_bytes", segment_bytes)
    files = disk(files, mode)
    place = os.path.normpath(os.fspath(target))
    if in_the_way(files, place):
        raise ConvertFailed(f"{target} is there already and not empty: a conversion makes a new log")
    part = f"{place}.part"
    if in_the_way(files, part, or_empty=True):
        raise ConvertFailed(f"{part} is there already: an interrupted conversion left it. Remove it first")
    reader = _reader(source, fmt, series, on_corruption)
    writer = SegmentWriter(Directory(files, f"{part}/{fmt.folder}".rstrip("/"), fmt))
    with (
        source.directory.read_lock(timeout=timeout),
        contextlib.closing(reader),
        built_beside(files, place, part),
        contextlib.closing(writer),
    ):
        files.make_dir(writer.directory.path)
        _copy(reader, writer, segment_bytes, sum(info.byte_count for info in source.segments()), progress)
        writer.finish()
        _check(writer)
    return ConvertReport(
        os.fspath(target), writer.records, len(writer.numbers), writer.byte_count, reader.skipped, reader.torn
    )


def _copy(
    reader: _Reader, writer: SegmentWriter, segment_bytes: int, total: int, progress: Progress | None
) -> None:
    number = writer.directory.format.segment_number_first
    writer.begin(number)
    for items, times_ns, done in reader.batches():
        for first in range(0, len(items), _BATCH_ITEMS):
            if writer.segment_bytes >= segment_bytes:
                number += 1
                writer.begin(number)
            writer.write(items[first : first + _BATCH_ITEMS], times_ns[first : first + _BATCH_ITEMS])
        if progress is not None:
            progress(min(done, total), total)


def _check(writer: SegmentWriter) -> None:
    """Read back what was written."""
    directory = writer.directory
    stream = Stream(directory.path, format=directory.format, files=directory.files)
    report = verify(stream)
    found = report.records
    problems = report.problems()
    if directory.format.holds_entries:
        entries = check_entries(stream)
        found = entries.entries
        problems += [str(defect) for defect in [*entries.defects, *([entries.torn] if entries.torn else [])]]
    directory.files.remove(f"{directory.path}/{READ_LOCK}")
    if problems or found != writer.records:
        what = problems[0] if problems else f"{found} of {writer.records} records are there"
        raise ConvertFailed(f"what was written is not what is on the disk: {what}")


# -- reading


class _Reader(Protocol):
    """An iterator over items for the target, some at a time, with the bytes of the source that they took."""

    @property
    def skipped(self) -> int: ...
    @property
    def torn(self) -> bool: ...
    def batches(self) -> Iterator[Batch]: ...
    def close(self) -> None: ...


def _reader(source: Stream, fmt: Format, series: Series | None, on_corruption: OnCorruption) -> _Reader:
    if source.format.holds_entries:
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

    def batches(self) -> Iterator[Batch]:
        fmt = self._format
        for block in self._walk:
            before = sum(size for number, size in self._sizes.items() if number < block.segment)
            entries = (entry for _, entry in entries_of(block))
            item = _entry_item if fmt.holds_entries else _record_item
            items = [item(fmt, entry) for entry in entries]
            yield items, block.entries.created[block.first : block.last], before + block.entries.offsets[-1]

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

    def batches(self) -> Iterator[Batch]:
        for block in self._walk:
            before = sum(size for number, size in self._sizes.items() if number < block.segment)
            items, times_ns = [], []
            for row in range(block.first, block.last):
                place = block.scan.offsets[row] - block.base
                time_ns = self._exact_time(bytes(block.buffer[place : place + 16]))
                payload = bytes(block.buffer[block.scan.starts[row] : block.scan.ends[row]])
                items.append(self._item(payload, time_ns, Position(block.segment, block.offsets[row])))
                times_ns.append(time_ns)
            yield items, times_ns, before + block.base + block.scan.end

    def _item(self, payload: bytes, time_ns: int, position: Position) -> Any:
        if not self._format.holds_entries:
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
            found = Exchanged(self._series, time_ns, 0.0, Unit.NANOSECOND, payload)
        datapoint = Datapoint(found.timestamp_ns, found.value)
        return _entry_item(self._format, Entry(found.series, datapoint, found.unit, found.annotation, time_ns))

    def close(self) -> None:
        self._walk.close()


def _record_item(_: Format, entry: Entry) -> bytes:
    return to_json(entry)


def _entry_item(fmt: Format, entry: Entry) -> Any:
    """An item with the unit of its source, even if M3 doesn't define that unit."""
    item = fmt.item(entry.series, entry.datapoint, annotation=entry.annotation, created_ns=entry.created_ns)
    return (*item[:3], int(entry.unit), *item[4:])
