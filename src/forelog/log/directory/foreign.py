"""Segments that another program has rewritten.

The cleaner of Captain's Log drops records, and those after them move to other positions. The new segment looks
like any other. But it is shorter than its index or `append.synced` says, and no index or map fits it. Where a
record used to be in such a segment is unknown.

Its records can be read, at positions that no record ever had: past the old end of the segment, in a range that
differs for each size of the file. A position from before the rewriting is outside of that range, and is refused
(`check_position`). If the index was removed too, the rewriting can't be noticed.
"""

from __future__ import annotations

from array import array

from forelog.errors import BadPosition
from forelog.files import File
from forelog.log.directory.end import read_end
from forelog.log.directory.index import SegmentIndex, decode_index
from forelog.log.directory.place import Place, if_there, read_exactly
from forelog.log.directory.watermark import read_mark
from forelog.log.position import Position

_OFFSET_MAX = 1 << 62


def foreign_index(directory: Place, number: int, size: int, file: File) -> SegmentIndex | None:
    """An index that gives new positions to a segment that has become shorter; None if it hasn't."""
    known = _known_end(directory, number, size)
    if known is None or file.size() > size:  # it has only grown, since its size was looked at
        return None
    before_bytes, before_end = known
    header = directory.format.header_bytes
    base = before_end * (1 + before_bytes - size)
    if base > _OFFSET_MAX:
        base = _OFFSET_MAX  # no log of ours has had such a segment
    runs = array("q", (base, header))
    return SegmentIndex(number, size, base + size - header, runs=runs, foreign_end=before_end)


def _known_end(directory: Place, number: int, size: int) -> tuple[int, int] | None:
    """The former size of a segment and the logical offset of its former end, if it had more bytes than now."""
    mark = read_mark(directory)
    if mark is None or number > mark.segment or read_end(directory).segment == number:
        return None  # another program's from the first, or the one that is appended to
    indexed = directory.indexed_sizes().get(number, 0)
    if indexed > size:
        return indexed, _logical_end(directory, number, indexed)
    if number == mark.segment and mark.closed and mark.offset > size:
        return mark.offset, mark.offset
    return None


def _logical_end(directory: Place, number: int, size: int) -> int:
    """Where a segment of this size ended, by its index or map."""
    for path in (directory.map_path(number, size), directory.index_path(number, size)):
        with if_there(directory.files.open_read, path) as file:
            index = None if file is None else decode_index(read_exactly(file, file.size(), 0))
        if index is not None:
            return index.logical_end
    return size


def check_position(position: Position, index: SegmentIndex | None, path: str, header_bytes: int) -> Position:
    """Check a position in a segment. The segment's old end becomes its new end.

    Raises BadPosition if its meaning is unknown, because another program has rewritten the segment.
    """
    if index is None or not index.foreign_end or position.offset <= header_bytes:
        return position
    if position.offset == index.foreign_end:
        return Position(position.segment, index.logical_end)  # all of it had been read
    if index.runs[0] <= position.offset <= index.logical_end:
        return position
    raise BadPosition(
        f"position {position} is lost: another program has rewritten {path} since it was given out. "
        f"Start at {Position(position.segment, 0)} to read what is left of this segment, or in a later one"
    )
