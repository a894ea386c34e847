"""The segment that is appended to, and how a new one is made."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass

from forelog.errors import LogFull
from forelog.files import File, write_all
from forelog.log.directory.directory import Directory
from forelog.log.directory.index import IndexBuilder

_NEW = "append.new"


class HalfMadeSegment(OSError):
    """Starting a segment failed, and the segment may exist. So nothing may be appended to the one before it."""


@dataclass(slots=True)
class Tail:
    """The segment that is appended to."""

    number: int
    """The number of the segment."""
    file: File
    """The segment's file, open to append."""
    offset: int
    """Where the segment ended when it was opened."""
    index: IndexBuilder
    """The index of the segment, which grows with it."""
    records: int
    """How many records the segment held when it was opened."""
    time_ns: int
    """Records that are appended have this time or a later one."""


def check_number(directory: Directory, number: int) -> None:
    """Raise if a segment's number can't be in a file name."""
    if number > directory.format.segment_number_max:
        raise LogFull(f"{directory.path}: segment {number - 1} was the last that a name can hold")


def create_segment(directory: Directory, number: int, time_ns: int) -> Tail:
    """Start a segment. Its header and its directory entry are on disk when this returns.

    It gets its name only when its header is complete, so a reader may rely on every segment that it sees.
    """
    check_number(directory, number)
    path, new = directory.segment_path(number), f"{directory.path}/{_NEW}"
    files, header = directory.files, directory.format.header()
    there = files.stat(path)
    if there is not None and there[0] > len(header):
        raise FileExistsError(errno.EEXIST, "another program has begun this segment", path)
    file = files.open_append(new)
    try:
        file.truncate(0)  # what an attempt that failed in the middle may have left
        write_all(file, header)
        file.sync()
        files.rename(new, path)
    except BaseException:
        file.close()
        with contextlib.suppress(OSError):
            files.remove(new)
        raise
    try:
        directory.sync()
    except OSError as error:
        file.close()
        raise HalfMadeSegment(error.errno, f"{error.strerror}: a segment may be there or not", path) from error
    return Tail(number, file, directory.format.header_bytes, IndexBuilder(number), 0, time_ns)
