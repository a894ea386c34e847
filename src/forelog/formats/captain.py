"""Captain's Log: the format of segments that plain logs use.

A segment is a header and records, back to back::

    header   | magic 4 | version 4 |                                            both big-endian
    record   | TIME 15 | length 1-10 | payload | CRC 4 |

    TIME     | 01 | seconds 8 | nanoseconds 4 | zone 2 |                        all big-endian
             seconds count from 0001-01-01T00:00:00Z; the zone, in minutes, only says how to show it:
             written as 0, read as anything (the Go original writes -1 for UTC)
    length   unsigned LEB128; a longer form than needed is read, never written
    CRC      CRC-32C of TIME, the length's bytes and the payload, big-endian

Files are named `000000001.log`, nine digits, in order; gaps are fine and other names are ignored.

>>> captain = Captain(0x6370746E, 1)
>>> captain.header().hex(" ")
'63 70 74 6e 00 00 00 01'
>>> captain.segment_name(7), captain.segment_number("000000007.log"), captain.segment_number("7.log")
('000000007.log', 7, None)
>>> captain.encode(b"hi", 0).hex(" ")
'01 00 00 00 0e 77 91 f7 00 00 00 00 00 00 00 02 68 69 39 ac d4 fc'
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from forelog import kernel
from forelog.formats.format import PlainEncoder
from forelog.times import SECOND_NS

MAGIC = 0x6370746E  # "cptn"
VERSION = 1
RECORD_BYTES_MIN = 15 + 1 + 4
UNIX_EPOCH_SECONDS = 62_135_596_800  # from 0001-01-01T00:00:00Z, where the seconds of times start
FRAME_BYTES_MAX = 32  # more than time, length and checksum of a record take

_NAME = re.compile(r"(\d{9})\.log", re.ASCII)


@dataclass(frozen=True, slots=True)
class Captain:
    """The captain format with one log's magic number and version."""

    magic: int = MAGIC
    """Says whose log it is."""
    version: int = VERSION
    """The version of the log's content."""

    name: ClassVar[str] = "captain"
    header_bytes: ClassVar[int] = 8
    record_bytes_min: ClassVar[int] = RECORD_BYTES_MIN
    record_tail_bytes_max: ClassVar[int] = 0
    segment_number_max: ClassVar[int] = 999_999_999
    numbered_by_time: ClassVar[bool] = False
    segment_number_first: ClassVar[int] = 1
    record_word: ClassVar[str] = "record"
    holds_entries: ClassVar[bool] = False
    reasons: ClassVar[Mapping[int, str]] = {2: "truncated", 3: "time", 4: "length", 5: "crc"}
    appends_in_place: ClassVar[bool] = True
    folder: ClassVar[str] = ""
    encode: ClassVar[Any] = staticmethod(kernel.captain_encode)
    scan = staticmethod(kernel.captain_scan)
    hop = staticmethod(kernel.captain_hop)
    find = staticmethod(kernel.captain_find)

    def __post_init__(self) -> None:
        for field, value in (("magic", self.magic), ("version", self.version)):
            if not isinstance(value, int):
                raise TypeError(f"{field} is {value!r}: expected an unsigned 32 bit number")
            if not 0 <= value < 2**32:
                raise ValueError(f"{field} is {value:#x}: expected an unsigned 32 bit number")

    @property
    def signature(self) -> tuple[int, int]:
        return self.magic, self.version

    def item(self, payload: bytes | bytearray | memoryview, *more: object) -> bytes:
        if more:
            raise TypeError(f"this log takes one payload at a time, and {1 + len(more)} things were given")
        return kernel.payload_bytes(payload)

    def item_bytes(self, item: bytes) -> int:
        return len(item) + FRAME_BYTES_MAX

    def encoder(self, number: int) -> PlainEncoder:  # noqa: ARG002 - every segment's is the same
        return PlainEncoder(kernel.captain_encode_many)

    def checker(self) -> None:
        return None

    def next_number(self, number: int, time_ns: int) -> int:  # noqa: ARG002 - they are counted
        return number + 1

    def segment_name(self, number: int) -> str:
        return f"{number:09d}.log"

    def segment_number(self, name: str) -> int | None:
        match = _NAME.fullmatch(name)
        return int(match[1]) if match else None

    def header(self) -> bytes:
        return struct.pack(">II", self.magic, self.version)

    def header_defect(self, data: bytes) -> str | None:
        if len(data) < self.header_bytes:
            return f"has {len(data)} of its {self.header_bytes} header bytes"
        magic, version = struct.unpack_from(">II", data)
        if magic != self.magic:
            return f"has magic {magic:#010x}, expected {self.magic:#010x}"
        if version != self.version:
            return f"has version {version}, expected {self.version}"
        return None

    def of_header(self, head: bytes) -> Captain:
        return Captain(*struct.unpack_from(">II", head))

    def exact_time(self, head: bytes) -> int:
        seconds, nanos = struct.unpack_from(">qi", head, 1)
        return int(seconds - UNIX_EPOCH_SECONDS) * SECOND_NS + int(nanos)
