"""The protocols that a format implements for the engine, and what some of them share. `Captain` is the example."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from forelog.kernel.types import Scan


class Encoder(Protocol):
    """Makes the bytes of one segment's records, in order.

    What it learns from a batch is staged until `accept`. If the write fails and is undone, the next batch is
    encoded as if this one had never existed.
    """

    def encode_many(self, items: Sequence[Any], time_ns: int, /) -> tuple[bytes, array[int]]:
        """Encode items of one time. Returns the bytes of their records, and where each record starts."""

    def places(self) -> array[int]:
        """For each item of the last batch, the start of the record in which it begins."""

    def accept(self) -> None:
        """Keep what was staged: the last batch has been written."""


class Checker(Protocol):
    """Follows content that spans records, to find where a segment may be cut."""

    end: int
    """The physical offset after the last record that leaves nothing unfinished."""

    def feed(self, buffer: Any, scan: Scan, /) -> None:
        """Read the next records of the segment."""


class Format(Protocol):
    """How the bytes of a log are laid out in its segments."""

    name: ClassVar[str]
    header_bytes: ClassVar[int]
    """How long a segment's header is: where its first record starts."""
    record_bytes_min: ClassVar[int]
    record_tail_bytes_max: ClassVar[int]
    """How many bytes a record may have beyond those that a scan says it needs: only they have its length."""
    segment_number_max: ClassVar[int]
    numbered_by_time: ClassVar[bool]
    """Whether a segment's number is its first record's time; then no two records of a log have the same time."""
    segment_number_first: ClassVar[int]
    """The number of a log's first segment, where numbers are counted."""
    record_word: ClassVar[str]
    """What a record is called: a record, a chunk or a message."""
    holds_entries: ClassVar[bool]
    """Whether records are chunks of a stream of entries, each of which may span some."""
    reasons: ClassVar[Mapping[int, str]]
    """A word or two for each reason of the kernel's to stop at a record."""
    appends_in_place: ClassVar[bool]
    """Whether a segment with records can be appended to when a log is opened; if not, a new one is started."""
    folder: ClassVar[str]
    """Where a commit log of this format keeps its segments, inside of its path; empty for the path itself."""
    encode: ClassVar[Any]
    """One item and its time to the bytes of a record, a function; None if records depend on earlier ones."""

    @property
    def signature(self) -> tuple[int, int] | None:
        """The magic number and the version in each segment's header; None for a format without them."""

    def item(self, *args: Any, **kwargs: Any) -> Any:
        """Check what is to be written, and copy it where needed, so nobody can change it later."""

    def item_bytes(self, item: Any, /) -> int:
        """The most bytes that an item takes in a segment."""

    def encoder(self, number: int) -> Encoder:
        """An encoder for a new or resumed segment."""

    def checker(self) -> Checker | None:
        """A checker for a segment, if anything can span records."""

    def scan(self, buffer: Any, start: int, stop: int, base: int, limit: int, /) -> Scan:
        """Read records as columns, up to the first one that isn't complete and valid."""

    def hop(self, buffer: Any, start: int, stop: int, offset_min: int, time_min: int, /) -> tuple[int, int, int]:
        """Find the first record at or past both bounds, reading only the heads of records."""

    def find(self, buffer: Any, start: int, stop: int, final: bool, /) -> int:
        """Find the next record after damage; -1 if there is none."""

    def next_number(self, number: int, time_ns: int) -> int:
        """The number for the segment after this one, whose first record has the time `time_ns`."""

    def segment_name(self, number: int) -> str:
        """The file name of a segment."""

    def segment_number(self, name: str) -> int | None:
        """The number in a segment's file name; None for any other file."""

    def header(self) -> bytes:
        """The header of a new segment."""

    def header_defect(self, data: bytes) -> str | None:
        """What is wrong with a header, in words; None if nothing is."""

    def of_header(self, head: bytes) -> Format:
        """This format with the magic number and version in a segment's first bytes."""

    def exact_time(self, head: bytes) -> int:
        """The time of a record from its first bytes, also if an int64 of nanoseconds can't hold it.

        TIME_MAX if neither it nor the given records after it have a time.
        """


class PlainEncoder:
    """An Encoder of records that don't depend on each other, so nothing is staged."""

    __slots__ = ("_encode_many", "_starts")

    def __init__(self, encode_many: Callable[[Sequence[Any], int], tuple[bytes, array[int]]]) -> None:
        self._encode_many = encode_many

    def encode_many(self, items: Sequence[Any], time_ns: int) -> tuple[bytes, array[int]]:
        data, self._starts = self._encode_many(items, time_ns)
        return data, self._starts

    def places(self) -> array[int]:
        return self._starts

    def accept(self) -> None:
        pass


class Headerless:
    """What formats share whose segments have no header."""

    __slots__ = ()

    header_bytes: ClassVar[int] = 0
    signature: ClassVar[None] = None

    def header(self) -> bytes:
        return b""

    def header_defect(self, data: bytes) -> str | None:  # noqa: ARG002 - there is none that could be wrong
        return None

    def of_header(self, head: bytes) -> Self:  # noqa: ARG002 - it has none
        return self
