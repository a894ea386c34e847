"""Iceberg's own files, synced before its catalog names them. pyiceberg doesn't sync them."""

from __future__ import annotations

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from forelog.files import OSFiles, sync_file


class SyncedFiles(PyArrowFileIO):
    """pyiceberg's files, which are synced when they are closed. For the local file system."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return SyncedFile(location, path, self.fs_by_scheme(scheme, host))


class SyncedFile(PyArrowFile):
    """A file to write."""

    def create(self, overwrite: bool = False) -> Any:
        return _Synced(super().create(overwrite), self._path)


class _Synced:
    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def write(self, data: bytes) -> int:
        written: int = self._stream.write(data)
        return written

    def tell(self) -> int:
        place: int = self._stream.tell()
        return place

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        sync_file(OSFiles(), self._path)

    def __enter__(self) -> _Synced:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
