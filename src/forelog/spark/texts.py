"""Ids, tags and units of M3's datapoints as texts. They are bytes and numbers in the log.

>>> import pyarrow as pa
>>> as_text(pa, "id_text", pa.array([b"cpu", b"\\xff", b"cpu"], pa.binary())).to_pylist()
['cpu', None, 'cpu']
>>> as_text(pa, "tags_json", pa.array([[(b"host", b"a")], None], pa.map_(pa.binary(), pa.binary()))).to_pylist()
['{"host": "a"}', None]
>>> as_text(pa, "unit_name", pa.array([1, 4, 99], pa.int16())).to_pylist()
['second', 'nanosecond', None]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from forelog.formats.m3.values import Unit

__all__ = ["as_text"]


def as_text(pa: Any, name: str, column: Any) -> Any:
    """A column as texts; null where it isn't UTF-8, or unknown. Each value is looked at once."""
    known: dict[Any, str | None] = {}
    text = _OF[name]

    def one(value: Any) -> str | None:
        if value is None:
            return None
        key = tuple(value) if isinstance(value, list) else value
        if key not in known:
            known[key] = text(value)
        return known[key]

    return pa.array(map(one, column.to_pylist()), pa.string())


_UNITS: dict[int, str] = {unit.value: unit.name.lower() for unit in Unit}


def _id(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _tags(value: list[tuple[bytes, bytes]]) -> str | None:
    try:
        return json.dumps({key.decode(): tag.decode() for key, tag in value}, ensure_ascii=False)
    except UnicodeDecodeError:
        return None


def _unit(value: int) -> str | None:
    return _UNITS.get(value)


_OF: dict[str, Callable[[Any], str | None]] = {"id_text": _id, "tags_json": _tags, "unit_name": _unit}
