"""Events to and from bytes.

An event is anything that msgspec can encode (a Struct, a dataclass, an attrs class, a dict, a number) or a model
of pydantic (models.py). Its type must be registered, unless it is a dict, list, string, number, boolean, bytes or
None. As bytes, an event is the length of its type's name in one byte, the name, and the event in msgpack.

An event that would come back different is refused: msgpack would turn a Decimal or a date into a string, and a
field of the wrong type would only fail at the next start, too late. Only tuples come back as lists.

A type may gain fields with defaults: older events come back with the defaults. Reading a log calls nothing but
registered types.

>>> from dataclasses import dataclass
>>> @dataclass
... class Renamed:
...     id: int
...     name: str = "?"
>>> codec = EventCodec([Renamed])
>>> codec.decode(codec.encode(Renamed(7, "chip")))
Renamed(id=7, name='chip')
>>> codec.decode(codec.encode({"plain": [1, 2]}))
{'plain': [1, 2]}
>>> codec.encode({"plain": {1, 2}})
Traceback (most recent call last):
    ...
forelog.errors.BadEvent: event['plain'] is a set, which would come back as a list: use a type with such a field
>>> EventCodec().decode(codec.encode(Renamed(7)))
Traceback (most recent call last):
    ...
forelog.errors.BadEvent: there is no type 'Renamed' here: register it with types=[...]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from forelog.errors import BadEvent, MissingExtra
from forelog.state.models import of_plain, plain_of

_NAME_BYTES_MAX = 255
_PLAIN = (dict, list, tuple, str, bytes, bytearray, int, float, bool, type(None))


class Codec(Protocol):
    """Turns events into bytes and back. An error of `decode` ends the replay."""

    def encode(self, event: Any) -> bytes:
        """Return the event as bytes."""

    def decode(self, data: bytes) -> Any:
        """Return the event that `encode` turned into these bytes."""


class Batch(NamedTuple):
    """How to decode many events of one type at once."""

    head: bytes
    """The bytes that each of them begins with."""
    skip: int
    """How many of these bytes are not part of the value."""
    decode: Callable[[bytes], list[Any]]
    """Decodes an array of them; may raise any error."""


class EventCodec:
    """The default codec: msgpack, with the name of the type before it."""

    def __init__(self, types: Iterable[type] = ()) -> None:
        try:
            from msgspec import DecodeError, EncodeError, msgpack
        except ImportError:
            raise MissingExtra.needed("msgspec", by="EventCodec", extra="state") from None
        self._encode = msgpack.Encoder(enc_hook=plain_of).encode
        self._refusals = (EncodeError, DecodeError, TypeError, ValueError, OverflowError)
        self._failures = (DecodeError, TypeError, ValueError, OverflowError, RecursionError)
        self._heads: dict[type, bytes] = {}
        self._decoders: dict[bytes, Any] = {b"": msgpack.Decoder().decode}
        self._batches: dict[bytes, Batch] = {b"": Batch(b"\0", 1, msgpack.Decoder(list[Any]).decode)}
        for kind in types:
            name = kind.__name__.encode()
            if len(name) > _NAME_BYTES_MAX:
                raise ValueError(
                    f"the name of {kind.__name__} is too long: expected up to {_NAME_BYTES_MAX} bytes"
                )
            if name in self._decoders:
                raise ValueError(f"there are two types called {kind.__name__}: events have only the name")
            self._decoders[name] = msgpack.Decoder(kind, dec_hook=of_plain).decode
            self._heads[kind] = head = bytes((len(name),)) + name
            self._batches[name] = Batch(head, len(head), msgpack.Decoder(list[kind], dec_hook=of_plain).decode)  # type: ignore[valid-type]

    def encode(self, event: Any) -> bytes:
        """The event as bytes; BadEvent if its type isn't registered, or if it would come back different."""
        kind = type(event)
        head = self._heads.get(kind)
        if head is None:
            if not isinstance(event, _PLAIN):
                raise BadEvent(f"{kind.__name__} is not registered: add it to types=[...]")
            head = b"\0"
        try:
            data = self._encode(event)
            back = self._decoders[head[1:]](data)
        except self._refusals as error:
            raise BadEvent(f"{kind.__name__} can't be kept: {error}") from None
        if back != event and (told := self.changed(event, back)):
            raise BadEvent(told)
        return head + data

    def changed(self, event: Any, back: Any) -> str | None:
        """What differs in an event that came back unequal, and what to do about it; None if only a NaN does."""
        found = difference(event, back, "event")
        return found and f"{found}: use a type with such a field"

    def batch(self, data: bytes) -> Batch | None:
        """How to decode events that begin like this one at once; None if they can't be."""
        return self._batches.get(data[1 : 1 + data[0]]) if data else None

    def decode(self, data: bytes) -> Any:
        """The event that `encode` turned into these bytes. Raises BadEvent if they aren't one."""
        if not data:
            raise BadEvent("an event has no bytes")
        end = 1 + data[0]
        decode = self._decoders.get(data[1:end])
        if decode is None:
            name = data[1:end].decode("utf-8", "replace")
            raise BadEvent(f"there is no type {name!r} here: register it with types=[...]")
        try:
            return decode(data[end:])
        except self._failures as error:
            raise BadEvent(
                f"{len(data)} bytes are not a valid {data[1:end].decode() or 'event'}: {error}"
            ) from None


def difference(given: Any, back: Any, where: str, *, tuples: bool = True) -> str | None:
    """The first part of a value that comes back different, in words. `tuples` may come back as lists."""
    alike = type(given) is type(back) or (tuples and isinstance(given, tuple) and isinstance(back, list))
    if alike and isinstance(given, list | tuple) and len(given) == len(back):
        parts = ((f"{where}[{i}]", one, two) for i, (one, two) in enumerate(zip(given, back, strict=True)))
    elif isinstance(given, dict) and isinstance(back, dict) and given.keys() == back.keys():
        parts = ((f"{where}[{key!r}]", one, back[key]) for key, one in given.items())
    elif alike and (names := list(_fields(given))):
        parts = ((f"{where}.{name}", getattr(given, name), getattr(back, name)) for name in names)
    elif given == back or (given != given and back != back):  # a NaN
        return None
    else:
        return f"{where} is a {type(given).__name__}, which would come back as a {type(back).__name__}"
    found = (difference(one, two, place, tuples=tuples) for place, one, two in parts)
    return next(filter(None, found), None)


def _fields(thing: Any) -> Iterator[str]:
    """The names of the fields of a Struct, a dataclass, an attrs class or a model."""
    yield from getattr(thing, "__struct_fields__", ())
    yield from (field.name for field in getattr(type(thing), "__attrs_attrs__", ()))
    yield from getattr(type(thing), "model_fields", ())
    if dataclasses.is_dataclass(thing):
        yield from (field.name for field in dataclasses.fields(thing))
