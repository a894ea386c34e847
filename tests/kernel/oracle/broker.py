"""Messages of a broker's log to packets: the oracle for `broker/columns.pxi` and `broker/deliver.pxi`.

A block of the log becomes what a subscriber gets in steps that each take and return columns::

    message_columns    where topics, payloads and properties lie
    messages_flags     QoS and what else the properties say, one byte for each message
    topic_codes        each topic as a number, so that filters are matched once for each topic of the block
    rows_where         the rows whose topic was chosen
    mqtt_deliver       these rows as PUBLISH packets

>>> from tests.kernel.oracle.messages import messages_encode_many
>>> items = [(b"attic", b"21", b"\\x81\\xa3qos\\x01"), (b"b", b"22", b"\\x80")]
>>> data, starts = messages_encode_many(items, 1)
>>> found = message_columns(data, starts, 0, 0, 2)
>>> flags = messages_flags(data, found.property_starts, found.property_ends)
>>> flags
b'\\x01\\x00'
>>> codes, topics = topic_codes(data, found.topic_starts, found.topic_ends)
>>> topics, list(rows_where(codes, b"\\x01\\x00"))
([b'attic', b'b'], [0])
>>> mqtt_deliver(4, data, array("q", [0]), *found[:4], flags, 2, 9, b"")
(b'2\\x0b\\x00\\x05attic\\x00\\t21', 1)
"""

from __future__ import annotations

from array import array
from typing import Any

from forelog.formats.messages.msgpack import element_children, element_content, element_head, is_map, is_text
from forelog.kernel.types import END, MessageColumns
from tests.kernel.oracle.messages import message_places
from tests.kernel.oracle.mqtt import mqtt_encode_publish

FLAG_QOS = 3
FLAG_RETAIN = 4
FLAG_OTHER = 8
"""There is more to this message than its QoS: somebody has to decode its properties."""
FLAG_EXPIRY = 16

_PLAIN_KEYS = (b"qos", b"retain", b"from", b"id")


def _check_columns(count: int, *columns: array[int]) -> None:
    for column in columns:
        if column.typecode != "q":
            raise TypeError("columns are arrays of type 'q'")
        if len(column) != count:
            raise ValueError("columns of different lengths")


def mqtt_deliver(
    version: int,
    buffer: Any,
    rows: array[int],
    topic_starts: array[int],
    topic_ends: array[int],
    payload_starts: array[int],
    payload_ends: array[int],
    flags: Any,
    qos_max: int,
    first_id: int,
    properties: bytes,
    retain: bool = False,
    dup: bool = False,
) -> tuple[bytes, int]:
    view, qos_of = memoryview(buffer).cast("B"), memoryview(flags).cast("B")
    columns = topic_starts, topic_ends, payload_starts, payload_ends
    _check_columns(len(rows), rows)
    _check_columns(len(qos_of), *columns)
    if not 0 <= qos_max <= 2:
        raise ValueError(f"QoS {qos_max}: expected 0, 1 or 2")
    if not 1 <= first_id <= 0xFFFF:
        raise ValueError(f"packet id {first_id}: expected 1 to 65,535")
    mqtt_encode_publish(version, b"", b"", 0, False, False, 0, properties)  # what is wrong without rows too
    out, used = [], 0
    for row in rows:
        if not 0 <= row < len(qos_of):
            raise ValueError(f"row {row} of {len(qos_of)}")
        topic, topic_end, payload, payload_end = (column[row] for column in columns)
        if not (0 <= topic <= topic_end <= len(view) and 0 <= payload <= payload_end <= len(view)):
            raise ValueError(f"row {row} lies outside of its buffer")
        qos = min(qos_of[row] & FLAG_QOS, qos_max)
        packet_id = (first_id - 1 + used) % 0xFFFF + 1 if qos else 0
        used += qos > 0
        body = view[payload:payload_end]
        out.append(
            mqtt_encode_publish(
                version, bytes(view[topic:topic_end]), body, qos, retain, dup and qos > 0, packet_id, properties
            )
        )
    if used > 0xFFFF:
        raise ValueError(f"{used} messages need packet ids: there are 65,535")
    return b"".join(out), used


def message_columns(buffer: Any, offsets: array[int], base: int, first: int, last: int) -> MessageColumns:
    view = memoryview(buffer).cast("B")
    if not 0 <= first <= last <= len(offsets):
        raise ValueError(f"rows {first}..{last} of {len(offsets)}")
    columns = MessageColumns(*(array("q") for _ in range(6)))
    for offset in offsets[first:last]:
        at = offset - base
        found = message_places(view, at, len(view)) if 0 <= at <= len(view) else None
        if found is None or found.reason != END:
            raise ValueError(f"there is no message at byte {at}")
        places = (found.topic, found.topic_end, found.payload, found.payload_end, found.payload_end)
        for column, place in zip(columns, (*places, found.properties_end), strict=True):
            column.append(place)
    return columns


def _skip_element(view: memoryview, at: int) -> int:
    """Where an element of msgpack ends, with all that is inside of it; -1 if it isn't whole or is none."""
    left = 1
    while left:
        head = element_head(view[at]) if at < len(view) else 0
        if head == 0 or at + head > len(view):
            return -1
        children = element_children(view, at)
        at += head + element_content(view, at)
        if at > len(view) or children > len(view) - at:
            return -1
        left += max(children, 0) - 1
    return at


def _flags(view: memoryview) -> int:
    """The flags of a message by its properties."""
    if not view or not is_map(view[0]) or element_head(view[0]) > len(view):
        return FLAG_OTHER
    at, flags, seen = element_head(view[0]), 0, set()
    for _ in range(0, element_children(view, 0), 2):
        value = _skip_element(view, at) if at < len(view) and is_text(view[at]) else -1
        end = _skip_element(view, value) if value >= 0 else -1
        if end < 0:
            return FLAG_OTHER
        key, at = bytes(view[at + element_head(view[at]) : value]), end
        if key in seen and key in (b"qos", b"retain"):
            flags |= FLAG_OTHER
        elif key == b"qos":
            flags |= view[value] if view[value] <= 2 else FLAG_OTHER
        elif key == b"retain":
            flags |= {0xC2: 0, 0xC3: FLAG_RETAIN}.get(view[value], FLAG_OTHER)
        elif key == b"expiry":
            flags |= FLAG_OTHER | FLAG_EXPIRY
        elif key not in _PLAIN_KEYS:
            flags |= FLAG_OTHER
        seen.add(key)
    return flags if at == len(view) else FLAG_OTHER


def messages_flags(buffer: Any, property_starts: array[int], property_ends: array[int]) -> bytes:
    view = memoryview(buffer).cast("B")
    _check_columns(len(property_starts), property_starts, property_ends)
    flags = bytearray()
    for row, (start, end) in enumerate(zip(property_starts, property_ends, strict=True)):
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"range {row} lies outside of its buffer")
        flags.append(_flags(view[start:end]))
    return bytes(flags)


def topic_codes(buffer: Any, starts: array[int], ends: array[int]) -> tuple[array[int], list[bytes]]:
    view = memoryview(buffer).cast("B")
    _check_columns(len(starts), starts, ends)
    numbers: dict[bytes, int] = {}
    codes = array("q")
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"range {row} lies outside of its buffer")
        codes.append(numbers.setdefault(bytes(view[start:end]), len(numbers)))
    return codes, list(numbers)


def rows_where(
    codes: array[int],
    wanted: Any,
    first: int = 0,
    flags: Any = None,
    flags_mask: int = 0,
    flags_value: int = 0,
) -> array[int]:
    chosen = memoryview(wanted).cast("B")
    flag_of = None if flags is None else memoryview(flags).cast("B")
    _check_columns(len(codes), codes)
    if not 0 <= first <= len(codes):
        raise ValueError(f"row {first} of {len(codes)}")
    if flag_of is not None and len(flag_of) != len(codes):
        raise ValueError("flags has another length than codes")
    rows = array("q")
    for row in range(first, len(codes)):
        if not 0 <= codes[row] < len(chosen):
            raise ValueError(f"code {codes[row]} of {len(chosen)}")
        if chosen[codes[row]] and (flag_of is None or flag_of[row] & flags_mask == flags_value):
            rows.append(row)
    return rows
