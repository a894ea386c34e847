"""A log that is made from another one.

It is written beside its place with a `SegmentWriter`, synced, and read back in full. Only then it is moved there.
So a log in that place is complete, and after an error nothing is left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from forelog.errors import ForelogError
from forelog.files import Files, built_beside, in_the_way
from forelog.log.directory.directory import READ_LOCK, Directory
from forelog.log.directory.segment import SegmentWriter
from forelog.log.stream import PathLike, SegmentInfo, Stream
from forelog.log.verify import verify
from forelog.log.walk import Progress


class Reached:
    """Reports how far a log has been read, in bytes of all its segments."""

    def __init__(self, infos: Iterable[SegmentInfo], progress: Progress | None) -> None:
        sizes = {info.number: info.byte_count for info in infos}
        self._total = sum(sizes.values())
        self._before = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self._progress = progress

    def __call__(self, segment: int, physical_offset: int) -> None:
        if self._progress is not None:
            before = self._before.get(segment, self._total)
            self._progress(min(before + physical_offset, self._total), self._total)


def free_place(
    files: Files, path: PathLike, what: str, *, taken: type[ForelogError], left: type[ForelogError]
) -> tuple[str, str]:
    """The place of a new log, and the directory beside it to write it in. Raises if one of them isn't free."""
    place = os.path.normpath(os.fspath(path))
    if in_the_way(files, place):
        raise taken(f"{os.fspath(path)} is there already and not empty: a {what} makes a new log")
    part = f"{place}.part"
    if in_the_way(files, part, or_empty=True):
        raise left(f"{part} is there already: an interrupted {what} left it. Remove it first")
    return place, part


@contextlib.contextmanager
def made_log(
    directory: Directory,
    place: str,
    part: str,
    failed: Callable[[str], ForelogError],
    count: Callable[[Stream], tuple[int, list[str]]] | None = None,
) -> Iterator[SegmentWriter]:
    """For writing a log to `directory`, which is `part` or below it. When the block ends it is checked, and moved.

    `failed` makes an error of what is wrong with the bytes on the disk. `count` reads a log in a format whose
    records aren't what is written: it returns the number of its items, and what is wrong with them.
    """
    files, writer = directory.files, SegmentWriter(directory)
    with built_beside(files, place, part), contextlib.closing(writer):
        files.make_dir(directory.path)
        yield writer
        writer.finish()
        stream = Stream(directory.path, format=directory.format, files=files)
        report = verify(stream)
        found, more = (report.records, []) if count is None else count(stream)
        files.remove(f"{directory.path}/{READ_LOCK}")
        problems = report.problems() + more
        if not problems and found != writer.records:
            problems = [f"{found} of {writer.records} records are there"]
        if problems:
            raise failed(problems[0])
