"""Where a log ends for readers while it is written: the file `append.end`.

A write takes time, and may fail halfway. Its bytes are in the segment before it is known whether they stay: on
a full disk they are cut off again. So readers don't rely on the size of the file. The appender publishes where
the last segment ends, in eight words of memory that it shares with every process:

    write begins     intended = where it will end
    bytes arrive     the file grows; no reader looks past `committed`
    write is done    committed = where it has ended; under `always` only after the sync

::

    word  0        1, 2                      3         4        5          6         7
          magic    a digest of the boot      sequence  segment  committed  intended  sequence

Offsets have a check of sixteen bits above them, since nothing else would show a flipped bit there. To change the
segment the appender stores word 7, then the others, then word 3: a reader that finds the two alike has seen
no half of a change. Segment 0 means that nobody appends, and that the files count as they are.

A process that is killed leaves its words behind. Readers still stop at `committed`, and the next opening cuts
off what was only half written. After a reboot the words mean nothing; the digest shows it. Where the file is
longer than `intended`, another program has written to it since, and readers use its size.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> with stream.appender() as log:
...     _ = log.append(b"one")
...     read_end(stream.directory)[1:]
(1, 31, 31)
>>> read_end(stream.directory).segment
0
"""

from __future__ import annotations

import contextlib
import functools
import struct
from typing import NamedTuple

from forelog import kernel
from forelog.files import File
from forelog.log.directory.place import Place

NAME = "append.end"
WORDS = 8
_MAGIC, _BOOT, _LAST, _SEGMENT, _FIRST = 0, 1, 3, 4, 7
END_COMMITTED, END_INTENDED = 5, 6  # the kernel stores these two with every write
_LAYOUT = struct.Struct("=8s16s5Q")
_MAGIC_BYTES = b"CLEND\0\0\1"
_LOOKS_MAX = 16
_OFFSET_MASK = (1 << 48) - 1


def checked_offset(offset: int) -> int:
    """An offset of up to 48 bits, with a check in the sixteen bits above it.

    The factor is any odd number with many bits set. The kernel computes the same.
    """
    return offset | offset * 0x9E3779B97F4A7C15 & 0xFFFF000000000000


class End(NamedTuple):
    """The content of an end mark."""

    sequence: int
    """How often it was changed, without changes of the offsets alone."""
    segment: int
    """The segment that is appended to; 0 if there is none, or if the mark is of another boot."""
    committed: int
    """Up to where it counts."""
    intended: int
    """Up to where the last write goes, if it is still under way or was never finished."""


NO_END = End(0, 0, 0, 0)
_CHANGING = -1
_NOT_YET = End(0, _CHANGING, 0, 0)


class EndMark:
    """The end mark of a log that is open to append."""

    def __init__(self, directory: Place) -> None:
        self.found = read_end(directory)
        """What the last appender has left."""
        self.shared = directory.files.open_shared(f"{directory.path}/{NAME}", WORDS)
        self._sequence = self.found.sequence
        if not self.found.segment:
            self.move(0, 0)  # before it is said to be of this boot
        self._set(_MAGIC, _MAGIC_BYTES)
        boot = boot_digest(directory.files.boot_id())
        self._set(_BOOT, boot[:8])
        self._set(_BOOT + 1, boot[8:])

    def _set(self, index: int, data: bytes) -> None:
        self.shared.store(index, struct.unpack("=Q", data)[0])

    def move(self, segment: int, offset: int) -> None:
        """Publish that this segment is now appended to, and ends at `offset`."""
        self._sequence += 1
        for index, value in (
            (_FIRST, self._sequence),
            (_SEGMENT, segment),
            (END_COMMITTED, checked_offset(offset)),
            (END_INTENDED, checked_offset(offset)),
            (_LAST, self._sequence),
        ):
            self.shared.store(index, value)

    def intend(self, offset: int) -> None:
        """Publish where the write that is about to begin will end."""
        self.shared.store(END_INTENDED, checked_offset(offset))

    def close(self, *, in_order: bool) -> None:
        """Close it. `in_order` says that readers may read everything in the files."""
        if in_order:
            self.move(0, 0)
        # The core of an appender that couldn't be opened may still have the words.
        with contextlib.suppress(BufferError):
            self.shared.close()


def read_end(directory: Place) -> End:
    """Read the end mark of a log."""
    file = _open(directory)
    if file is None:
        return NO_END
    with contextlib.closing(file):
        boot, end = boot_digest(directory.files.boot_id()), _NOT_YET
        for _ in range(_LOOKS_MAX):
            before, end = end, _look(file, boot)
            if _agree(before, end):
                return end
        # The appender was stopped while it changed the segment. Nothing is being written then: the files count.
        return End(end.sequence, 0, 0, 0)


def _open(directory: Place) -> File | None:
    try:
        return directory.files.open_read(f"{directory.path}/{NAME}")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _look(file: File, boot: bytes) -> End:
    """Read a mark once. Its segment is `_CHANGING` while somebody changes the mark."""
    buffer = bytearray(_LAYOUT.size)
    count = file.read_into(memoryview(buffer), 0)
    return _end_in(bytes(buffer), boot) if count == len(buffer) else NO_END


@functools.lru_cache(maxsize=16)  # two looks mostly show the same
def _end_in(words: bytes, boot: bytes) -> End:
    magic, found, last, segment, committed, intended, first = _LAYOUT.unpack(words)
    if magic != _MAGIC_BYTES:
        return NO_END
    if first != last:
        return End(first, _CHANGING, 0, 0)
    end, goal = committed & _OFFSET_MASK, intended & _OFFSET_MASK
    if not segment or found != boot or checked_offset(end) != committed or checked_offset(goal) != intended:
        return End(first, 0, 0, 0)
    return End(first, segment, end, max(end, goal))


def _agree(before: End, end: End) -> bool:
    """Whether two readings show the same segment. One isn't enough, because memory isn't copied in order."""
    return before.sequence == end.sequence and before.segment == end.segment != _CHANGING


def visible_bytes(directory: Place, number: int, file: File) -> int:
    """How many bytes of a segment's file readers may read now."""
    mark = _open(directory)
    if mark is None:
        size = file.size()
        mark = _open(directory)
        if mark is None:
            return size
    with contextlib.closing(mark):
        return _visible_bytes(mark, boot_digest(directory.files.boot_id()), number, file)


def _visible_bytes(mark: File, boot: bytes, number: int, file: File) -> int:
    """visible_bytes() with the mark open. The file's size is taken between two readings of the mark."""
    end, looks = _look(mark, boot), 0
    while True:
        size, before, end = file.size(), end, _look(mark, boot)
        if _agree(before, end):
            # No appender of ours writes past what it intends to: where the file is longer, another program did.
            if end.segment != number or size > end.intended:
                return size  # or nobody appends to it: it is finished, or begun after the mark was stored
            return min(size, before.committed)  # the mark's from before: the file had as much by then
        looks = looks + 1 if before == end else 0  # in the middle of the same change
        if looks == _LOOKS_MAX:
            return size  # the appender was stopped while it changed the segment


@functools.lru_cache(maxsize=16)
def boot_digest(boot_id: str) -> bytes:
    """A digest of a boot's id, in sixteen bytes."""
    parts = (kernel.crc32c(f"{salt}{boot_id}".encode()) for salt in "abcd")
    return b"".join(part.to_bytes(4, "big") for part in parts)
