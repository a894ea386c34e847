"""Some records of a segment, as columns."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from forelog.kernel.types import Scan


class Block(NamedTuple):
    """Some records of one segment, as columns. The buffer is valid until the next block is asked for."""

    segment: int
    """The number of the segment."""
    path: str
    """The path of the segment's file."""
    buffer: memoryview
    """The bytes that were read."""
    base: int
    """The physical offset of the buffer's first byte."""
    scan: Scan
    """What a scan found in the buffer, with physical offsets."""
    offsets: array[int]
    """The logical offset of each row."""
    first: int
    """The first row that is wanted."""
    last: int
    """The row after the last one that is wanted."""
    logical_end: int
    """The logical offset after the last wanted row."""

    def frame_bytes(self, row: int) -> int:
        """How many bytes the record in a row takes."""
        offsets = self.scan.offsets
        following = offsets[row + 1] if row + 1 < len(offsets) else self.base + self.scan.end
        return following - offsets[row]
