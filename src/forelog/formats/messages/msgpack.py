"""Convert the properties of messages to msgpack and back.

Values are texts, bytes, numbers, booleans, None, lists and dicts. Integers are written in their smallest form.
Other programs may also write floats of four bytes and extensions; these are read, an extension as
`Extension(kind, data)`. A list as a key is read as a tuple, and a map as a key as a tuple of pairs.

>>> pack({"qos": 1, "tags": ["a", b"b", None, -5, 0.5]}).hex(" ")
'82 a3 71 6f 73 01 a4 74 61 67 73 95 a1 61 c4 01 62 c0 fb cb 3f e0 00 00 00 00 00 00'
>>> unpack(pack({"qos": 1, "tags": ["a", b"b", None, -5, 0.5]}))
{'qos': 1, 'tags': ['a', b'b', None, -5, 0.5]}
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

PROPERTIES_DEPTH_MAX = 16
_HEADS = {
    0xC0: 1, 0xC2: 1, 0xC3: 1, 0xC4: 2, 0xC5: 3, 0xC6: 5, 0xC7: 3, 0xC8: 4, 0xC9: 6, 0xCA: 5, 0xCB: 9, 0xCC: 2,
    0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9, 0xD4: 2, 0xD5: 2, 0xD6: 2, 0xD7: 2, 0xD8: 2,
    0xD9: 2, 0xDA: 3, 0xDB: 5, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5,
}  # fmt: skip
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}


class Extension(NamedTuple):
    """A value of a type that an application has defined."""

    kind: int
    """The application's number for the type."""
    data: bytes
    """The bytes of the value."""


def pack(value: Any) -> bytes:
    """Encode a value as msgpack. Raises TypeError or ValueError for a value that msgpack can't hold."""
    out = bytearray()
    _pack(value, out, 0)
    return bytes(out)


def _pack(value: Any, out: bytearray, depth: int) -> None:
    if depth > PROPERTIES_DEPTH_MAX:
        raise ValueError(f"values are nested deeper than {PROPERTIES_DEPTH_MAX}")
    if value is None:
        out.append(0xC0)
    elif isinstance(value, bool):
        out.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        _pack_int(value, out)
    elif isinstance(value, float):
        out += struct.pack(">Bd", 0xCB, value)
    elif isinstance(value, str):
        _pack_sized(value.encode(), out, 0xD9, short=0xA0)
    elif isinstance(value, bytes | bytearray | memoryview):
        _pack_sized(bytes(value), out, 0xC4)
    elif isinstance(value, Extension):
        out += struct.pack(">BIb", 0xC9, len(value.data), value.kind) + value.data
    else:
        _pack_container(value, out, depth + 1)


def _pack_container(value: Any, out: bytearray, depth: int) -> None:
    if isinstance(value, Mapping):
        _pack_count(len(value), out, 0x80, 0xDE)
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple):
        _pack_count(len(value), out, 0x90, 0xDC)
        parts = list(value)
    else:
        raise TypeError(f"{value!r:.80} can't be in msgpack: expected text, bytes, numbers, lists or dicts")
    for part in parts:
        _pack(part, out, depth)


def _pack_int(value: int, out: bytearray) -> None:
    if -32 <= value < 128:
        out += struct.pack("B", value & 0xFF)
        return
    signed = value < 0
    for power in range(4):
        bits = 8 << power
        if (-(1 << (bits - 1)) <= value) if signed else (value < 1 << bits):
            out.append((0xD0 if signed else 0xCC) + power)
            out += value.to_bytes(bits // 8, "big", signed=signed)
            return
    raise ValueError(f"{value} doesn't fit into 64 bits")


def _pack_sized(data: bytes, out: bytearray, first: int, short: int | None = None) -> None:
    size = len(data)
    if short is not None and size < 32:
        out.append(short | size)
    elif size < 256:
        out += struct.pack(">BB", first, size)
    elif size < 65_536:
        out += struct.pack(">BH", first + 1, size)
    else:
        out += struct.pack(">BI", first + 2, size)
    out += data


def _pack_count(count: int, out: bytearray, short: int, wide: int) -> None:
    if count < 16:
        out.append(short | count)
    elif count < 65_536:
        out += struct.pack(">BH", wide, count)
    else:
        out += struct.pack(">BI", wide + 1, count)


def unpack(data: bytes) -> Any:
    """Decode a value from msgpack that a scan has found well-formed. Raises ValueError for anything else."""
    try:
        value, end = _unpack(data, 0, 0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"this isn't msgpack: {error}") from None
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the end of a value in msgpack")
    return value


def _unpack(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    marker = data[at]
    head = element_head(marker)
    start = at + head
    end = start + element_content(data, at)
    children = element_children(data, at)
    if head == 0 or end > len(data) or depth > PROPERTIES_DEPTH_MAX:
        raise ValueError(f"no value in msgpack at byte {at}")
    if children >= 0:
        values = []
        for _ in range(children):
            value, end = _unpack(data, end, depth + 1)
            values.append(value)
        if not is_map(marker):
            return values, end
        return dict(zip(map(_as_key, values[::2]), values[1::2], strict=True)), end
    return _scalar(data, at, start, end), end


def _as_key(value: Any) -> Any:
    """A value that a dict can have as its key: a list is a tuple there, and a dict a tuple of pairs."""
    if isinstance(value, list):
        return tuple(map(_as_key, value))
    return tuple((key, _as_key(inner)) for key, inner in value.items()) if isinstance(value, dict) else value


def _scalar(data: bytes, at: int, start: int, end: int) -> Any:
    marker = data[at]
    if marker < 0x80 or marker >= 0xE0:
        return marker if marker < 0x80 else marker - 256
    if is_text(marker):
        return data[start:end].decode("utf-8", "replace")
    if 0xC4 <= marker <= 0xC6:
        return data[start:end]
    if 0xC7 <= marker <= 0xC9 or 0xD4 <= marker <= 0xD8:
        return Extension(int.from_bytes(data[start - 1 : start], "big", signed=True), data[start:end])
    if marker <= 0xC3:
        return {0xC0: None, 0xC2: False, 0xC3: True}[marker]
    if marker in (0xCA, 0xCB):
        return struct.unpack(">f" if marker == 0xCA else ">d", data[at + 1 : start])[0]
    return int.from_bytes(data[at + 1 : start], "big", signed=marker >= 0xD0)


def element_head(marker: int) -> int:
    """How many bytes an element of msgpack has before its content; 0 if it isn't one."""
    return 1 if marker < 0xC0 or marker >= 0xE0 else _HEADS.get(marker, 0)


def element_content(view: Any, at: int) -> int:
    """How many bytes of content follow an element's head."""
    marker = view[at]
    if 0xA0 <= marker <= 0xBF:
        return int(marker & 0x1F)
    if 0xD4 <= marker <= 0xD8:
        return 1 << int(marker - 0xD4)
    return int.from_bytes(view[at + 1 : at + 1 + _SIZED.get(marker, 0)], "big")


def element_children(view: Any, at: int) -> int:
    """How many elements a map or an array has inside, both keys and values; -1 for anything else."""
    marker = int(view[at])
    if 0x80 <= marker <= 0x8F:
        return 2 * (marker & 0x0F)
    if 0x90 <= marker <= 0x9F:
        return marker & 0x0F
    if 0xDC <= marker <= 0xDF:
        count = int.from_bytes(view[at + 1 : at + _HEADS[marker]], "big")
        return 2 * count if marker >= 0xDE else count
    return -1


def is_map(marker: int) -> bool:
    return 0x80 <= marker <= 0x8F or marker in (0xDE, 0xDF)


def is_text(marker: int) -> bool:
    return 0xA0 <= marker <= 0xBF or 0xD9 <= marker <= 0xDB
