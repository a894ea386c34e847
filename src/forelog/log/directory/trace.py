"""Recognize a log at a position, by a digest of the bytes before it.

A program stores a position, and resumes there later. Meanwhile the log may have been cut, restored from an
older backup, or written anew, with other records at the same positions. A trace, stored with the position,
shows whether it is still the same log.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> with stream.appender() as log:
...     end = log.append(b"one")._replace(offset=31)
>>> kept = trace(stream.directory, end)
>>> agrees(stream.directory, end, kept), agrees(stream.directory, end, "00000000")
(True, False)
"""

from __future__ import annotations

from forelog import kernel
from forelog.log.directory.directory import Directory
from forelog.log.directory.place import if_there, tail_before
from forelog.log.directory.segment import SegmentReader
from forelog.log.position import Position

_CUT = "cut"


def trace(directory: Directory, position: Position) -> str | None:
    """A digest of the bytes right before a position in its segment.

    None if there are none, or they can't be compared any more, because the segment is gone or was rewritten.
    """
    if position.offset <= directory.format.header_bytes:
        return None
    with if_there(SegmentReader, directory, position.segment) as reader:
        if reader is None:
            return None
        if reader.rewritten:
            by_another = reader.index is not None and reader.index.foreign_end
            return _CUT if by_another else None
        if reader.file.size() < position.offset:
            return _CUT
        return f"{kernel.crc32c(tail_before(reader.file, position.offset)):08x}"


def agrees(directory: Directory, position: Position, known: str | None) -> bool:
    """Whether a log still has the same bytes before a position as when the trace was taken; True if that is
    unknown."""
    found = None if known is None else trace(directory, position)
    return found is None or found == known
