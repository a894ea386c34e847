"""A process's view of its machine's disk.

It charges time for what is done, and tells the world before each operation. It ends with its process: locks of a
killed process are free, and files that it had open no longer reach the disk.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from forelog.files import File, Lock, Shared, Watch
from forelog.testing.disk import CrashDisk
from forelog.testing.world.core import Core, Steps, Stopped

_QUICK_NS = 2_000
_SYNCS = frozenset({"sync", "sync_dir", "write_synced"})


class User(Steps, Protocol):
    """What a mount needs of its process."""

    @property
    def label(self) -> str:
        """The machine's name and the process's."""


def _step(kind: str) -> Callable[..., Any]:
    """Turn an operation of the disk into a step of the process."""

    def operation(mount: Mount, path: str, *rest: Any) -> Any:
        mount.begin(kind, path)
        return getattr(mount._disk, kind)(path, *rest)

    return operation


def _opening(kind: str) -> Callable[..., File]:
    """Turn an operation that opens a file into a step of the process."""
    opened = _step(kind)

    def operation(mount: Mount, path: str, *rest: Any) -> File:
        return _MountedFile(mount, path, opened(mount, path, *rest))

    return operation


class Mount:
    """The files protocol over a machine's disk, for one process."""

    def __init__(self, core: Core, user: User, disk: CrashDisk, sync_ns: int) -> None:
        self._core = core
        self._user = user
        self._disk = disk
        self._sync_ns = sync_ns
        self._locks: dict[Lock, None] = {}
        self._thread = threading.get_ident()
        self._is_dead = False

    def die(self) -> None:
        """End with the process."""
        self._is_dead = True
        for lock in list(self._locks):
            lock.release()

    def begin(self, kind: str, path: str, detail: object = "") -> None:
        """Begin an operation. Raises Stopped if the process has ended, or ends here."""
        core, user = self._core, self._user
        if self._is_dead:
            raise Stopped
        if threading.get_ident() != self._thread:
            name = threading.current_thread().name
            core.failures.append((user.label, f"{kind} {path} on a thread, {name}: it can't be simulated", None))
            raise Stopped
        core.note(kind, f"{user.label} {path} {detail}".rstrip())
        base_ns = self._sync_ns if kind in _SYNCS else _QUICK_NS
        user.spend(base_ns + core.random.randint(0, base_ns))
        core.step_out(user, kind)

    # -- the files protocol

    make_dir = _step("make_dir")
    list_dir = _step("list_dir")
    changed = _step("changed")
    sync_dir = _step("sync_dir")
    remove = _step("remove")
    remove_dir = _step("remove_dir")
    stat = _step("stat")
    open_read = _opening("open_read")
    open_append = _opening("open_append")
    open_new = _opening("open_new")
    open_update = _opening("open_update")

    def open_shared(self, path: str, count: int) -> Shared:
        self.begin("open_shared", path)
        return _MountedShared(self, path, self._disk.open_shared(path, count))

    def rename(self, source: str, target: str) -> None:
        self.begin("rename", source, os.path.basename(target))
        self._disk.rename(source, target)

    def move_dir(self, source: str, target: str) -> None:
        self.begin("move_dir", source, target)
        self._disk.move_dir(source, target)

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:  # noqa: ARG002
        """Take a lock, or raise at once: the holder could not release it while this process waits."""
        self.begin("lock", path)
        lock = _MountedLock(self._locks, self._disk.lock(path, exclusive=exclusive, timeout=0))
        self._locks[lock] = None
        return lock

    def watch(self, path: str) -> Watch:
        return self._disk.watch(path)

    def boot_id(self) -> str:
        return self._disk.boot_id()


class _MountedFile:
    def __init__(self, mount: Mount, path: str, file: File) -> None:
        self._mount = mount
        self._path = path
        self._file = file

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._mount.begin("write", self._path, f"{len(view)} {zlib.crc32(view):08x}")
        return self._file.write(view)

    def descriptor(self) -> int:
        return -1

    def read_into(self, buffer: memoryview, offset: int) -> int:
        self._mount.begin("read", self._path, offset)
        return self._file.read_into(buffer, offset)

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        self._mount.begin("write_at", self._path, offset)
        self._file.write_at(data, offset)

    def write_synced(self, data: bytes | memoryview, offset: int) -> None:
        self._mount.begin("write_synced", self._path, f"{offset} {zlib.crc32(data):08x}")
        self._file.write_synced(data, offset)

    def truncate(self, size: int) -> None:
        self._mount.begin("truncate", self._path, size)
        self._file.truncate(size)

    def sync(self) -> None:
        self._mount.begin("sync", self._path)
        self._file.sync()

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def size(self) -> int:
        self._mount.begin("size", self._path)
        return self._file.size()

    def identity(self) -> object:
        return self._file.identity()

    def close(self) -> None:
        self._file.close()


class _MountedShared:
    def __init__(self, mount: Mount, path: str, shared: Shared) -> None:
        self._mount = mount
        self._path = path
        self._shared = shared

    def store(self, index: int, value: int) -> None:
        self._mount.begin("store", self._path, f"{index} {value}")
        self._shared.store(index, value)

    def words(self) -> memoryview | None:
        return None

    def close(self) -> None:
        self._shared.close()


class _MountedLock(Lock):
    def __init__(self, held: dict[Lock, None], lock: Lock) -> None:
        self._held = held
        self._lock = lock

    def release(self) -> None:
        self._held.pop(self, None)
        self._lock.release()
