"""Events, from and to bytes.

An event is anything that msgspec can encode: a Struct, a dataclass, a dict, a number. What it is when it comes
back is told by its type, which has to be registered; dicts, lists, texts, bytes, numbers, booleans and None need
not be. The bytes are the type's name, preceded by its length in one byte, and the event in msgpack.

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
>>> EventCodec().decode(codec.encode(Renamed(7)))
Traceback (most recent call last):
    ...
chiplog.errors.BadEvent: there is no type 'Renamed' here: register it with types=[...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from chiplog.errors import BadEvent, MissingExtra

__all__ = ["BadEvent", "Codec", "EventCodec"]

_NAME_BYTES_MAX = 255
_PLAIN = (dict, list, tuple, str, bytes, bytearray, int, float, bool, type(None))


class Codec(Protocol):
    """What turns events into bytes and back. Whatever `decode` raises ends the replay."""

    def encode(self, event: Any) -> bytes:
        """The event as bytes."""

    def decode(self, data: bytes) -> Any:
        """The event of these bytes."""


class EventCodec:
    """The codec that is used unless another is given."""

    def __init__(self, types: Iterable[type] = ()) -> None:
        try:
            from msgspec import DecodeError, EncodeError, ValidationError, msgpack
        except ImportError:
            raise MissingExtra(
                "msgspec is not installed, which turns events into bytes: pip install 'chiplog[state]'"
            ) from None
        self._encode = msgpack.Encoder().encode
        self._refusals = (EncodeError, TypeError, ValueError, OverflowError)
        self._failures = (DecodeError, ValidationError)
        self._heads: dict[type, bytes] = {}
        self._decoders: dict[bytes, Any] = {b"": msgpack.Decoder().decode}
        for kind in types:
            name = kind.__name__.encode()
            if len(name) > _NAME_BYTES_MAX:
                raise ValueError(
                    f"the name of {kind.__name__} is too long: expected up to {_NAME_BYTES_MAX} bytes"
                )
            if name in self._decoders:
                raise ValueError(f"there are two types called {kind.__name__}: an event couldn't tell which it is")
            self._decoders[name] = msgpack.Decoder(kind).decode
            self._heads[kind] = bytes((len(name),)) + name

    def encode(self, event: Any) -> bytes:
        """The event as bytes, or BadEvent for one of a type that isn't registered, or that can't be encoded."""
        head = self._heads.get(type(event))
        if head is None:
            if not isinstance(event, _PLAIN):
                raise BadEvent(f"{type(event).__name__} is not registered: add it to types=[...]")
            head = b"\0"
        try:
            return head + self._encode(event)
        except self._refusals as error:
            raise BadEvent(f"{type(event).__name__} can't be encoded: {error}") from None

    def run(self, data: bytes) -> tuple[bytes, Callable[[bytes], Any]]:
        """What events of this one's type begin with, and what decodes the rest of each: it raises as it likes."""
        head = data[: 1 + data[0]] if data else b""
        decode = self._decoders.get(head[1:]) if head else None
        return (b"", self.decode) if decode is None else (head, decode)

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
