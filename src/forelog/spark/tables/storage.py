"""Where the files of a table are: in a folder, or below an address in a bucket.

Both can create a file that must not be there yet, in one step. The commits of a table rest on that alone. A folder
is locked by its writer. A bucket has no locks: of two writers, the first one to create the next commit continues,
and the other one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from forelog.files.modes import PRIVATE
from forelog.spark.remote import is_remote

__all__ = ["Storage", "storage_of"]


class Storage(Protocol):
    """The files of a table, by their names below it. A name may contain folders."""

    path: str
    """The path of the folder, or the address in a bucket."""
    address: str
    """The folder or the bucket as an address, also for a folder; for table formats."""
    locks: bool
    """Whether only one writer at a time can open the table."""

    def prepare(self) -> None:
        """Make what a table needs before it can be written."""

    def lock(self) -> AbstractContextManager[None]:
        """Keep other writers out, where there are locks."""

    def names(self, folder: str) -> list[str]:
        """The names of the files and folders in a folder. A missing folder is an empty one."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    def create(self, name: str, data: bytes, prepared: Callable[[], None]) -> None:
        """Create a file, whole, synced and in one step, or raise FileExistsError. Calls `prepared` before it."""

    def make_folder(self, name: str) -> str:
        """Make a folder. Returns its path or address."""

    def move(self, source: str, target: str) -> None:
        """Move a file; FileNotFoundError if it is gone. A kill in between leaves it in one place or in both."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it, if it is there."""

    def sync(self, folder: str, file: str | None = None) -> None:
        """Sync the names in a folder, and one of its files."""

    def add(self, name: str, source: str) -> int:
        """Put a file of this machine there, synced. Returns its size. The source may be gone then."""

    def staged(self, name: str) -> str:
        """Where to write a file on this machine that `add` gets afterwards."""

    def open(self, name: str) -> Any:
        """A file to read, as Arrow wants it."""


def storage_of(path: str, mode: int = PRIVATE) -> Storage:
    """The storage at a path or an address. `mode` is for the files of a new folder."""
    if is_remote(path):
        from forelog.spark.tables.bucket import BucketStorage

        return BucketStorage(path)
    from forelog.spark.tables.folder import FolderStorage

    return FolderStorage(path, mode)
