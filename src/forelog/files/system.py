"""The disk of the operating system."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

from forelog.files.locks import take_lock
from forelog.files.modes import PRIVATE, check_mode, make_directory, open_or_create
from forelog.files.protocol import BLOCK_BYTES, File, Files, Lock, Shared, Watch
from forelog.files.watches import InotifyWatch, PollWatch
from forelog.files.words import OSShared

_SETTLED_NS = 2_000_000_000  # a directory's time of change may be as coarse as this
_SYNCED: int | None = getattr(os, "RWF_DSYNC", None)
_DIRECT: int | None = getattr(os, "O_DIRECT", None)


def disk(files: Files | None, mode: int | None) -> Files:
    """The disk that a log is on: the one that was given, or the operating system's with a mode for new logs."""
    if files is not None and mode is not None:
        raise ValueError("mode is for the operating system's files: give OSFiles(mode), or no files")
    return files or OSFiles(PRIVATE if mode is None else mode)


class OSFile:
    """A file of the operating system."""

    __slots__ = ("_direct", "_fd", "write")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct: int | None = None
        """A descriptor of the file past the page cache; -1 if there can't be one, None until it is needed."""
        # A partial is called without a Python frame: this is the hot path of every append.
        self.write: Callable[[Any], int] = functools.partial(os.write, fd)

    def descriptor(self) -> int:
        return self._fd

    def read_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer):
            n = os.preadv(self._fd, [buffer[done:] if done else buffer], offset + done)
            if n == 0:
                break
            done += n
        return done

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError(errno.EIO, "short write")

    def write_synced(self, data: bytes | memoryview, offset: int) -> None:
        if not (self._write_direct(data, offset) or _write_dsync(self._fd, data, offset)):
            self.write_at(data, offset)
            self.sync()

    def _write_direct(self, data: bytes | memoryview, offset: int) -> bool:
        """Write past the page cache, which takes a third less time; False if that can't be."""
        if offset % BLOCK_BYTES or len(data) % BLOCK_BYTES:
            return False
        if self._direct is None:
            self._direct = _open_direct(self._fd)
        try:
            return self._direct >= 0 and _write_dsync(self._direct, data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._close_direct()  # this filesystem wants it otherwise, or doesn't have it
            return False

    def _close_direct(self) -> None:
        if self._direct is not None and self._direct >= 0:
            os.close(self._direct)
        self._direct = -1

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def drop_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def identity(self) -> object:
        status = os.fstat(self._fd)
        return (status.st_dev, status.st_ino)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self.write = _write_after_close
            self._close_direct()
            os.close(fd)

    def __del__(self) -> None:  # a forgotten file mustn't leak
        if self._fd >= 0:
            self.close()


def _write_dsync(fd: int, data: bytes | memoryview, offset: int) -> bool:
    """Write, and sync no more than that, in one call: quicker than to write and then to sync. False without it."""
    if _SYNCED is None:
        return False
    try:
        if os.pwritev(fd, (data,), offset, _SYNCED) != len(data):
            raise OSError(errno.EIO, "short write")
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return False
    return True


def _open_direct(fd: int) -> int:
    """A file that is open, once more past the page cache; -1 where that can't be."""
    if _SYNCED is None or _DIRECT is None:
        return -1
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | _DIRECT | os.O_CLOEXEC)
    except OSError:
        return -1


def _write_after_close(_: Any) -> int:
    raise ValueError("write to a closed file")


class OSFiles:
    """The filesystem of the operating system. New logs get this mode; see modes.py."""

    mode = PRIVATE

    def __init__(self, mode: int = PRIVATE) -> None:
        self.mode = check_mode(mode)

    def make_dir(self, path: str) -> None:
        missing = []
        place = os.path.abspath(path)
        while not os.path.isdir(place):
            missing.append(place)
            place = os.path.dirname(place)
        for directory in reversed(missing):
            try:
                make_directory(directory, self.mode)
            except FileExistsError:
                if not os.path.isdir(directory):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None
            self.sync_dir(os.path.dirname(directory))

    def list_dir(self, path: str) -> list[str]:
        return os.listdir(path)

    def changed(self, path: str) -> object | None:
        status = os.stat(path)
        if time.time_ns() - status.st_mtime_ns < _SETTLED_NS:
            return None  # the next change could have the same time
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def open_read(self, path: str) -> File:
        # Without O_NONBLOCK a pipe with a segment's name would block every reader of the log.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # opening one to read works, and only reading would fail
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return OSFile(fd)

    def open_append(self, path: str) -> File:
        return OSFile(open_or_create(path, os.O_RDWR | os.O_APPEND, self.mode))

    def open_new(self, path: str, mode: int) -> File:
        return OSFile(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))

    def open_update(self, path: str) -> File:
        return OSFile(open_or_create(path, os.O_RDWR, self.mode))

    def open_shared(self, path: str, count: int) -> Shared:
        return OSShared(path, count, self.mode)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def move_dir(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove_dir(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def stat(self, path: str) -> tuple[int, object] | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return status.st_size, (status.st_dev, status.st_ino)

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:
        return take_lock(path, exclusive=exclusive, timeout=timeout, mode=self.mode)

    def watch(self, path: str) -> Watch:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                return InotifyWatch(path)
        return PollWatch()

    def boot_id(self) -> str:
        return _boot_id()


@functools.cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return f"unknown-{os.urandom(8).hex()}"  # equal to none: each start counts as a reboot
