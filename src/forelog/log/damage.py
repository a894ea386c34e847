"""Decide what is wrong where bytes aren't a record: a torn tail or damage. And find the next record."""

from __future__ import annotations

from forelog.kernel.types import END, NEED_MAX, TIME_MIN, TRUNCATED
from forelog.log.directory.end import boot_digest
from forelog.log.directory.place import read_exactly
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.watermark import Mark, read_mark
from forelog.log.seek import hop

BLOCK_BYTES = 1 << 20
BLOCK_ROWS = 16_384
_PROBE_BYTES = 1 << 16  # how far ahead a search for the next good record looks at first
_SEARCH_BYTES = 64 << 20  # and then at once


def is_boundary(reader: SegmentReader, place: int) -> bool:
    """Whether the records before a place end exactly there."""
    return place == reader.header_bytes or hop(reader, reader.header_bytes, reader.size, place) == place


def is_torn(reader: SegmentReader, place: int, mark: Mark | None) -> bool:
    """Whether a defect in the last segment is a torn tail, and not damage to what had been synced.

    The mark must have been read before the defect was last looked at.
    """
    if mark is not None:
        if mark.segment > reader.number or (mark.segment == reader.number and place < mark.offset):
            return False
        if mark.boot != boot_digest(reader.directory.files.boot_id()):
            return True  # power was lost: what was not synced may have got to the disk in any order
    # Since this boot, or by another program: torn only if nothing good comes after it.
    return resync(reader, place) >= reader.size


def header_is_torn(reader: SegmentReader) -> bool:
    """Whether a bad header of the last segment is what a crash left of a segment that was being created."""
    if reader.size < reader.header_bytes:
        return True
    mark = read_mark(reader.directory)
    if mark is not None:
        # The header is synced before the first record is written: with records behind it, it isn't torn.
        return mark.segment < reader.number and reader.size == reader.header_bytes
    return reader.header_blank and resync(reader, 0) >= reader.size


def resync(reader: SegmentReader, place: int) -> int:
    """The physical offset of the next record after damage at `place`; the segment's end if there is none."""
    fmt = reader.directory.format
    for reach in (_PROBE_BYTES, _SEARCH_BYTES):  # mostly the next record is near: look there first
        window = read_exactly(reader.file, max(min(reach, reader.size - place), 0), place)
        # The damaged record's own length may still be right. Trusting it first keeps what its payload
        # contains, which could be records too, from being taken for the log's.
        after, reason, need = fmt.hop(window, 0, len(window), 1, TIME_MIN)
        if place + after == reader.size:
            return reader.size
        if after == 0 and reason == TRUNCATED and need < NEED_MAX and need > reader.size - place:
            after = need  # it would end past the end of the file, where nobody knows exactly
            break
        if reason not in (END, TRUNCATED) and after < len(window):
            probe = fmt.scan(window, after, len(window), 0, 1)
            if probe.reason == TRUNCATED and probe.need <= reader.size - place - after:
                want = min(probe.need + fmt.record_tail_bytes_max, reader.size - place - after)
                window = read_exactly(reader.file, want, place + after)  # a record larger than the window
                probe = fmt.scan(window, 0, len(window), 0, 1)
            if probe.offsets:
                return place + after
            break
    found = _search(reader, place)
    if place + after > reader.size and not _chain_ends(reader, found):
        # A record that the file is too short for, with records in it: its payload's, not the log's.
        return reader.size
    return found


def _chain_ends(reader: SegmentReader, place: int) -> bool:
    """Whether valid records follow each other from a place exactly to the segment's end."""
    need = 0
    while place < reader.size:
        window = read_exactly(reader.file, min(max(BLOCK_BYTES, need), reader.size - place), place)
        scan = reader.directory.format.scan(window, 0, len(window), 0, BLOCK_ROWS)
        if not scan.offsets and (scan.reason != TRUNCATED or scan.need > reader.size - place):
            return False
        need = 0 if scan.offsets else scan.need + reader.directory.format.record_tail_bytes_max
        place += scan.end
    return True


def _search(reader: SegmentReader, place: int) -> int:
    """Look for a record at every byte after `place`, first nearby, then further."""
    fmt = reader.directory.format
    window = read_exactly(reader.file, min(_PROBE_BYTES, reader.size - place), place)
    final = place + len(window) == reader.size
    found = fmt.find(window, 1, len(window), final) if len(window) > 1 else -1
    if found >= 0 or final:
        return place + found if found >= 0 else reader.size
    window = read_exactly(reader.file, min(_SEARCH_BYTES, reader.size - place), place)
    final = place + len(window) == reader.size
    while True:
        found = fmt.find(window, 1, len(window), final) if len(window) > 1 else -1
        if found >= 0:
            return place + found
        if final:
            return reader.size
        place += max(len(window) - (1 << 20), 1)
        window = read_exactly(reader.file, min(_SEARCH_BYTES, reader.size - place), place)
        final = place + len(window) == reader.size
