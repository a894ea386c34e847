"""From a copy in an object store to a log in a directory.

Each part is checked against its manifest, and each record in it, before it is written. The log is written beside
its final place and synced before it is renamed: a log in its place is whole. The copy is only read.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from forelog import kernel
from forelog.copies.identity import Identity
from forelog.copies.replica import Replica
from forelog.copies.snapshot import Snapshot
from forelog.copies.store.bucket import Bucket
from forelog.copies.store.manifest import FOLDER, Manifest, Part, named_manifests, newest
from forelog.errors import BadFrame, ReplicaError
from forelog.files import Files, built_beside, disk, in_the_way
from forelog.formats.state import FORMAT
from forelog.log.directory.directory import Directory
from forelog.log.position import Position

logger = logging.getLogger("forelog")

ATTEMPTS = 3  # because the copy may be replaced while it is read


class Fetched(NamedTuple):
    """What a fetch did."""

    path: str
    """The new log's directory."""
    manifest: str
    """The name of the manifest that it was made from."""
    identity: Identity
    """The log, and the opening that wrote the manifest."""
    snapshot: Snapshot
    """The last whole generation in the copy."""
    position: Position
    """Where the log ends."""
    byte_count: int
    """How many bytes were fetched."""


def fetch(
    where: str,
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
    files: Files | None = None,
    mode: int | None = None,
) -> Fetched:
    """Make a new state log at `path` from the copy at a URL. `path` must be missing or an empty directory.

    `progress` is called with the bytes fetched so far, and with the total. To continue as the primary, open the
    new log with `promote=True`: the copies that it writes to then refuse the old primary.
    """
    files = disk(files, mode)
    place = os.path.normpath(os.fspath(path))
    if in_the_way(files, place):
        raise ReplicaError(f"{os.fspath(path)} is there already and not empty: fetching makes a new log")
    bucket = Bucket(where, storage_options)
    bucket.open()
    with contextlib.closing(bucket):
        for attempt in range(1, ATTEMPTS + 1):
            manifest = _newest(bucket)
            try:
                _make(bucket, manifest, place, files, progress)
            except FileNotFoundError as error:
                if attempt == ATTEMPTS:
                    raise ReplicaError(f"{bucket.where} changes too fast to be read: {error}") from error
                logger.info("%s was replaced while it was read: reading it again", bucket.where)
            else:
                break
    return Fetched(
        os.fspath(path), manifest.name, manifest.identity, manifest.snapshot, manifest.position, manifest.length
    )


def _newest(bucket: Bucket) -> Manifest:
    listed = named_manifests(bucket.sizes())
    found = newest(bucket, listed, bucket.sizes(FOLDER))
    if not found:
        what = f"none of its {len(listed)} manifests is valid" if listed else "there is no manifest"
        raise ReplicaError(f"{bucket.where} has no whole copy of a state log: {what}")
    return found[0]


def _make(
    bucket: Bucket,
    manifest: Manifest,
    place: str,
    files: Files,
    progress: Callable[[int, int], object] | None,
) -> None:
    beside = f"{place}.fetching-{os.urandom(4).hex()}"
    with built_beside(files, place, beside):
        with contextlib.closing(Replica(Directory(files, beside, FORMAT))) as replica:
            done = 0
            for part in manifest.parts:
                replica.write(Position(part.segment, part.offset), _read(bucket, manifest, part))
                done += part.length
                if progress is not None:
                    progress(done, manifest.length)
            replica.sync()
        files.sync_dir(beside)


def _read(bucket: Bucket, manifest: Manifest, part: Part) -> bytes:
    data = bucket.read(part.path)
    if len(data) != part.length:
        raise BadFrame(
            f"{bucket.where}/{part.path} is damaged: it has {len(data):,} bytes, and {manifest.name} says "
            f"{part.length:,}"
        )
    found = kernel.crc32c(data)
    if found != part.crc32c:
        raise BadFrame(
            f"{bucket.where}/{part.path} is damaged: its CRC-32C is {found:08x}, and {manifest.name} says "
            f"{part.crc32c:08x}"
        )
    return data
