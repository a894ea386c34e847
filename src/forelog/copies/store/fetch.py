"""From a copy elsewhere to a log here.

Each part is checked against its manifest, and each record in it, before it is written. The log is made beside its
place, synced, and only then put there: a log that is there is whole. The copy is only read.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from forelog import kernel
from forelog.copies.identity import Identity
from forelog.copies.mirror import FORMAT, Mirror, Snapshot
from forelog.copies.store.manifest import FOLDER, Manifest, Part, named_manifests, newest
from forelog.copies.store.storage import Storage
from forelog.errors import BadFrame, ReplicaError
from forelog.files import Files, built_beside, disk, in_the_way
from forelog.log.directory.directory import Directory
from forelog.log.position import Position

__all__ = ["Fetched", "fetch"]

logger = logging.getLogger("forelog")

ATTEMPTS = 3  # the copy may be replaced while it is read


class Fetched(NamedTuple):
    """What a fetch got."""

    path: str
    manifest: str
    """The name of the manifest that it is from."""
    identity: Identity
    """Whose log it is, and the epoch of who wrote the copy."""
    snapshot: Snapshot
    position: Position
    """Where it ends."""
    byte_count: int


def fetch(
    where: str,
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
    files: Files | None = None,
    mode: int | None = None,
) -> Fetched:
    """Make a new state log at `path`, which must not exist or be empty, of the copy at a URL.

    `progress` is called with the bytes that are there, and how many there will be. To go on as the primary, open
    the log with `promote=True`: whoever wrote before is refused from then on wherever this one writes.
    """
    files = disk(files, mode)
    place = os.path.normpath(os.fspath(path))
    if in_the_way(files, place):
        raise ReplicaError(f"{os.fspath(path)} is there already and not empty: fetching makes a new log")
    storage = Storage(where, storage_options)
    storage.open()
    try:
        for attempt in range(1, ATTEMPTS + 1):
            manifest = _newest(storage)
            try:
                _make(storage, manifest, place, files, progress)
            except FileNotFoundError as error:
                if attempt == ATTEMPTS:
                    raise ReplicaError(f"{storage.where} changes faster than it can be read: {error}") from error
                logger.info("%s was replaced while it was read: once more", storage.where)
            else:
                break
    finally:
        storage.close()
    return Fetched(
        os.fspath(path), manifest.name, manifest.identity, manifest.snapshot, manifest.position, manifest.length
    )


def _newest(storage: Storage) -> Manifest:
    listed = named_manifests(storage.sizes())
    found = newest(storage, listed, storage.sizes(FOLDER))
    if not found:
        what = f"none of its {len(listed)} manifests is right" if listed else "there is no manifest"
        raise ReplicaError(f"{storage.where} has no whole copy of a state log: {what}")
    return found[0]


def _make(
    storage: Storage,
    manifest: Manifest,
    place: str,
    files: Files,
    progress: Callable[[int, int], object] | None,
) -> None:
    beside = f"{place}.fetching-{os.urandom(4).hex()}"
    with built_beside(files, place, beside):
        with contextlib.closing(Mirror(Directory(files, beside, FORMAT))) as mirror:
            done = 0
            for part in manifest.parts:
                mirror.write(Position(part.segment, part.offset), _read(storage, manifest, part))
                done += part.length
                if progress is not None:
                    progress(done, manifest.length)
            mirror.sync()
        files.sync_dir(beside)


def _read(storage: Storage, manifest: Manifest, part: Part) -> bytes:
    data = storage.read(part.path)
    if len(data) != part.length:
        raise BadFrame(
            f"{storage.where}/{part.path} is damaged: it has {len(data):,} bytes, and {manifest.name} says "
            f"{part.length:,}"
        )
    found = kernel.crc32c(data)
    if found != part.crc32c:
        raise BadFrame(
            f"{storage.where}/{part.path} is damaged: its CRC-32C is {found:08x}, and {manifest.name} says "
            f"{part.crc32c:08x}"
        )
    return data
