"""From a copy elsewhere to a log here.

Each part is checked against its manifest, and each record in it, before it is written. The log is made beside its
place, synced, and only then put there: a log that is there is whole. The copy is only read.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from forelog import kernel
from forelog.copies.identity import Identity
from forelog.copies.replica import Replica
from forelog.copies.slots import in_the_way
from forelog.copies.snapshot import Snapshot
from forelog.copies.store.bucket import Bucket
from forelog.copies.store.manifest import FOLDER, Manifest, Part, named_manifests, newest
from forelog.errors import BadFrame, ReplicaError
from forelog.files import OSFiles
from forelog.files.modes import PRIVATE
from forelog.formats.state import FORMAT
from forelog.log.directory.segments import Directory
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
    mode: int = PRIVATE,
) -> Fetched:
    """Make a new state log at `path`, which must not exist or be empty, of the copy at a URL.

    `progress` is called with the bytes that are there, and how many there will be. To go on as the primary, open
    the log with `promote=True`: whoever wrote before is refused from then on wherever this one writes.
    """
    if taken := in_the_way(path):
        raise ReplicaError(f"{taken}: fetching makes a new log")
    place = os.path.abspath(os.fspath(path))
    bucket = Bucket(where, storage_options)
    bucket.open()
    try:
        for attempt in range(1, ATTEMPTS + 1):
            manifest = _newest(bucket)
            try:
                _make(bucket, manifest, place, OSFiles(mode), progress)
            except FileNotFoundError as error:
                if attempt == ATTEMPTS:
                    raise ReplicaError(f"{bucket.where} changes faster than it can be read: {error}") from error
                logger.info("%s was replaced while it was read: once more", bucket.where)
            else:
                break
    finally:
        bucket.close()
    return Fetched(
        os.fspath(path), manifest.name, manifest.identity, manifest.snapshot, manifest.position, manifest.length
    )


def _newest(bucket: Bucket) -> Manifest:
    listed = named_manifests(bucket.sizes())
    found = newest(bucket, listed, bucket.sizes(FOLDER))
    if not found:
        what = f"none of its {len(listed)} manifests is right" if listed else "there is no manifest"
        raise ReplicaError(f"{bucket.where} has no whole copy of a state log: {what}")
    return found[0]


def _make(
    bucket: Bucket,
    manifest: Manifest,
    place: str,
    files: OSFiles,
    progress: Callable[[int, int], object] | None,
) -> None:
    beside = f"{place}.fetching-{os.urandom(4).hex()}"
    try:
        replica = Replica(Directory(files, beside, FORMAT))
        try:
            done = 0
            for part in manifest.parts:
                replica.write(Position(part.segment, part.offset), _read(bucket, manifest, part))
                done += part.length
                if progress is not None:
                    progress(done, manifest.length)
            replica.sync()
        finally:
            replica.close()
        files.sync_dir(beside)
        os.rename(beside, place)
        files.sync_dir(os.path.dirname(place))
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _read(bucket: Bucket, manifest: Manifest, part: Part) -> bytes:
    data = bucket.read(part.path)
    if len(data) != part.length:
        raise BadFrame(
            f"{bucket.where}/{part.path} is damaged: it has {len(data):,} bytes, and {manifest.name} says "
            f"{part.length:,}"
        )
    found = kernel.active.crc32c(data)
    if found != part.crc32c:
        raise BadFrame(
            f"{bucket.where}/{part.path} is damaged: its CRC-32C is {found:08x}, and {manifest.name} says "
            f"{part.crc32c:08x}"
        )
    return data
