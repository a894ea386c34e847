"""Iceberg's own files, synced before its catalog names them. pyiceberg doesn't sync them."""

from __future__ import annotations

import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from forelog.files import OSFiles, sync_file

_VARIABLES = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
    "s3.region": "AWS_REGION",
}


def bucket_properties() -> dict[str, str]:
    """How pyiceberg reaches a bucket: by the same variables as everything else here."""
    return {name: os.environ[variable] for name, variable in _VARIABLES.items() if variable in os.environ}


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
