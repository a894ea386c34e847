"""Where removed segments ended: the file `removed.ends`.

A reader stores a position at the end of a segment. Later retention removes that segment. Has the reader missed
records? The position alone doesn't tell, because the segment may have grown after the reader stored it. So
whatever removes a segment first notes here where the segment ended, and which segment follows it.

Each entry has 32 bytes, in big-endian order. If a segment has several, the last one counts. ::

    "GONE" 4 | segment u64 | logical end u64 | following segment u64 | CRC-32C u32

The entry is synced before the segment is removed. An entry of a segment that still exists means nothing. Without
an entry, a removed segment counts as unread. So does one that another program removed.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> with stream.appender() as log:
...     _ = log.append(b"one")
...     _ = log.roll()
>>> note_removal(stream.directory, 1)
>>> read_removed(stream.directory)
{1: Removed(end=31, following=2)}
"""

from __future__ import annotations

import logging
import struct
from contextlib import closing
from typing import NamedTuple

from forelog import kernel
from forelog.errors import ForelogError
from forelog.files import removed_on_failure, write_all
from forelog.log.directory.directory import Directory
from forelog.log.directory.place import read_exactly
from forelog.log.directory.segment import SegmentReader

logger = logging.getLogger("forelog")

NAME = "removed.ends"
_LAYOUT = struct.Struct(">4sQQQ")
_ENTRY_BYTES = _LAYOUT.size + 4
_MAGIC = b"GONE"
_KEPT = 4096
"""How many entries of the latest segments stay when the file is shortened: when it has twice as many."""


class Removed(NamedTuple):
    """What is known of a removed segment."""

    end: int
    """The logical offset of the segment's end."""
    following: int
    """The number of the segment that followed."""


def note_removal(directory: Directory, number: int) -> None:
    """Note that a segment is about to be removed. The note is on stable storage when this returns.

    Retention may be what frees a full disk. So if the note can't be written, a warning says so, and readers that
    stopped at the end of that segment report lost records.
    """
    try:
        following = directory.following(number)
        if following is None:
            return
        with closing(SegmentReader(directory, number)) as reader:
            if reader.map_damaged or (reader.index is not None and reader.index.foreign_end):
                return  # nobody knows where it ended
            end = reader.end()
        _append(directory, _encode(number, Removed(end, following)))
    except (OSError, ForelogError) as error:
        logger.warning("%s/%s: no note of the end of segment %d: %s", directory.path, NAME, number, error)


def read_removed(directory: Directory) -> dict[int, Removed]:
    """The noted segments by number, also those that still exist."""
    path = f"{directory.path}/{NAME}"
    try:
        file = directory.files.open_read(path)
    except FileNotFoundError:
        return {}
    with closing(file):
        return _decode(read_exactly(file, min(file.size(), 4 * _KEPT * _ENTRY_BYTES), 0))


def _append(directory: Directory, entry: bytes) -> None:
    files, path = directory.files, f"{directory.path}/{NAME}"
    if files.stat(path) is None:
        files.open_append(path).close()
        directory.sync()
    with closing(files.open_append(path)) as file:
        size = file.size()
        if size % _ENTRY_BYTES:
            file.truncate(size - size % _ENTRY_BYTES)  # a crash left part of an entry
        write_all(file, entry)
        file.sync()
    if size >= 2 * _KEPT * _ENTRY_BYTES:
        _shorten(directory, path)


def _shorten(directory: Directory, path: str) -> None:
    """Keep the entries of the latest segments alone, in one step."""
    files, new = directory.files, f"{path}.new"
    latest = sorted(read_removed(directory).items())[-_KEPT:]
    files.remove(new)
    with removed_on_failure(files, new):
        with closing(files.open_append(new)) as file:
            write_all(file, b"".join(_encode(number, entry) for number, entry in latest))
            file.sync()
        files.rename(new, path)
    directory.sync()


def _encode(number: int, entry: Removed) -> bytes:
    body = _LAYOUT.pack(_MAGIC, number, entry.end, entry.following)
    return body + kernel.crc32c(body).to_bytes(4, "big")


def _decode(data: bytes) -> dict[int, Removed]:
    found = {}
    for place in range(0, len(data) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
        body, check = data[place : place + _LAYOUT.size], data[place + _LAYOUT.size : place + _ENTRY_BYTES]
        magic, number, end, following = _LAYOUT.unpack(body)
        if magic == _MAGIC and int.from_bytes(check, "big") == kernel.crc32c(body) and following > number:
            found[number] = Removed(end, following)
    return found
