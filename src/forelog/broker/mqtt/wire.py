"""The fields of packets: numbers, texts and bytes.

    byte      1                 two, four    big-endian
    number    1 to 4 bytes of seven bits each, the lowest first, in as few bytes as possible
    text      its length (2 bytes), UTF-8    bytes   its length (2 bytes), anything

A text has no U+0000 and no surrogates. Nothing is read beyond the end of a packet.
"""

from __future__ import annotations

from forelog.broker.mqtt.reasons import ReasonCode
from forelog.errors import BadPacket
from forelog.kernel import varint

NUMBER_MAX = 0x0FFF_FFFF


def malformed(why: str) -> BadPacket:
    """An error for a packet that can't be parsed."""
    return BadPacket(ReasonCode.MALFORMED_PACKET, why)


def protocol_error(why: str) -> BadPacket:
    """An error for a packet that can be parsed but isn't allowed."""
    return BadPacket(ReasonCode.PROTOCOL_ERROR, why)


class Body:
    """A packet's body, read from its start to its end."""

    __slots__ = ("_at", "_data", "_name")

    def __init__(self, buffer: bytes | bytearray | memoryview, start: int, stop: int, name: str) -> None:
        if not 0 <= start <= stop <= len(buffer):
            raise ValueError(f"a body {start}..{stop} in a buffer of {len(buffer)} bytes")
        # A copy, because a view would keep the caller from resizing the buffer after a BadPacket.
        self._data = buffer[start:stop] if isinstance(buffer, bytes) else bytes(memoryview(buffer)[start:stop])
        self._at = 0
        self._name = name
        """The name of the packet, for errors."""

    def left(self) -> int:
        """The number of bytes that are left."""
        return len(self._data) - self._at

    def _take(self, size: int, what: str) -> bytes:
        at, end = self._at, self._at + size
        if end > len(self._data):
            raise malformed(f"{self._name} ends within its {what}")
        self._at = end
        return self._data[at:end]

    def byte(self, what: str) -> int:
        """One byte."""
        at = self._at
        if at >= len(self._data):
            raise malformed(f"{self._name} ends within its {what}")
        self._at = at + 1
        return self._data[at]

    def two(self, what: str) -> int:
        """A number of two bytes."""
        at = self._at
        if at + 2 > len(self._data):
            raise malformed(f"{self._name} ends within its {what}")
        self._at = at + 2
        return self._data[at] << 8 | self._data[at + 1]

    def four(self, what: str) -> int:
        """A number of four bytes."""
        return int.from_bytes(self._take(4, what))

    def number(self, what: str) -> int:
        """A number of one to four bytes."""
        number = 0
        for i in range(4):
            byte = self.byte(what)
            number |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if i and not byte:
                    raise malformed(f"the {what} of {self._name} has more bytes than it needs")
                return number
        raise malformed(f"the {what} of {self._name} has more than four bytes")

    def data(self, what: str) -> bytes:
        """Bytes after their length."""
        return self._take(self.two(what), what)

    def text(self, what: str) -> str:
        """A text after its length."""
        try:
            text = self._take(self.two(what), what).decode()
        except UnicodeDecodeError as error:
            raise malformed(f"the {what} of {self._name} isn't UTF-8: {error.reason}") from None
        if "\0" in text:
            raise malformed(f"the {what} of {self._name} has a U+0000 in it")
        return text

    def packet_id(self) -> int:
        """A packet id, which is never 0."""
        packet_id = self.two("packet id")
        if not packet_id:
            raise malformed(f"the packet id of {self._name} is 0")
        return packet_id

    def part(self, size: int, what: str) -> Body:
        """The next bytes, as a body of their own."""
        data = self._take(size, what)
        return Body(data, 0, size, self._name)

    def rest(self) -> bytes:
        """Everything to the end."""
        return self._take(self.left(), "payload")

    def end(self) -> None:
        """Raise BadPacket if bytes are left."""
        if self.left():
            raise malformed(f"{self.left()} bytes too many at the end of {self._name}")


def number_field(number: int, what: str, most: int = NUMBER_MAX) -> int:
    """A number, after a check of its range."""
    if not 0 <= number <= most:
        raise protocol_error(f"the {what} is {number}: expected 0 to {most}")
    return number


def packet_id_field(packet_id: int) -> bytes:
    """A packet id, which is never 0."""
    if not 1 <= packet_id <= 0xFFFF:
        raise malformed(f"the packet id is {packet_id}: expected 1 to 65,535")
    return packet_id.to_bytes(2)


def bytes_field(data: bytes, what: str) -> bytes:
    """Bytes with their length before them."""
    if len(data) > 0xFFFF:
        raise malformed(f"the {what} has {len(data)} bytes: at most 65,535 can be written")
    return len(data).to_bytes(2) + data


def text_field(text: str, what: str) -> bytes:
    """A text with its length before it."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise malformed(f"the {what} has a surrogate in it, which isn't a character") from None
    if b"\0" in data:
        raise malformed(f"the {what} has a U+0000 in it")
    return bytes_field(data, what)


def packet_bytes(first: int, *parts: bytes) -> bytes:
    """A whole packet."""
    size = sum(map(len, parts))
    if size > NUMBER_MAX:
        raise BadPacket(
            ReasonCode.PACKET_TOO_LARGE, f"a packet of {size} bytes: at most {NUMBER_MAX} can be written"
        )
    return b"".join((bytes((first,)), varint(size), *parts))
