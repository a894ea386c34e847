"""Properties of messages to JSON: the oracle for `messages/json.pxi`.

>>> from array import array
>>> messages_json(bytes.fromhex("82 a1 61 01 a1 62 c4 02 68 69"), array("q", [0]), array("q", [10]))
(array('i', [0, 18]), b'{"a":1,"b":"aGk="}')
"""

from __future__ import annotations

import base64
import json
import math
import struct
from array import array
from typing import Any

from forelog.formats.messages.msgpack import element_children, element_content, element_head, is_map, is_text
from forelog.kernel.types import END
from tests.kernel.oracle.messages import skip_properties


def messages_json(buffer: Any, starts: array[int], ends: array[int]) -> tuple[array[int], bytes]:
    view = memoryview(buffer).cast("B")
    if len(starts) != len(ends):
        raise ValueError("columns of different lengths")
    places, out = array("i", [0]), bytearray()
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not 0 <= start <= end <= len(view) or skip_properties(view, start, end) != (END, end):
            raise ValueError(f"row {row} has no properties")
        out += _value(view, start, False)[0].encode()
        if len(out) > 0x7FFFFFFF:
            raise ValueError("too many properties at once")
        places.append(len(out))
    return places, bytes(out)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _base64(data: Any) -> str:
    return '"' + base64.b64encode(data).decode() + '"'


def _number(view: memoryview, at: int, start: int) -> str:
    marker = view[at]
    if marker < 0x80 or marker >= 0xE0:
        return str(marker if marker < 0x80 else marker - 256)
    if marker in (0xCA, 0xCB):
        value = struct.unpack(">f" if marker == 0xCA else ">d", view[at + 1 : start])[0]
        return repr(value) if math.isfinite(value) else "null"
    return str(int.from_bytes(view[at + 1 : start], "big", signed=marker >= 0xD0))


def _value(view: memoryview, at: int, in_key: bool) -> tuple[str, int]:
    """One element, which is known to be well-formed, and where it ends."""
    marker = view[at]
    start = at + element_head(marker)
    end = start + element_content(view, at)
    children = element_children(view, at)
    if children >= 0:
        return _container(view, marker, children, end, in_key)
    if is_text(marker):
        return _text(str(view[start:end], "utf-8", "replace")), end
    if 0xC4 <= marker <= 0xC6:
        return _base64(view[start:end]), end
    if 0xC7 <= marker <= 0xC9 or 0xD4 <= marker <= 0xD8:
        kind = int.from_bytes(view[start - 1 : start], "big", signed=True)
        return f'{{"ext":{kind},"data":{_base64(view[start:end])}}}', end
    if marker in (0xC0, 0xC2, 0xC3):
        return {0xC0: "null", 0xC2: "false", 0xC3: "true"}[marker], end
    return _number(view, at, start), end


def _container(view: memoryview, marker: int, children: int, end: int, in_key: bool) -> tuple[str, int]:
    parts = []
    for i in range(children):
        start, odd_key = end, is_map(marker) and i % 2 == 0 and not is_text(view[end])
        said, end = _value(view, start, in_key or odd_key)
        if odd_key:
            opaque = in_key and element_children(view, start) >= 0
            said = _base64(view[start:end]) if opaque else _text(said)
        parts.append(said)
    if not is_map(marker):
        return "[" + ",".join(parts) + "]", end
    return "{" + ",".join(f"{k}:{v}" for k, v in zip(parts[::2], parts[1::2], strict=True)) + "}", end
