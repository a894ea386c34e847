"""The events of a dict.

::

    [key, value]             the key has this value from now on
    [key, value, until_ns]   until this time, in nanoseconds since 1970
    [key]                    the key is removed
    []                       all keys are removed
"""

from __future__ import annotations

from typing import Any, TypeVar

from forelog.errors import BadEvent
from forelog.state.events import Batch, EventCodec, difference
from forelog.state.models import of_plain

PARTS_MAX = 3
_REMOVED, _PUT, _EXPIRING = b"\x91", b"\x92", b"\x93"  # the first byte of an array of so many parts


class ItemCodec(EventCodec):
    """Events of a dict to and from bytes, with the types of keys and values."""

    def __init__(self, keys: Any = Any, values: Any = Any) -> None:
        super().__init__()
        self._typed: dict[bytes, Batch] = {}
        self.declare(keys, values)

    def declare(self, keys: Any, values: Any) -> None:
        """Say the types of keys and values, unless they were said before. A type variable is any."""
        keys, values = (Any if isinstance(kind, TypeVar) else kind for kind in (keys, values))
        if self._typed or (keys is Any and values is Any):
            return
        from msgspec import msgpack

        kinds: dict[bytes, Any] = {
            _PUT: tuple[keys, values],
            _EXPIRING: tuple[keys, values, int],
            _REMOVED: tuple[keys],
        }
        by_first = {first: msgpack.Decoder(kind, dec_hook=of_plain).decode for first, kind in kinds.items()}
        plain = self._decoders[b""]
        self._decoders[b""] = lambda data: by_first.get(data[:1], plain)(data)
        for first, kind in kinds.items():
            batch = Batch(b"\0" + first, 1, msgpack.Decoder(list[kind], dec_hook=of_plain).decode)  # type: ignore[valid-type]
            self._typed[batch.head] = batch

    def encode(self, event: Any) -> bytes:
        """The event as bytes. An error names the key."""
        try:
            return super().encode(event)
        except BadEvent as error:
            raise BadEvent(f"[{event[0]!r:.100}]: {error}") from None

    def batch(self, data: bytes) -> Batch | None:
        """How to decode many such events at once. What an event is shows in the first byte."""
        return self._typed.get(data[:2]) if self._typed else super().batch(data)

    def changed(self, event: Any, back: Any) -> str | None:
        """What would come back different. A key may be a tuple: hashable() makes it one again."""
        found = difference(event[0], back[0], "the key")
        if found is None and len(event) > 1:
            found = difference(event[1], back[1], "the value", tuples=False)
        return found and f"{found}: say what they are, with keys=TYPE or values=TYPE"


def hashable(key: Any) -> Any:
    """A key from msgpack, where tuples are lists."""
    return tuple(map(hashable, key)) if isinstance(key, list) else key
