"""A table in a folder of this machine, or of a file system that all machines share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from forelog.errors import LockTimeout
from forelog.files import OSFiles, removed_on_failure, sync_file, write_all
from forelog.files.modes import PRIVATE, mode_like
from forelog.log.directory.tenants import refuse_others
from forelog.spark.tables.layout import COMMITS, FOLDER, STAGING

__all__ = ["FolderStorage"]


class FolderStorage:
    """The files of a table below a folder."""

    locks = True

    def __init__(self, path: str, mode: int = PRIVATE) -> None:
        self.path = path
        self.address = f"file://{path}"
        self._files = OSFiles(mode_like(f"{path}/{FOLDER}", mode))

    def prepare(self) -> None:
        refuse_others(self._files, self.path, "a table", kind="table")
        self._files.make_dir(f"{self.path}/{COMMITS}")
        self._files.make_dir(f"{self.path}/{STAGING}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        try:
            lock = self._files.lock(f"{self.path}/{FOLDER}/lock", exclusive=True, timeout=0)
        except LockTimeout:
            raise LockTimeout(f"{self.path}: another ingest writes to it: only one can at a time") from None
        try:
            yield
        finally:
            lock.release()

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(f"{self.path}/{folder}")
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        with open(f"{self.path}/{name}", "rb") as file:
            return file.read()

    def exists(self, name: str) -> bool:
        return self._files.stat(f"{self.path}/{name}") is not None

    def create(self, name: str, data: bytes, prepared: Callable[[], None]) -> None:
        folder, _, own = f"{self.path}/{name}".rpartition("/")
        part = f"{folder}/.{own}.part"
        self._files.remove(part)
        with removed_on_failure(self._files, part), closing(self._files.open_append(part)) as file:
            write_all(file, data)
            file.sync()
        prepared()
        self._files.rename(part, f"{folder}/{own}")  # nobody else makes one: the table is locked
        self._files.sync_dir(folder)

    def make_folder(self, name: str) -> str:
        self._files.make_dir(f"{self.path}/{name}")
        return f"{self.path}/{name}"

    def move(self, source: str, target: str) -> None:
        self._files.make_dir(os.path.dirname(f"{self.path}/{target}"))
        self._files.rename(f"{self.path}/{source}", f"{self.path}/{target}")

    def remove(self, name: str) -> None:
        self._files.remove(f"{self.path}/{name}")

    def remove_folder(self, name: str) -> None:
        shutil.rmtree(f"{self.path}/{name}", ignore_errors=True)

    def sync(self, folder: str, file: str | None = None) -> None:
        if file is not None:
            sync_file(self._files, f"{self.path}/{folder}/{file}")
        self._files.sync_dir(f"{self.path}/{folder}".rstrip("/"))

    def add(self, name: str, source: str) -> int:
        assert source == f"{self.path}/{name}"
        return sync_file(self._files, source)

    def staged(self, name: str) -> str:
        return f"{self.path}/{name}"

    def open(self, name: str) -> Any:
        return f"{self.path}/{name}"
