"""The file that says which snapshot a replica has: only a whole replica has one.

::

    {"begin": "000000007:8", "end": "000000007:60", "sequence": 2, "term": 1}

`begin` and `end` are the positions of the last whole generation. `sequence` is the replica's number among those of
the log: the highest one is the newest. `term` is that of the log whose history it is.
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import NamedTuple

from forelog.files import Files, removed_on_failure, write_all
from forelog.log.directory.place import read_exactly
from forelog.log.position import Position

logger = logging.getLogger("forelog")

SNAPSHOT = "snapshot"
REPLACED = "snapshot.old"


class Snapshot(NamedTuple):
    """A whole generation."""

    begin: Position
    """Where the generation begins."""
    end: Position
    """The position after the generation's commit."""


class Whole(NamedTuple):
    """The content of a snapshot file."""

    snapshot: Snapshot
    """The last whole generation."""
    sequence: int
    """The number of the replica: the highest one of a log is the newest."""
    term: int
    """The term of the history that the replica has."""


class Resume(NamedTuple):
    """The end of a copy, where its log resumes sending."""

    position: Position
    """The copy has everything up to this position."""
    tail: bytes
    """The last bytes before that position."""


def read_snapshot(files: Files, folder: str) -> Whole | None:
    """Read the snapshot file of a replica; None if there is none: then the replica isn't whole."""
    path = f"{folder}/{SNAPSHOT}"
    if files.stat(path) is None:
        return None
    try:
        found = json.loads(read_file(files, path))
        snapshot = Snapshot(Position.parse(found["begin"]), Position.parse(found["end"]))
        return Whole(snapshot, int(found["sequence"]), int(found["term"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        logger.warning("%s is damaged (%s): the copy counts as not whole, and a new one is made", path, error)
        return None


def stamp_snapshot(files: Files, folder: str, term: int) -> None:
    """Set the term of a whole replica that isn't open."""
    found = read_snapshot(files, folder)
    if found is not None and found.term != term:
        write_snapshot(files, folder, found._replace(term=term))


def write_snapshot(files: Files, folder: str, whole: Whole) -> None:
    """Write or replace the snapshot file of a replica."""
    (begin, end), sequence, term = whole
    text = json.dumps({"begin": str(begin), "end": str(end), "sequence": sequence, "term": term})
    replace_file(files, folder, SNAPSHOT, text.encode())


def read_file(files: Files, path: str) -> bytes:
    """The content of a small file."""
    with contextlib.closing(files.open_read(path)) as file:
        return read_exactly(file, min(file.size(), 4096), 0)


def replace_file(files: Files, folder: str, name: str, data: bytes) -> None:
    """Write a small file in one step: after a crash it has the old content or the new one."""
    new = f"{folder}/{name}.new"
    files.remove(new)
    with removed_on_failure(files, new):
        with contextlib.closing(files.open_append(new)) as file:
            write_all(file, data)
            file.sync()
        files.rename(new, f"{folder}/{name}")
    files.sync_dir(folder)
