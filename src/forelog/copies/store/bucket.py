"""A folder in an object store or on a remote file system, through fsspec.

Objects are written whole, read, listed and removed. Nothing is renamed, replaced or locked, because object stores
can't do that. A folder is made only after a write has failed without it; a bucket is never made. Some stores can
refuse to overwrite an object (`create`).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from forelog.errors import ForelogError, MissingExtra, ReplicaError

_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "sftp": "paramiko", "ssh": "paramiko", "gs": "gcsfs", "gcs": "gcsfs",
            "abfs": "adlfs", "az": "adlfs"}  # fmt: skip
_CREATES = {"s3", "s3a", "gs", "gcs", "abfs", "az", "memory"}  # in one request; others check first, then write


class Bucket:
    """A folder of objects. `open` connects to the store."""

    def __init__(self, where: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.where = shown(where)
        self._url = where
        self._options = dict(storage_options or {})
        self.may_create = urlsplit(where).scheme in _CREATES
        """Whether `create` is atomic, if the store does what its driver asks for."""
        self._filesystem: Any = None
        self._root = ""
        _check_driver(self.where, urlsplit(where).scheme)

    def open(self) -> None:
        """Connect, unless connected."""
        if self._filesystem is not None:
            return
        import fsspec

        with self._told("connecting"):
            # An own instance: others would lose a shared one when this is closed.
            filesystem, root = fsspec.core.url_to_fs(self._url, **self._options, skip_instance_cache=True)
            self._filesystem, self._root = filesystem, root.rstrip("/")

    def close(self) -> None:
        """Disconnect. Closing again does nothing."""
        filesystem, self._filesystem = self._filesystem, None
        # Only sftp keeps its connection open when the filesystem object is gone.
        client = getattr(filesystem, "client", None)
        if client is not None and callable(getattr(client, "close", None)):
            with contextlib.suppress(Exception):
                client.close()

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The names of the objects in a folder, with their sizes. A missing folder is an empty one."""
        place = self._place(folder)
        with self._told(f"listing {folder or 'it'}"):
            self._open.invalidate_cache(place)
            try:
                found = self._open.ls(place, detail=True)
            except FileNotFoundError:
                return {}
            return {
                entry["name"].rstrip("/").rsplit("/", 1)[-1]: int(entry["size"] or 0)
                for entry in found
                if entry["type"] == "file"
            }

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object, or a part of it; FileNotFoundError if there is none."""
        with self._told(f"reading {name}"):
            if start is None and end is None and (sftp := self._sftp) is not None:
                whole = io.BytesIO()
                sftp.getfo(self._place(name), whole)
                return whole.getvalue()
            return bytes(self._open.cat_file(self._place(name), start=start, end=end))

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        place = self._place(name)
        with self._told(f"writing {name}"):
            try:
                self._pipe(place, data)
            except FileNotFoundError:
                self._make_folders(place.rpartition("/")[0])
                self._pipe(place, data)

    def create(self, name: str, data: bytes) -> None:
        """Write an object; FileExistsError if there is one already."""
        with self._told(f"creating {name}"):
            self._open.pipe_file(self._place(name), data, mode="create")

    def _pipe(self, place: str, data: bytes) -> None:
        sftp = self._sftp
        if sftp is None:
            self._open.pipe_file(place, data)
        else:
            sftp.putfo(io.BytesIO(data), place, file_size=len(data), confirm=True)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._told(f"removing {name}"), contextlib.suppress(FileNotFoundError):
            self._open.rm_file(self._place(name))

    @property
    def _open(self) -> Any:
        if self._filesystem is None:
            raise ReplicaError(f"{self.where}: not connected")
        return self._filesystem

    @property
    def _sftp(self) -> Any:
        """The client of sftp, which is faster than its files: they wait after every 32 KiB; None for others."""
        client = getattr(self._open, "ftp", None)
        return client if hasattr(client, "putfo") else None

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root or "/"

    def _make_folders(self, place: str) -> None:
        """Make a folder and its parents, but never a bucket: the first part of a path without a root."""
        if "/" not in place.strip("/") and not place.startswith("/"):
            return
        if not place.strip("/") or self._open.exists(place):
            return
        self._make_folders(place.rpartition("/")[0])
        with contextlib.suppress(FileExistsError):
            self._open.mkdir(place, create_parents=False)

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Turn any error of a driver into one that names the place, the action and the reason."""
        try:
            yield
        except ForelogError:
            raise
        except FileExistsError as error:
            if doing.startswith("creating"):
                raise
            raise ReplicaError(f"{self.where}: {doing} failed: {error}") from error
        except FileNotFoundError as error:
            if doing.startswith("reading"):
                raise
            raise ReplicaError(
                f"{self.where}: {doing} failed: there is no such folder or bucket: {error}"
            ) from error
        except Exception as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            hint = ". Are the credentials right, and do they allow it?" if _is_refusal(error) else ""
            raise ReplicaError(f"{self.where}: {doing} failed: {why}{hint}") from error


def shown(where: str) -> str:
    """An address without its password."""
    parts = urlsplit(where)
    if "@" not in parts.netloc:
        return where
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}"))


def _is_refusal(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"PermissionError", "AuthenticationException", "NoCredentialsError", "NoAuthException"})


def _check_driver(where: str, scheme: str) -> None:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra.needed("fsspec", by=f"reaching {where}", extra="remote") from error
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        needs = _DRIVERS.get(scheme)
        how = f"pip install {needs}" if needs else str(error)
        raise MissingExtra(f"{where}: fsspec has no driver for {scheme}:// here: {how}") from error
    except ValueError as error:
        raise ValueError(f"{where}: fsspec knows no {scheme}://") from error
