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
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Self, TypeVar, Unpack, overload

from forelog.errors import AppenderClosed, BadEvent, NotReplicated
from forelog.log.stream import PathLike
from forelog.state.enumeration import Enumeration
from forelog.state.events import Batch, EventCodec, difference
from forelog.state.log import StateLog, StateStats
from forelog.state.options import LogOptions

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Any = object()


class PersistentDict(MutableMapping[K, V]):
    """A dict whose changes are in a log: `with PersistentDict(path, keys=str, values=Decimal) as prices: ...`.

    Keys and values are strings, bytes, numbers, booleans and None; values can be lists and dicts, and keys tuples.
    `keys` and `values` name other types that msgspec knows, such as `Decimal`, `tuple[int, str]` or a dataclass.
    BadEvent refuses what would not come back as it was.

    The dict doesn't notice a change inside of a value, as in `d["list"].append(1)`: assign the value again. Any
    thread may use the dict; each method is one atomic step. The other options are those of StateLog.
    """

    @overload
    def __init__(
        self, path: PathLike, *, keys: type[K], values: type[V], **options: Unpack[LogOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: PersistentDict[K, Any],
        path: PathLike,
        *,
        keys: type[K],
        values: object = Any,
        **options: Unpack[LogOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: PersistentDict[Any, V],
        path: PathLike,
        *,
        keys: object = Any,
        values: type[V],
        **options: Unpack[LogOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: PersistentDict[Any, Any],
        path: PathLike,
        *,
        keys: object = Any,
        values: object = Any,
        **options: Unpack[LogOptions],
    ) -> None: ...

    def __init__(
        self, path: PathLike, *, keys: Any = Any, values: Any = Any, **options: Unpack[LogOptions]
    ) -> None:
        self._data: dict[K, V] = {}
        self._lock = threading.RLock()
        self._open = False
        self._log = StateLog(
            path, replay=self._change, enumerate=self._enumerate, codec=ItemCodec(keys, values), **options
        )

    def open(self) -> Self:
        """Open the log, and restore the dict from it."""
        self._log.open()
        self._open = True
        return self

    def close(self) -> None:
        """Sync, and close the log."""
        self._log.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def rotate(self) -> None:
        """Write the whole dict to a new generation of the log, and drop the older ones."""
        self._log.rotate()

    def stats(self) -> StateStats:
        """Figures of the log since it was opened."""
        return self._log.stats()

    @property
    def log(self) -> StateLog:
        """The log, with its destinations and its health."""
        return self._log

    def __setitem__(self, key: K, value: V) -> None:
        hash(key)  # a key that is not hashable must not get into the log: no restart would succeed
        with self._lock, self._noting_what_is_written([key, value]):
            self._log.update([key, value])

    def __delitem__(self, key: K) -> None:
        with self._lock:
            if key not in self._data:
                raise KeyError(key)
            with self._noting_what_is_written([key]):
                self._log.update([key])

    # -- methods that MutableMapping implements in several steps; here each is atomic

    def setdefault(self, key: K, default: V = None) -> V:  # type: ignore[assignment]
        """The value of a key; if it has none, set it to the default first."""
        with self._lock:
            if key not in self._restored:
                self[key] = default
            return self._data[key]

    def pop(self, key: K, default: Any = _MISSING) -> Any:
        """Remove a key and return its value. Without one: the default if given, else KeyError."""
        with self._lock:
            if key not in self._restored and default is not _MISSING:
                return default
            value = self._data[key]
            del self[key]
            return value

    def popitem(self) -> tuple[K, V]:
        """Remove a key and return it with its value; KeyError if the dict is empty."""
        with self._lock:
            if not self._restored:
                raise KeyError("the dict is empty")
            key = next(iter(self._data))
            return key, self.pop(key)

    def update(self, other: Any = (), /, **items: Any) -> None:
        """Set the items of a mapping or of pairs. They are logged one by one: a crash may leave only the first."""
        new: dict[K, V] = dict(other, **items)
        with self._lock:
            for key, value in new.items():
                self[key] = value

    def clear(self) -> None:
        """Remove all keys, one by one."""
        with self._lock:
            for key in list(self._restored):
                del self[key]

    @contextlib.contextmanager
    def _noting_what_is_written(self, event: list[Any]) -> Iterator[None]:
        """Make the change once the log has it, also if a copy didn't acknowledge it in time."""
        try:
            yield
        except NotReplicated as error:
            if error.position is not None:
                self._change(event)
            raise
        self._change(event)

    @property
    def _restored(self) -> dict[K, V]:
        """The items; AppenderClosed before they have been restored."""
        if not self._open:
            raise AppenderClosed(f"the state log {self._log.stream.path} has not been opened: use it in a `with`")
        return self._data

    def __getitem__(self, key: K) -> V:
        return self._restored[key]

    def __len__(self) -> int:
        return len(self._restored)

    def __iter__(self) -> Iterator[K]:
        return iter(self._restored)

    def __contains__(self, key: object) -> bool:
        return key in self._restored

    def __repr__(self) -> str:
        return f"PersistentDict({self._data!r})" if self._open else "PersistentDict(not open)"

    def _change(self, event: Sequence[Any]) -> None:
        key = event[0]
        if type(key) is list:
            key = _hashable(key)
        if len(event) == 2:
            self._data[key] = event[1]
        else:
            self._data.pop(key, None)

    def _enumerate(self, log: Enumeration) -> None:
        with self._lock:
            keys = list(self._data)
        for key in log.each(keys):
            with self._lock:
                if key in self._data:
                    log.update([key, self._data[key]])


class ItemCodec(EventCodec):
    """Events of a dict: `[key, value]` for a new value, `[key]` for a removed key."""

    def __init__(self, keys: Any, values: Any) -> None:
        super().__init__()
        self._typed: dict[bytes, Batch] = {}
        if keys is Any and values is Any:
            return
        from msgspec import msgpack

        put, drop = msgpack.Decoder(tuple[keys, values]).decode, msgpack.Decoder(tuple[keys]).decode
        self._decoders[b""] = lambda data: drop(data) if data[:1] == b"\x91" else put(data)
        puts, drops = msgpack.Decoder(list[tuple[keys, values]]), msgpack.Decoder(list[tuple[keys]])
        batches = Batch(b"\0\x92", 1, puts.decode), Batch(b"\0\x91", 1, drops.decode)
        self._typed = {batch.head: batch for batch in batches}

    def encode(self, event: Any) -> bytes:
        """The event as bytes. An error names the key."""
        try:
            return super().encode(event)
        except BadEvent as error:
            raise BadEvent(f"[{event[0]!r:.100}]: {error}") from None

    def batch(self, data: bytes) -> Batch | None:
        """How to decode many such events at once. New values and removed keys differ in the first byte."""
        return self._typed.get(data[:2]) if self._typed else super().batch(data)

    def changed(self, event: Any, back: Any) -> str | None:
        """What would come back different. A key may be a tuple: _hashable() makes it one again."""
        found = difference(event[0], back[0], "the key")
        if found is None and len(event) > 1:
            found = difference(event[1], back[1], "the value", tuples=False)
        return found and f"{found}: say what they are, with keys=TYPE or values=TYPE"


def _hashable(key: Any) -> Any:
    """A key from msgpack, where tuples are lists."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key
