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
from types import TracebackType
from typing import Any, Self, TypeVar

from forelog.errors import AppenderClosed, BadEvent, NotReplicated
from forelog.state.events import Batch, EventCodec, difference
from forelog.state.log import Enumeration, StateLog, StateStats

__all__ = ["PersistentDict"]

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Any = object()


class PersistentDict(MutableMapping[K, V]):
    """Keys and values are texts, bytes, numbers, booleans and None; values also lists and dicts, keys also tuples.

    With `keys` and `values` they are of any type that msgspec knows, as `Decimal`, `tuple[int, str]` or a
    dataclass. What wouldn't come back as it was is refused. A change inside of a value, as in
    `d["list"].append(1)`, isn't seen: assign it again. Any thread may use it, and each method is one step to the
    others. The other options are those of a StateLog.
    """

    def __init__(self, path: str, *, keys: Any = Any, values: Any = Any, **options: Any) -> None:
        self._data: dict[K, V] = {}
        self._lock = threading.RLock()
        self._open = False
        self._log = StateLog(
            path, replay=self._change, enumerate=self._enumerate, codec=ItemCodec(keys, values), **options
        )

    def open(self) -> Self:
        """Restore it."""
        self._log.open()
        self._open = True
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
        hash(key)  # what can't be a key in memory must not get into the log: no restart would get past it
        with self._lock, self._noting_what_is_written([key, value]):
            self._log.update([key, value])

    def __delitem__(self, key: K) -> None:
        with self._lock:
            if key not in self._data:
                raise KeyError(key)
            with self._noting_what_is_written([key]):
                self._log.update([key])

    # -- what a MutableMapping would do in several steps, between which others could change it

    def setdefault(self, key: K, default: V = None) -> V:  # type: ignore[assignment]
        """The value of a key, which is put there if there is none."""
        with self._lock:
            if key not in self._restored:
                self[key] = default
            return self._data[key]

    def pop(self, key: K, default: Any = _MISSING) -> Any:
        """The value of a key, which goes; or the default, or KeyError, if there is none."""
        with self._lock:
            if key not in self._restored and default is not _MISSING:
                return default
            value = self._data[key]
            del self[key]
            return value

    def popitem(self) -> tuple[K, V]:
        """A key and its value, which go; KeyError if there is none."""
        with self._lock:
            if not self._restored:
                raise KeyError("the dict is empty")
            key = next(iter(self._data))
            return key, self.pop(key)

    def update(self, other: Any = (), /, **items: Any) -> None:
        """Put all of another mapping, or of pairs. They are written one after the other: a crash may part them."""
        new: dict[K, V] = dict(other, **items)
        with self._lock:
            for key, value in new.items():
                self[key] = value

    def clear(self) -> None:
        """All keys go, one after the other."""
        with self._lock:
            for key in list(self._restored):
                del self[key]

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

    @property
    def _restored(self) -> dict[K, V]:
        """What there is, but not before that is known."""
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
    """A key and its value, or a key that is gone, as plain events of one or two parts."""

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
        """As a state log does, and saying which key it is about."""
        try:
            return super().encode(event)
        except BadEvent as error:
            raise BadEvent(f"[{event[0]!r:.100}]: {error}") from None

    def batch(self, data: bytes) -> Batch | None:
        """Keys with their values, or keys that are gone: they differ in their first byte."""
        return self._typed.get(data[:2]) if self._typed else super().batch(data)

    def changed(self, event: Any, back: Any) -> str | None:
        """A key may be a tuple, because it becomes one again; in a value nothing comes back as another."""
        found = difference(event[0], back[0], "the key")
        if found is None and len(event) > 1:
            found = difference(event[1], back[1], "the value", tuples=False)
        return found and f"{found}: say what they are, with keys=TYPE or values=TYPE"


def _hashable(key: Any) -> Any:
    """A tuple is a list in msgpack, and a list is no key."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key
