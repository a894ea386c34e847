"""The only module that touches the filesystem.

`Files` is a small protocol: what a log needs of a disk, and no more. `OSFiles` is the real one;
`forelog.testing.CrashDisk` is one that crashes, lies, tears and fills up. What the engine takes the disk
to do is numbered in docs/durability.md; the calls say which of it they rely on.

Paths are plain strings; a directory is never walked, only listed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from forelog.files.locks import take_lock
from forelog.files.modes import PRIVATE, check_mode, make_directory, open_or_create
from forelog.files.watches import InotifyWatch, PollWatch
from forelog.files.words import OSShared

__all__ = [
    "BLOCK_BYTES",
    "File",
    "Files",
    "Lock",
    "OSFiles",
    "Shared",
    "Watch",
    "disk",
    "removed_on_failure",
    "write_all",
]

BLOCK_BYTES = 4096
"""What disks write at once, and a page of memory."""
_SETTLED_NS = 2_000_000_000  # a directory's time of change may be as coarse as this
_SYNCED: int | None = getattr(os, "RWF_DSYNC", None)
_DIRECT: int | None = getattr(os, "O_DIRECT", None)


class File(Protocol):
    """An open file. Writes go to its end; reads name their place."""

    def write(self, data: Any, /) -> int:
        """Append bytes and return how many were taken: possibly fewer than given, as write(2) does."""

    def descriptor(self) -> int:
        """The file descriptor that write() writes to, for who writes very often; -1 if there is none."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; return how many bytes there were, short only at the end of the file."""

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Overwrite a few bytes of a file opened to update, all or an error; a crash may tear it."""

    def write_synced(self, data: bytes | memoryview, offset: int) -> None:
        """write_at() within the file; these bytes are on stable storage when it returns, others need not be.

        Quickest for whole blocks of BLOCK_BYTES, at such a place, that begin where a page of memory does.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return when the content and size are on stable storage. After an error nothing may be assumed."""

    def drop_cache(self) -> None:
        """Forget clean cached pages, so that the next read comes from the disk, where that is possible."""

    def size(self) -> int:
        """How many bytes the file has now."""

    def identity(self) -> object:
        """Equal for the same file under the same name, different once it was replaced."""

    def close(self) -> None:
        """Release it, once; closing again does nothing."""


class Shared(Protocol):
    """Unsigned 64-bit words in a file, in the machine's byte order.

    Each is stored in one step, and in the order of the calls. They outlive the process, and are not synced:
    after a power loss they may be anything.
    """

    def store(self, index: int, value: int) -> None:
        """Set a word: whoever reads the file from now on finds it."""

    def words(self) -> memoryview | None:
        """The words in memory, for who stores very often; None if they are nowhere."""

    def close(self) -> None:
        """Release it, once; closing again does nothing."""


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Let others have it, once; releasing again does nothing."""


class Watch(Protocol):
    """Tells when something in a directory may have changed."""

    def wait(self, timeout: float) -> bool:
        """Return after a change, True, or after `timeout` seconds, False. False alarms are allowed."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable with a change, if there is one."""

    def drain(self) -> None:
        """Forget changes told so far."""

    def close(self) -> None:
        """Release it."""


class Files(Protocol):
    """A disk."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, durably; one that exists is fine."""

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, in any order. FileNotFoundError if there is none.

        A listing takes time, and is no snapshot. It has every name that is there from its beginning to its end. A
        name that is created or removed meanwhile may be in it or not, whatever the names created before or after
        it are: 9 may be there without 8. So may be a name that another file is renamed to meanwhile, although it
        always leads to one of the two. `Directory.numbers` is right in spite of that.
        """

    def changed(self, path: str) -> object | None:
        """A word for a directory's entries: as long as it is the same, none was added, removed or renamed.

        None if there is no such word, or if it could stay the same through a change that comes right now.
        """

    def sync_dir(self, path: str) -> None:
        """Return when the entries of the directory are on stable storage."""

    def open_read(self, path: str) -> File:
        """Open an existing file to read. IsADirectoryError if it is a directory."""

    def open_append(self, path: str) -> File:
        """Open a file to read and write at its end, creating it empty if there is none."""

    def open_update(self, path: str) -> File:
        """Open a file to read and overwrite in place, creating it empty if there is none.

        Not the same as open_append: what that opened is written at its end, wherever write_at says.
        """

    def open_shared(self, path: str, count: int) -> Shared:
        """Open a file of so many 64-bit words that every process sees at once, creating it with zeros."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` in one step; durable after sync_dir."""

    def remove(self, path: str) -> None:
        """Remove a file; one that isn't there is fine. Durable after sync_dir."""

    def stat(self, path: str) -> tuple[int, object] | None:
        """Size and identity of a file, or None if there is none."""

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:
        """Take an advisory lock on a file, creating it; wait for ever, or for `timeout` seconds."""

    def watch(self, path: str) -> Watch:
        """Watch a directory for changes by any process."""

    def boot_id(self) -> str:
        """A name for the time since the machine last started: what was cached then is still cached."""


def disk(files: Files | None, mode: int | None) -> Files:
    """The disk that a log is on: the one that was given, or the operating system's with a mode for new logs."""
    if files is not None and mode is not None:
        raise ValueError("mode is for the operating system's files: give OSFiles(mode), or no files")
    return files or OSFiles(PRIVATE if mode is None else mode)


def write_all(file: File, data: bytes | memoryview) -> None:
    """Write every byte, in as many calls as it takes."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


@contextlib.contextmanager
def removed_on_failure(files: Files, path: str) -> Iterator[None]:
    """For writing a file that nobody may find half written: an error removes it, if it can be removed."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(path)
        raise


class OSFile:
    """A file of the operating system."""

    __slots__ = ("_direct", "_fd", "write")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct: int | None = None
        """The same file past the page cache; -1 if that can't be, None until it is wanted."""
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

    def __del__(self) -> None:  # forgotten is no reason to leak
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
        # Without O_NONBLOCK a pipe with a segment's name would hold up whoever reads the log.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # opening one to read works, and only reading would fail
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return OSFile(fd)

    def open_append(self, path: str) -> File:
        return OSFile(open_or_create(path, os.O_RDWR | os.O_APPEND, self.mode))

    def open_update(self, path: str) -> File:
        return OSFile(open_or_create(path, os.O_RDWR, self.mode))

    def open_shared(self, path: str, count: int) -> Shared:
        return OSShared(path, count, self.mode)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

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
