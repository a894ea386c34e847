"""Find the log at a path, and its format, by the names and first bytes of its segments."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from forelog.errors import LogNotFound
from forelog.files import Files
from forelog.formats import Format, detect, named_format
from forelog.log.directory.directory import Directory, segments_elsewhere
from forelog.log.directory.place import if_there, read_exactly

_FOLDERS_LOOKED_AT = 100
_HEADERS_COMPARED = 16


def find_log(files: Files, path: str) -> Directory:
    """The log at a path, or in the folder that its format has there; LogNotFound if there is none."""
    probe = Directory(files, path, named_format())
    numbers = probe.numbers()
    other = None if numbers else segments_elsewhere(files, path, probe.format)
    if other is not None:
        return Directory(files, other[1], other[0])
    formats = _formats(probe, numbers)
    while numbers and not formats and not probe.has(numbers[-1]):
        numbers = probe.numbers()  # all that were listed are gone, and others there
        formats = _formats(probe, numbers)
    if formats:
        # The most common one: a damaged header must not make strangers of all the others.
        return Directory(files, path, formats.most_common(1)[0][0])
    if numbers:
        return probe
    if inside := _logs_inside(files, path):  # as in what a broker keeps
        raise LogNotFound(f"there are no segments in {path}, but in {' and in '.join(inside)}: open one of these")
    raise LogNotFound(
        f"there are no segments in {path}: expected files such as 000000001.log, commitlog-0-0.db or "
        "20261115T183000.123456789Z.dat"
    )


def _formats(probe: Directory, numbers: list[int]) -> Counter[Format]:
    """For each format, how many of the first segments are of it."""
    formats: Counter[Format] = Counter()
    for number, head in islice(_heads(probe, numbers), _HEADERS_COMPARED):
        if len(head) >= probe.format.header_bytes and any(head):
            formats[detect(probe.segment_name(number), head)] += 1
    return formats


def _heads(directory: Directory, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
    """The first bytes of each segment. Segments that a cleaner has removed since they were listed are left out."""
    for number in numbers:
        with if_there(directory.open_segment, number) as file:
            head = None if file is None else read_exactly(file, 16, 0)
        if head is not None:
            yield number, head


def _logs_inside(files: Files, path: str) -> list[str]:
    """The folders right below this one that have segments, as far as that can be found quickly."""
    found = []
    for name in sorted(files.list_dir(path))[:_FOLDERS_LOOKED_AT]:
        folder = Directory(files, f"{path}/{name}", named_format())
        with contextlib.suppress(OSError, LogNotFound):
            if folder.numbers() or segments_elsewhere(files, folder.path, folder.format):
                found.append(folder.path)
    return found
