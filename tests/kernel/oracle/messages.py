"""Messages of a broker's log: the oracle for `messages/scan.pxi` and `messages/encode.pxi`.

A message is a msgpack array of five::

    | 95 | time | topic | payload | properties | crc |
      |    uint   str     bin       map          uint, CRC-32C of the four elements before it
      the head of an array of five; not in the checksum, since no other byte is taken for it

The time is written in nine bytes and the checksum in five, whatever they are; any width is read. Properties
are looked at only as far as to tell that they are a map with texts as keys, well-formed and not too deep.

>>> frame = messages_encode((b"t", b"hi", bytes([0x80])), 1)
>>> frame.hex(" ")
'95 cf 00 00 00 00 00 00 00 01 a1 74 c4 02 68 69 80 ce 73 be 2a 22'
>>> message_split(frame)
('t', b'hi', b'\\x80')
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from forelog.errors import TimeOutOfRange
from forelog.formats.messages.format import (
    MESSAGE_TIME_MAX,
    PAYLOAD_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
)
from forelog.formats.messages.msgpack import (
    PROPERTIES_DEPTH_MAX,
    element_children,
    element_content,
    element_head,
    is_map,
    is_text,
)
from forelog.kernel.types import BAD_CRC, BAD_LENGTH, BAD_TIME, END, FOUND, LIMIT, TRUNCATED, Scan
from tests.kernel.oracle.crc import crc32c
from tests.kernel.oracle.shared import check_range

MESSAGE_HEAD = 0x95
BAD_TOPIC = 7  # the topic is no UTF-8
BAD_PROPERTIES = 8  # the properties are no map with texts as keys, or too large or too deep

_NOT_AN_ITEM = "a message is a tuple of topic, payload and properties, all bytes: see Messages.item()"


class Places(NamedTuple):
    """Where the parts of a message are; or, with a reason other than END, why that can't be told."""

    reason: int
    need: int = 0
    seen: int = 0
    """How many bytes of properties were looked at."""
    time: int = 0
    topic: int = 0
    topic_end: int = 0
    payload: int = 0
    payload_end: int = 0
    properties_end: int = 0
    end: int = 0
    crc: int = 0


def _uint(view: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """A msgpack uint in any width: END, its end and its value; TRUNCATED and where it would end; or BAD_LENGTH."""
    if at >= stop:
        return TRUNCATED, at + 1, 0
    if view[at] < 0x80:
        return END, at + 1, view[at]
    if not 0xCC <= view[at] <= 0xCF:
        return BAD_LENGTH, 0, 0
    end = at + 1 + (1 << (view[at] - 0xCC))
    return (TRUNCATED, end, 0) if end > stop else (END, end, int.from_bytes(view[at + 1 : end], "big"))


def _sized(view: memoryview, at: int, stop: int, largest: int, *, text: bool) -> tuple[int, int, int]:
    """Reason, start and end of a str's or bin's bytes, by its head; for TRUNCATED, where that would end."""
    first = 0xD9 if text else 0xC4
    if at >= stop:
        return TRUNCATED, 0, at + 1
    if text and 0xA0 <= view[at] <= 0xBF:
        return END, at + 1, at + 1 + (view[at] & 0x1F)
    if not first <= view[at] <= first + 2:
        return BAD_LENGTH, 0, 0
    start = at + 1 + (1 << (view[at] - first))
    if start > stop:
        return TRUNCATED, 0, start
    length = int.from_bytes(view[at + 1 : start], "big")
    return (BAD_LENGTH, 0, 0) if length > largest else (END, start, start + length)


def _element(view: Any, place: int, limit: int, stop: int) -> tuple[int, int, int]:
    """Reason, where an element ends without what is inside of it, and how many elements are inside, or -1."""
    if place >= limit or place >= stop:
        return (BAD_PROPERTIES if place >= limit else TRUNCATED), place + 1, -1
    head = element_head(view[place])
    if head == 0:
        return BAD_PROPERTIES, place + 1, -1
    if place + head > limit or place + head > stop:
        return (BAD_PROPERTIES if place + head > limit else TRUNCATED), place + head, -1
    after = place + head + element_content(view, place)
    children = element_children(view, place)
    if after > limit or children > limit - after:
        return BAD_PROPERTIES, after, -1
    return (TRUNCATED if after > stop else END), after, children


def skip_properties(view: Any, at: int, stop: int) -> tuple[int, int]:
    """Reason, and where a map with texts as keys ends; for TRUNCATED, where what is missing would."""
    limit = at + PROPERTIES_BYTES_MAX
    left: list[int] = []
    if at < stop and not is_map(view[at]):
        return BAD_PROPERTIES, at + 1
    place = at
    while True:
        if len(left) == 1 and left[0] % 2 == 0 and place < min(stop, limit) and not is_text(view[place]):
            return BAD_PROPERTIES, place + 1
        reason, place, children = _element(view, place, limit, stop)
        if reason != END:
            return reason, place
        if left:
            left[-1] -= 1
        if children >= 0:
            if len(left) == PROPERTIES_DEPTH_MAX:
                return BAD_PROPERTIES, place
            left.append(children)
        while left and left[-1] == 0:
            left.pop()
        if not left:
            return END, place


def message_places(view: memoryview, at: int, stop: int) -> Places:
    """Where the parts of a message are, its checksum not looked at."""
    if at < stop and view[at] != MESSAGE_HEAD:
        return Places(BAD_TIME)
    reason, end, time_ns = _uint(view, at + 1, stop)
    if reason == TRUNCATED:
        return Places(TRUNCATED, end - at)
    if reason != END or time_ns > MESSAGE_TIME_MAX:
        return Places(BAD_TIME)
    reason, topic, topic_end = _sized(view, end, stop, TOPIC_BYTES_MAX, text=True)
    if reason == TRUNCATED or (reason == END and topic_end > stop):
        return Places(TRUNCATED, topic_end - at)
    if reason != END:
        return Places(reason)
    reason, payload, payload_end = _sized(view, topic_end, stop, PAYLOAD_BYTES_MAX, text=False)
    if reason == END and payload_end + 2 > stop:
        # Properties and checksum have a byte each at least.
        return Places(TRUNCATED, payload_end + 2 - at)
    if reason != END:
        return Places(reason, payload_end - at if reason == TRUNCATED else 0)
    reason, properties_end = skip_properties(view, payload_end, stop)
    seen = min(properties_end, stop) - payload_end
    if reason != END:
        return Places(reason, properties_end - at if reason == TRUNCATED else 0, seen)
    reason, end, crc = _uint(view, properties_end, stop)
    if reason == END and crc > 0xFFFFFFFF:
        reason = BAD_LENGTH
    if reason != END:
        return Places(reason, end - at if reason == TRUNCATED else 0, seen)
    return Places(END, 0, seen, time_ns, topic, topic_end, payload, payload_end, properties_end, end, crc)


def _is_utf8(data: Any) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _message(view: memoryview, at: int, stop: int) -> Places:
    """The same, and the checksum and the topic are right."""
    found = message_places(view, at, stop)
    if found.reason != END:
        return found
    if crc32c(view[at + 1 : found.properties_end]) != found.crc:
        return Places(BAD_CRC)
    return found if _is_utf8(view[found.topic : found.topic_end]) else Places(BAD_TOPIC)


def messages_scan(buffer: Any, start: int, stop: int, base: int, limit: int) -> Scan:
    view = memoryview(buffer).cast("B")
    check_range("scan of", start, stop, len(view))
    offsets, starts, ends, times = array("q"), array("q"), array("q"), array("q")
    at = start
    while True:
        if at == stop:
            return Scan(offsets, starts, ends, times, at, END, 0)
        if len(offsets) >= limit:
            return Scan(offsets, starts, ends, times, at, LIMIT, 0)
        found = _message(view, at, stop)
        if found.reason != END:
            return Scan(offsets, starts, ends, times, at, found.reason, found.need)
        offsets.append(base + at)
        starts.append(found.payload)
        ends.append(found.payload_end)
        times.append(found.time)
        at = found.end


def messages_hop(buffer: Any, start: int, stop: int, offset_min: int, time_min: int) -> tuple[int, int, int]:
    view = memoryview(buffer).cast("B")
    check_range("hop over", start, stop, len(view))
    at = start
    while at < stop:
        found = message_places(view, at, stop)
        if found.reason != END:
            return at, found.reason, found.need
        if at >= offset_min and found.time >= time_min:
            return at, FOUND, 0
        at = found.end
    return at, END, 0


def messages_find(buffer: Any, start: int, stop: int, final: bool) -> int:
    view = memoryview(buffer).cast("B")
    check_range("find in", start, stop, len(view))
    budget = 64 * (stop - start) + 65_536
    raw = bytes(view[start:stop])
    at = raw.find(MESSAGE_HEAD)
    while at >= 0:
        place = start + at
        found = message_places(view, place, stop)
        budget -= found.end - place if found.reason == END else found.seen
        if budget < 0:
            return -1
        if found.reason == END and _message(view, place, stop).reason == END:
            if found.end == stop:
                if final:
                    return place
            elif _message(view, found.end, stop).reason == END:
                return place
        at = raw.find(MESSAGE_HEAD, at + 1)
    return -1


def message_split(frame: Any) -> tuple[str, bytes, bytes]:
    view = memoryview(frame).cast("B")
    found = message_places(view, 0, len(view))
    if found.reason != END:
        raise ValueError("this is no message")
    return (
        str(view[found.topic : found.topic_end], "utf-8"),
        bytes(view[found.payload : found.payload_end]),
        bytes(view[found.payload_end : found.properties_end]),
    )


def _check_message(item: Any, time_ns: int) -> None:
    if type(item) is not tuple or len(item) != 3 or any(type(part) is not bytes for part in item):
        raise TypeError(_NOT_AN_ITEM)
    topic, payload, properties = item
    if not 0 <= time_ns <= MESSAGE_TIME_MAX:
        raise TimeOutOfRange(f"a message can't have the time {time_ns}: expected 0 to {MESSAGE_TIME_MAX}")
    if len(topic) > TOPIC_BYTES_MAX or not _is_utf8(topic):
        raise ValueError(f"a topic is UTF-8 of at most {TOPIC_BYTES_MAX} bytes")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes")
    if skip_properties(properties, 0, len(properties)) != (END, len(properties)):
        raise ValueError("properties are a map in msgpack with texts as keys, not too large and not too deep")


def _size_head(first: int, size: int) -> bytes:
    if size < 256:
        return bytes((first, size))
    return struct.pack(">BH", first + 1, size) if size < 65_536 else struct.pack(">BI", first + 2, size)


def messages_encode(item: tuple[bytes, bytes, bytes], time_ns: int) -> bytes:
    _check_message(item, time_ns)
    topic, payload, properties = item
    topic_head = bytes((0xA0 | len(topic),)) if len(topic) < 32 else _size_head(0xD9, len(topic))
    body = b"".join(
        (
            b"\xcf",
            time_ns.to_bytes(8, "big"),
            topic_head,
            topic,
            _size_head(0xC4, len(payload)),
            payload,
            properties,
        )
    )
    return bytes((MESSAGE_HEAD,)) + body + struct.pack(">BI", 0xCE, crc32c(body))


def messages_encode_many(given: Iterable[tuple[bytes, bytes, bytes]], time_ns: int) -> tuple[bytes, array[int]]:
    batch = list(given)
    if not 0 <= time_ns <= MESSAGE_TIME_MAX - len(batch):
        raise TimeOutOfRange(f"a message can't have the time {time_ns}: expected 0 to {MESSAGE_TIME_MAX}")
    out = bytearray()
    starts = array("q")
    for row, item in enumerate(batch):
        starts.append(len(out))
        out += messages_encode(item, time_ns + row)
    return bytes(out), starts
