"""One larger part for many small ones.

Each flush uploads a part, however small, so a segment that grows slowly would have thousands. If it has more than
a few, its last parts become one: those that are each at most twice as large as all after them together. So a byte
is uploaded again about as often as the number of parts doubles. The bytes are read from the log, and must have the
checksums of the parts. If the log has dropped the segment, its parts stay.
"""

from __future__ import annotations

from collections.abc import Callable

from forelog import kernel
from forelog.copies.store.manifest import Part
from forelog.log.directory.place import if_there, read_exactly
from forelog.log.position import Position
from forelog.log.stream import Stream

MERGE_PARTS = 16  # parts of a segment, before some are merged


def merge_parts(
    parts: list[Part], stream: Stream, part_bytes: int, put: Callable[[Position, bytes], Part]
) -> list[Part]:
    """The parts, with some of the last two segments merged if these have too many."""
    out, stop = parts, len(parts)
    for _ in range(2):
        if not stop:
            break
        start = stop - 1
        while start and out[start - 1].segment == out[stop - 1].segment:
            start -= 1
        if stop - start > MERGE_PARTS:
            first = _first_of_run(out, start, stop, part_bytes)
            data = _read(out[first:stop], stream) if stop - first > 1 else None
            if data is not None:
                merged = put(Position(out[first].segment, out[first].offset), data)
                out = [*out[:first], merged, *out[stop:]]
        stop = start
    return out


def _first_of_run(parts: list[Part], start: int, stop: int, part_bytes: int) -> int:
    first, total = stop - 1, parts[stop - 1].length
    while first > start:
        length = parts[first - 1].length
        if length > 2 * total or total + length > part_bytes:
            break
        first, total = first - 1, total + length
    return first


def _read(parts: list[Part], stream: Stream) -> bytes | None:
    """The bytes of the parts, read from the log; None if the log doesn't have them any more."""
    with if_there(stream.directory.open_segment, parts[0].segment) as file:
        if file is None:
            return None
        data = read_exactly(file, sum(part.length for part in parts), parts[0].offset)
    at = 0
    for part in parts:
        if kernel.crc32c(memoryview(data)[at : at + part.length]) != part.crc32c:
            return None
        at += part.length
    return data if at == len(data) else None
