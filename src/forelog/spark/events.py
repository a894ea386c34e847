"""The events of a state log as rows: what their types and keys are, and their values as JSON.

An event of `PersistentDict` is a key with its value, a key that was removed, or nothing, if the dict was cleared.
Any other event has its type's name; its key is its field `id`, else `key`, else its first field.

>>> from forelog.state.events import EventCodec
>>> encode = EventCodec().encode
>>> row_of(encode(["chips", 250])), row_of(encode(["chips"])), row_of(encode([]))
(('set', '', '"chips"', '250'), ('remove', '', '"chips"', None), ('clear', '', None, None))
>>> row_of(encode({"id": 7, "name": "ada"}))
('event', '', '7', '{"id":7,"name":"ada"}')
"""

from __future__ import annotations

import json
from typing import Any

from forelog.formats import Block
from forelog.formats.state import EVENT, GROUP, events_in
from forelog.state.reader import key_of, parse_event

__all__ = ["event_columns", "row_of"]

Row = tuple[str, str | None, str | None, str | None]
_SET_PARTS = (2, 3)  # a key, its value, and perhaps when it expires


def event_columns(block: Block) -> tuple[list[int], list[Row], list[bytes]]:
    """For each event of a block: the row of its record, what it says, and its bytes."""
    starts, ends = block.scan.starts, block.scan.ends
    places: list[int] = []
    rows: list[Row] = []
    data: list[bytes] = []
    for row in range(block.first, block.last):
        payload = bytes(block.buffer[starts[row] : ends[row]])
        if payload[:1] in (EVENT, GROUP):
            for event in events_in(payload):
                places.append(row - block.first)
                rows.append(row_of(event))
                data.append(event)
    return places, rows, data


def row_of(event: bytes) -> Row:
    """What an event does, the name of its type, its key, and its value; None for what isn't known."""
    parsed = parse_event(event)
    if parsed is None:
        return "event", None, None, None
    value = parsed.value
    if parsed.type or not isinstance(value, list):
        return "event", parsed.type, _json(key_of(value)), _json(value)
    if not value:
        return "clear", "", None, None
    if len(value) == 1:
        return "remove", "", _json(value[0]), None
    if len(value) in _SET_PARTS:
        return "set", "", _json(value[0]), _json(value[1])
    return "event", "", _json(value[0]), _json(value)


def _json(value: Any) -> str:
    """JSON, with bytes in base64; the text of what JSON can't hold."""
    from msgspec import MsgspecError
    from msgspec.json import encode

    try:
        return encode(value).decode()
    except (MsgspecError, TypeError, ValueError):
        return json.dumps(repr(value))
