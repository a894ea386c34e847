"""What a disk may hold after a power loss.

The model is harsher than most filesystems and no harsher than POSIX allows:

- A file's content reaches the disk sector by sector, in any order, at any time after the write. Until a
  sync, each sector may be in any version that it ever had since the last one, or have the bytes that were
  being written replaced by zeros or garbage. Bytes outside of what was written are not harmed.
- A file's size is any that it had since the last sync, whatever became of the data.
- Directory entries (create, rename, remove) reach the disk one by one, in any combination, until the
  directory is synced. Syncing a file doesn't sync its entry.
- A directory that was given another name has the old or the new one until the directory above is synced. (That
  one is removed is taken to be durable: only what nobody reads is.)
- A sync that fails leaves the sectors it should have written as they may be, and later syncs don't write
  them either: they look clean, as after a failed fsync on Linux.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Fill = Literal["zeros", "garbage"]


class Event(NamedTuple):
    """A change on a disk, or a sync that makes changes durable."""

    kind: Literal[
        "write",
        "truncate",
        "sync",
        "sync_range",
        "sync_failed",
        "create",
        "rename",
        "remove",
        "sync_dir",
        "store",
        "move_dir",
        "remove_dir",
    ]
    path: str = ""
    """For directory entries: the directory. For files: the name by which they were opened, for messages."""
    inode: int = 0
    offset: int = 0
    data: bytes = b""
    name: str = ""
    target: str = ""


@dataclass(slots=True)
class Sector:
    """The possible versions of a sector on the disk, oldest first, and the bytes in which they differ."""

    versions: list[bytes]
    low: int
    high: int

    def filled(self, fill: Fill, seed: int) -> bytes:
        """The oldest version with the written bytes replaced by what a torn write may leave."""
        count = self.high - self.low
        junk = bytes(count) if fill == "zeros" else random.Random(seed).randbytes(count)
        oldest = self.versions[0]
        return oldest[: self.low] + junk + oldest[self.high :]


@dataclass(slots=True)
class FileModel:
    """A file as the program sees it, and its possible contents on the disk."""

    sector_bytes: int = 512
    content: bytearray = field(default_factory=bytearray)
    sizes: list[int] = field(default_factory=lambda: [0])
    dirty: dict[int, Sector] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    """Sectors that a failed sync gave up on."""

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        self._change(offset, end, data)
        if end > self.sizes[-1]:
            self.sizes.append(end)

    def store(self, offset: int, data: bytes) -> None:
        """Store words on which nobody relies after a power loss: the disk then has the last ones."""
        end = offset + len(data)
        self.content.extend(bytes(max(end - len(self.content), 0)))
        self.content[offset:end] = data
        self.sizes = [max(self.sizes[-1], end)]

    def truncate(self, size: int) -> None:
        if size < self.sizes[-1]:
            self._change(size, self.sizes[-1], bytes(self.sizes[-1] - size))
        if size != self.sizes[-1]:
            self.sizes.append(size)

    def sync(self) -> None:
        self.dirty = {number: sector for number, sector in self.dirty.items() if number in self.stuck}
        self.sizes = self.sizes[-1:]

    def sync_range(self, offset: int, count: int) -> None:
        """Note that these bytes are on disk. Others, and the size, need not be."""
        for number in range(offset // self.sector_bytes, (offset + count - 1) // self.sector_bytes + 1):
            if number not in self.stuck:
                self.dirty.pop(number, None)

    def sync_failed(self) -> None:
        self.stuck |= set(self.dirty)

    def drop_cache(self) -> None:
        """After a failed sync, read the sectors that it gave up on: they are as before."""
        for number in self.stuck:
            if number in self.dirty:
                start = number * self.sector_bytes
                self.content[start : start + self.sector_bytes] = self.dirty.pop(number).versions[0]
        self.stuck.clear()

    def view(self) -> bytes:
        """The content as the program sees it."""
        return bytes(self.content[: self.sizes[-1]]).ljust(self.sizes[-1], b"\0")

    def _change(self, start: int, end: int, data: bytes) -> None:
        size = self.sector_bytes
        if len(self.content) < -(-end // size) * size:
            self.content.extend(bytes(-(-end // size) * size - len(self.content)))
        first, last = start // size, (end - 1) // size
        for number in range(first, last + 1):
            low, high = max(start - number * size, 0), min(end - number * size, size)
            if number not in self.dirty:
                before = bytes(self.content[number * size : (number + 1) * size])
                self.dirty[number] = Sector([before], low, high)
            else:
                sector = self.dirty[number]
                sector.low, sector.high = min(sector.low, low), max(sector.high, high)
            self.stuck.discard(number)
        self.content[start:end] = data
        for number in range(first, last + 1):
            version = bytes(self.content[number * size : (number + 1) * size])
            versions = self.dirty[number].versions
            if version in versions:
                versions.remove(version)  # keep it once, as the latest
            versions.append(version)


@dataclass(slots=True)
class DirectoryModel:
    """The entries of a directory as the program sees them, and the possible ones on the disk."""

    entries: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Event] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        if event.kind == "sync_dir":
            self.durable = dict(self.entries)
            self.pending.clear()
        else:
            apply_entry(self.entries, event)
            self.pending.append(event)

    def after(self, kept: Iterable[bool]) -> dict[str, int]:
        """The entries on the disk if it has only some of the pending changes."""
        entries = dict(self.durable)
        for event, keep in zip(self.pending, kept, strict=True):
            if keep:
                apply_entry(entries, event)
        return entries


def apply_entry(entries: dict[str, int], event: Event) -> None:
    if event.kind == "create":
        entries[event.name] = event.inode
    elif event.kind == "remove":
        entries.pop(event.name, None)
    elif event.name in entries:  # a rename
        entries[event.target] = entries.pop(event.name)


@dataclass(slots=True)
class DiskModel:
    """All files and directories of a disk."""

    sector_bytes: int = 512
    files: dict[int, FileModel] = field(default_factory=dict)
    directories: dict[str, DirectoryModel] = field(default_factory=dict)
    moves: list[Event] = field(default_factory=list)
    """Renamed directories whose new names may not be on the disk yet."""

    def directory(self, path: str) -> DirectoryModel:
        return self.directories.setdefault(path, DirectoryModel())

    def below(self, path: str) -> list[str]:
        """A directory, and all directories below it."""
        return [one for one in self.directories if one == path or one.startswith(f"{path}/")]

    def _rename(self, source: str, target: str) -> None:
        for path in self.below(source):
            self.directories[target + path[len(source) :]] = self.directories.pop(path)

    def apply(self, event: Event) -> None:
        """Apply an event."""
        if event.kind == "move_dir":
            self.directories.pop(event.target, None)  # an empty one
            self._rename(event.path, event.target)
            self.moves.append(event)
            return
        if event.kind == "remove_dir":
            for path in self.below(event.path):
                del self.directories[path]
            return
        if event.kind == "sync_dir":
            self.moves = [move for move in self.moves if os.path.dirname(move.target) != event.path]
        if event.kind in ("create", "rename", "remove", "sync_dir"):
            self.directory(event.path).apply(event)
            if event.kind == "create" and event.inode not in self.files:
                self.files[event.inode] = FileModel(self.sector_bytes)
            return
        file = self.files[event.inode]
        if event.kind == "write":
            file.write(event.offset, event.data)
        elif event.kind == "truncate":
            file.truncate(event.offset)
        elif event.kind == "store":
            file.store(event.offset, event.data)
        elif event.kind == "sync":
            file.sync()
        elif event.kind == "sync_range":
            file.sync_range(event.offset, len(event.data))
        else:
            file.sync_failed()
