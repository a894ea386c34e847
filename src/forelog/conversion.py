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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from forelog.bounds import check_whole
from forelog.commitlog.check import check_entries
from forelog.commitlog.entries import EntryWalk, entries_of
from forelog.errors import ConvertFailed
from forelog.files import Files, disk
from forelog.formats import Format
from forelog.formats.m3 import Datapoint, Entry, Series, Unit
from forelog.formats.m3.exchange import Exchanged, NotADatapoint, from_json, to_json
from forelog.log.cursor import records_of
from forelog.log.directory.directory import Directory
from forelog.log.directory.segment import SegmentWriter
from forelog.log.made import Reached, free_place, made_log
from forelog.log.position import Record
from forelog.log.stream import Stream
from forelog.log.walk import OnCorruption, Progress, Walk

SEGMENT_BYTES = 64 << 20
_BATCH_ITEMS = 4096

Batch = tuple[Sequence[Any], Sequence[int], int, int]
"""Items of the target's format, their times, and how far the source was read: a segment, and bytes in it."""


class ConvertReport(NamedTuple):
    """The result of a conversion."""

    target: str
    """The path of the new log."""
    records: int
    """How many records or entries the new log has."""
    segments: int
    """How many segments the new log has."""
    byte_count: int
    """The size of the new log's segments."""
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
    place, part = free_place(files, target, "conversion", taken=ConvertFailed, left=ConvertFailed)
    walk: EntryWalk | Walk
    if source.format.holds_entries:
        walk = EntryWalk(source, on_corruption=on_corruption)
        batches = _entries(walk, fmt)
    else:
        walk = Walk(source.directory, on_corruption=on_corruption)
        batches = _records(walk, source.format, fmt, series)
    directory = Directory(files, f"{part}/{fmt.folder}".rstrip("/"), fmt)
    with (
        source.directory.read_lock(timeout=timeout),
        contextlib.closing(walk),
        made_log(directory, place, part, _failed, _count_entries if fmt.holds_entries else None) as writer,
    ):
        _copy(batches, writer, segment_bytes, Reached(source.segments(), progress))
    defects, torn = len(walk.defects), walk.torn is not None
    return ConvertReport(os.fspath(target), writer.records, len(writer.numbers), writer.byte_count, defects, torn)


def _copy(batches: Iterator[Batch], writer: SegmentWriter, segment_bytes: int, reached: Reached) -> None:
    number = writer.directory.format.segment_number_first
    writer.begin(number)
    for items, times_ns, segment, physical_offset in batches:
        for first in range(0, len(items), _BATCH_ITEMS):
            if writer.segment_bytes >= segment_bytes:
                number += 1
                writer.begin(number)
            writer.write(items[first : first + _BATCH_ITEMS], times_ns[first : first + _BATCH_ITEMS])
        reached(segment, physical_offset)


def _failed(problem: str) -> ConvertFailed:
    return ConvertFailed(f"what was written is not what is on the disk: {problem}")


def _count_entries(stream: Stream) -> tuple[int, list[str]]:
    found = check_entries(stream)
    return found.entries, [str(defect) for defect in (*found.defects, found.torn) if defect is not None]


# -- reading


def _entries(walk: EntryWalk, fmt: Format) -> Iterator[Batch]:
    """The entries of a log in M3's format."""
    for block in walk:
        entries = (entry for _, entry in entries_of(block))
        items = [_entry_item(fmt, entry) if fmt.holds_entries else to_json(entry) for entry in entries]
        yield items, block.entries.created[block.first : block.last], block.segment, block.entries.offsets[-1]


def _records(walk: Walk, source: Format, fmt: Format, series: Series | None) -> Iterator[Batch]:
    """The records of a log in the captain format."""
    for block in walk:
        records = records_of(block, source.exact_time)
        items = [_entry_of(record, fmt, series) if fmt.holds_entries else record.payload for record in records]
        yield items, [record.time_ns for record in records], block.segment, block.base + block.scan.end


def _entry_of(record: Record, fmt: Format, series: Series | None) -> Any:
    position, time_ns, payload, _ = record
    if not -(2**63) <= time_ns < 2**63:
        raise ConvertFailed(f"the record at {position} has a time that M3's nanoseconds can't express")
    try:
        found = from_json(payload)
    except NotADatapoint as error:
        if series is None:
            raise ConvertFailed(
                f"the record at {position} isn't a datapoint ({error}): name a series to keep such payloads "
                "as annotations of its entries"
            ) from None
        found = Exchanged(series, time_ns, 0.0, Unit.NANOSECOND, payload)
    datapoint = Datapoint(found.timestamp_ns, found.value)
    return _entry_item(fmt, Entry(found.series, datapoint, found.unit, found.annotation, time_ns))


def _entry_item(fmt: Format, entry: Entry) -> Any:
    """An item with the unit of its source, even if M3 doesn't define that unit."""
    item = fmt.item(entry.series, entry.datapoint, annotation=entry.annotation, created_ns=entry.created_ns)
    return (*item[:3], int(entry.unit), *item[4:])
