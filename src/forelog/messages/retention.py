"""Remove files of a log of messages: whole files, oldest first, by age and by size.

No file is read: the name of the next file is a time later than all messages of a file. The last file, which is
being written, always stays. So do files that a reader still needs, unless `force` is given. Then it is logged
what the reader loses.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import pairwise

from forelog.log.directory.directory import Directory
from forelog.log.position import Position
from forelog.log.rewrite import remove_segment
from forelog.log.stream import Stream

logger = logging.getLogger("forelog")


@dataclass(slots=True)
class Retained:
    """The result of a run of retention."""

    removed: list[str] = field(default_factory=list)
    """The files that were removed."""
    removed_bytes: int = 0
    """How many bytes the removed files had."""
    kept: list[str] = field(default_factory=list)
    """Files that are too old or too many, and still needed."""
    forced: list[str] = field(default_factory=list)
    """Removed files that were still needed."""


def retain(
    stream: Stream,
    *,
    before_ns: int | None = None,
    keep_bytes: int | None = None,
    keep_from: Position | None = None,
    force: bool = False,
    timeout: float | None = None,
) -> Retained:
    """Remove files whose messages are all older than `before_ns`, and the oldest beyond `keep_bytes`.

    At least `keep_bytes` stay, because the file in which that limit falls is kept. A file with messages from
    `keep_from` on stays, and so do the files after it, unless `force` is given. Waits up to `timeout` seconds
    until nobody reads.
    """
    directory = stream.directory
    done = Retained()
    with directory.read_lock(exclusive=True, timeout=timeout):
        for number, following, size in _due(directory, before_ns, keep_bytes):
            path = directory.segment_path(number)
            needed = keep_from is not None and keep_from < Position(following, 0)
            if (needed and not force) or done.kept:
                done.kept.append(path)
                continue
            remove_segment(directory, number)
            done.removed.append(path)
            done.removed_bytes += size
            if needed:
                done.forced.append(path)
    if done.forced:
        logger.warning(
            "%s: removed %d files from %s on, although messages from %s on are still needed: they are lost to "
            "whoever hadn't read them",
            directory.path,
            len(done.forced),
            done.forced[0],
            keep_from,
        )
    stream.metrics.add(segments_removed=len(done.removed), bytes_cleaned=done.removed_bytes)
    return done


def _due(directory: Directory, before_ns: int | None, keep_bytes: int | None) -> list[tuple[int, int, int]]:
    """The files that are too old or beyond the size, each with the number of the next file, and its size."""
    numbers = directory.numbers()
    sizes = {number: directory.segment_bytes(number) or 0 for number in numbers}
    total = sum(sizes.values())
    due = []
    for number, following in pairwise(numbers):
        old = before_ns is not None and following <= before_ns
        beyond = keep_bytes is not None and total - sizes[number] >= keep_bytes
        if not old and not beyond:
            break
        due.append((number, following, sizes[number]))
        total -= sizes[number]
    return due
