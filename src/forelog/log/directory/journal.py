"""A second copy of the log's end, where a sync is cheap: the file `append.journal`.

To sync a file that has grown, a filesystem writes more than the data: the new size, and where the new blocks are,
through a journal of its own. Overwriting whole blocks in place, past the page cache, takes half of the time, and
on a busy disk a third. So an appender with `journal_bytes` syncs the segment seldom. At every other sync it copies
what was written since the last one into this file, whose size never changes, and syncs that. When the file is
full, the segment is synced, and the file begins anew.

So what was acknowledged is in the segment's synced part or in the journal. Readers don't use the journal: they
read the segment, which has everything as long as the machine runs. After a power loss, recovery first copies to
the segment what only the journal has.

A closed log has no journal. One that wasn't closed has extents one after the other, of one round: ::

    | "CLJR" 4 | version 2, u32 | round u64 | segment u64 | offset u64 | count u32 | the bytes |
    | CRC-32C of all before it, u32 | zeros up to a whole block of 4096 |                    all big-endian

So no write touches a block with an earlier extent of the round, which a crash could tear. In version 1 there
are no zeros, and the next extent follows at once. Version 1 is still read, and no longer written.

The round is a random number, a new one each time that the file begins again. Reading stops at an extent of an
older round, and at anything that isn't an extent: a crash may leave part of one that wasn't acknowledged.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from forelog import kernel
from forelog.files import BLOCK_BYTES, File
from forelog.log.directory.directory import Directory
from forelog.log.directory.place import if_there, read_exactly
from forelog.log.directory.segment import SegmentReader

logger = logging.getLogger("forelog")

NAME = "append.journal"
JOURNAL_BYTES = 1 << 20
"""A good size. A full journal has the segment synced, which takes a few milliseconds: once in hundreds of syncs.
"""
_HEAD = struct.Struct(">4sIQQQI")
_FRAME_BYTES = _HEAD.size + 4
_MAGIC = b"CLJR"
_VERSION = 2
_STEP_BYTES = {1: 1, 2: BLOCK_BYTES}
"""By version: extents begin at multiples of this."""
JOURNAL_BYTES_MAX = 1 << 30
_FILL_BYTES = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Extent(NamedTuple):
    """Bytes of a segment, and their place in it."""

    segment: int
    """The segment's number."""
    offset: int
    """Where in it the bytes belong."""
    data: bytes
    """The bytes."""


class Journal:
    """The journal of a log that is open to append. Callers hold the appender's sync lock."""

    def __init__(self, directory: Directory, byte_count: int) -> None:
        """Create the file at its full size; it is on disk when this returns."""
        self._directory = directory
        self._byte_count = byte_count = _whole_blocks(byte_count)
        self._round = 0
        self._segment = 0
        self._place = 0
        # Begins where a page does, as a write past the page cache wants it.
        self._extent = memoryview(mmap.mmap(-1, byte_count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._file: File = directory.files.open_update(journal_path(directory))
        try:
            for place in range(0, byte_count, _FILL_BYTES):
                self._file.write_at(bytes(min(_FILL_BYTES, byte_count - place)), place)
            self._file.sync()
            directory.sync()
        except BaseException:
            self.close()
            raise

    def cover(self, file: File, segment: int, start: int, end: int) -> bool:
        """Put a segment's bytes from `start` to `end` on stable storage. Returns False if there is no room for
        them.

        Everything before `start` is already synced, in the segment or by earlier calls in the journal.
        """
        count = end - start
        size = _whole_blocks(_FRAME_BYTES + count)
        if segment != self._segment:
            self.begin(segment)
        if self._place + size > self._byte_count:
            return False
        extent, checked = self._extent[:size], _HEAD.size + count
        _HEAD.pack_into(extent, 0, _MAGIC, _VERSION, self._round, segment, start, count)
        if file.read_into(extent[_HEAD.size : checked], start) != count:
            return False
        extent[checked : checked + 4] = kernel.crc32c(extent[:checked]).to_bytes(4, "big")
        extent[checked + 4 :] = bytes(size - checked - 4)
        try:
            self._file.write_synced(extent, self._place)
        except OSError as error:
            if error.errno in _NO_ROOM:  # where no place is ever written twice
                return False
            raise
        self._place += size
        return True

    def begin(self, segment: int) -> None:
        """Begin again: the segment has been synced, so nothing in the journal is needed any more."""
        self._segment = segment
        self._round = int.from_bytes(os.urandom(8), "big")
        self._place = 0

    def close(self, *, remove: bool = True) -> None:
        """Close the file, and `remove` it unless it is still needed."""
        self._file.close()
        if remove:
            self._directory.files.remove(journal_path(self._directory))


def open_journal(directory: Directory, byte_count: int) -> Journal | None:
    """Open a journal of this many bytes. Returns None if there is no room for one; then each sync takes longer."""
    try:
        return Journal(directory, byte_count)
    except OSError as error:
        logger.warning("%s: going on without a journal: %s", journal_path(directory), error)
        return None


def restore(directory: Directory) -> int | None:
    """Copy to the last segment what only the journal has. Returns the number of bytes, or None if there is a
    gap.

    It can be repeated, so a crash in the middle does no harm.
    """
    number, extents = _of_last_segment(directory)
    if not extents:
        return None if _is_of_a_segment_that_is_gone(directory) else 0
    with closing(directory.files.open_update(directory.segment_path(number))) as segment:
        # A sync of it may have failed, and left pages that look written: what is on disk counts.
        segment.sync()
        segment.drop_cache()
        if segment.size() < extents[0].offset:
            return None  # synced bytes before them are gone
        lacking = _lacking(segment, extents)
        for extent in lacking:
            segment.write_at(extent.data, extent.offset)
        if lacking:
            segment.sync()
        return sum(len(extent.data) for extent in lacking)


def missing_bytes(directory: Directory) -> int:
    """How many bytes the journal has that the last segment lacks: a power loss took them, and recovery restores
    them."""
    number, extents = _of_last_segment(directory)
    if not extents:
        return 0
    with closing(directory.open_segment(number)) as segment:
        return sum(len(extent.data) for extent in _lacking(segment, extents))


def _lacking(segment: File, extents: list[Extent]) -> list[Extent]:
    """The extents that a segment lacks, or has with other bytes."""
    return [extent for extent in extents if read_exactly(segment, len(extent.data), extent.offset) != extent.data]


def _of_last_segment(directory: Directory) -> tuple[int, list[Extent]]:
    """The last segment, and its extents in the journal. Other segments have been synced since."""
    extents = read_journal(directory)
    numbers = directory.numbers() if extents else []
    if not numbers or extents[0].segment != numbers[-1] or _is_rewritten(directory, numbers[-1]):
        return 0, []
    return numbers[-1], extents


def _is_of_a_segment_that_is_gone(directory: Directory) -> bool:
    """Whether the journal is of a segment that is gone. Then it may have all that is left of that segment."""
    extents = read_journal(directory)
    return bool(extents) and extents[0].segment > max(directory.numbers(), default=0)


def put_away(directory: Directory, kept: str | None = None) -> None:
    """Remove an earlier appender's journal, durably, or keep it under another name."""
    files, path = directory.files, journal_path(directory)
    if files.stat(path) is not None:
        if kept is None:
            files.remove(path)
        else:
            files.rename(path, kept)
        directory.sync()


def read_journal(directory: Directory) -> list[Extent]:
    """The extents in the journal of a log, in order; none if there is no journal."""
    with if_there(directory.files.open_read, journal_path(directory)) as file:
        if file is None:
            return []
        file.drop_cache()
        return list(_extents(read_exactly(file, min(file.size(), JOURNAL_BYTES_MAX), 0)))


def _extents(data: bytes) -> Iterator[Extent]:
    place = 0
    before: tuple[int, int, int, int] | None = None
    while len(data) - place >= _FRAME_BYTES:
        magic, version, number, segment, offset, count = _HEAD.unpack_from(data, place)
        end = place + _HEAD.size + count
        if (
            magic != _MAGIC
            or version not in _STEP_BYTES
            or end + 4 > len(data)
            or before not in (None, (version, number, segment, offset))
        ):
            return
        if int.from_bytes(data[end : end + 4], "big") != kernel.crc32c(data[place:end]):
            return
        yield Extent(segment, offset, data[place + _HEAD.size : end])
        before = version, number, segment, offset + count
        place = end + 4 + -(end + 4) % _STEP_BYTES[version]


def _whole_blocks(byte_count: int) -> int:
    return byte_count + -byte_count % BLOCK_BYTES


def _is_rewritten(directory: Directory, number: int) -> bool:
    """Whether cleaning has moved a segment's records. Then it was sealed, and the segments after it are gone."""
    with closing(SegmentReader(directory, number)) as reader:
        return reader.rewritten


def journal_path(directory: Directory) -> str:
    """Where a log's journal is."""
    return f"{directory.path}/{NAME}"
