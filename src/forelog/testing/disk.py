"""A disk in memory that can crash, lie, tear and fill up.

It implements `forelog.files.Files`: give it to a `Stream`. Everything that happened on it is in `events`. Note
`len(disk.events)` when something is acknowledged, and compare it with the `events` of a state later.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

from forelog.bounds import check_whole
from forelog.errors import LockTimeout
from forelog.files import File, Lock, Shared, Watch
from forelog.testing.model import DiskModel, Event, FileModel
from forelog.testing.states import one_of, possible_contents


class Operation(NamedTuple):
    """A call that is about to be made, for the predicate of a fault."""

    kind: str
    """make_dir, list_dir, changed, sync_dir, open_read, open_append, open_new, open_update, open_shared, rename,
    remove, move_dir, remove_dir, stat, lock; or of an open file: write, write_at, read, truncate, sync, size,
    store."""
    path: str
    """The path that the call is about."""
    byte_count: int
    """The number of bytes of a write."""
    number: int
    """The number of calls made before it on this disk."""


SECTOR_BYTES_MAX = 1 << 20


@dataclass(eq=False, slots=True)
class Fault:
    """A fault that is injected while it is active."""

    when: Callable[[Operation], bool]
    number: int = 0
    short_bytes: int | None = None
    lie: bool = False
    active: bool = field(default=True, init=False)
    hits: int = field(default=0, init=False)

    def stop(self) -> None:
        """End the fault."""
        self.active = False


class CrashState(NamedTuple):
    """One possible disk after a power loss."""

    disk: CrashDisk
    """The disk after the restart: everything on it is durable, and no lock is held."""
    events: int
    """The number of events before it: what was acknowledged by then must be there."""


class CrashDisk:
    """A file system in memory that knows what was synced.

    `sector_bytes` is the unit in which writes tear: 512 or 4096 for real disks, less to look closer.
    `capacity_bytes` is how much the disk holds before it is full.
    """

    def __init__(self, *, sector_bytes: int = 512, capacity_bytes: int | None = None) -> None:
        check_whole("sector_bytes", sector_bytes, most=SECTOR_BYTES_MAX)
        check_whole("capacity_bytes", capacity_bytes, least=0, or_none="for no limit")
        self.events: list[Event] = []
        self.capacity_bytes = capacity_bytes
        self.sector_bytes = sector_bytes
        self.boot = 0
        self._model = DiskModel(sector_bytes)
        self._faults: list[Fault] = []
        self._calls = 0
        self._inodes = 0
        self._locks: dict[str, list[_MemoryLock]] = {}
        self._open_files: WeakSet[_MemoryFile] = WeakSet()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)

    # -- for tests

    @classmethod
    def of(cls, contents: dict[str, bytes], *, sector_bytes: int = 512, boot: int = 0) -> CrashDisk:
        """A disk with these files, all synced."""
        disk = cls(sector_bytes=sector_bytes)
        disk.boot = boot
        for path, content in sorted(contents.items()):
            file = disk.open_append(path)
            file.write(content)
            file.sync()
            disk.sync_dir(os.path.dirname(path))
        disk.events.clear()
        disk._base = dict(contents)
        disk.origin = disk.digest()
        return disk

    origin = ""
    """The digest of the contents that the disk was made with, if there were any."""
    _base: dict[str, bytes] | None = None

    def contents(self) -> dict[str, bytes]:
        """Every file as a program sees it now."""
        with self._mutex:
            return _contents(self._model)

    def digest(self) -> str:
        """A checksum of all files: disks with equal files have the same."""
        summary = hashlib.blake2b(digest_size=16)
        for path, content in sorted(self.contents().items()):
            summary.update(f"{path}\0{len(content)}\0".encode() + content)
        return summary.hexdigest()

    def killed(self, events: int | None = None) -> CrashDisk:
        """The disk after the process was killed, now or at an earlier moment: everything written is there, no
        lock is held."""
        model = self.model_at(len(self.events) if events is None else events)
        return CrashDisk.of(_contents(model), sector_bytes=self.sector_bytes, boot=self.boot)

    def states(self, events: int | None = None, *, limit: int = 1000, seed: int = 0) -> Iterator[CrashState]:
        """Disks after a power loss at a moment, now by default: all possible ones, or `limit` of them."""
        return self._states(len(self.events) if events is None else events, limit, seed)

    def crashed(self, rng: random.Random) -> CrashDisk:
        """One possible disk after a power loss now, chosen at random."""
        return self._after_crash(self._model, one_of(self._model, rng))

    def _states(self, moment: int, limit: int, seed: int) -> Iterator[CrashState]:
        model = self.model_at(moment)
        for contents in possible_contents(model, limit=limit, seed=seed, moment=moment):
            yield CrashState(self._after_crash(model, contents), moment)

    def states_everywhere(self, *, limit: int = 100, seed: int = 0) -> Iterator[CrashState]:
        """Disks after a power loss at every moment since the disk was made, `limit` of them for each."""
        for moment in range(len(self.events) + 1):
            if moment and self.events[moment - 1].kind == "store":
                continue  # after a power loss such a word may be anything: the moment before gives the same states
            yield from self.states(moment, limit=limit, seed=seed)

    def _after_crash(self, model: DiskModel, contents: dict[str, bytes]) -> CrashDisk:
        after = CrashDisk.of(contents, sector_bytes=self.sector_bytes, boot=self.boot + 1)
        moved = {path for move in model.moves for path in model.below(move.target)}  # their files say where
        for path in model.directories.keys() - moved:
            after.make_dir(path)
        return after

    def model_at(self, events: int) -> DiskModel:
        """The disk's model as of a moment."""
        start = CrashDisk.of(self._base, sector_bytes=self.sector_bytes) if self._base else CrashDisk()
        model = start._model
        model.sector_bytes = self.sector_bytes
        for event in self.events[:events]:
            model.apply(event)
        return model

    def fail(self, when: Callable[[Operation], bool], number: int = errno.EIO) -> Fault:
        """Make calls fail with an errno."""
        return self._add(Fault(when, number))

    def write_short(self, when: Callable[[Operation], bool], byte_count: int) -> Fault:
        """Make writes take only their first bytes."""
        return self._add(Fault(when, short_bytes=byte_count))

    def lie(self, when: Callable[[Operation], bool]) -> Fault:
        """Make syncs return without having synced."""
        return self._add(Fault(when, lie=True))

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    # -- the files protocol

    def make_dir(self, path: str) -> None:
        with self._mutex:
            self._call("make_dir", path)
            self._model.directory(path)

    def list_dir(self, path: str) -> list[str]:
        with self._mutex:
            self._call("list_dir", path)
            return list(self._entries(path))

    def changed(self, path: str) -> object | None:
        with self._mutex:
            self._call("changed", path)
            return tuple(self._entries(path).items())

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            if not self._call("sync_dir", path).lie:
                self._entries(path)
                self._happen(Event("sync_dir", path))

    def open_read(self, path: str) -> File:
        with self._mutex:
            self._call("open_read", path)
            return _MemoryFile(self, path, self._inode(path))

    def open_append(self, path: str) -> File:
        return self._open_or_create("open_append", path)

    def open_new(self, path: str, mode: int) -> File:  # noqa: ARG002 - it has one user
        with self._mutex:
            if self.stat(path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return self._open_or_create("open_new", path)

    def open_update(self, path: str) -> File:
        return self._open_or_create("open_update", path)

    def open_shared(self, path: str, count: int) -> Shared:
        file = self._open_or_create("open_shared", path)
        with self._mutex:
            inode, size = self._inode(path), file.size()
            if size < 8 * count:
                self._happen(Event("store", path, inode, size, bytes(8 * count - size)))
            return _MemoryShared(self, path, inode)

    def _open_or_create(self, kind: str, path: str) -> File:
        with self._mutex:
            self._call(kind, path)
            directory, name = os.path.split(path)
            if name not in self._model.directory(directory).entries:
                self._inodes += 1
                self._happen(Event("create", directory, self._inodes, name=name))
            return _MemoryFile(self, path, self._inode(path))

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            self._call("rename", source)
            directory, name = os.path.split(source)
            inode = self._inode(source)
            self._happen(Event("rename", directory, name=name, target=os.path.basename(target)))
            for file in self._open_files:
                if file.identity() == inode:
                    file._path = target  # the name for faults from now on

    def remove(self, path: str) -> None:
        with self._mutex:
            self._call("remove", path)
            directory, name = os.path.split(path)
            if name in self._entries(directory):
                self._happen(Event("remove", directory, name=name))

    def move_dir(self, source: str, target: str) -> None:
        with self._mutex:
            self._call("move_dir", source)
            self._entries(source)
            if any(self._model.directories[path].entries for path in self._model.below(target)):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
            self._happen(Event("move_dir", source, target=target))

    def remove_dir(self, path: str) -> None:
        with self._mutex:
            self._call("remove_dir", path)
            if self._model.below(path):
                self._happen(Event("remove_dir", path))

    def stat(self, path: str) -> tuple[int, object] | None:
        with self._mutex:
            self._call("stat", path)
            try:
                inode = self._inode(path)
            except FileNotFoundError:
                return None
            return self._model.files[inode].sizes[-1], inode

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._call("lock", path)
            holders = self._locks.setdefault(path, [])
            while any(exclusive or holder.exclusive for holder in holders):
                rest = None if deadline is None else deadline - time.monotonic()
                if rest is not None and rest <= 0:
                    raise LockTimeout(f"{path} is locked (waited {timeout:g} s)")
                self._changed.wait(rest)
            lock = _MemoryLock(self, path, exclusive)
            holders.append(lock)
            return lock

    def watch(self, path: str) -> Watch:  # noqa: ARG002 - any change may be one there
        return _MemoryWatch(self)

    def boot_id(self) -> str:
        return f"crash-disk-boot-{self.boot}"

    # -- inside

    def _call(self, kind: str, path: str, byte_count: int = 0) -> Fault:
        operation = Operation(kind, path, byte_count, self._calls)
        self._calls += 1
        for fault in self._faults:
            if fault.active and fault.when(operation):
                fault.hits += 1
                if fault.number:
                    raise OSError(fault.number, os.strerror(fault.number), path)
                return fault
        return _FINE

    def _happen(self, event: Event) -> None:
        self.events.append(event)
        self._model.apply(event)
        self._changed.notify_all()

    def _entries(self, path: str) -> dict[str, int]:
        if path not in self._model.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._model.directories[path].entries

    def _inode(self, path: str) -> int:
        directory, name = os.path.split(path)
        entries = self._entries(directory)
        if name not in entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return entries[name]

    def _room(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        linked = {inode for d in self._model.directories.values() for inode in d.entries.values()}
        return self.capacity_bytes - sum(self._model.files[inode].sizes[-1] for inode in linked)


def _contents(model: DiskModel) -> dict[str, bytes]:
    return {
        f"{path}/{name}": model.files[inode].view()
        for path, directory in model.directories.items()
        for name, inode in directory.entries.items()
    }


_FINE = Fault(lambda _: False)


class _MemoryFile:
    """An open file of a CrashDisk."""

    def __init__(self, disk: CrashDisk, path: str, inode: int) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._closed = False
        disk._open_files.add(self)

    def _model(self) -> FileModel:
        if self._closed:
            raise ValueError(f"{self._path} is closed")
        return self._disk._model.files[self._inode]

    def descriptor(self) -> int:
        return -1

    def write(self, data: Any) -> int:
        disk = self._disk
        view = bytes(data)
        with disk._mutex:
            fault = disk._call("write", self._path, len(view))
            if fault.short_bytes is not None:
                view = view[: fault.short_bytes]
            room = disk._room()
            if room is not None and len(view) > room:
                view = view[: max(room, 0)]
                if not view:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            end = self._model().sizes[-1]
            disk._happen(Event("write", self._path, self._inode, end, view))
            return len(view)

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        disk = self._disk
        with disk._mutex:
            disk._call("write_at", self._path, len(data))
            self._model()
            disk._happen(Event("write", self._path, self._inode, offset, bytes(data)))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        with self._disk._mutex:
            self._disk._call("read", self._path, len(buffer))
            model = self._model()
            count = max(min(len(buffer), model.sizes[-1] - offset), 0)
            part = bytes(model.content[offset : offset + count]).ljust(count, b"\0")
            buffer[:count] = part
            return count

    def truncate(self, size: int) -> None:
        disk = self._disk
        with disk._mutex:
            disk._call("truncate", self._path, size)
            if self._model().sizes[-1] != size:
                disk._happen(Event("truncate", self._path, self._inode, size))

    def write_synced(self, data: bytes | memoryview, offset: int) -> None:
        with self._disk._mutex:
            self.write_at(data, offset)
            self._sync(Event("sync_range", self._path, self._inode, offset, bytes(data)))

    def sync(self) -> None:
        with self._disk._mutex:
            self._model()
            self._sync(Event("sync", self._path, self._inode))

    def _sync(self, event: Event) -> None:
        disk = self._disk
        try:
            fault = disk._call("sync", self._path)
        except OSError:
            disk._happen(Event("sync_failed", self._path, self._inode))
            raise
        if not fault.lie:
            disk._happen(event)

    def drop_cache(self) -> None:
        with self._disk._mutex:
            self._model().drop_cache()

    def size(self) -> int:
        with self._disk._mutex:
            self._disk._call("size", self._path)
            return self._model().sizes[-1]

    def identity(self) -> object:
        return self._inode

    def close(self) -> None:
        self._closed = True


class _MemoryShared:
    """Shared words in a file of a CrashDisk."""

    def __init__(self, disk: CrashDisk, path: str, inode: int) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode

    def store(self, index: int, value: int) -> None:
        disk = self._disk
        with disk._mutex:
            disk._call("store", self._path, 8)
            data = value.to_bytes(8, sys.byteorder)
            disk._happen(Event("store", self._path, self._inode, 8 * index, data))

    def words(self) -> memoryview | None:
        return None

    def close(self) -> None:
        pass


class _MemoryLock(Lock):
    def __init__(self, disk: CrashDisk, path: str, exclusive: bool) -> None:
        self._disk = disk
        self._path = path
        self.exclusive = exclusive

    def release(self) -> None:
        with self._disk._changed:
            holders = self._disk._locks.get(self._path, [])
            if self in holders:
                holders.remove(self)
                self._disk._changed.notify_all()


class _MemoryWatch:
    def __init__(self, disk: CrashDisk) -> None:
        self._disk = disk
        self._seen = len(disk.events)

    def wait(self, timeout: float) -> bool:
        with self._disk._changed:
            return self._disk._changed.wait_for(lambda: len(self._disk.events) != self._seen, timeout)

    def fileno(self) -> int | None:
        return None

    def drain(self) -> None:
        self._seen = len(self._disk.events)

    def close(self) -> None:
        pass
