"""Events, from and to bytes.

An event is anything that msgspec can encode: a Struct, a dataclass, a dict, a number. What it is when it comes
back is told by its type, which has to be registered; dicts, lists, texts, bytes, numbers, booleans and None need
not be. The bytes are the type's name, preceded by its length in one byte, and the event in msgpack.

What wouldn't come back as it was isn't taken: msgpack would make a text of a Decimal or of a date, and a field of
the wrong type would be found out at the next start, when it is too late. Only tuples come back as lists.

A type may gain fields, as long as they have defaults: older events come back with those. Nothing in a log makes
anything happen but a call to a registered type.

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

__all__ = ["BadEvent", "Batch", "Codec", "EventCodec", "difference"]

_NAME_BYTES_MAX = 255
_PLAIN = (dict, list, tuple, str, bytes, bytearray, int, float, bool, type(None))


class Codec(Protocol):
    """What turns events into bytes and back. Whatever `decode` raises ends the replay."""

    def encode(self, event: Any) -> bytes:
        """The event as bytes."""

    def decode(self, data: bytes) -> Any:
        """The event of these bytes."""


class Batch(NamedTuple):
    """Events of one type, which are decoded at once."""

    head: bytes
    """What each begins with."""
    skip: int
    """How many bytes of that aren't part of the value."""
    decode: Callable[[bytes], list[Any]]
    """From an array of them; it raises as it likes."""


class EventCodec:
    """The codec that is used unless another is given."""

    def __init__(self, types: Iterable[type] = ()) -> None:
        try:
            from msgspec import DecodeError, EncodeError, msgpack
        except ImportError:
            raise MissingExtra(
                "msgspec is not installed, which turns events into bytes: it comes with the extra state, or broker"
            ) from None
        self._encode = msgpack.Encoder().encode
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
                raise ValueError(f"there are two types called {kind.__name__}: an event couldn't tell which it is")
            self._decoders[name] = msgpack.Decoder(kind).decode
            self._heads[kind] = head = bytes((len(name),)) + name
            self._batches[name] = Batch(head, len(head), msgpack.Decoder(list[kind]).decode)  # type: ignore[valid-type]

    def encode(self, event: Any) -> bytes:
        """The event as bytes; BadEvent if its type isn't registered, or if it wouldn't come back as it is."""
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
        """What of an event that isn't equal to itself when it comes back is another thing then, and what to do."""
        found = difference(event, back, "event")
        return found and f"{found}: use a type with such a field"

    def batch(self, data: bytes) -> Batch | None:
        """How events that begin as this one does are decoded at once, or None if they can't be."""
        return self._batches.get(data[1 : 1 + data[0]]) if data else None

    def decode(self, data: bytes) -> Any:
        """The event, or BadEvent."""
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
            raise BadEvent(f"{len(data)} bytes are no {data[1:end].decode() or 'event'}: {error}") from None


def difference(given: Any, back: Any, where: str, *, tuples: bool = True) -> str | None:
    """The first thing that would come back as another, in words; with `tuples`, these may become lists."""
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
    """Of a Struct or a dataclass."""
    yield from getattr(thing, "__struct_fields__", ())
    if dataclasses.is_dataclass(thing):
        yield from (field.name for field in dataclasses.fields(thing))
