"""What a log needs from a disk: five small protocols.

`OSFiles` (system.py) is the disk of the operating system; `forelog.testing.CrashDisk` is one that crashes, lies,
tears and fills up. What the engine takes a disk to do is numbered in docs/durability.md.

Paths are plain strings; a directory is never walked, only listed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Protocol, Self

BLOCK_BYTES = 4096
"""The size of a block of a disk, and of a page of memory."""


class File(Protocol):
    """An open file. Writes append to it; reads are given an offset."""

    def write(self, data: Any, /) -> int:
        """Append bytes and return how many were taken: possibly fewer than given, as write(2) does."""

    def descriptor(self) -> int:
        """The file descriptor that write() writes to, for frequent writers; -1 if there is none."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; return how many bytes there were, short only at the end of the file."""

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Overwrite a few bytes of a file opened to update, all or an error; a crash may tear it."""

    def write_synced(self, data: bytes | memoryview, offset: int) -> None:
        """Overwrite bytes within the file. They are on stable storage when it returns; others need not be.

        Fastest for whole blocks of BLOCK_BYTES, at a multiple of it, from memory that begins at a page.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return when the content and size are on stable storage. After an error nothing may be assumed."""

    def drop_cache(self) -> None:
        """Drop clean cached pages if possible, so that the next read comes from the disk."""

    def size(self) -> int:
        """How many bytes the file has now."""

    def identity(self) -> object:
        """A value that changes when another file takes this name."""

    def close(self) -> None:
        """Release it, once; closing again does nothing."""


class Shared(Protocol):
    """Unsigned 64-bit words in a file, in the machine's byte order.

    Each is stored in one step, and in the order of the calls. They outlive the process, and are not synced:
    after a power loss they may be anything.
    """

    def store(self, index: int, value: int) -> None:
        """Set a word. Every reader of the file sees it from now on."""

    def words(self) -> memoryview | None:
        """The words in memory, for frequent stores; None if they aren't in memory."""

    def close(self) -> None:
        """Release it, once; closing again does nothing."""


class Lock(Protocol):
    """A held lock; as a context manager it is released at the end."""

    def release(self) -> None:
        """Release the lock. Releasing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Watch(Protocol):
    """Reports that something in a directory may have changed."""

    def wait(self, timeout: float) -> bool:
        """Return after a change, True, or after `timeout` seconds, False. False alarms are allowed."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable with a change, if there is one."""

    def drain(self) -> None:
        """Forget the changes reported so far."""

    def close(self) -> None:
        """Release what it holds."""


class Files(Protocol):
    """A disk."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, durably; one that exists is fine."""

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, in any order. FileNotFoundError if there is none.

        A listing takes time, and isn't a snapshot. It has every name that exists from its beginning to its end.
        A name that is created or removed meanwhile may be in it or not, independently of others: 9 may be there
        without 8. The same holds for a name that another file is renamed to meanwhile, although the name always
        exists. `Directory.numbers` copes with that.
        """

    def changed(self, path: str) -> object | None:
        """A number that stays the same while no entry of a directory is added, removed or renamed.

        None if there is no such number, or if it could miss a change that happens right now.
        """

    def sync_dir(self, path: str) -> None:
        """Return when the entries of the directory are on stable storage."""

    def open_read(self, path: str) -> File:
        """Open an existing file to read. IsADirectoryError if it is a directory."""

    def open_append(self, path: str) -> File:
        """Open a file to read and write at its end, creating it empty if there is none."""

    def open_new(self, path: str, mode: int) -> File:
        """Create a file of its own mode, to write at its end. FileExistsError if there is one."""

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

    def move_dir(self, source: str, target: str) -> None:
        """Rename a directory in one step. The new name must be free, or that of an empty directory.

        Durable after sync_dir of the directory that has both.
        """

    def remove_dir(self, path: str) -> None:
        """Remove a directory and all that is in it; one that isn't there is fine."""

    def stat(self, path: str) -> tuple[int, object] | None:
        """Size and identity of a file, or None if there is none."""

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:
        """Take an advisory lock on a file, creating it; wait for ever, or for `timeout` seconds."""

    def watch(self, path: str) -> Watch:
        """Watch a directory for changes by any process."""

    def boot_id(self) -> str:
        """A name for the time since the machine last started: what was cached then is still cached."""


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


def in_the_way(files: Files, path: str, *, or_empty: bool = False) -> bool:
    """Whether something is at a path, other than an empty directory; with `or_empty` also an empty one."""
    try:
        return bool(files.list_dir(path)) or or_empty
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True


def sync_file(files: Files, path: str) -> int:
    """Return the size of a file that something else has written, once it and its entry are on stable storage."""
    with contextlib.closing(files.open_read(path)) as file:
        file.sync()
        size = file.size()
    files.sync_dir(os.path.dirname(path) or ".")
    return size


def replace_file(files: Files, path: str, data: bytes, mode: int) -> None:
    """Give a file other content in one step, durably: a reader finds the old or the new."""
    new = f"{path}.{os.urandom(4).hex()}.new"
    with removed_on_failure(files, new):
        with contextlib.closing(files.open_new(new, mode)) as file:
            write_all(file, data)
            file.sync()
        files.rename(new, path)
    files.sync_dir(os.path.dirname(path) or ".")


@contextlib.contextmanager
def built_beside(files: Files, place: str, beside: str) -> Iterator[None]:
    """For filling the new directory `beside`: it gets the name `place` when the block ends, in one step, durably.

    After an error nothing is left of it. What is inside is on stable storage when the block ends.
    """
    try:
        files.make_dir(beside)
        yield
        files.move_dir(beside, place)
        files.sync_dir(os.path.dirname(place) or ".")
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_dir(beside)
        raise
