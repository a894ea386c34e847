"""Places in a log, and what is found there.

>>> position = Position.parse("000000007:1048576")
>>> position, str(position)
(Position(segment=7, offset=1048576), '000000007:1048576')
>>> position < Position(8, 0)
True
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, overload

from forelog.errors import BadPosition
from forelog.times import format_time, to_datetime

_TEXT = re.compile(r"(\d{1,19}):(\d{1,19})", re.ASCII)


class Position(NamedTuple):
    """A place between records: before the record at `offset` in `segment`.

    Offsets are logical: they are those of the segment as it was first written, and stay valid when cleaning
    moves bytes. Reading from a position starts at the first surviving record at or after it.
    """

    segment: int
    """The segment's number."""
    offset: int
    """The logical offset in it."""

    def __str__(self) -> str:
        return f"{self.segment:09d}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of a text that str() made, such as `000000007:1048576`."""
        match = _TEXT.fullmatch(text.strip())
        if not match:
            raise BadPosition(f"{text!r} isn't a position: expected SEGMENT:OFFSET, as in 000000007:1048576")
        return cls(int(match[1]), int(match[2]))


# Builds a Position from a pair without the Python frame of its constructor: appends and cursors make many.
make_position: Callable[[tuple[int, int]], Position] = functools.partial(tuple.__new__, Position)


class Record(NamedTuple):
    """One record: its position, its time and its payload."""

    position: Position
    """The position of the record."""
    time_ns: int
    """When the record was written, in nanoseconds since 1970."""
    payload: bytes
    """The content of the record."""
    frame_bytes: int
    """How many bytes the record takes in its segment, with time, length and checksum."""

    @property
    def time(self) -> datetime:
        """The time in UTC, cut to microseconds."""
        return to_datetime(self.time_ns)

    @property
    def next_position(self) -> Position:
        """The place after this record. Store it when you have dealt with the record, and start there next time."""
        return Position(self.position.segment, self.position.offset + self.frame_bytes)

    def __str__(self) -> str:
        return f"{self.position} {format_time(self.time_ns)} {self.payload!r}"


make_record: Callable[[tuple[Position, int, bytes, int]], Record] = functools.partial(tuple.__new__, Record)


class Positions(Sequence[Position]):
    """The positions of a batch. Each is made only when it is asked for."""

    __slots__ = ("_base", "_first", "_last", "_offsets", "_segment")

    def __init__(
        self, segment: int, base: int, offsets: array[int], first: int = 0, last: int | None = None
    ) -> None:
        self._segment = segment
        self._base = base
        self._offsets = offsets
        self._first = first
        self._last = len(offsets) if last is None else last

    @property
    def segment(self) -> int:
        """The segment that all of them share."""
        return self._segment

    def places(self) -> tuple[int, array[int], int]:
        """The offsets as stored: a base, numbers to be added to it, and the first of these that belongs to the
        batch."""
        return self._base, self._offsets, self._first

    def part(self, first: int, last: int) -> Positions:
        """A part of the positions. Their offsets aren't copied."""
        return Positions(self._segment, self._base, self._offsets, self._first + first, self._first + last)

    def __len__(self) -> int:
        return self._last - self._first

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...
    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return self.part(first, max(first, last)) if step == 1 else list(self)[index]
        place = self._first + index if index >= 0 else self._last + index
        if not self._first <= place < self._last:
            raise IndexError(f"position {index} of {len(self)}")
        return make_position((self._segment, self._base + self._offsets[place]))

    def __iter__(self) -> Iterator[Position]:
        segment, base = self._segment, self._base
        for offset in self._offsets[self._first : self._last]:
            yield make_position((segment, base + offset))

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not self:
            return "Positions([])"
        return f"Positions([{self[0]} .. {self[-1]}], {len(self)} of them)"
