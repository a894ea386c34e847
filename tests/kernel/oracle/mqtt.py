"""MQTT's packets to columns, and messages to packets: the oracle for `broker/mqtt.pxi`.

A packet is a first byte (its type, and flags), the length of the rest as a number of one to four bytes with seven
bits each, the lowest first, and the rest. A PUBLISH::

    | 0011 dup qos retain | length 1-4 | topic length 2 | topic | id 2 | length 1-4 | properties | payload |
            1   2    1                                            QoS > 0  '------- MQTT 5 ------'

Plain messages are checked as strictly as by `broker/mqtt/decode.py`, which decodes all others.

>>> wire = mqtt_encode_publish(4, b"attic", b"21.5", 1, False, False, 7, b"")
>>> messages = mqtt_publishes(wire + wire[:5], 0, 20, 4, 1000)
>>> wire[messages.topic_starts[0] : messages.topic_ends[0]], list(messages.packet_ids), messages.acks
(b'attic', [7], b'@\\x02\\x00\\x07')
>>> messages.end, messages.reason == INCOMPLETE, messages.need
(15, True, 10)
"""

from __future__ import annotations

from array import array
from typing import Any

from forelog.kernel.types import (
    ALL,
    BAD_PACKET_LENGTH,
    BAD_PUBLISH,
    INCOMPLETE,
    NOT_PLAIN,
    PACKETS_MAX,
    TOO_LARGE,
    Packets,
    Pubacks,
    Publishes,
)
from tests.kernel.oracle.shared import check_range, varint

REMAINING_MAX = 0x0FFF_FFFF
"""The largest number in four bytes of seven bits."""

_PUBLISH = 3
_MINIMUM_OF_BYTES = (0, 0, 1 << 7, 1 << 14, 1 << 21)
_FORMAT, _EXPIRY, _CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION, _ALIAS, _USER = 1, 2, 3, 8, 9, 0x23, 0x26


class _Stop(Exception):
    def __init__(self, reason: int, need: int = 0) -> None:
        super().__init__(reason, need)
        self.reason = reason
        self.need = need


def _number(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    """A number of one to four bytes, and where it ends."""
    number = 0
    for i in range(4):
        if at + i >= stop:
            raise _Stop(INCOMPLETE, 1)
        byte = view[at + i]
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number, at + i + 1
    raise _Stop(BAD_PACKET_LENGTH)


def _frame(view: memoryview, start: int, stop: int, packet_bytes_max: int) -> tuple[int, int]:
    """Where a packet's body starts and ends."""
    length, body = _number(view, start + 1, stop)
    if body - start + length > packet_bytes_max:
        raise _Stop(TOO_LARGE)
    if length > stop - body:
        raise _Stop(INCOMPLETE, length - (stop - body))
    return body, body + length


def mqtt_split(buffer: Any, start: int, stop: int, packet_bytes_max: int, packets_max: int = 4096) -> Packets:
    view = memoryview(buffer).cast("B")
    check_range("packets in", start, stop, len(view))
    firsts, columns = bytearray(), [array("q") for _ in range(3)]
    at, reason, need = start, ALL, 0
    while at < stop:
        if len(firsts) >= packets_max:
            reason = PACKETS_MAX
            break
        try:
            body, end = _frame(view, at, stop, packet_bytes_max)
        except _Stop as stopped:
            reason, need = stopped.reason, stopped.need
            break
        firsts.append(view[at])
        for column, value in zip(columns, (at, body, end), strict=True):
            column.append(value)
        at = end
    return Packets._make((bytes(firsts), *columns, at, reason, need))


def mqtt_publishes(
    buffer: Any, start: int, stop: int, version: int, packet_bytes_max: int, packets_max: int = 4096
) -> Publishes:
    view = memoryview(buffer).cast("B")
    check_range("messages in", start, stop, len(view))
    _check_version(version)
    flags, columns, acks = bytearray(), [array("q") for _ in range(7)], bytearray()
    at, reason, need = start, ALL, 0
    while at < stop:
        if len(flags) >= packets_max:
            reason = PACKETS_MAX
            break
        try:
            row = _publish(view, at, stop, version, packet_bytes_max)
        except _Stop as stopped:
            reason, need = stopped.reason, stopped.need
            break
        flags.append(view[at] & 0x0F)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        *_, at, packet_id = row
        if packet_id:
            acks += bytes((0x40, 2, packet_id >> 8, packet_id & 0xFF))
    return Publishes._make((bytes(flags), *columns, bytes(acks), at, reason, need))


def _check_version(version: int) -> None:
    if version not in (4, 5):
        raise ValueError(f"MQTT {version}: expected 4 (for 3.1.1) or 5")


def _publish(view: memoryview, start: int, stop: int, version: int, packet_bytes_max: int) -> tuple[int, ...]:
    """The bounds of topic, properties and payload, and the packet id."""
    first = view[start]
    if first >> 4 != _PUBLISH:
        raise _Stop(NOT_PLAIN)
    body, end = _frame(view, start, stop, packet_bytes_max)
    qos = first >> 1 & 3
    if qos == 3 or (first & 8 and not qos):
        raise _Stop(BAD_PUBLISH)
    if qos == 2 or first & 1:
        raise _Stop(NOT_PLAIN)
    if version == 5 and end - body < _MINIMUM_OF_BYTES[body - start - 1]:
        raise _Stop(BAD_PUBLISH)
    topic, at = _bytes(view, body, end)
    packet_id = 0
    if qos:
        if end - at < 2:
            raise _Stop(BAD_PUBLISH)
        packet_id = view[at] << 8 | view[at + 1]
        at += 2
        if not packet_id:
            raise _Stop(BAD_PUBLISH)
    properties, at = (at, at), at
    if version == 5:
        properties = _property_bounds(view, at, end)
        at = properties[1]
        _check_properties(view, *properties)
    _check_topic(view, *topic)
    if view[topic[0]] == ord("$"):
        raise _Stop(NOT_PLAIN)
    return (*topic, *properties, at, end, packet_id)


def _bytes(view: memoryview, at: int, stop: int) -> tuple[tuple[int, int], int]:
    if stop - at < 2:
        raise _Stop(BAD_PUBLISH)
    start = at + 2
    end = start + (view[at] << 8 | view[at + 1])
    if end > stop:
        raise _Stop(BAD_PUBLISH)
    return (start, end), end


def _property_bounds(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    try:
        length, start = _number(view, at, stop)
    except _Stop:
        raise _Stop(BAD_PUBLISH) from None
    if length < _MINIMUM_OF_BYTES[start - at] or length > stop - start:
        raise _Stop(BAD_PUBLISH)
    return start, start + length


def _check_text(view: memoryview, start: int, end: int) -> str:
    try:
        text = str(view[start:end], "utf-8")
    except UnicodeDecodeError:
        raise _Stop(BAD_PUBLISH) from None
    if "\0" in text:
        raise _Stop(BAD_PUBLISH)
    return text


def _check_topic(view: memoryview, start: int, end: int) -> None:
    topic = _check_text(view, start, end)
    if not topic or "+" in topic or "#" in topic:
        raise _Stop(BAD_PUBLISH)


def _check_properties(view: memoryview, at: int, stop: int) -> None:
    seen = set()
    while at < stop:
        name = view[at]
        at += 1
        if name == _ALIAS:
            raise _Stop(NOT_PLAIN)
        if name in seen:
            raise _Stop(BAD_PUBLISH)
        if name != _USER:
            seen.add(name)
        at = _check_property(view, name, at, stop)


def _check_property(view: memoryview, name: int, at: int, stop: int) -> int:
    """Where the property ends that has this name."""
    if name in (_FORMAT, _EXPIRY):
        end = at + (1 if name == _FORMAT else 4)
        if end > stop or (name == _FORMAT and view[at] > 1):
            raise _Stop(BAD_PUBLISH)
        return end
    if name not in (_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION, _USER):
        raise _Stop(BAD_PUBLISH)
    value, at = _bytes(view, at, stop)
    if name == _RESPONSE_TOPIC:
        _check_topic(view, *value)
    elif name != _CORRELATION:
        _check_text(view, *value)
    if name == _USER:
        value, at = _bytes(view, at, stop)
        _check_text(view, *value)
    return at


def mqtt_pubacks(buffer: Any, start: int, stop: int) -> Pubacks:
    view = memoryview(buffer).cast("B")
    check_range("acknowledgements in", start, stop, len(view))
    packet_ids = array("q")
    at = start
    while stop - at >= 4 and view[at] == 0x40 and view[at + 1] == 2:
        packet_id = view[at + 2] << 8 | view[at + 3]
        if not packet_id:
            break
        packet_ids.append(packet_id)
        at += 4
    return Pubacks(packet_ids, at)


def mqtt_encode_publish(
    version: int,
    topic: bytes,
    payload: Any,
    qos: int,
    retain: bool,
    dup: bool,
    packet_id: int,
    properties: bytes,
) -> bytes:
    _check_version(version)
    if len(topic) > 0xFFFF:
        raise ValueError(f"a topic of {len(topic)} bytes: at most 65,535 can be sent")
    if not 0 <= qos <= 2 or (dup and not qos):
        raise ValueError(
            f"QoS {qos}{' sent again' if dup else ''}: expected 0, 1 or 2, and only 1 and 2 sent again"
        )
    if not 0 <= packet_id <= 0xFFFF or (packet_id != 0) != (qos != 0):
        raise ValueError(f"packet id {packet_id} at QoS {qos}: expected 1 to 65,535, and 0 at QoS 0")
    size = len(memoryview(payload).cast("B"))
    head = len(topic).to_bytes(2) + topic
    if qos:
        head += packet_id.to_bytes(2)
    if version == 5:
        if len(properties) > REMAINING_MAX:
            raise ValueError(f"{len(properties)} bytes of properties: at most {REMAINING_MAX} can be sent")
        head += varint(len(properties)) + properties
    if len(head) + size > REMAINING_MAX:
        raise ValueError(f"a packet of {len(head) + size} bytes: at most {REMAINING_MAX} can be sent")
    first = bytes((_PUBLISH << 4 | bool(dup) << 3 | qos << 1 | bool(retain),))
    return b"".join((first, varint(len(head) + size), head, payload))
