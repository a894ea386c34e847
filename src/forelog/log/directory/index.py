"""The index of a sealed segment: a file beside it.

It is `NAME.SIZE.idx`, written when a segment is sealed, or `NAME.SIZE.map`, written when it is rewritten, and
holds

- marks: the offset and time of one record in every 64 KiB, so that a time is found without decoding the
  segment;
- runs: for a rewritten segment, where each surviving part of it used to be. A position's offset is that of the
segment as first written; the runs lead from there to where the bytes are now;
- the number of records, the first and the last time.

The segment's size is in the name and, with its last four bytes, in the content: an index that doesn't
belong to the bytes beside it is never used. That pairing is what makes rewriting safe. The new index is
in place before the new segment is renamed over the old one, so a crash on either side of the rename finds
the index that fits.

An index of a segment that was never rewritten is a cache: without it everything works, only more slowly. A map
isn't: without it a rewritten segment's positions would lead to other records. So it has a name of its own. If
there is a map it must be usable, or the segment counts as damaged. (An `.idx` with runs, as maps were named at
first, is read as well.)

::

    | "CLIX" 4 | version u32 | segment | physical bytes | logical end | records | first time | last time |
    | tail 4 | runs u32 | marks u32 | runs: (logical, physical)... | marks: (logical, time)... | CRC-32C u32 |

All big-endian; numbers without a width are int64.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

from forelog import kernel
from forelog.files import Files, removed_on_failure, write_all
from forelog.kernel.types import TIME_MAX, TIME_MIN
from forelog.log.directory.place import if_there, read_exactly

MARK_BYTES = 65_536
"""A mark for the first record at or past each multiple of this."""

_LAYOUT = struct.Struct(">4sI6q4sII")
_INDEX_BYTES_MAX = 1 << 30


def _new_pairs() -> array[int]:
    return array("q")


@dataclass(slots=True)
class SegmentIndex:
    """A decoded index. Pairs are stored flat: runs[2 * i] and runs[2 * i + 1] are one pair."""

    segment: int
    """The number of the segment."""
    physical_bytes: int
    """The size of the segment's file."""
    logical_end: int
    """The logical offset of the segment's end."""
    records: int = 0
    """How many records the segment has."""
    first_time: int = 0
    """The earliest time of a record."""
    last_time: int = 0
    """The latest time of a record."""
    tail: bytes = b"\0\0\0\0"
    """The last four bytes of the file."""
    runs: array[int] = field(default_factory=_new_pairs)
    """Pairs of logical and physical offsets; empty if it was never rewritten."""
    marks: array[int] = field(default_factory=_new_pairs)
    """Pairs of a logical offset and a time."""
    foreign_end: int = 0
    """Where the segment ended before another program rewrote it (foreign.py); 0 if none did."""

    @property
    def rewritten(self) -> bool:
        """Whether cleaning or repair has taken bytes out of the segment."""
        return self.logical_end > self.physical_bytes

    def physical(self, logical: int) -> int:
        """Where the first surviving byte at or after a logical offset is."""
        if not self.runs:
            return logical
        run = bisect_right(self.runs[::2], logical) - 1
        if run < 0:
            return min(logical, self.runs[1])
        place = self.runs[2 * run + 1] + logical - self.runs[2 * run]
        following = self.runs[2 * run + 3] if 2 * run + 3 < len(self.runs) else self.physical_bytes
        return min(place, following)

    def logical(self, physical: int) -> int:
        """The logical offset of a place; that of the segment's end at its end."""
        if physical >= self.physical_bytes:
            return self.logical_end
        run = bisect_right(self.runs[1::2], physical) - 1
        return physical if run < 0 else self.runs[2 * run] + physical - self.runs[2 * run + 1]

    def logical_column(self, offsets: array[int]) -> array[int]:
        """The logical offsets of a column of ascending record offsets."""
        if not self.runs:
            return offsets
        column: array[int] = kernel.relocate(offsets, self.runs)
        return column

    def mark_before(self, time_ns: int) -> int:
        """A logical offset at or before the first record of `time_ns` or later."""
        # Of records with the same time the first one counts, hence the last mark that is earlier.
        times = self.marks[1::2]
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if times[middle] < time_ns:
                low = middle + 1
            else:
                high = middle
        return self.marks[2 * low - 2] if low else 0


def index_name(segment_name: str, physical_bytes: int) -> str:
    """The file name of the index of a segment with so many bytes."""
    return f"{segment_name.removesuffix('.log')}.{physical_bytes}.idx"


def map_name(segment_name: str, physical_bytes: int) -> str:
    """The file name of the index of a rewritten segment with so many bytes."""
    return f"{segment_name.removesuffix('.log')}.{physical_bytes}.map"


def indexed_bytes(name: str, segment_name: str) -> int | None:
    """The size of the segment that an index or map is for, by its file name; None if the file is neither."""
    stem = segment_name.removesuffix(".log")
    size, _, kind = name.removeprefix(f"{stem}.").partition(".")
    if not name.startswith(f"{stem}.") or kind not in ("idx", "map") or not size.isdecimal():
        return None
    return int(size)


def _flip(pairs: array[int]) -> array[int]:
    if sys.byteorder == "little":
        pairs = pairs[:]
        pairs.byteswap()
    return pairs


def _clamped(time_ns: int) -> int:
    return min(max(time_ns, TIME_MIN), TIME_MAX)


def encode_index(index: SegmentIndex) -> bytes:
    head = _LAYOUT.pack(
        b"CLIX",
        1,
        index.segment,
        index.physical_bytes,
        index.logical_end,
        index.records,
        _clamped(index.first_time),
        _clamped(index.last_time),
        index.tail,
        len(index.runs) // 2,
        len(index.marks) // 2,
    )
    body = head + _flip(index.runs).tobytes() + _flip(index.marks).tobytes()
    return body + kernel.crc32c(body).to_bytes(4, "big")


def decode_index(data: bytes) -> SegmentIndex | None:
    """Decode an index; None if the bytes are not a complete and valid one."""
    if len(data) < _LAYOUT.size + 4 or int.from_bytes(data[-4:], "big") != kernel.crc32c(data[:-4]):
        return None
    magic, version, segment, physical, logical, records, first, last, tail, runs, marks = _LAYOUT.unpack_from(data)
    if magic != b"CLIX" or version != 1 or len(data) != _LAYOUT.size + 16 * (runs + marks) + 4:
        return None
    if physical < 0 or logical < physical or records < 0:
        return None
    pairs: array[int] = array("q")
    pairs.frombytes(data[_LAYOUT.size : -4])
    pairs = _flip(pairs)
    if not _runs_fit(pairs[: 2 * runs : 2], pairs[1 : 2 * runs : 2], logical, physical):
        return None
    return SegmentIndex(
        segment, physical, logical, records, first, last, tail, pairs[: 2 * runs], pairs[2 * runs :]
    )


def _runs_fit(logical: array[int], physical: array[int], logical_end: int, physical_end: int) -> bool:
    """Whether runs ascend, lie inside the segment, and don't overlap."""
    for column, end in ((logical, logical_end), (physical, physical_end)):
        if any(a >= b for a, b in pairwise(column)) or (column and not 0 <= column[0] <= column[-1] < end):
            return False
    gaps = (b - a for a, b in pairwise((*logical, logical_end)))
    return all(b - a <= gap for (a, b), gap in zip(pairwise((*physical, physical_end)), gaps, strict=True))


def read_index(files: Files, path: str, segment: int, physical_bytes: int, tail: bytes) -> SegmentIndex | None:
    """The index at `path`, if it belongs to a segment with this number, size and last four bytes."""
    with if_there(files.open_read, path) as file:
        if file is None or file.size() > _INDEX_BYTES_MAX:
            return None
        index = decode_index(read_exactly(file, file.size(), 0))
    if index is None or (index.segment, index.physical_bytes, index.tail) != (segment, physical_bytes, tail):
        return None
    return index


def was_a_map(files: Files, path: str) -> bool:
    """Whether an unusable index was that of a rewritten segment, by its first bytes."""
    try:
        file = files.open_read(path)
    except OSError:
        return False
    with closing(file):
        head = read_exactly(file, _LAYOUT.size, 0)
    if len(head) < _LAYOUT.size:
        return False
    magic, version, _, physical, logical, _, _, _, _, runs, _ = _LAYOUT.unpack(head)
    return bool(magic == b"CLIX" and version == 1 and runs > 0 and logical > physical)


def write_index(files: Files, path: str, index: SegmentIndex, *, sync: bool) -> None:
    """Write an index. A reader sees all of it or nothing, because a torn index fails its checksum.

    If the write fails, what it left is removed if possible.
    """
    with removed_on_failure(files, path), closing(files.open_append(path)) as file:
        file.truncate(0)
        write_all(file, encode_index(index))
        if sync:
            file.sync()


class IndexBuilder:
    """Collects the index of a segment while it is written or scanned, record offsets ascending."""

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.records = 0
        self.first_time = 0
        self.last_time = 0
        self.marks = _new_pairs()
        self.next_mark = 0
        self.end = 0
        """The physical and logical end of a segment that was finished."""

    def mark(self, offset: int, time_ns: int) -> None:
        """Note a record at or past `next_mark`."""
        self.marks.append(offset)
        self.marks.append(time_ns)
        self.next_mark = (offset // MARK_BYTES + 1) * MARK_BYTES

    def add(self, offsets: array[int], times: array[int]) -> None:
        """Note a column of records."""
        if not offsets:
            return
        # The earliest and the latest: another program's times may go back.
        self.first_time = min(times) if not self.records else min(self.first_time, min(times))
        self.last_time = max(times) if not self.records else max(self.last_time, max(times))
        self.records += len(offsets)
        row = bisect_left(offsets, self.next_mark)
        while row < len(offsets):
            self.mark(offsets[row], times[row])
            row = bisect_left(offsets, self.next_mark, row)

    def mark_rows(self, starts: array[int], base: int, time_of: Callable[[int], int]) -> None:
        """Note the marks that are due among records that start at `base` plus `starts`. `time_of` returns the time
        of the record at a start."""
        row = bisect_left(starts, self.next_mark - base)
        while row < len(starts):
            self.mark(base + starts[row], time_of(starts[row]))
            row = bisect_left(starts, self.next_mark - base, row)

    def build(
        self, physical_bytes: int, logical_end: int, tail: bytes, runs: array[int] | None = None
    ) -> SegmentIndex:
        """The finished index."""
        return SegmentIndex(
            self.segment,
            physical_bytes,
            logical_end,
            self.records,
            self.first_time,
            self.last_time,
            tail,
            _new_pairs() if runs is None else runs,
            self.marks,
        )
