"""How bytes lie in a segment.

A `Format` names segment files, writes and checks their header, encodes records, and scans buffers for
them with the kernel. It knows nothing of directories, policies or payloads, and does no I/O.

    captain    Captain's Log, and the default: header, then records with time, length and CRC-32C
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from chiplog._kernel_py import Scan
from chiplog.errors import UnknownFormat
from chiplog.formats.captain import Captain

__all__ = ["REASONS", "Captain", "Format", "Scan", "detect"]

REASONS = {2: "truncated", 3: "time", 4: "length", 5: "crc"}
"""One word for each reason of the kernel's to stop at a record."""


class Format(Protocol):
    """What the engine asks of a format. `Captain` is the example to read."""

    name: ClassVar[str]
    header_bytes: ClassVar[int]
    """How long a segment's header is: where its first record starts."""
    record_bytes_min: ClassVar[int]

    def encode(self, payload: Any, time_ns: int, /) -> bytes:
        """One payload and its time, to the bytes of a record."""

    def encode_many(self, payloads: Sequence[Any], time_ns: int, /) -> tuple[bytes, array[int]]:
        """Payloads of one time, to the bytes of their records and where each starts."""

    def scan(self, buffer: Any, start: int, stop: int, base: int, limit: int, /) -> Scan:
        """Records to columns, until the first that isn't whole and right."""

    def hop(self, buffer: Any, start: int, stop: int, offset_min: int, time_min: int, /) -> tuple[int, int, int]:
        """The first record at or past both bounds, by the heads of records alone."""

    def find(self, buffer: Any, start: int, stop: int, final: bool, /) -> int:
        """Where records go on after damage, or -1."""

    def segment_name(self, number: int) -> str:
        """The file name of a segment."""

    def segment_number(self, name: str) -> int | None:
        """The number in a segment's file name; None for any other file."""

    def header(self) -> bytes:
        """What a new segment starts with."""

    def header_defect(self, data: bytes) -> str | None:
        """What is wrong with a header, in words; None if it is this format's."""

    def exact_time(self, head: bytes) -> int:
        """The time of a record from its first bytes, also where an int64 of nanoseconds can't hold it."""


def detect(name: str, head: bytes) -> Format:
    """The format of a segment file, by its name and first bytes."""
    if Captain().segment_number(name) is not None and len(head) >= 8:
        return Captain(int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big"))
    raise UnknownFormat(f"{name} is no segment of a format that chiplog knows (it starts {head[:8].hex(' ')})")
