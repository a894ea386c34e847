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
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from forelog.copies.addresses import source_directory
from forelog.copies.slots import in_the_way
from forelog.errors import ForelogError
from forelog.files import File, OSFiles, write_all
from forelog.files.modes import PRIVATE
from forelog.formats.state import EVENT, FORMAT
from forelog.log.directory.segments import READ_LOCK
from forelog.log.position import Position
from forelog.log.stream import Bound, Stream
from forelog.log.verify import verify
from forelog.log.walk import Block
from forelog.state.reader import Span, open_source, reading, span_of

__all__ = ["PlaceTaken", "RestoreFailed", "RestoreReport", "restore"]

Progress = Callable[[int, int], None]


class RestoreFailed(ForelogError):
    """The state can't be restored. Nothing was left behind."""


class PlaceTaken(RestoreFailed):
    """The path of the new log exists already."""


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
    mode: int = PRIVATE,
) -> RestoreReport:
    """Make a new log at `path` with the state that `source` had. `path` must be missing or an empty directory.

    source           a log's directory, a directory of copies, or a URL that fsspec knows
    as_of            up to and with this time, or up to this position; by default the newest state
    storage_options  for fsspec
    progress         called with the bytes that were done, and with the total
    timeout          seconds to wait for the lock on a source that is being cleaned
    mode             permissions of the new log's files
    """
    if taken := in_the_way(path):
        raise PlaceTaken(f"{taken}: a restore makes a new log")
    place = os.path.abspath(os.fspath(path))
    part = f"{place}.part"
    if os.path.exists(part):
        raise RestoreFailed(f"{part} is there already: an interrupted restore left it. Remove it first")
    with source_directory(source, storage_options, beside=place, progress=progress) as folder:
        stream = open_source(folder)
        with reading(stream, timeout):
            span = span_of(stream, as_of)
            writer = _write(stream, span, _Writer(part, stream, mode), place, progress)
    return RestoreReport(
        os.fspath(path), span, writer.events, writer.records, len(writer.numbers), writer.byte_count
    )


def _write(stream: Stream, span: Span, writer: _Writer, place: str, progress: Progress | None) -> _Writer:
    """Copy to a directory beside the place, and rename it when it is whole."""
    try:
        writer.files.make_dir(writer.folder)
        _copy(stream, span, writer, progress)
        writer.finish()
        _check(writer)
        os.rename(writer.folder, place)
        writer.files.sync_dir(os.path.dirname(place))
    except BaseException:
        writer.close()
        shutil.rmtree(writer.folder, ignore_errors=True)
        raise
    return writer


def _copy(stream: Stream, span: Span, writer: _Writer, progress: Progress | None) -> None:
    infos = [info for info in stream.segments() if span.start.segment <= info.number <= span.end.segment]
    total = sum(info.byte_count for info in infos)
    before = {info.number: sum(i.byte_count for i in infos if i.number < info.number) for info in infos}
    # From the start of the segment: so positions stay the same. A replay ignores what precedes the generation.
    for block in stream.blocks(start=Position(span.start.segment, 0), until=span.end):
        writer.write(block)
        if progress is not None:
            progress(min(before.get(block.segment, 0) + block.base + block.scan.end, total), total)


def _check(writer: _Writer) -> None:
    """Read back what was written."""
    report = verify(Stream(writer.folder, format=FORMAT))
    os.remove(f"{writer.folder}/{READ_LOCK}")
    problems = report.problems()
    if problems or report.records != writer.records:
        what = problems[0] if problems else f"{report.records} of {writer.records} records are there"
        raise RestoreFailed(f"the disk does not have what was written: {what}")


class _Writer:
    """Writes the segments of the new log, with the numbers and records of the source."""

    def __init__(self, folder: str, source: Stream, mode: int) -> None:
        self.folder = folder
        self.records = self.events = self.byte_count = 0
        self.numbers: list[int] = []
        self._format = source.format
        self.files = OSFiles(mode)
        self._file: File | None = None

    def write(self, block: Block) -> None:
        if not self.numbers or self.numbers[-1] != block.segment:
            self._seal()
            self._file = self.files.open_append(f"{self.folder}/{self._format.segment_name(block.segment)}")
            self.numbers.append(block.segment)
            self._put(self._format.header())
        offsets, first, last = block.scan.offsets, block.first, block.last
        stop = offsets[last] if last < len(offsets) else block.base + block.scan.end
        self._put(block.buffer[offsets[first] - block.base : stop - block.base])
        self.records += last - first
        starts, ends = block.scan.starts, block.scan.ends
        self.events += sum(
            starts[row] < ends[row] and block.buffer[starts[row]] == EVENT[0] for row in range(first, last)
        )

    def _put(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        write_all(self._file, data)
        self.byte_count += len(data)

    def _seal(self) -> None:
        if self._file is not None:
            self._file.sync()
            self.close()

    def finish(self) -> None:
        """Sync everything to the disk."""
        self._seal()
        self.files.sync_dir(self.folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
