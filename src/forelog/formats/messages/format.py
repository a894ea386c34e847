"""The messages of a broker, in files that any msgpack reader in any language reads.

A file is a sequence of msgpack arrays and nothing else, without a header::

    message   | 95 | time | topic | payload | properties | crc |

    time         uint, nanoseconds since 1970; written in nine bytes, `cf` and a u64
    topic        str of at most 65,535 bytes of UTF-8
    payload      bin of at most 257 MiB
    properties   map with str as keys, at most 1 MiB, nested at most 16 deep; `80` if there are none
    crc          uint, CRC-32C of the four elements before it as they are encoded, without the array's head
                 `95`; written in five bytes, `ce` and a u32

Any width of an integer or a size is read. Times increase strictly within a log, also when the clock is put
back. So a time identifies a message.

A file is named by the time of its first message, `20261115T183000.123456789Z.dat`. So the names alone show in
which file a time is. To the engine that time is the segment's number; positions look like
`1794767400123456789:1048576`. If cleaning takes a file's first message, its name stays.

>>> messages = Messages()
>>> messages.segment_name(1794767400123456789), messages.segment_number("20261115T183000.123456789Z.dat")
('20261115T183000.123456789Z.dat', 1794767400123456789)
>>> messages.item("plant/7/temp", b"21.5", {"unit": "C"})
(b'plant/7/temp', b'21.5', b'\\x81\\xa4unit\\xa1C')
>>> messages.encode(messages.item("t", b"hi"), 1).hex(" ")
'95 cf 00 00 00 00 00 00 00 01 a1 74 c4 02 68 69 80 ce 73 be 2a 22'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from forelog import kernel
from forelog.errors import RecordTooLarge, TimeOutOfRange
from forelog.formats.format import Headerless, PlainEncoder
from forelog.formats.messages.msgpack import pack
from forelog.kernel.types import TIME_MAX
from forelog.times import SECOND_NS

NO_PROPERTIES = b"\x80"
MESSAGE_BYTES_MIN = 7
MESSAGE_TIME_MAX = 2**62 - 1
TOPIC_BYTES_MAX = 65_535
PAYLOAD_BYTES_MAX = 257 << 20
PROPERTIES_BYTES_MAX = 1 << 20
FRAME_BYTES_MAX = 32
"""More than a message takes besides topic, payload and properties."""

Item = tuple[bytes, bytes, bytes]
"""What is written: a topic in UTF-8, a payload, and properties in msgpack."""

_NAME = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\.(\d{9})Z\.dat", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Messages(Headerless):
    """The messages format."""

    name: ClassVar[str] = "messages"
    record_bytes_min: ClassVar[int] = MESSAGE_BYTES_MIN
    record_tail_bytes_max: ClassVar[int] = PROPERTIES_BYTES_MAX + 9
    segment_number_max: ClassVar[int] = MESSAGE_TIME_MAX
    numbered_by_time: ClassVar[bool] = True
    segment_number_first: ClassVar[int] = 1
    record_word: ClassVar[str] = "message"
    holds_entries: ClassVar[bool] = False
    reasons: ClassVar[Mapping[int, str]] = {
        2: "truncated",
        3: "head",
        4: "field",
        5: "crc",
        7: "topic",
        8: "properties",
    }
    appends_in_place: ClassVar[bool] = True
    folder: ClassVar[str] = ""
    encode: ClassVar[Any] = staticmethod(kernel.messages_encode)
    scan = staticmethod(kernel.messages_scan)
    hop = staticmethod(kernel.messages_hop)
    find = staticmethod(kernel.messages_find)

    def item(
        self,
        topic: str | bytes | Item,
        payload: bytes | bytearray | memoryview = b"",
        properties: Mapping[str, Any] | bytes | None = None,
    ) -> Item:
        """Check a message that is to be written. Properties are a dict, or already encoded. An item is returned
        as it is."""
        if isinstance(topic, tuple):
            if len(topic) != 3 or any(type(part) is not bytes for part in topic):
                raise TypeError(f"{topic!r:.80} isn't a message: expected a topic, a payload and properties")
            return topic
        name = topic.encode() if isinstance(topic, str) else bytes(topic)
        if len(name) > TOPIC_BYTES_MAX:
            raise RecordTooLarge(f"a topic of {len(name)} bytes: the limit is {TOPIC_BYTES_MAX}")
        body = kernel.payload_bytes(payload)
        if len(body) > PAYLOAD_BYTES_MAX:
            raise RecordTooLarge(f"a payload of {len(body)} bytes: the limit is {PAYLOAD_BYTES_MAX}")
        return name, body, _packed(properties)

    def item_bytes(self, item: Item) -> int:
        return sum(map(len, item)) + FRAME_BYTES_MAX

    def encoder(self, number: int) -> PlainEncoder:  # noqa: ARG002 - every segment's is the same
        return PlainEncoder(kernel.messages_encode_many)

    def checker(self) -> None:
        return None

    def next_number(self, number: int, time_ns: int) -> int:
        if not 0 <= time_ns <= MESSAGE_TIME_MAX:
            raise TimeOutOfRange(
                f"a file of messages can't begin {time_ns} nanoseconds after 1970: expected a time in the years "
                "1970 to 2115. Set the clock right; nothing was written"
            )
        return max(number + 1, time_ns)

    def segment_name(self, number: int) -> str:
        seconds, nanos = divmod(number, SECOND_NS)
        return f"{_EPOCH + timedelta(seconds=seconds):%Y%m%dT%H%M%S}.{nanos:09d}Z.dat"

    def segment_number(self, name: str) -> int | None:
        match = _NAME.fullmatch(name)
        if not match:
            return None
        *parts, nanos = map(int, match.groups())
        try:
            moment = datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]
        except ValueError:
            return None
        number = (moment - _EPOCH) // timedelta(seconds=1) * SECOND_NS + nanos
        return number if 0 <= number <= MESSAGE_TIME_MAX else None

    def exact_time(self, head: bytes) -> int:
        if len(head) < 2 or head[0] != 0x95:
            return TIME_MAX
        if head[1] < 0x80:
            return head[1]
        size = 1 << (head[1] - 0xCC) if 0xCC <= head[1] <= 0xCF else 0
        return int.from_bytes(head[2 : 2 + size], "big") if 0 < size <= len(head) - 2 else TIME_MAX


def _packed(properties: Mapping[str, Any] | bytes | None) -> bytes:
    if not properties:
        return NO_PROPERTIES
    if isinstance(properties, bytes):
        return properties  # looked at when they are written
    if not isinstance(properties, Mapping):
        raise TypeError(f"properties are {properties!r:.80}: expected a dict")
    for key in properties:
        if not isinstance(key, str):
            raise TypeError(f"the property {key!r:.80} has no text as its name")
    packed = pack(properties)
    if len(packed) > PROPERTIES_BYTES_MAX:
        raise RecordTooLarge(f"properties of {len(packed)} bytes: the limit is {PROPERTIES_BYTES_MAX}")
    return packed
