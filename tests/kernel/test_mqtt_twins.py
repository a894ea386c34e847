"""The kernel and the oracle see the same packets, on good, random and hostile bytes; and so does decode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forelog.broker.mqtt.decode import decode, decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, PacketType, Puback, Publish
from forelog.broker.mqtt.properties import parse_properties, property_bytes
from forelog.errors import BadPacket
from forelog.kernel.types import (
    ALL,
    BAD_PACKET_LENGTH,
    BAD_PUBLISH,
    INCOMPLETE,
    NOT_PLAIN,
    PACKETS_MAX,
    TOO_LARGE,
    Publishes,
)
from tests.broker.mqtt.strategies import VERSIONS, damaged, from_clients, publishes
from tests.kernel.test_twins import same

LARGE = 1 << 20
ROOT = Path(__file__).parents[2]


@st.composite
def streams(draw: st.DrawFn, version: int) -> bytes:
    """What a client may send, or what is left of it after something went wrong."""
    anything = publishes(version, plain=True) | publishes(version) | from_clients(version)
    packets = draw(st.lists(anything, max_size=5))
    data = b"".join(encode(packet, version, from_server=False) for packet in packets)
    return draw(damaged(data) | st.just(data) | st.binary(max_size=30))


VERSIONED = VERSIONS.flatmap(lambda version: st.tuples(st.just(version), streams(version)))
HEADS = st.builds(bytes.__add__, st.sampled_from([b"\x30", b"\x32", b"\x3a", b"\xc0"]), st.binary(max_size=12))


def message(buffer: bytes, columns: Publishes, row: int) -> Publish:
    """One row as the packet that it is."""
    flags = columns.flags[row]
    properties = buffer[columns.property_starts[row] : columns.property_ends[row]]
    return Publish(
        buffer[columns.topic_starts[row] : columns.topic_ends[row]].decode(),
        buffer[columns.payload_starts[row] : columns.payload_ends[row]],
        flags >> 1 & 3, bool(flags & 1), bool(flags & 8), columns.packet_ids[row],
        parse_properties(properties, PacketType.PUBLISH),
    )  # fmt: skip


def first_packet(buffer: bytes, start: int, version: int):
    """What the slow path makes of the packet at this place, or the error."""
    split = same("mqtt_split", buffer, start, len(buffer), LARGE, 1)
    try:
        return decode(buffer, start, split.bodies[0], split.ends[0], version)
    except BadPacket as error:
        return error


@settings(max_examples=150)
@given(VERSIONED, st.sampled_from([LARGE, 10, 150]), st.sampled_from([4096, 0, 1, 2]))
@example((5, b"\x30\x04\0\1a\0" * 3), LARGE, 4096)
@example((4, b"\x32\x80\x00"), LARGE, 4096)
def test_both_find_the_same_packets_and_messages(versioned, packet_bytes_max, packets_max):
    version, buffer = versioned
    split = same("mqtt_split", buffer, 0, len(buffer), packet_bytes_max, packets_max)
    found = same("mqtt_publishes", buffer, 0, len(buffer), version, packet_bytes_max, packets_max)
    assert len(found.flags) <= len(split.starts) <= packets_max
    assert list(found.payload_ends) == list(split.ends)[: len(found.flags)]
    assert (split.need > 0) == (split.reason == INCOMPLETE)
    same("mqtt_pubacks", buffer, 0, len(buffer))


@settings(max_examples=150)
@given(HEADS, VERSIONS, st.integers(-1, 14), st.integers(-1, 14))
def test_both_read_only_what_they_are_told_to(buffer, version, start, stop):
    same("mqtt_split", buffer, start, stop, LARGE)
    same("mqtt_publishes", buffer, start, stop, version, LARGE)
    same("mqtt_pubacks", buffer, start, stop)
    same("mqtt_publishes", buffer, 0, len(buffer), 3, LARGE)


@settings(max_examples=200)
@given(VERSIONED)
@example((5, bytes.fromhex("30 0b 0001 61 07 0b01 0b02 0b03 01")))  # subscription identifiers, from a client
@example((5, bytes.fromhex("30 84 00 0001 61 00")))  # a length that has more bytes than it needs
@example((4, bytes.fromhex("30 83 00 0001 61")))
@example((5, bytes.fromhex("38 04 0001 61 00")))  # sent again at QoS 0
def test_what_is_taken_in_bulk_is_what_decode_says_and_what_is_refused_decode_refuses(versioned):
    version, buffer = versioned
    found = same("mqtt_publishes", buffer, 0, len(buffer), version, LARGE)
    at, acks = 0, b""
    for row in range(len(found.flags)):
        packet = message(buffer, found, row)
        assert first_packet(buffer, at, version) == packet
        assert packet.qos < 2
        assert not packet.retain
        assert not packet.topic.startswith("$")
        assert "topic_alias" not in packet.properties
        if packet.qos:
            acks += encode(Puback(packet.packet_id), version)
        at = found.payload_ends[row]
    assert (found.end, found.acks) == (at, acks)
    if found.reason == BAD_PUBLISH:
        assert isinstance(first_packet(buffer, at, version), BadPacket)
    elif found.reason == NOT_PLAIN and buffer[at] >> 4 == PacketType.PUBLISH:
        left = first_packet(buffer, at, version)
        assert (
            isinstance(left, BadPacket)
            or left.qos == 2
            or left.retain
            or left.topic.startswith("$")
            or "topic_alias" in left.properties
        )
    else:
        assert found.reason in (ALL, INCOMPLETE, BAD_PACKET_LENGTH, TOO_LARGE, NOT_PLAIN)


@given(VERSIONS, st.data())
def test_plain_messages_are_all_taken_in_bulk(version, data):
    packets = data.draw(st.lists(publishes(version, plain=True), max_size=6))
    wire = b"".join(encode(packet, version, from_server=False) for packet in packets)
    found = same("mqtt_publishes", wire, 0, len(wire), version, LARGE)
    assert [message(wire, found, row) for row in range(len(found.flags))] == packets
    assert (found.end, found.reason, found.need) == (len(wire), ALL, 0)


@given(VERSIONS, st.data())
def test_a_message_that_comes_bit_by_bit_says_how_much_is_missing(version, data):
    wire = encode(data.draw(publishes(version, plain=True)), version, from_server=False)
    for size in range(1, min(len(wire), 200)):
        for name, more in (("mqtt_split", ()), ("mqtt_publishes", (version,))):
            found = same(name, wire, 0, size, *more, LARGE)
            assert (found.end, found.reason) == (0, INCOMPLETE)
            assert 1 <= found.need <= len(wire) - size
            if size >= 5:  # then the length is there
                assert found.need == len(wire) - size


def test_a_packet_that_is_too_large_is_refused_as_soon_as_its_length_is_there():
    """Nothing is waited for or kept in memory because of what a length claims."""
    for wire in (bytes.fromhex("30 ff ff ff 7f"), bytes.fromhex("30 14")):
        for name, more in (("mqtt_split", ()), ("mqtt_publishes", (4,))):
            assert same(name, wire, 0, len(wire), *more, 21).reason == TOO_LARGE
    assert same("mqtt_split", b"\x30\x14", 0, 2, 22)[-2:] == (INCOMPLETE, 20)
    assert same("mqtt_split", b"\x30\xff\xff\xff\xff\x01", 0, 6, LARGE).reason == BAD_PACKET_LENGTH


def test_no_more_packets_are_taken_than_asked_for():
    wire = bytes.fromhex("30030001 61") * 10
    for name, more in (("mqtt_split", ()), ("mqtt_publishes", (4,))):
        found = same(name, wire, 0, len(wire), *more, LARGE, 3)
        assert (found.end, found.reason) == (15, PACKETS_MAX)


ODD = [
    b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x92", b"\0",
    b"\xc3\xa9", b"\xe2\x82\xac", b"\xef\xbb\xbf", b"\xf0\x9f\x92\xa9", b"\xf4\x8f\xbf\xbf", b"\xed\x9f\xbf",
    b"+", b"#", b"a", b"/", b"\x7f", b"\x01", b"$",
]  # fmt: skip


@settings(max_examples=250)
@given(st.lists(st.sampled_from(ODD) | st.sampled_from([b"abcdefgh", b"/"]), max_size=8).map(b"".join), VERSIONS)
@example(b"abcdefgh" + b"+", 4)
@example(b"abcd+fghabcdefgh", 4)
@example(b"abcdefg\0", 5)
@example(b"abcdefgh\xc3", 5)
def test_texts_are_checked_alike_wherever_the_odd_byte_is(text, version):
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.3.2-1] [MQTT-3.3.2-2]"""
    body = len(text).to_bytes(2) + text + (b"\0" if version == MQTT_5_0 else b"")
    wire = bytes((0x30, len(body))) + body
    found = same("mqtt_publishes", wire, 0, len(wire), version, LARGE)
    try:
        name = text.decode()
        is_right = bool(name) and not set(name) & {"\0", "+", "#"}
    except UnicodeDecodeError:
        is_right = False
    assert bool(found.flags) == (is_right and text[:1] != b"$")
    assert isinstance(first_packet(wire, 0, version), Publish) == is_right


@given(
    st.sampled_from([4, 5, 3]),
    st.binary(max_size=30) | st.sampled_from([b"t" * 0xFFFF, b"t" * 0x10000]),
    st.binary(max_size=30) | st.sampled_from([b"p" * 120, b"p" * 16_380, b"p" * 2_097_152]),
    st.integers(-1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(-1, 0x10000),
    st.binary(max_size=20) | st.just(b"q" * 200),
)
def test_both_write_a_message_the_same(version, topic, payload, qos, retain, dup, packet_id, properties):
    same("mqtt_encode_publish", version, topic, payload, qos, retain, dup, packet_id, properties)
    same("mqtt_encode_publish", version, topic, bytearray(payload), 1, retain, dup, 7, properties)


@given(VERSIONS, st.data())
def test_what_is_written_quickly_is_read_back(version, data):
    packet = data.draw(publishes(version, from_server=True))
    properties = property_bytes(packet.properties, PacketType.PUBLISH, from_server=True)
    fields = (packet.qos, packet.retain, packet.dup, packet.packet_id, properties)
    wire = same("mqtt_encode_publish", version, packet.topic.encode(), packet.payload, *fields)
    assert decode_all(wire, version, from_server=True) == ([packet], len(wire))


def test_acknowledgements_are_taken_in_bulk_up_to_the_first_that_says_more():
    acks = b"".join(encode(Puback(n), MQTT_5_0) for n in (1, 256, 65535))
    assert list(same("mqtt_pubacks", acks, 0, len(acks)).packet_ids) == [1, 256, 65535]
    for odd in (
        encode(Puback(4, 0x80), MQTT_5_0),
        b"\x40\x02\0\0",
        b"\x40\x02\1",
        b"\x42\x02\0\1",
        b"\x50\x02\0\1",
    ):
        found = same("mqtt_pubacks", acks + odd + acks, 4, 12 + len(odd))
        assert (list(found.packet_ids), found.end) == ([256, 65535], 12)


PROPERTY_PIECES = [
    "", "01 00", "01 01", "01 02", "01", "02 00000001", "02 0000", "03 0001 61", "03 0001 ff", "03 0000",
    "08 0001 61", "08 0000", "08 0001 2b", "09 0001 ff", "09 0002 ff", "0b 01", "11 00000001", "23 0001",
    "26 0001 61 0001 62", "26 0001 61", "26 0001 ff 0001 62", "26 0001 61 0001 00", "27 00000001", "7f",
    "a6 0001 61 0001 62",
]  # fmt: skip


def test_properties_are_taken_in_bulk_exactly_if_decode_takes_them():
    """Each with each: that one comes twice is seen, and what is wrong with the second as with the first."""
    for first in PROPERTY_PIECES:
        for second in PROPERTY_PIECES:
            given = bytes.fromhex(first + second)
            wire = bytes((0x30, 4 + len(given))) + b"\0\1a" + bytes((len(given),)) + given
            found = same("mqtt_publishes", wire, 0, len(wire), MQTT_5_0, LARGE)
            slow = first_packet(wire, 0, MQTT_5_0)
            if "23 0001" in (first, second) and found.reason == NOT_PLAIN:
                assert not found.flags
            else:
                assert bool(found.flags) == isinstance(slow, Publish), (first, second)


GUARDED = """
import ctypes, mmap, random
from forelog import kernel
from tests.kernel.test_mqtt_twins import HOSTILE

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) == 0
first = memoryview((ctypes.c_char * page).from_address(start)).cast("B")
rng = random.Random(7)
for _ in range(3000):
    wire = bytearray(rng.choice(HOSTILE))
    for _ in range(rng.randrange(4)):
        wire[rng.randrange(len(wire))] = rng.choice((0, 1, 8, 0x26, 0x7F, 0x80, 0xC3, 0xE2, 0xF0, 0xFF))
    for size in range(len(wire) + 1):
        first[page - size :] = wire[:size]
        for version in (4, 5):
            kernel.mqtt_publishes(first, page - size, page, version, 1 << 28)
        kernel.mqtt_split(first, page - size, page, 1 << 28)
        kernel.mqtt_pubacks(first, page - size, page)
print("alive")
"""
HOSTILE = (
    bytes.fromhex("32 1b 0003 612f62 000a 0d 26 0001 61 0001 62 01 01 03 0000 7061796c6f6164"),
    bytes.fromhex("30 0d 000a 61626364656667 e282ac 00"),
    bytes.fromhex("30 0c 0001 61 08 08 0005 f09f92a961"),
    bytes.fromhex("40 02 0001 40 02 0002"),
)


def test_nothing_beyond_the_end_is_read():
    """The bytes end where a page does that may not be touched: reading on would end the process."""
    result = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, cwd=ROOT)
    assert result.stdout == "alive\n", result.stderr
