"""Reading logs on other file systems through fsspec: `s3://bucket/logs`, `sftp://host/logs`.

Logs there are neither written nor cleaned, so sealed segments don't change. There are no locks, and nothing to
watch. Files that are still being copied are read up to their current end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forelog.errors import LogNotFound, MissingExtra
from forelog.files import File, Files, Lock


def _refuse(*_: Any, **__: Any) -> Any:
    raise PermissionError("logs on remote file systems can only be read")


def is_remote(path: str) -> bool:
    return "://" in path


def _filesystem(path: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra.needed("fsspec", by=f"reading {path}", extra="remote") from error
    filesystem, place = fsspec.core.url_to_fs(path)
    return filesystem, place


def _place_of(path: str) -> str:
    from fsspec.core import strip_protocol

    place: str = strip_protocol(path)
    return place


def walk_remote(root: str) -> Iterator[tuple[str, list[str]]]:
    """All folders below a root, as addresses, with the names of their files."""
    filesystem, place = _filesystem(root)
    if not filesystem.isdir(place):
        raise LogNotFound(f"there is no folder {root}")
    for folder, _, names in filesystem.walk(place):
        inside = folder[len(place) :].strip("/").split("/")
        if not any(part.startswith(("_", ".")) for part in inside):
            yield filesystem.unstrip_protocol(folder), list(names)


def glob_remote(pattern: str) -> list[str]:
    """The folders that a pattern names, as addresses."""
    filesystem, place = _filesystem(pattern)
    found = filesystem.glob(place, detail=True)
    return sorted(filesystem.unstrip_protocol(name) for name, info in found.items() if info["type"] == "directory")


def remote_files(path: str) -> Files:
    return RemoteFiles(path)


class RemoteFile:
    """A file that is read in ranges."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        self._filesystem = filesystem
        self._path = path
        self._size = size

    def read_into(self, buffer: memoryview, offset: int) -> int:
        end = min(offset + len(buffer), self._size)
        if end <= offset:
            return 0
        data = self._filesystem.cat_file(self._path, start=offset, end=end)
        buffer[: len(data)] = data
        return len(data)

    def size(self) -> int:
        return self._size

    def identity(self) -> object:
        return self._path

    def descriptor(self) -> int:
        return -1

    def drop_cache(self) -> None:
        pass

    def close(self) -> None:
        pass

    write = write_at = write_synced = truncate = sync = _refuse


class NoLock(Lock):
    def release(self) -> None:
        pass


class RemoteFiles:
    """The part of the files protocol that reading a log needs, on a file system of fsspec."""

    def __init__(self, path: str) -> None:
        self._filesystem, _ = _filesystem(path)

    def list_dir(self, path: str) -> list[str]:
        place = _place_of(path)
        self._filesystem.invalidate_cache(place)
        if not self._filesystem.isdir(place):
            raise FileNotFoundError(path)
        return [entry.rstrip("/").rsplit("/", 1)[-1] for entry in self._filesystem.ls(place, detail=False)]

    def changed(self, path: str) -> object | None:  # noqa: ARG002 - no store tells
        return None

    def open_read(self, path: str) -> File:
        found = self.stat(path)
        if found is None:
            raise FileNotFoundError(path)
        return RemoteFile(self._filesystem, _place_of(path), found[0])

    def stat(self, path: str) -> tuple[int, object] | None:
        try:
            info = self._filesystem.info(path)
        except FileNotFoundError:
            return None
        return int(info["size"] or 0), path

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:  # noqa: ARG002
        if exclusive:
            _refuse()
        return NoLock()

    def boot_id(self) -> str:
        return "remote"

    watch = make_dir = sync_dir = open_append = open_update = open_shared = rename = remove = _refuse
    open_new = move_dir = remove_dir = _refuse
