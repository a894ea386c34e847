"""A folder on object storage or a remote filesystem, through fsspec: little is asked of it.

Objects are written whole, read, listed and removed. Nothing is renamed, replaced or locked, because object stores
can't, and folders are made only where a write says that there is none: a bucket never is. Some stores can refuse
to write a name that is already there (`create`).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from forelog.errors import ForelogError, MissingExtra, ReplicaError

__all__ = ["Bucket", "shown"]

_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "sftp": "paramiko", "ssh": "paramiko", "gs": "gcsfs", "gcs": "gcsfs",
            "abfs": "adlfs", "az": "adlfs"}  # fmt: skip
_CREATES = {"s3", "s3a", "gs", "gcs", "abfs", "az", "memory"}  # by one request; others look first, and then write


class Bucket:
    """A folder there. Made without a connection; `open` makes one."""

    def __init__(self, where: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.where = shown(where)
        self._url = where
        self._options = dict(storage_options or {})
        self.may_create = urlsplit(where).scheme in _CREATES
        """Whether `create` is one step, if the store does what its driver asks for."""
        self._filesystem: Any = None
        self._root = ""
        _check_driver(self.where, urlsplit(where).scheme)

    def open(self) -> None:
        """Connect, if that isn't done."""
        if self._filesystem is not None:
            return
        import fsspec

        with self._told("connecting"):
            # An instance of its own: one that others share would be closed under them.
            filesystem, root = fsspec.core.url_to_fs(self._url, **self._options, skip_instance_cache=True)
            self._filesystem, self._root = filesystem, root.rstrip("/")

    def close(self) -> None:
        """Disconnect. Closing again does nothing."""
        filesystem, self._filesystem = self._filesystem, None
        # Only sftp has a connection that stays open when its filesystem is let go of.
        client = getattr(filesystem, "client", None)
        if client is not None and callable(getattr(client, "close", None)):
            with contextlib.suppress(Exception):
                client.close()

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The names of the objects in a folder, and how many bytes each has. No folder is an empty one."""
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
        """An object, or a part of it. FileNotFoundError if there is none."""
        with self._told(f"reading {name}"):
            if start is None and end is None and (sftp := self._sftp) is not None:
                whole = io.BytesIO()
                sftp.getfo(self._place(name), whole)
                return whole.getvalue()
            return bytes(self._open.cat_file(self._place(name), start=start, end=end))

    def write(self, name: str, data: bytes) -> None:
        """An object, all of it."""
        place = self._place(name)
        with self._told(f"writing {name}"):
            try:
                self._pipe(place, data)
            except FileNotFoundError:
                self._make_folders(place.rpartition("/")[0])
                self._pipe(place, data)

    def create(self, name: str, data: bytes) -> None:
        """An object, all of it, unless there is one already: then FileExistsError."""
        with self._told(f"creating {name}"):
            self._open.pipe_file(self._place(name), data, mode="create")

    def _pipe(self, place: str, data: bytes) -> None:
        sftp = self._sftp
        if sftp is None:
            self._open.pipe_file(place, data)
        else:
            sftp.putfo(io.BytesIO(data), place, file_size=len(data), confirm=True)

    def remove(self, name: str) -> None:
        """An object goes; one that isn't there is fine."""
        with self._told(f"removing {name}"), contextlib.suppress(FileNotFoundError):
            self._open.rm_file(self._place(name))

    @property
    def _open(self) -> Any:
        if self._filesystem is None:
            raise ReplicaError(f"{self.where}: not connected")
        return self._filesystem

    @property
    def _sftp(self) -> Any:
        """Of sftp, its client, which doesn't wait for an answer to every 32 KiB, as its files do; else None."""
        client = getattr(self._open, "ftp", None)
        return client if hasattr(client, "putfo") else None

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root or "/"

    def _make_folders(self, place: str) -> None:
        """A folder, and those that it is in. What a path without a root begins with is a bucket, and not made."""
        if "/" not in place.strip("/") and not place.startswith("/"):
            return
        if not place.strip("/") or self._open.exists(place):
            return
        self._make_folders(place.rpartition("/")[0])
        with contextlib.suppress(FileExistsError):
            self._open.mkdir(place, create_parents=False)

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Drivers raise what they like: say where it was, what was being done, and why it failed."""
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
            hint = ". Are the credentials right, and may they do that?" if _is_refusal(error) else ""
            raise ReplicaError(f"{self.where}: {doing} failed: {why}{hint}") from error


def shown(where: str) -> str:
    """An address without the password in it."""
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
        raise MissingExtra(
            f"{where}: reaching it needs fsspec: pip install '.[remote]' in forelog's folder"
        ) from error
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        needs = _DRIVERS.get(scheme)
        how = f"pip install '.[remote]' {needs} in forelog's folder" if needs else str(error)
        raise MissingExtra(f"{where}: fsspec has no driver for {scheme}:// here: {how}") from error
    except ValueError as error:
        raise ValueError(f"{where}: fsspec knows no {scheme}://") from error
