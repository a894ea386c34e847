"""Records that tell their number, and what a reader has seen of them.

A payload is its number, a checksum, and filler that follows from the number::

    number (8 bytes)  crc32 (4 bytes)  filler (any number of bytes)

What a reader gets it appends to a file, each record with its own write, so that a reader that hangs or is killed
has noted all that it got. A row is a number, a segment and an offset.

>>> number_of(payload(7, 100)), len(payload(7, 100))
(7, 100)
>>> number_of(payload(7, 100)[:-1]) is None
True
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from forelog import Position

HEAD = struct.Struct(">QI")
ROW = struct.Struct("<qqq")
SIZE_MIN = HEAD.size
DAMAGED = -1
"""The number of a record that isn't as it was written."""
END = -2
"""The number of a row that says: the reader had everything that there was."""
CHAFF = b"chaff"
"""What records begin with that don't count."""
NOWHERE = Position(0, 0)
"""The position of a record whose reader doesn't know it."""


class Seen(NamedTuple):
    """A record that a reader got."""

    number: int
    position: Position


def payload(number: int, size: int) -> bytes:
    """The payload of a record, of `size` bytes."""
    filler = (number.to_bytes(8, "big") * (size // 8 + 1))[: size - SIZE_MIN]
    return HEAD.pack(number, zlib.crc32(filler, number & 0xFFFF_FFFF)) + filler


def number_of(data: bytes | memoryview) -> int | None:
    """The number of the record with this payload; None if it isn't as it was written."""
    if len(data) < SIZE_MIN:
        return None
    number, check = HEAD.unpack_from(data)
    return int(number) if zlib.crc32(data[SIZE_MIN:], number & 0xFFFF_FFFF) == check else None


class Notes:
    """What a reader notes: all that it sees, and how far it has got."""

    def __init__(self, folder: Path) -> None:
        self._rows = os.open(seen_path(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._reached = reached_path(folder)

    def add(self, data: bytes | memoryview, position: Position = NOWHERE) -> None:
        """A record, unless it is chaff."""
        if data[: len(CHAFF)] == CHAFF:
            return
        number = number_of(data)
        os.write(self._rows, ROW.pack(DAMAGED if number is None else number, *position))

    def end(self) -> None:
        """There is no more, for now."""
        os.write(self._rows, ROW.pack(END, 0, 0))

    def reach(self, position: Position) -> None:
        """The reader doesn't need what lies before this position any more."""
        part = self._reached.with_suffix(".part")
        part.write_text(str(position))
        part.replace(self._reached)


def seen_path(folder: Path) -> Path:
    """Where a reader's rows are."""
    return folder / "seen"


def reached_path(folder: Path) -> Path:
    """Where the position is that a reader has reached."""
    return folder / "reached"


def read_reached(path: Path) -> Position | None:
    """How far a reader has got; None before it has told."""
    try:
        return Position.parse(path.read_text())
    except FileNotFoundError:
        return None


def read_seen(folder: Path) -> list[Seen]:
    """All rows that a reader has noted, in order."""
    data = seen_path(folder).read_bytes()
    whole = len(data) // ROW.size * ROW.size
    return [Seen(number, Position(*place)) for number, *place in ROW.iter_unpack(data[:whole])]


def last_seen(folder: Path) -> int:
    """The highest of the last numbers that a reader has noted."""
    try:
        with seen_path(folder).open("rb") as file:
            size = file.seek(0, os.SEEK_END) // ROW.size
            file.seek(max(size - 100, 0) * ROW.size)
            rows = file.read(min(size, 100) * ROW.size)
    except FileNotFoundError:
        return END
    return max((number for number, *_ in ROW.iter_unpack(rows)), default=END)


def as_seen(records: Iterable[tuple[bytes | memoryview, Position]]) -> list[Seen]:
    """Payloads with their positions as rows, without chaff."""
    found = ((number_of(data), position) for data, position in records if data[: len(CHAFF)] != CHAFF)
    return [Seen(DAMAGED if number is None else number, position) for number, position in found]
