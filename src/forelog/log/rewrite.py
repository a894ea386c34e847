"""Replace a sealed segment by one with fewer records. A crash at any point loses nothing.

::

    write NAME.log.rw, sync it        the surviving records, byte for byte
    write NAME.SIZE.map, sync it      with the runs that keep positions valid
    sync the directory
    rename NAME.log.rw to NAME.log    the only moment at which anything changes
    sync the directory
    remove the index or map of the old size

Before the rename the old segment and its index are in place, after it the new ones. A crash may also leave a
.rw file, or an index or map that fits no segment. Everybody ignores these, and the next cleaning removes them.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable

from forelog import kernel
from forelog.files import removed_on_failure, write_all
from forelog.formats import Block
from forelog.log.directory.directory import Directory
from forelog.log.directory.index import IndexBuilder, index_name, indexed_bytes, map_name, write_index
from forelog.log.directory.place import read_exactly
from forelog.log.directory.removed import note_removal
from forelog.log.directory.segment import SegmentReader


def rewrite_path(directory: Directory, number: int) -> str:
    return f"{directory.segment_path(number)}.rw"


def rewrite_segment(
    directory: Directory, number: int, blocks: Iterable[tuple[Block, bytearray]], logical_end: int
) -> int:
    """Keep only the marked records of a segment. Returns its new size in bytes."""
    files = directory.files
    old_bytes = directory.segment_bytes(number) or 0
    path = rewrite_path(directory, number)
    files.remove(path)
    builder = IndexBuilder(number)
    runs: array[int] = array("q")
    with removed_on_failure(files, path), contextlib.closing(files.open_append(path)) as file:
        write_all(file, directory.format.header())
        place = expected = directory.format.header_bytes
        out = bytearray()
        for block, keep in blocks:
            scan = block.scan
            size = scan.end - (scan.offsets[0] - block.base)
            if len(out) < size:
                out = bytearray(size)
            count = kernel.compact(block.buffer, scan.offsets, block.base, scan.end, keep, out)
            write_all(file, memoryview(out)[:count])
            place, expected = kernel.kept_runs(
                block.offsets, scan.offsets, block.base + scan.end, keep, place, expected, runs
            )
            builder.add(kernel.select(block.offsets, keep), kernel.select(scan.times, keep))
        file.sync()
        assert file.size() == place, "the rewritten segment has another size than its map says"
        tail = read_exactly(file, 4, place - 4)
    index = builder.build(place, logical_end, tail, runs)
    with removed_on_failure(files, path):
        write_index(files, directory.map_path(number, place), index, sync=True)
        directory.sync()
        files.rename(path, directory.segment_path(number))
    directory.sync()
    files.remove(directory.index_path(number, old_bytes))
    if old_bytes != place:
        files.remove(directory.map_path(number, old_bytes))
    return place


def remove_segment(directory: Directory, number: int) -> None:
    """Remove a segment, and then its index or map. Where it ended is noted before."""
    note_removal(directory, number)
    path = directory.segment_path(number)
    found = directory.files.stat(path)
    directory.files.remove(path)
    directory.sync()
    if found is not None:
        directory.files.remove(directory.index_path(number, found[0]))
        directory.files.remove(directory.map_path(number, found[0]))


def remove_stale_indexes(directory: Directory, number: int, physical_bytes: int | None) -> None:
    """Remove the indexes and maps of a segment that are for other sizes."""
    name = directory.segment_name(number)
    for other in directory.names():
        if indexed_bytes(other, name) not in (None, physical_bytes):
            directory.files.remove(f"{directory.path}/{other}")


def sweep(directory: Directory) -> list[str]:
    """Remove what an interrupted rewrite left. The caller holds the read lock alone.

    If no index fits the segment's present size, an index for an earlier size stays: it shows that another
    program has rewritten the segment (foreign.py).
    """
    removed = []
    names = set(directory.names())
    for name in sorted(names):
        number = directory.owner(name)
        if number is None:
            continue
        segment_name = directory.segment_name(number)
        if name == f"{segment_name}.rw":
            removed.append(name)
        elif (indexed := indexed_bytes(name, segment_name)) is not None:
            size = directory.segment_bytes(number)
            fits = size is not None and not names.isdisjoint(
                (index_name(segment_name, size), map_name(segment_name, size))
            )
            if size is None or (size != indexed and (fits or indexed < size)):
                removed.append(name)
    for name in removed:
        directory.files.remove(f"{directory.path}/{name}")
    return removed


def logical_end_of(directory: Directory, number: int) -> int:
    """The logical offset of a segment's end."""
    with contextlib.closing(SegmentReader(directory, number)) as reader:
        return reader.end()
