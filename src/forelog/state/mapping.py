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
import os
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack, overload

from forelog.bounds import AGE_SECONDS_MAX, check_number
from forelog.errors import ForelogError, NotReplicated, ReadOnly
from forelog.kernel import KeyLocks
from forelog.log.stream import PathLike
from forelog.state.enumeration import Enumeration
from forelog.state.items import ItemCodec
from forelog.state.log import StateLog, StateStats
from forelog.state.options import DictOptions, LogOptions
from forelog.state.reflection import Reflection
from forelog.state.table import Table
from forelog.state.transaction import Transaction, joined
from forelog.state.unset import ABSENT, UNSET, Absent, Ttl, Unset
from forelog.state.views import Items, Values

if TYPE_CHECKING:
    from forelog.state.aio import AsyncPersistentDict

K = TypeVar("K")
V = TypeVar("V")


class PersistentDict(MutableMapping[K, V]):
    """A dict whose changes are in a log: `with PersistentDict(path, keys=str, values=Decimal) as prices: ...`.

    Keys and values are strings, bytes, numbers, booleans and None; values can be lists and dicts, and keys tuples.
    `keys` and `values` name other types that msgspec knows, such as `Decimal`, `tuple[int, str]` or a dataclass;
    `PersistentDict[str, Decimal](path)` does too. BadEvent refuses what would not come back as it was.

    The dict doesn't notice a change inside of a value, as in `d["list"].append(1)`: assign the value again. Any
    thread may use the dict; each method is one atomic step. Whoever iterates sees the dict as it was when the
    iteration began.

    ttl        seconds after which a key expires that is set without a time of its own; None for never
    clock      the time that keys expire by, in nanoseconds since 1970; by default the system's
    read_only  look at a dict that another process may be writing. Each look shows what is in the log by then

    The other options are those of StateLog.
    """

    @overload
    def __init__(
        self, path: PathLike, *, keys: type[K], values: type[V], **options: Unpack[DictOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: PersistentDict[K, Any],
        path: PathLike,
        *,
        keys: type[K],
        values: object = Any,
        **options: Unpack[DictOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: PersistentDict[Any, V],
        path: PathLike,
        *,
        keys: object = Any,
        values: type[V],
        **options: Unpack[DictOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: PersistentDict[Any, Any],
        path: PathLike,
        *,
        keys: object = Any,
        values: object = Any,
        **options: Unpack[DictOptions],
    ) -> None: ...

    def __init__(
        self,
        path: PathLike,
        *,
        keys: Any = Any,
        values: Any = Any,
        ttl: float | None = None,
        clock: Callable[[], int] | None = None,
        read_only: bool = False,
        **options: Unpack[LogOptions],
    ) -> None:
        self._codec = ItemCodec(keys, values)
        self._read_only = read_only
        if read_only and (set(options) - {"files"} or ttl is not None):
            raise ValueError(f"a dict that is read_only has no {', '.join(options) or 'ttl'}: leave that out")
        self._table: Table[K, V] = (
            Reflection(path, self._codec, clock, options.get("files"))
            if read_only
            else Table(os.fspath(path), clock)
        )
        self._log = StateLog(
            path, replay=self._table.replay, enumerate=self._enumerate, codec=self._codec, **options
        )
        self._locks = KeyLocks(self._catch_up, joined)
        self._ttl = _checked(ttl)

    def open(self) -> Self:
        """Open the log, and restore the dict from it."""
        kinds = getattr(self, "__orig_class__", None)  # PersistentDict[str, Order](path)
        if kinds is not None:
            self._codec.declare(*kinds.__args__)
        self._table.close()
        if not self._read_only:
            self._log.open()
            self._locks.forget()
        self._table.open()
        return self

    def close(self) -> None:
        """Sync, and close the log."""
        if self._read_only:
            self._table.close()
        else:
            self._log.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def rotate(self) -> None:
        """Write the whole dict to a new generation of the log, and drop the older ones."""
        self._check_writable()
        if self._mine() is not None:
            raise RuntimeError("a transaction is open here: rotate after it")
        self._log.rotate()

    def stats(self) -> StateStats:
        """Figures of the log since it was opened."""
        return self._log.stats()

    @property
    def log(self) -> StateLog:
        """The log, with its destinations and its health."""
        return self._log

    @property
    def aio(self) -> AsyncPersistentDict[K, V]:
        """The methods that write, to be awaited."""
        from forelog.state.aio import AsyncPersistentDict

        return AsyncPersistentDict(self)

    async def __aenter__(self) -> Self:
        await self.aio.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aio.close()

    # -- reading

    def __getitem__(self, key: K) -> V:
        if self._locks.transaction is None:
            return self._table[key]
        value: V = self._found(key)[1]
        return value

    def __contains__(self, key: object) -> bool:
        mine = self._mine()
        return key in self._table if mine is None else mine.event(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._table) if self._mine() is None else len(self._now())

    def __iter__(self) -> Iterator[K]:
        return iter(self._now())

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._now())

    def values(self) -> ValuesView[V]:
        """The values. Each iteration sees them as they are when it begins."""
        return Values(self, self._now)

    def items(self) -> ItemsView[K, V]:
        """Keys and values. Each iteration sees them as they are when it begins."""
        return Items(self, self._now)

    def copy(self) -> dict[K, V]:
        """A dict with the items of this moment. (`dict(d)` looks up each key, which may be gone by then.)"""
        return self._now().copy()

    __copy__ = copy

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the PersistentDict of {self._log.path} can't be pickled: pass its path, and open it with "
            "read_only=True there, or pickle what copy() returns"
        )

    def __or__(self, other: Mapping[K, V]) -> dict[K, V]:
        return self._now() | _plain(other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[K, V]) -> dict[K, V]:
        return _plain(other) | self._now() if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc] # as a dict's: pairs will do, and it stays itself
        self.update(other)
        return self

    def __repr__(self) -> str:
        return f"PersistentDict({self._now()!r})" if self._table.opened else "PersistentDict(not open)"

    def expires_ns(self, key: K) -> int | None:
        """When a key expires, in nanoseconds since 1970; None for never. KeyError if there is no such key."""
        event = self._found(key)
        return event[2] if len(event) > 2 else None

    # -- changing a key: each method is one step for other threads

    def set(self, key: K, value: V, *, ttl: Ttl = UNSET) -> None:
        """Set a value, for `ttl` seconds: None for ever. Without a `ttl`, for as long as the dict's own says."""
        with self._alone(key):
            self._put(key, value, ttl)

    def __setitem__(self, key: K, value: V) -> None:
        self.set(key, value)

    def __delitem__(self, key: K) -> None:
        with self._alone(key):
            self._found(key)
            self._change([key])

    def setdefault(self, key: K, default: V = None, *, ttl: Ttl = UNSET) -> V:  # type: ignore[assignment]
        """The value of a key; if it has none, set it to the default first."""
        with self._alone(key):
            event = self._event(key)
            if event is None:
                self._put(key, default, ttl)
            value: V = default if event is None else event[1]
            return value

    def pop(self, key: K, default: Any = UNSET) -> Any:
        """Remove a key and return its value. Without one: the default if given, else KeyError."""
        with self._alone(key):
            if (event := self._event(key)) is not None:
                self._change([key])
                return event[1]
        if default is UNSET:
            raise KeyError(key)
        return default

    def update_with(
        self, key: K, function: Callable[[V], V], default: V | Unset = UNSET, *, ttl: Ttl = UNSET
    ) -> V:
        """Set a key to what `function` makes of its value, or of the default, and return that.

        Raises KeyError if the key has no value and there is no default. The function returns a new value, and
        doesn't change the old one. Other writers of the key wait for it; it must not write to the dict itself. An
        error of the function changes nothing. A key that is there keeps its time unless `ttl` is given.
        """
        with self._alone(key):
            event = self._event(key)
            if event is None and isinstance(default, Unset):
                raise KeyError(key)
            value = function(default if event is None else event[1])  # type: ignore[arg-type]
            self._put(key, value, ttl, event)
            return value

    def increment(self, key: K, by: Any = 1, *, ttl: Ttl = UNSET) -> V:
        """Add to a number, 0 if there is none yet, and return the sum. `ttl` is that of `update_with`."""
        return self.update_with(key, lambda number: number + by, 0, ttl=ttl)  # type: ignore[arg-type]

    def compare_and_set(self, key: K, expected: V | Absent, value: V | Absent, *, ttl: Ttl = UNSET) -> bool:
        """Set a key if it has the expected value, and return whether it had. ABSENT stands for no value."""
        with self._alone(key):
            event = self._event(key)
            if (ABSENT if event is None else event[1]) != expected:
                return False
            if not isinstance(value, Absent):
                self._put(key, value, ttl, event)
            elif event is not None:
                self._change([key])
            return True

    # -- changing several keys

    def popitem(self) -> tuple[K, V]:
        """Remove the oldest key and return it with its value; KeyError if the dict is empty."""
        while (key := next(iter(self), UNSET)) is not UNSET:
            with contextlib.suppress(KeyError):  # another thread was faster
                return key, self.pop(key)
        raise KeyError("the dict is empty")

    def update(self, other: Any = (), /, **items: Any) -> None:
        """Set the items of a mapping or of pairs: all of them, or none, as in a transaction."""
        new: dict[K, V] = dict(_plain(other), **items)
        with nullcontext() if self._mine() is not None else self.transaction():
            for key, value in new.items():
                self[key] = value

    def clear(self) -> None:
        """Remove all keys."""
        self._check_writable()
        with self._locks.all() if self._mine() is None else nullcontext():
            if self:
                self._change([])

    def transaction(self) -> AbstractContextManager[None]:
        """Change several keys as one step: `with d.transaction(): ...`.

        What this thread or task changes in the block becomes one record in the log when the block ends: after a
        crash all of it is there, or nothing. An exception drops it. In the block the dict shows the changes;
        everybody else sees the dict as it was before, then all of them at once. Other writers wait for the end of
        the block: don't wait for them in it, and don't `await`.
        """
        self._check_writable()
        if self._mine() is not None:
            raise RuntimeError("a transaction is open here already")
        return self._locks.together(Transaction(self._table), self._commit)

    def _commit(self, transaction: Transaction[K, V]) -> None:
        if events := transaction.events():
            self._write(events)

    # -- from here to the table and the log

    def _mine(self) -> Transaction[K, V] | None:
        """The open transaction, if this call belongs to it."""
        found: Transaction[K, V] | None = self._locks.transaction
        return found if found is not None and found in joined.get() else None

    def _alone(self, key: K) -> AbstractContextManager[None]:
        """Keep out other writers of a key. A key that is not hashable raises, and doesn't get into the log."""
        if self._read_only:
            self._check_writable()
        return self._locks.of(key) if self._mine() is None else nullcontext()

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnly(f"{self._log.stream.path} was opened with read_only=True: nothing can be changed here")

    def _now(self) -> dict[K, V]:
        return (self._mine() or self._table).now()

    def _event(self, key: K) -> list[Any] | None:
        return (self._mine() or self._table).event(key)

    def _found(self, key: K) -> list[Any]:
        event = self._event(key)
        if event is None:
            raise KeyError(key)
        return event

    def _put(self, key: K, value: V, ttl: Ttl, before: list[Any] | None = None) -> None:
        """Set a key; without a new time it keeps the one that the event before gave it."""
        if before is not None and isinstance(ttl, Unset):
            self._change([key, value, *before[2:]])
            return
        seconds = self._ttl if isinstance(ttl, Unset) else _checked(ttl)
        until = [] if seconds is None else [self._table.clock() + round(seconds * 1e9)]
        self._change([key, value, *until])

    def _change(self, event: list[Any]) -> None:
        mine = self._mine()
        if mine is None:
            self._write([event])
        else:
            mine.change(event)

    def _write(self, events: list[list[Any]]) -> None:
        """Make changes once the log has them, also if a copy didn't acknowledge them in time."""
        self._locks.begin(self._log.place())  # an interrupt from here on leaves it open whether the log has them
        try:
            if len(events) == 1:
                self._log.update(events[0])
            else:
                self._log.update_together(events)
        except NotReplicated as error:
            if error.position is not None:
                self._table.change(events)
            self._locks.done()
            raise
        except (ForelogError, OSError):  # the log has nothing of it, or takes nothing more
            self._locks.done()
            raise
        self._table.change(events)
        self._locks.done()

    def _catch_up(self, since: tuple[int, int]) -> None:
        """Make the changes that the log has from there on. Nobody writes meanwhile."""
        events: list[list[Any]] = []
        self._log.replay_since(since, events.append)
        self._table.change(events)

    def _enumerate(self, log: Enumeration) -> None:
        self._table.open()  # when the log is opened, all has been replayed by now
        with self._locks.all():  # what an older generation has is in the table, also if it has just been logged
            keys = list(self._table.now())
        for key in log.each(keys):
            with self._locks.of(key):
                if (event := self._table.event(key)) is not None:
                    log.update(event)


def _plain(other: Any) -> dict[Any, Any]:
    """A dict made of a mapping or of pairs. Of a PersistentDict it has the items of one moment."""
    return other.copy() if isinstance(other, PersistentDict) else dict(other)


def _checked(ttl: float | None) -> float | None:
    check_number("ttl", ttl, above=True, most=AGE_SECONDS_MAX, or_none="for never")
    return ttl
