"""The part of a log's directory that the small files beside the segments need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import ParamSpec, Protocol, TypeVar

from forelog.files import File, Files, write_all
from forelog.formats import Format

P = ParamSpec("P")


class Closable(Protocol):
    """A file, or what reads one."""

    def close(self) -> None:
        """Close the file."""


T = TypeVar("T", bound=Closable)

_COPY_BYTES = 1 << 20
TAIL_BYTES = 64
"""Bytes before a place: enough to see that two logs have been the same up to there."""


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


@contextlib.contextmanager
def if_there(opener: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Iterator[T | None]:
    """What `opener` opens, which is closed when the block ends; None if there is no such file."""
    try:
        opened = opener(*args, **kwargs)
    except FileNotFoundError:
        opened = None
    if opened is None:
        yield None
        return
    with contextlib.closing(opened):
        yield opened


def read_exactly(file: File, count: int, offset: int) -> bytes:
    """Read `count` bytes, or fewer at the end of the file."""
    buffer = bytearray(count)
    return bytes(buffer[: file.read_into(memoryview(buffer), offset)])


def copy_bytes(source: File, start: int, target: File) -> None:
    """Append what a file has from `start` on to another one."""
    size = source.size()
    while start < size and (data := read_exactly(source, min(_COPY_BYTES, size - start), start)):
        write_all(target, data)
        start += len(data)


def tail_before(file: File, offset: int) -> bytes:
    """The last bytes before an offset."""
    count = min(TAIL_BYTES, offset)
    return read_exactly(file, count, offset - count)
