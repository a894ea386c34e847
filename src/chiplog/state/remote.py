"""A copy on object storage or any remote filesystem, through fsspec: kept up, and made a log again by `fetch`.

How it lies there is drawn in manifest.py. What is sent is collected, and uploaded in parts: when there is much,
and with each `flush`, which then writes a manifest. While a copy is made anew, after `restart`, its parts are
uploaded beside those of the old one, which counts until the new one has a whole snapshot: only then its first
manifest is written. Many small parts are replaced by a larger one now and then, which is read from the log itself
(merging.py).

What only older manifests name is removed, but one round late: who has just read the last manifest can read all
that it names.

**Two primaries.** Stores have no lock, and no write that fails if somebody else was first. Before a manifest is
written the others are listed, and again after it, before anything is acknowledged or removed: if there is one of a
higher epoch, or one of this epoch that isn't ours, this primary is superseded. As each writes first and then
looks, of two that write at the same time at least one sees the other. A younger primary that sees an older one at
work makes its copy anew, of parts that the other won't remove. What remains: an old primary that has just looked
may acknowledge one more flush, which no restore reads once the younger one has written a manifest.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from chiplog import kernel
from chiplog.errors import BadFrame, ReplicaError, Superseded
from chiplog.log.position import Position
from chiplog.state.fetching import Fetched, fetch
from chiplog.state.identity import Identity
from chiplog.state.manifest import (
    FOLDER,
    PART_BYTES_MAX,
    Manifest,
    Named,
    Part,
    named_manifests,
    new_word,
    newest,
    parse_part_name,
)
from chiplog.state.merging import merge_parts
from chiplog.state.mirror import FORMAT, TAIL_BYTES, Resume, Snapshot
from chiplog.state.shipping import Chunk
from chiplog.state.storage import Storage
from chiplog.state.targets import Owner

__all__ = ["Fetched", "RemoteTarget", "fetch"]

logger = logging.getLogger("chiplog")

PART_BYTES = 8 << 20
NUMBER_MAX = 999_999_999_999
REMOVALS_MAX = 100  # at a time: the rest goes with the next flush


class RemoteTarget:
    """Parts of segments as objects, and manifests that are written last."""

    def __init__(
        self,
        where: str,
        owner: Owner,
        storage_options: Mapping[str, Any] | None = None,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._storage = Storage(where, storage_options)
        self._owner = owner
        self._part_bytes = part_bytes
        self._parts: list[Part] = []
        """What has been uploaded of the copy, in order."""
        self._snapshot: Snapshot | None = None
        """The snapshot in it; None while it isn't whole, and no manifest may be written."""
        self._buffer = bytearray()
        self._buffer_at = Position(0, 0)
        self._written: Manifest | None = None
        """The manifest that counts."""
        self._previous: Manifest | None = None
        self._known: set[Named] = set()
        """Manifests that were there when we connected, or that are ours."""
        self._uploaded: set[str] = set()
        """Parts of ours, also those that no manifest names yet."""
        self._doomed: dict[str, None] = {}
        """What is to be removed, manifests first."""
        self._number = 0
        self._anew = False
        """Whether nothing that is there may be built on."""

    # -- what ship() calls

    def connect(self) -> Resume | None:
        self._storage.open()
        self._buffer.clear()
        listed = named_manifests(self._storage)
        sizes = self._storage.sizes(FOLDER)
        identity = self._identity
        found = newest(self._storage, listed, sizes, count=2)
        if found and found[0].identity.id != identity.id:
            raise ReplicaError(
                f"{self._storage.where} is a copy of log {found[0].identity.id.hex()[:8]}, not of "
                f"{identity.id.hex()[:8]}: choose another place for it, or remove the copy"
            )
        for named in listed:
            if named.epoch > identity.epoch:  # whether it is whole or not: somebody began to write it
                raise self._superseded(named)
        going_on = bool(self._parts) and self._snapshot is None and set(listed) <= self._known
        self._written, self._previous = (*found, None, None)[:2]
        self._number = max([self._number, *(named.number for named in listed)])
        self._doom(listed, sizes)
        self._known |= set(listed)
        if self._anew or (not going_on and self._written is None):
            self._parts, self._snapshot, self._anew = [], None, False
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
            raise BadFrame(f"the record at {chunk.position} has more than the {PART_BYTES_MAX:,} bytes of a part")
        first = chunk.position.offset == FORMAT.header_bytes and (
            end is None or chunk.position.segment > end.segment
        )
        if chunk.position != end and not first:
            raise BadFrame(
                f"records for {chunk.position} don't follow {end}, which is what {self._storage.where} has"
            )
        if self._buffer and (first or len(self._buffer) + len(data) > self._part_bytes):
            self._upload()
        if not self._buffer:
            self._buffer_at = chunk.position
        self._buffer += data
        if len(self._buffer) >= self._part_bytes:
            self._upload()

    def flush(self) -> Position:
        if self._snapshot is None:
            return Position(0, 0)
        self._upload()
        self._merge()
        self._write_manifest(self._parts, self._snapshot)
        return self._parts[-1].end

    def commit(self, snapshot: Snapshot) -> None:
        self._upload()
        parts = [part for part in self._parts if part.segment >= snapshot.begin.segment]
        begins = bool(parts) and Position(parts[0].segment, parts[0].offset) == snapshot.begin
        if not begins or parts[-1].end < snapshot.end:
            raise BadFrame(
                f"a generation is at {snapshot}, but {self._storage.where} has {self._parts[:1]} to {self._end}"
            )
        self._write_manifest(parts, snapshot)
        self._parts, self._snapshot = parts, snapshot  # not before: a copy that isn't whole goes on where it was

    def close(self) -> None:
        self._storage.close()

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
        last = self._parts[-1]
        with contextlib.suppress(FileNotFoundError):
            tail = self._storage.read(last.path, max(last.length - TAIL_BYTES, 0), last.length)
            return Resume(last.end, tail)
        return None

    def _upload(self) -> None:
        """What was collected becomes a part. If that fails it is sent again: the part is in no list."""
        if self._buffer:
            data = bytes(self._buffer)
            self._parts.append(self._put(self._buffer_at, data))
            self._buffer.clear()

    def _put(self, position: Position, data: bytes) -> Part:
        part = Part(*position, len(data), kernel.active.crc32c(data), *self._identity.epoch, new_word())
        self._uploaded.add(part.name)
        self._storage.write(part.path, data)
        return part

    def _merge(self) -> None:
        """Fewer parts, now and then, of what the log still has."""
        view = self._owner.view()
        if view is not None:
            self._parts = merge_parts(self._parts, view.stream, self._part_bytes, self._put)

    # -- manifests

    def _write_manifest(self, uploaded: list[Part], snapshot: Snapshot) -> None:
        """Make what was uploaded the copy, unless it is that already or somebody else's."""
        identity, parts, written = self._identity, tuple(uploaded), self._written
        if written is not None and (written.identity, written.snapshot, written.parts) == (
            identity,
            snapshot,
            parts,
        ):
            self._remove()
            return
        self._look()
        if self._number >= NUMBER_MAX:
            raise ReplicaError(f"{self._storage.where}: there is no number after that of manifest {self._number}")
        manifest = Manifest(self._number + 1, identity, snapshot, parts, new_word())
        self._number = manifest.number
        self._known.add(manifest.named)  # also if we don't hear that it was written
        self._storage.write(manifest.name, manifest.encode(time.time_ns()))
        self._look()
        older, self._previous, self._written = self._previous, written, manifest
        kept = self._names(manifest, written)
        if older is not None:
            self._doomed[older.name] = None
        gone = (self._names(older) | self._uploaded) - kept
        self._doomed |= {f"{FOLDER}/{name}": None for name in sorted(gone)}
        self._uploaded &= kept
        self._remove()

    def _look(self) -> None:
        """Whether somebody else writes here."""
        others = named_manifests(self._storage).keys() - self._known
        if not others:
            return
        youngest = max(others)
        if youngest.epoch >= self._identity.epoch:
            raise self._superseded(youngest)
        self._anew = True
        raise ReplicaError(
            f"{self._storage.where}: an older primary still writes there ({youngest.name}). The copy is made anew"
        )

    def _superseded(self, other: Named) -> Superseded:
        mine = self._identity
        if other.epoch == mine.epoch:
            return Superseded(
                f"{self._storage.where}: somebody else writes there as epoch {mine.term}.{mine.run} too "
                f"({other.name}): was the log copied and opened twice?"
            )
        return Superseded(
            f"epoch {mine.term}.{mine.run} is over: {other.term}.{other.run} has written {other.name} to "
            f"{self._storage.where}. Another primary was promoted, and what this one wrote since isn't there"
        )

    # -- removing

    def _doom(self, listed: dict[Named, int], sizes: dict[str, int]) -> None:
        """What is left of rounds that weren't finished: named by no manifest that counts, nor by any to come."""
        kept = {one.named for one in (self._written, self._previous) if one is not None}
        names = self._names(self._written, self._previous) | {part.name for part in self._parts}
        epoch = self._identity.epoch
        ours = {named for named in listed if named.epoch < epoch or named in self._known}
        manifests = [named.name for named in listed if named in ours - kept] if kept else []
        left = []
        for name in sizes:
            whose = parse_part_name(name)
            if name not in names and whose is not None and (whose < epoch or name in self._uploaded):
                left.append(f"{FOLDER}/{name}")
        self._doomed = dict.fromkeys([*manifests, *left])

    @staticmethod
    def _names(*manifests: Manifest | None) -> set[str]:
        """Of all parts that these name."""
        return {part.name for manifest in manifests if manifest is not None for part in manifest.parts}

    def _remove(self) -> None:
        """As well as it can be done: what fails is tried again with the next flush."""
        for name in list(self._doomed)[:REMOVALS_MAX]:
            try:
                self._storage.remove(name)
            except ReplicaError as error:
                logger.debug("%s: removed later: %s", self._storage.where, error)
                return
            del self._doomed[name]
