"""A dict for tasks: what writes is awaited, on a thread that may wait for the disk. The event loop never does.

Reading needs no `await`: it takes memory alone.

>>> import asyncio, tempfile
>>> from forelog.state import PersistentDict
>>> async def sell(path: str) -> int:
...     async with PersistentDict[str, int](path, sync="always") as stock:
...         await stock.aio.set("chips", 100)
...         await asyncio.gather(*(stock.aio.increment("chips", -1) for _ in range(8)))
...         return stock["chips"]
>>> asyncio.run(sell(tempfile.mkdtemp()))
92
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from forelog.log.aio import in_thread
from forelog.state.unset import UNSET, Absent, Ttl, Unset

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
P = ParamSpec("P")


class AsyncPersistentDict(Generic[K, V]):
    """The methods of a `PersistentDict` that write, to be awaited: `await d.aio.set(key, value)`."""

    def __init__(self, data: Any) -> None:
        self._data = data

    async def open(self) -> None:
        """PersistentDict.open()."""
        await in_thread(self._data.open)

    async def close(self) -> None:
        """PersistentDict.close()."""
        await in_thread(self._data.close)

    async def rotate(self) -> None:
        """PersistentDict.rotate()."""
        await in_thread(self._data.rotate)

    async def set(self, key: K, value: V, *, ttl: Ttl = UNSET) -> None:
        """PersistentDict.set(): what `d[key] = value` does."""
        await in_thread(self._data.set, key, value, ttl=ttl)

    async def setdefault(self, key: K, default: V, *, ttl: Ttl = UNSET) -> V:
        """PersistentDict.setdefault()."""
        return await in_thread(self._data.setdefault, key, default, ttl=ttl)

    async def pop(self, key: K, default: Any = UNSET) -> Any:
        """PersistentDict.pop()."""
        return await in_thread(self._data.pop, key, default)

    async def popitem(self) -> tuple[K, V]:
        """PersistentDict.popitem()."""
        return await in_thread(self._data.popitem)

    async def update_with(
        self, key: K, function: Callable[[V], V], default: V | Unset = UNSET, *, ttl: Ttl = UNSET
    ) -> V:
        """PersistentDict.update_with(). The function is called on another thread."""
        return await in_thread(self._data.update_with, key, function, default, ttl=ttl)

    async def increment(self, key: K, by: Any = 1, *, ttl: Ttl = UNSET) -> V:
        """PersistentDict.increment()."""
        return await in_thread(self._data.increment, key, by, ttl=ttl)

    async def compare_and_set(self, key: K, expected: V | Absent, value: V | Absent, *, ttl: Ttl = UNSET) -> bool:
        """PersistentDict.compare_and_set()."""
        return await in_thread(self._data.compare_and_set, key, expected, value, ttl=ttl)

    async def update(self, other: Any = (), /, **items: Any) -> None:
        """PersistentDict.update()."""
        await in_thread(self._data.update, other, **items)

    async def clear(self) -> None:
        """PersistentDict.clear()."""
        await in_thread(self._data.clear)

    async def transact(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a transaction, on another thread, and return what it returns."""

        def call() -> T:
            with self._data.transaction():
                return function(*args, **kwargs)

        return await in_thread(call)
