"""A new state log, with the state that another one had.

The last generation that was whole at that time is copied, and what was written after it, record by record as it
is: times stay, and so do positions, unless the source was cleaned by hand. The new log is written beside its
place, synced, read back, and only then put there: a log that is there is whole. The source is only read.

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
    """A state can't be restored as asked. Nothing is left of the attempt."""


class PlaceTaken(RestoreFailed):
    """There is something where the new log was to be."""


class RestoreReport(NamedTuple):
    """What a restore did."""

    path: str
    span: Span
    """Which part of the source it is."""
    events: int
    records: int
    """Events and markers."""
    segments: int
    byte_count: int


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
    """Make a new log at `path`, which must not exist or be empty, with the state that `source` had.

    The source is a log's directory, one of copies, or a URL that fsspec knows, for which `storage_options` are.
    `as_of` is a time, with what was written at it, or a position, with what is before it; by default all there is.
    `mode` is that of the new log's files.
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
    """Copy beside the place, and put that there when it is whole."""
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
    # From the segment's start, so that positions stay: what is there before the generation begins is passed over.
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
        raise RestoreFailed(f"what was written is not what is on the disk: {what}")


class _Writer:
    """Segments of a new log, of the same numbers and with the same records."""

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
        """Everything is on the disk after this."""
        self._seal()
        self.files.sync_dir(self.folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
