"""M3's commit log: many series of numbers over time, in files that M3DB itself writes and reads.

A file is a sequence of chunks, and what is in them a sequence of messages, which may span chunks::

    chunk     | size 4 | adler-32 of the size 4 | adler-32 of the data 4 | data |       little-endian
    message   | length, LEB128 | msgpack |
              LogInfo     01 92 07 93   0, 0, the file's index; the first message of each file
              LogEntry    01 92 08 97   series, created, metadata, timestamp, value, unit, annotation

To the engine a record is a chunk: positions are those of chunks, and a torn or damaged chunk is found and
skipped like any record. Messages are decoded from a file's start, because the metadata of a
series (its id, namespace, shard and tags) comes only with its first entry in each file. That is also why a
file is never appended to once it was closed: each opening starts the next one.

Files are named `commitlog-0-7.db`, in a folder `commitlogs`; the next one has the highest number and one.

>>> from forelog.formats.m3 import Datapoint
>>> m3 = M3()
>>> m3.segment_name(7), m3.segment_number("commitlog-0-7.db"), m3.segment_number("7.db")
('commitlog-0-7.db', 7, None)
>>> cpu = Series(b"cpu", shard=3, tags={b"host": b"a"})
>>> encoder = m3.encoder(7)
>>> data, chunks = encoder.encode_many([m3.item(cpu, Datapoint(1_000, 0.5)), m3.item(cpu, (2_000, 0.25))], 3_000)
>>> len(data), list(chunks), list(encoder.places())
(103, [0], [0, 0])
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from forelog import kernel
from forelog.errors import RecordTooLarge
from forelog.formats.format import Headerless
from forelog.formats.m3.values import Series, Unit, as_bytes
from forelog.kernel.types import TIME_MAX, TIME_MIN, Item

CHUNK_BYTES = 65_536
CHUNK_HEAD_BYTES = 12
MESSAGE_BYTES_MAX = 64 << 20
"""No length that a file gives is followed further than this: a decoder holds one message at a time."""
CHUNK_BYTES_MIN = 16  # room for a message's length and head: those never span chunks
CHUNK_BYTES_MAX = 1 << 30
SEGMENT_NUMBER_MAX = 999_999_999
MESSAGE_REASONS = {
    10: "message length",
    11: "message",
    12: "field",
    13: "metadata",
    14: "tags",
    15: "unknown series",
}
"""A word or two for each reason of the kernel's to stop at a message in a right chunk."""

_NAME = re.compile(r"commitlog-0-(0|[1-9]\d{0,8})\.db", re.ASCII)
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_ENTRY_BYTES = 128  # an entry without its metadata and annotation, its chunks' heads, and a LogInfo
_ENTRY_BYTES_MAX = MESSAGE_BYTES_MAX - _ENTRY_BYTES


def _as_float(value: Any) -> float:
    if not hasattr(value, "__float__"):  # a text isn't a number, whatever it says
        raise TypeError(f"value is {value!r}: expected a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("value is a number that a double can't hold") from None


def _as_int64(what: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is {value!r}: expected nanoseconds since 1970, an integer")
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(f"{what} is {value}: expected nanoseconds since 1970 that fit into 64 bits")
    return int(value)


@dataclass(frozen=True, slots=True)
class M3(Headerless):
    """The format of M3's commit log files. A chunk has up to `chunk_bytes` of data before its messages span."""

    chunk_bytes: int = CHUNK_BYTES
    """How much data a chunk has before it is closed."""

    name: ClassVar[str] = "m3"
    record_bytes_min: ClassVar[int] = CHUNK_HEAD_BYTES
    record_tail_bytes_max: ClassVar[int] = 0
    segment_number_max: ClassVar[int] = SEGMENT_NUMBER_MAX
    numbered_by_time: ClassVar[bool] = False
    segment_number_first: ClassVar[int] = 0
    record_word: ClassVar[str] = "chunk"
    holds_entries: ClassVar[bool] = True
    reasons: ClassVar[Mapping[int, str]] = {2: "truncated", 4: "size checksum", 5: "data checksum"}
    appends_in_place: ClassVar[bool] = False
    folder: ClassVar[str] = "commitlogs"
    encode: ClassVar[Any] = None
    scan = staticmethod(kernel.m3_scan)
    hop = staticmethod(kernel.m3_hop)
    find = staticmethod(kernel.m3_find)

    def __post_init__(self) -> None:
        if not isinstance(self.chunk_bytes, int) or not CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX:
            raise ValueError(
                f"chunk_bytes is {self.chunk_bytes!r}: expected {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX:,}"
            )

    def item(
        self,
        series: Series,
        datapoint: tuple[int, float],
        unit: int = Unit.NANOSECOND,
        annotation: bytes | bytearray | memoryview | None = None,
        *,
        created_ns: int | None = None,
    ) -> Item:
        """A datapoint to write. It gets the time at which it is written, unless `created_ns` is given."""
        if not isinstance(series, Series):
            raise TypeError(f"{series!r} isn't a series: expected Series(b'cpu', ...), then a datapoint")
        try:
            timestamp_ns, value = datapoint
        except (TypeError, ValueError):
            raise TypeError(f"{datapoint!r} isn't a datapoint: expected Datapoint(timestamp_ns, value)") from None
        # Every write comes through here: what is right already is looked at once and not converted.
        if type(timestamp_ns) is not int or not _INT64_MIN <= timestamp_ns <= _INT64_MAX:
            timestamp_ns = _as_int64("timestamp_ns", timestamp_ns)
        if annotation is not None:
            annotation = as_bytes("annotation", annotation)
        if len(series.metadata) + (0 if annotation is None else len(annotation)) > _ENTRY_BYTES_MAX:
            raise RecordTooLarge(
                f"{len(series.metadata):,} bytes of metadata and {len(annotation or b''):,} of annotation: an "
                f"entry has at most {MESSAGE_BYTES_MAX:,} in all"
            )
        return (
            series.metadata,
            timestamp_ns,
            value if type(value) is float else _as_float(value),
            unit if type(unit) is Unit else Unit(unit),
            annotation,
            None if created_ns is None else _as_int64("created_ns", created_ns),
        )

    def item_bytes(self, item: Item) -> int:
        return _ENTRY_BYTES + len(item[0]) + len(item[4] or b"")

    def encoder(self, number: int) -> Any:
        return kernel.M3Encoder(number, self.chunk_bytes)

    def checker(self) -> Any:
        return kernel.M3Checker()

    def next_number(self, number: int, time_ns: int) -> int:  # noqa: ARG002 - they are counted
        return number + 1

    def segment_name(self, number: int) -> str:
        return f"commitlog-0-{number}.db"

    def segment_number(self, name: str) -> int | None:
        match = _NAME.fullmatch(name)
        return int(match[1]) if match else None

    def exact_time(self, head: bytes) -> int:
        at = 0
        while at + CHUNK_HEAD_BYTES <= len(head):  # M3 often closes the first chunk with a LogInfo alone in it
            data, end = at + CHUNK_HEAD_BYTES, at + CHUNK_HEAD_BYTES + int.from_bytes(head[at : at + 4], "little")
            time_ns = kernel.m3_time(head, data, min(end, len(head)), TIME_MIN)
            if time_ns != TIME_MIN:
                return time_ns
            at = end
        return TIME_MAX
