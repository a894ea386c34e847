"""A dict that survives its process.

>>> import tempfile
>>> path = tempfile.mkdtemp()
>>> with PersistentDict(path) as prices:
...     prices["chips"] = 250
...     prices["dip"] = 120
...     del prices["dip"]
>>> with PersistentDict(path) as prices:
...     print(dict(prices))
{'chips': 250}
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, MutableMapping
from types import TracebackType
from typing import Any, Self, TypeVar

from chiplog.errors import NotReplicated
from chiplog.state.log import Enumeration, StateLog, StateStats

__all__ = ["PersistentDict"]

K = TypeVar("K")
V = TypeVar("V")


class PersistentDict(MutableMapping[K, V]):
    """Keys and values are whatever a state log's events may be made of: texts, bytes, numbers, lists, dicts, None.

    A change of a value inside of it, as in `d["list"].append(1)`, isn't seen: assign it again. Tuples are keys,
    too, and come back as tuples; as values they come back as lists. Any thread may use it.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self._data: dict[K, V] = {}
        self._lock = threading.RLock()
        self._log = StateLog(path, replay=self._replay, enumerate=self._enumerate, **options)

    def open(self) -> Self:
        """Restore it."""
        self._log.open()
        return self

    def close(self) -> None:
        """Sync, and let go of the log."""
        self._log.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rotate(self) -> None:
        """Write all of it to a new generation, and drop what came before."""
        self._log.rotate()

    def stats(self) -> StateStats:
        """The log's figures."""
        return self._log.stats()

    @property
    def log(self) -> StateLog:
        """The log: its destinations, its health."""
        return self._log

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock, self._noting_what_is_written([key, value]):
            self._log.update([key, value])

    def __delitem__(self, key: K) -> None:
        with self._lock:
            if key not in self._data:
                raise KeyError(key)
            with self._noting_what_is_written([key]):
                self._log.update([key])

    @contextlib.contextmanager
    def _noting_what_is_written(self, event: list[Any]) -> Iterator[None]:
        """Change what the log has: also where a replica wasn't heard from in time."""
        try:
            yield
        except NotReplicated as error:
            if error.position is not None:
                self._change(event)
            raise
        self._change(event)

    def __getitem__(self, key: K) -> V:
        return self._data[key]

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __repr__(self) -> str:
        return f"PersistentDict({self._data!r})"

    def _replay(self, event: list[Any]) -> None:
        self._change([_hashable(event[0]), *event[1:]])

    def _change(self, event: list[Any]) -> None:
        if len(event) == 2:
            self._data[event[0]] = event[1]
        else:
            self._data.pop(event[0], None)

    def _enumerate(self, log: Enumeration) -> None:
        with self._lock:
            keys = list(self._data)
        for key in log.each(keys):
            with self._lock:
                if key in self._data:
                    log.update([key, self._data[key]])


def _hashable(key: Any) -> Any:
    """A tuple is a list in msgpack, and a list is no key."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key
