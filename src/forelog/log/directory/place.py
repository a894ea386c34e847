"""The part of a log's directory that the small files beside the segments need."""

from __future__ import annotations

from typing import Protocol

from forelog.files import File, Files
from forelog.formats import Format

TAIL_BYTES = 64
"""Before a place: enough to see that two logs have been the same up to there."""


class Place(Protocol):
    """A log's directory: `segments.Directory`."""

    files: Files
    path: str
    format: Format

    def sync(self) -> None:
        """Return when its entries are on stable storage."""

    def index_path(self, number: int, physical_bytes: int) -> str:
        """The path of the index of a segment with this many bytes."""

    def map_path(self, number: int, physical_bytes: int) -> str:
        """The path of the map of a rewritten segment with this many bytes."""

    def indexed_sizes(self) -> dict[int, int]:
        """For each segment that has or had an index or a map: the largest size of the segment that these are
        for."""


def read_exactly(file: File, count: int, offset: int) -> bytes:
    """Read `count` bytes, or fewer at the end of the file."""
    buffer = bytearray(count)
    return bytes(buffer[: file.read_into(memoryview(buffer), offset)])


def tail_before(file: File, offset: int) -> bytes:
    """The last bytes before an offset."""
    count = min(TAIL_BYTES, offset)
    return read_exactly(file, count, offset - count)
