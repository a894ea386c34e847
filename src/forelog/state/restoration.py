"""A new state log with the state that another one had at a time.

The records of the last generation that was whole at that time are copied, and those after it. Times stay the same,
and so do positions, unless the source was cleaned by hand. The new log is written beside its final place, synced
and read back before it is renamed: a log in its place is whole. The source is only read.

>>> import tempfile
>>> from forelog.state import PersistentDict
>>> folder = tempfile.mkdtemp()
>>> with PersistentDict(f"{folder}/prices") as prices:
...     prices["chips"] = 250
>>> restore(f"{folder}/prices", f"{folder}/again").events
1
>>> with PersistentDict(f"{folder}/again") as prices:
...     print(dict(prices))
{'chips': 250}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from forelog.copies.addresses import source_directory
from forelog.errors import PlaceTaken, RestoreFailed
from forelog.files import Files, disk
from forelog.formats.state import EVENT, GROUP, events_in
from forelog.log.directory.directory import Directory
from forelog.log.directory.segment import SegmentWriter
from forelog.log.made import Reached, free_place, made_log
from forelog.log.position import Position
from forelog.log.stream import Bound, Stream
from forelog.log.walk import Progress
from forelog.state.reader import Span, open_source, reading, span_of


class RestoreReport(NamedTuple):
    """What a restore did."""

    path: str
    """The new log's directory."""
    span: Span
    """The part of the source that was copied."""
    events: int
    """Events in the new log."""
    records: int
    """Events and markers in the new log."""
    segments: int
    """Segments of the new log."""
    byte_count: int
    """The size of the new log."""


def restore(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    as_of: Bound | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    timeout: float | None = None,
    files: Files | None = None,
    mode: int | None = None,
) -> RestoreReport:
    """Make a new log at `path` with the state that `source` had. `path` must be missing or an empty directory.

    source           a log's directory, a directory of copies, or a URL that fsspec knows
    as_of            up to and with this time, or up to this position; by default the newest state
    storage_options  for fsspec
    progress         called with the bytes that were done, and with the total
    timeout          seconds to wait for the lock on a source that is being cleaned
    files            the file system of the new log; by default that of the operating system
    mode             permissions of the new log's files
    """
    files = disk(files, mode)
    place, part = free_place(files, path, "restore", taken=PlaceTaken, left=RestoreFailed)
    with source_directory(source, storage_options, beside=place, progress=progress) as folder:
        stream = open_source(folder)
        with reading(stream, timeout):
            span = span_of(stream, as_of)
            with made_log(Directory(files, part, stream.format), place, part, _failed) as writer:
                events = _copy(stream, span, writer, progress)
    return RestoreReport(os.fspath(path), span, events, writer.records, len(writer.numbers), writer.byte_count)


def _copy(stream: Stream, span: Span, writer: SegmentWriter, progress: Progress | None) -> int:
    """Copy the span. Returns the number of events."""
    infos = [info for info in stream.segments() if span.start.segment <= info.number <= span.end.segment]
    reached = Reached(infos, progress)
    events = 0
    # From the start of the segment: so positions stay the same. A replay ignores what precedes the generation.
    for block in stream.blocks(start=Position(span.start.segment, 0), until=span.end):
        if writer.numbers[-1:] != [block.segment]:
            writer.begin(block.segment)
        writer.copy(block)
        starts, ends = block.scan.starts, block.scan.ends
        for row in range(block.first, block.last):
            kind = bytes(block.buffer[starts[row] : starts[row] + 1]) if starts[row] < ends[row] else b""
            if kind == EVENT:
                events += 1
            elif kind == GROUP:
                events += len(events_in(bytes(block.buffer[starts[row] : ends[row]])))
        reached(block.segment, block.base + block.scan.end)
    return events


def _failed(problem: str) -> RestoreFailed:
    return RestoreFailed(f"the disk does not have what was written: {problem}")
