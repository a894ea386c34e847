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
from forelog.log.directory.segments import read_exactly
from forelog.log.position import Position

__all__ = [
    "REPLACED",
    "SNAPSHOT",
    "Resume",
    "Snapshot",
    "Whole",
    "read_file",
    "read_snapshot",
    "replace_file",
    "stamp_snapshot",
    "write_snapshot",
]

logger = logging.getLogger("forelog")

SNAPSHOT = "snapshot"
REPLACED = "snapshot.old"


class Snapshot(NamedTuple):
    """Where a whole generation begins, and the position after its commit."""

    begin: Position
    end: Position


class Whole(NamedTuple):
    """What a snapshot file says."""

    snapshot: Snapshot
    sequence: int
    """The copy's number among those of the log: the highest one is the newest."""
    term: int
    """The term whose history it is."""


class Resume(NamedTuple):
    """Up to where a copy has everything, and the last bytes before that."""

    position: Position
    tail: bytes


def read_snapshot(files: Files, folder: str) -> Whole | None:
    """What a copy's snapshot file says; None if it isn't whole."""
    path = f"{folder}/{SNAPSHOT}"
    if files.stat(path) is None:
        return None
    try:
        found = json.loads(read_file(files, path))
        snapshot = Snapshot(Position.parse(found["begin"]), Position.parse(found["end"]))
        return Whole(snapshot, int(found["sequence"]), int(found["term"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        logger.warning("%s is damaged (%s): the copy counts as not whole, and is made again", path, error)
        return None


def stamp_snapshot(files: Files, folder: str, term: int) -> None:
    """A whole copy that isn't open is the history of this term from now on."""
    found = read_snapshot(files, folder)
    if found is not None and found.term != term:
        write_snapshot(files, folder, found._replace(term=term))


def write_snapshot(files: Files, folder: str, whole: Whole) -> None:
    (begin, end), sequence, term = whole
    text = json.dumps({"begin": str(begin), "end": str(end), "sequence": sequence, "term": term})
    replace_file(files, folder, SNAPSHOT, text.encode())


def read_file(files: Files, path: str) -> bytes:
    """All of a small file."""
    file = files.open_read(path)
    try:
        return read_exactly(file, min(file.size(), 4096), 0)
    finally:
        file.close()


def replace_file(files: Files, folder: str, name: str, data: bytes) -> None:
    """A small file, all of it or as it was."""
    new = f"{folder}/{name}.new"
    files.remove(new)
    with removed_on_failure(files, new):
        with contextlib.closing(files.open_append(new)) as file:
            write_all(file, data)
            file.sync()
        files.rename(new, f"{folder}/{name}")
    files.sync_dir(folder)
