"""Whatever a state can be restored from, as a directory to read.

A log's own directory, that of a destination or a replica's log (copies.py), which has a whole copy in one of two
slots, or a URL that fsspec knows, which is fetched first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from forelog.copies.slots import SLOTS, whole_slot
from forelog.errors import ReplicaError

__all__ = ["directory_of", "is_remote", "source_directory"]


def is_remote(source: str) -> bool:
    """Whether that is a URL to be fetched from."""
    return "://" in source and urlsplit(source).scheme != "file"


@contextlib.contextmanager
def source_directory(
    source: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    beside: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[str]:
    """The directory of a log that has what the source has, while the block lasts.

    What is fetched lies beside `beside` meanwhile, or where temporary files do, and is removed then.
    """
    where = os.fspath(source)
    if not is_remote(where):
        if storage_options:
            raise ValueError(f"{where}: storage_options are for URLs that fsspec knows")
        yield directory_of(unquote(urlsplit(where).path) if where.startswith("file://") else where)
        return
    if urlsplit(where).scheme == "replica":
        raise ValueError(f"{where}: a replica isn't restored from over its port. Use the directory that it keeps")
    from forelog.copies.store.fetch import fetch  # only who uses it needs fsspec

    folder = None if beside is None else os.path.dirname(os.path.abspath(os.fspath(beside)))
    temporary = tempfile.mkdtemp(prefix="forelog-fetched-", dir=folder)
    try:
        fetch(where, f"{temporary}/log", storage_options, progress=progress)
        yield f"{temporary}/log"
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def directory_of(path: str) -> str:
    """The directory of a log: the path itself, or the whole one of the copies there."""
    if not all(os.path.isdir(f"{path}/{slot}") for slot in SLOTS):
        return path
    slot = whole_slot(path)
    if slot is None:
        raise ReplicaError(f"{path} has no whole copy of a state log: the first one was never finished")
    return slot
