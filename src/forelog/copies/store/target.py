"""A target in an object store, or in any folder that fsspec reaches.

manifest.py draws the objects. Records are collected, and uploaded as a part when there are enough of them, and
with each `flush`, which then writes a manifest. After `restart`, the parts of the new copy are uploaded beside
those of the old one. Its first manifest is written when it has a whole snapshot: until then the old copy counts.
Now and then many small parts are merged into a larger one (merge.py).

Parts and manifests that are no longer needed are removed one flush late, so that a reader of the last manifest
finds everything that it names.

Before a manifest is written the others are listed, and again afterwards, before anything is acknowledged or
removed. register.py explains how this keeps two primaries apart.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from forelog import kernel
from forelog.copies.claim import Claim
from forelog.copies.identity import Identity
from forelog.copies.shipping import Chunk, Owner
from forelog.copies.snapshot import Resume, Snapshot
from forelog.copies.store.bucket import Bucket
from forelog.copies.store.manifest import (
    FOLDER,
    NO_WORD,
    PART_BYTES_MAX,
    Manifest,
    Named,
    Part,
    draw_word,
    opening_name,
    parse_part_name,
)
from forelog.copies.store.merge import merge_parts
from forelog.copies.store.register import Found, Register, Twin
from forelog.copies.transfers import NOWHERE
from forelog.errors import BadFrame, ReplicaError
from forelog.formats.state import FORMAT
from forelog.log.position import Position

logger = logging.getLogger("forelog")

PART_BYTES = 8 << 20
NUMBER_MAX = 999_999_999_999
REMOVALS_MAX = 100  # per flush


class StoreTarget:
    """A copy as parts of segments and manifests, in a bucket."""

    def __init__(
        self,
        where: str,
        owner: Owner,
        storage_options: Mapping[str, Any] | None = None,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._bucket = Bucket(where, storage_options)
        self._owner = owner
        self.transfer = owner.transfers.new(self._bucket.where)
        self._register = Register(self._bucket, owner, Claim(owner, self._bucket.where, self.transfer))
        self._part_bytes = part_bytes
        self._parts: list[Part] = []
        """The uploaded parts of the copy, in order."""
        self._snapshot: Snapshot | None = None
        """The snapshot of the copy; None while it isn't whole and has no manifest."""
        self._buffer = bytearray()
        self._buffer_at = Position(0, 0)
        self._written: Manifest | None = None
        """The newest manifest."""
        self._previous: Manifest | None = None
        self._uploaded: set[str] = set()
        """Parts that this opening uploaded, also those in no manifest yet."""
        self._doomed: dict[str, None] = {}
        """Objects to remove, manifests first."""
        self._number = 0

    # -- what ship() calls

    def connect(self) -> Resume | None:
        self._bucket.open()
        self._buffer.clear()
        known = set(self._register.known)
        found = self._register.enter()
        listed, sizes = found.manifests, found.parts
        going_on = bool(self._parts) and self._snapshot is None and set(listed) <= known
        self._written, self._previous = (*found.newest, None, None)[:2]
        self._number = max([self._number, *(named.number for named in listed)])
        self._doom(found, known)
        if not going_on and self._written is None:
            self._parts, self._snapshot = [], None
        elif not going_on and self._written is not None:
            self._parts, self._snapshot = list(self._written.parts), self._written.snapshot
        return self._resume() if all(part.name in sizes for part in self._parts) else None

    def restart(self, position: Position) -> None:  # noqa: ARG002
        kept = self._names(self._written, self._previous)
        self._doomed |= {part.path: None for part in self._parts if part.name not in kept}
        self._parts, self._snapshot = [], None
        self._buffer.clear()

    def send(self, chunk: Chunk) -> None:
        end, data = self._end, chunk.data
        if len(data) > PART_BYTES_MAX:
            raise BadFrame(
                f"the record at {chunk.position} has more than {PART_BYTES_MAX:,} bytes, the most of a part"
            )
        first = chunk.position.offset == FORMAT.header_bytes and (
            end is None or chunk.position.segment > end.segment
        )
        if chunk.position != end and not first:
            raise BadFrame(
                f"records for {chunk.position} don't follow {end}, which is what {self._bucket.where} has"
            )
        if self._buffer and (first or len(self._buffer) + len(data) > self._part_bytes):
            self._upload()
        if not self._buffer:
            self._buffer_at = chunk.position
        self._buffer += data
        if len(self._buffer) >= self._part_bytes:
            self._upload()

    def flush(self) -> Resume:
        if self._snapshot is None:
            return Resume(NOWHERE, b"")
        self._upload()
        self._merge()
        self._write_manifest(self._parts, self._snapshot)
        return Resume(self._parts[-1].end, self.transfer.end.tail)

    def commit(self, snapshot: Snapshot) -> None:
        self._upload()
        parts = [part for part in self._parts if part.segment >= snapshot.begin.segment]
        begins = bool(parts) and Position(parts[0].segment, parts[0].offset) == snapshot.begin
        if not begins or parts[-1].end < snapshot.end:
            raise BadFrame(
                f"a generation is at {snapshot}, but {self._bucket.where} has {self._parts[:1]} to {self._end}"
            )
        self._write_manifest(parts, snapshot)
        self._parts, self._snapshot = parts, snapshot  # not earlier: a copy that isn't whole resumes where it was

    def close(self) -> None:
        self._bucket.close()

    # -- parts

    @property
    def _identity(self) -> Identity:
        return self._owner.identity

    @property
    def _end(self) -> Position | None:
        if self._buffer:
            return Position(self._buffer_at.segment, self._buffer_at.offset + len(self._buffer))
        return self._parts[-1].end if self._parts else None

    def _resume(self) -> Resume | None:
        if not self._parts:
            return None
        tail = self._register.tail(self._parts[-1])
        return Resume(self._parts[-1].end, tail) if tail else None

    def _upload(self) -> None:
        """Upload what was collected as a part. If that fails the records are sent again."""
        if self._buffer:
            data = bytes(self._buffer)
            self._parts.append(self._put(self._buffer_at, data))
            self._buffer.clear()

    def _put(self, position: Position, data: bytes) -> Part:
        mine = self._identity
        part = Part(
            *position, len(data), kernel.crc32c(data), *mine.epoch, mine.word.hex(), draw_word()
        )  # fmt: skip
        self._uploaded.add(part.name)
        self._bucket.write(part.path, data)
        return part

    def _merge(self) -> None:
        """Merge small parts that the log still has."""
        view = self._owner.view()
        if view is not None:
            self._parts = merge_parts(self._parts, view.stream, self._part_bytes, self._put)

    # -- manifests

    def _write_manifest(self, uploaded: list[Part], snapshot: Snapshot) -> None:
        """Write a manifest of the uploaded parts, unless the last one is the same."""
        identity, parts, written = self._identity, tuple(uploaded), self._written
        if written is not None and (written.identity, written.snapshot, written.parts) == (
            identity,
            snapshot,
            parts,
        ):
            self._remove()
            return
        self._register.look()
        if self._number >= NUMBER_MAX:
            raise ReplicaError(f"{self._bucket.where}: there is no number after manifest {self._number}")
        word = NO_WORD if self._register.exclusive else draw_word()
        manifest = Manifest(self._number + 1, identity, snapshot, parts, word)
        self._put_manifest(manifest)
        try:
            self._register.look()
        except Twin:
            self._take_back(manifest)
            raise
        self._register.last = manifest.named
        older, self._previous, self._written = self._previous, written, manifest
        kept = self._names(manifest, written)
        if older is not None:
            self._doomed[older.name] = None
        gone = (self._names(older) | self._uploaded) - kept
        self._doomed |= {f"{FOLDER}/{name}": None for name in sorted(gone)}
        self._uploaded &= kept
        self._remove()

    def _put_manifest(self, manifest: Manifest) -> None:
        self._number = manifest.number
        self._register.known.add(manifest.named)  # also if the store writes it and reports an error
        data = manifest.encode(time.time_ns())
        if not self._register.exclusive:
            self._bucket.write(manifest.name, data)
            return
        try:
            self._bucket.create(manifest.name, data)
        except FileExistsError:
            if self._bucket.read(manifest.name) != data:  # else the driver has tried twice
                raise Twin(self._bucket.where, manifest.identity, manifest.name) from None

    def _take_back(self, manifest: Manifest) -> None:
        """Remove a manifest that isn't acknowledged, so that it doesn't win over one that is."""
        with contextlib.suppress(ReplicaError):
            self._bucket.remove(manifest.name)

    # -- removing

    def _doom(self, found: Found, known: set[Named]) -> None:
        """Choose what to remove: objects of unfinished flushes, and of openings before this one.

        No valid manifest names them, and none will.
        """
        kept = {one.named for one in (self._written, self._previous) if one is not None}
        names = self._names(self._written, self._previous) | {part.name for part in self._parts}
        epoch = self._identity.epoch
        ours = {named for named in found.manifests if named.epoch < epoch or named in known}
        manifests = [named.name for named in found.manifests if named in ours - kept] if kept else []
        openings = [opening_name(one) for one in found.openings if one.epoch < epoch]
        left = []
        for name in found.parts:
            whose = parse_part_name(name)
            if name not in names and whose is not None and (whose < epoch or name in self._uploaded):
                left.append(f"{FOLDER}/{name}")
        self._doomed = dict.fromkeys([*manifests, *openings, *left])

    @staticmethod
    def _names(*manifests: Manifest | None) -> set[str]:
        """The names of all parts in these manifests."""
        return {part.name for manifest in manifests if manifest is not None for part in manifest.parts}

    def _remove(self) -> None:
        """Remove what can be removed; the next flush tries the rest."""
        for name in list(self._doomed)[:REMOVALS_MAX]:
            try:
                self._bucket.remove(name)
            except ReplicaError as error:
                logger.debug("%s: removed later: %s", self._bucket.where, error)
                return
            del self._doomed[name]
