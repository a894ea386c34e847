r"""Convert a datapoint to JSON and back, without loss.

    {"id": "cpu", "namespace": "default", "shard": 3, "tags": [["host", "a"]], "timestamp_ns": 1000,
     "value": 0.5, "unit": 4, "annotation": null}

Bytes are a text if they are UTF-8, and else `{"base64": "..."}`. Tags are pairs in their order; null is no
tags at all. Values are numbers, or `"NaN"`, `"Infinity"` and `"-Infinity"`; a NaN with other bits than usual
is `{"bits": "7ff8000000000001"}`.

>>> from forelog.formats.m3 import Datapoint, Entry, Series, Unit
>>> entry = Entry(Series(b"\xff", tags={b"a": b"b"}), Datapoint(5, float("nan")), Unit.SECOND, b"", 7)
>>> data = to_json(entry)
>>> print(data.decode())
{"id": {"base64": "/w=="}, "namespace": "default", "shard": 0, "tags": [["a", "b"]], "timestamp_ns": 5, "value": "NaN", "unit": 1, "annotation": ""}
>>> from_json(data).series == entry.series
True
"""  # noqa: E501 - the line is one line

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any, NamedTuple

from forelog.formats.m3 import Entry, Series
from forelog.kernel import m3_metadata

_FIELDS = ("id", "namespace", "shard", "tags", "timestamp_ns", "value", "unit", "annotation")
_NAN_BITS = struct.pack(">d", math.nan)
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Exchanged(NamedTuple):
    """The fields of a datapoint's JSON."""

    series: Series
    """The series of the datapoint."""
    timestamp_ns: int
    """The time of the datapoint."""
    value: float
    """The number of the datapoint."""
    unit: int
    """The precision of the time."""
    annotation: bytes | None
    """What was noted; None for nothing."""


class NotADatapoint(ValueError):
    """The bytes aren't JSON of this shape."""


def as_fields(entry: Entry) -> dict[str, Any]:
    """The fields of an entry's JSON."""
    series, datapoint = entry.series, entry.datapoint
    return {
        "id": _text(series.id),
        "namespace": _text(series.namespace),
        "shard": series.shard,
        "tags": None if series.tags is None else [[_text(name), _text(value)] for name, value in series.tags],
        "timestamp_ns": datapoint.timestamp_ns,
        "value": _number(datapoint.value),
        "unit": int(entry.unit),
        "annotation": None if entry.annotation is None else _text(entry.annotation),
    }


def to_json(entry: Entry) -> bytes:
    """A datapoint as one line."""
    return json.dumps(as_fields(entry), ensure_ascii=False).encode()


def from_json(data: bytes) -> Exchanged:
    """Read a datapoint from a line."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise NotADatapoint("no JSON") from None
    if not isinstance(fields, dict) or fields.keys() != set(_FIELDS):
        raise NotADatapoint(f"no JSON object with {', '.join(_FIELDS)}")
    annotation = fields["annotation"]
    return Exchanged(
        _series(fields),
        _whole(fields, "timestamp_ns", 64, signed=True),
        _float(fields["value"]),
        _whole(fields, "unit", 8),
        None if annotation is None else _bytes(annotation),
    )


def _series(fields: dict[str, Any]) -> Series:
    tags = fields["tags"]
    if tags is not None:
        if not isinstance(tags, list) or not all(isinstance(tag, list) and len(tag) == 2 for tag in tags):
            raise NotADatapoint("tags are no pairs")
        tags = [(_bytes(name), _bytes(value)) for name, value in tags]
    shard = _whole(fields, "shard", 32)
    try:
        return Series.of_metadata(m3_metadata(_bytes(fields["id"]), _bytes(fields["namespace"]), shard, tags))
    except OverflowError:
        raise NotADatapoint("tags that are too long or too many") from None


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise NotADatapoint(f"{value!r} isn't a text") from None
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            pass
    raise NotADatapoint(f"{value!r} is neither a text nor base64")


def _number(value: float) -> Any:
    if math.isfinite(value):
        return value
    bits = struct.pack(">d", value)
    if math.isnan(value):
        return "NaN" if bits == _NAN_BITS else {"bits": bits.hex()}
    return "Infinity" if value > 0 else "-Infinity"


def _float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise NotADatapoint(f"{value} is too large a value") from None
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, dict) and value.keys() == {"bits"} and isinstance(value["bits"], str):
        try:
            return float(struct.unpack(">d", bytes.fromhex(value["bits"]))[0])
        except (ValueError, struct.error):
            pass
    raise NotADatapoint(f"{value!r} isn't a value")


def _whole(fields: dict[str, Any], name: str, bits: int, *, signed: bool = False) -> int:
    value = fields[name]
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < high:
        raise NotADatapoint(f"{name} is {value!r}: expected a number of {bits} bits")
    return value
