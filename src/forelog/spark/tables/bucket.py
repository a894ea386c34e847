"""A table below an address in a bucket: S3, Google's or Azure's, or what speaks their protocols.

The store must know conditional writes: `obstore` asks for an object that isn't there yet. Nothing can be renamed
there. So a move is a copy inside the store, and then the removal of the source. The store's own variables of the
environment say who asks (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), on the driver and on executors alike.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from forelog.errors import ForelogError, MissingExtra, StorageFailed
from forelog.files import OSFiles

__all__ = ["BucketStorage"]


class BucketStorage:
    """The objects of a table below an address."""

    locks = False

    def __init__(self, path: str) -> None:
        self.path = self.address = path.rstrip("/")
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise MissingExtra.needed("obstore", by=f"a table in {path}", extra="bucket") from error
        self._obstore: Any = obstore
        with self._failing("connecting"):
            self._store = obstore.store.from_url(self.path)
        self._scratch: str | None = None
        """A folder of this machine, for files that are being written."""

    def prepare(self) -> None:
        pass

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def names(self, folder: str) -> list[str]:
        with self._failing(f"listing {folder}"):
            found = self._obstore.list_with_delimiter(self._store, prefix=folder or None)
        places = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        return [place.rstrip("/").rpartition("/")[2] for place in places]

    def read(self, name: str) -> bytes:
        with self._failing(f"reading {name}"):
            return bytes(self._obstore.get(self._store, name).bytes())

    def exists(self, name: str) -> bool:
        try:
            with self._failing(f"looking for {name}"):
                self._obstore.head(self._store, name)
        except FileNotFoundError:
            return False
        return True

    def create(self, name: str, data: bytes, prepared: Callable[[], None]) -> None:
        prepared()
        try:
            with self._failing(f"creating {name}"):
                self._obstore.put(self._store, name, data, mode="create")
        except FileExistsError:
            if self.read(name) != data:  # it can be ours: the request was repeated because its answer was lost
                raise

    def make_folder(self, name: str) -> str:
        return f"{self.path}/{name}"

    def move(self, source: str, target: str) -> None:
        with self._failing(f"moving {source}"):
            self._obstore.copy(self._store, source, target)
            self._obstore.delete(self._store, source)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._failing(f"removing {name}"):
            self._obstore.delete(self._store, name)

    def remove_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._failing(f"removing {name}"):
            for some in self._obstore.list(self._store, prefix=name):
                self._obstore.delete(self._store, [one["path"] for one in some])

    def sync(self, folder: str, file: str | None = None) -> None:
        """What the store has acknowledged is as durable as it ever gets."""

    def add(self, name: str, source: str) -> int:
        size = os.stat(source).st_size
        with self._failing(f"writing {name}"), open(source, "rb") as file:
            self._obstore.put(self._store, name, file)
        OSFiles().remove(source)
        return size

    def staged(self, name: str) -> str:
        if self._scratch is None:
            self._scratch = tempfile.mkdtemp(prefix="forelog-table-")
            weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        return f"{self._scratch}/{os.path.basename(name)}"

    def open(self, name: str) -> Any:
        import pyarrow as pa

        return pa.BufferReader(self.read(name))  # it is small: only small ones are merged

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Turn errors of the store into one line that names the place."""
        try:
            yield
        except (ForelogError, FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            if "AlreadyExistsError" in kinds:
                raise FileExistsError(f"{self.path}: {doing}") from error
            if "NotFoundError" in kinds:
                raise FileNotFoundError(f"{self.path}: {doing}") from error
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StorageFailed(f"{self.path}: {doing} failed: {reason}") from error
