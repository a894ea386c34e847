"""What an address means: a target to keep a copy at, or a directory to read one from.

address                     a copy is kept there by          and read back from
a path, file:///PATH        DirectoryTarget (targets.py)     the directory, or the whole replica in it
replica://HOST:PORT/LOG     ServerTarget (targets.py)        the directory that the server keeps
any URL that fsspec knows   StoreTarget (store/target.py)    a temporary directory, fetched (store/fetch.py)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from forelog.copies.shipping import Owner, Target
from forelog.copies.slots import SLOTS, directory_of, refuse_a_log
from forelog.copies.store.fetch import fetch
from forelog.copies.store.target import StoreTarget
from forelog.copies.targets import DirectoryTarget, ServerTarget
from forelog.copies.wire import parse_address
from forelog.files import OSFiles, disk


def make_target(
    where: str | os.PathLike[str],
    owner: Owner,
    *,
    synced: bool,
    token: str | bytes | None = None,
    tls: ssl.SSLContext | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    mode: int | None = None,
) -> Target:
    """The target at an address."""
    where = os.fspath(where)
    scheme = _scheme(where)
    if mode is not None and scheme not in ("", "file"):
        raise ValueError(f"{where}: mode is for directories")
    if scheme == "replica":
        return ServerTarget(parse_address(where), owner, synced=synced, token=token, tls=tls)
    if token is not None or tls:
        raise ValueError(f"{where}: token and tls are for replica://")
    if scheme in ("", "file"):
        path = _local_path(where)
        _check_directory(path, owner.path)
        return DirectoryTarget(path, owner, synced=synced, files=disk(None, mode))
    return StoreTarget(where, owner, storage_options)


@contextlib.contextmanager
def source_directory(
    source: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    beside: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[str]:
    """A directory with the log of a source, until the block ends.

    A copy in an object store is fetched into a temporary directory, next to `beside` if that is given, and removed
    at the end.
    """
    where = os.fspath(source)
    scheme = _scheme(where)
    if scheme in ("", "file"):
        if storage_options:
            raise ValueError(f"{where}: storage_options are for URLs that fsspec knows")
        yield directory_of(_local_path(where))
        return
    if scheme == "replica":
        raise ValueError(f"{where}: a replica server can't be restored from. Use the directory that it keeps")
    folder = None if beside is None else os.path.dirname(os.path.abspath(os.fspath(beside)))
    temporary = tempfile.mkdtemp(prefix="forelog-fetched-", dir=folder)
    try:
        fetch(where, f"{temporary}/log", storage_options, progress=progress)
        yield f"{temporary}/log"
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _scheme(where: str) -> str:
    """The scheme of a URL; empty for a path."""
    return urlsplit(where).scheme if "://" in where else ""


def _local_path(where: str) -> str:
    return unquote(urlsplit(where).path) if where.startswith("file://") else where


def _check_directory(path: str, log: str) -> None:
    """Raise if a directory can never hold a copy of the log. A disk that is away is no error: it may come back."""
    if not path:
        raise ValueError("a destination is a directory or a URL, and this one is empty: say where the copy goes")
    place, own = os.path.realpath(path), os.path.realpath(log)
    if own == place or own in [f"{place}/{slot}" for slot in SLOTS]:
        raise ValueError(f"{path} is where the log itself is: choose another directory for the copy")
    if place.startswith(f"{own}/"):
        raise ValueError(f"{path} is inside of the log itself: choose another directory for the copy")
    if os.path.isfile(place):
        raise ValueError(f"{path} is a file: a copy is kept in a directory")
    refuse_a_log(path, OSFiles())
