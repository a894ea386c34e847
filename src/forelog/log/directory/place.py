"""What the small files beside the segments need to know of a log's directory."""

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
        """Of the index of a segment with so many bytes."""

    def map_path(self, number: int, physical_bytes: int) -> str:
        """Of the map of a rewritten segment with so many bytes."""

    def indexed_sizes(self) -> dict[int, int]:
        """For each segment that has an index or a map, or has had one, the largest size that one is for."""


def read_exactly(file: File, count: int, offset: int) -> bytes:
    """Up to `count` bytes, fewer only at the end of the file."""
    buffer = bytearray(count)
    return bytes(buffer[: file.read_into(memoryview(buffer), offset)])


def tail_before(file: File, offset: int) -> bytes:
    """The last bytes before an offset."""
    count = min(TAIL_BYTES, offset)
    return read_exactly(file, count, offset - count)
