"""What the standard forbids is refused, with the code that it names. Numbers are those of MQTT 5.0."""

from __future__ import annotations

import pickle

import pytest

from forelog.broker.mqtt.decode import UNKNOWN, decode_all
from forelog.broker.mqtt.packets import MQTT_3_1_1, MQTT_5_0, PacketType, Pingreq
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.errors import BadPacket

MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR


def refused(wire: str | bytes, version: int, *, from_server: bool = False, packet_bytes_max: int = 1 << 20) -> int:
    """The code with which it is."""
    wire = bytes.fromhex(wire) if isinstance(wire, str) else wire
    with pytest.raises(BadPacket) as caught:
        decode_all(wire, version, packet_bytes_max=packet_bytes_max, from_server=from_server)
    assert caught.value.why
    assert f"0x{caught.value.reason_code:02X}" in str(caught.value)
    return caught.value.reason_code


def packet(first: int, *parts: bytes | str) -> bytes:
    """A packet of less than 128 bytes."""
    body = b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)
    assert len(body) < 128
    return bytes((first, len(body))) + body


def test_every_first_byte_is_taken_or_refused_by_its_flags():
    """[MQTT-2.1.3-1] [MQTT-3.3.1-2] [MQTT-3.3.1-4] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1]
    [MQTT-3.14.1-1] [MQTT-3.15.1-1]"""
    bodies = {
        PacketType.CONNECT: "0004 4d515454 05 02 0000 00 0000",
        PacketType.PUBLISH: "0001 61 0001 00",
        PacketType.SUBSCRIBE: "0001 00 0001 61 00",
        PacketType.UNSUBSCRIBE: "0001 00 0001 61",
        PacketType.PINGREQ: "",
        PacketType.DISCONNECT: "",
        PacketType.AUTH: "18 04 15 0001 78",
        PacketType.CONNACK: "00 00 00",
        PacketType.SUBACK: "0001 00 00",
        PacketType.UNSUBACK: "0001 00 00",
        PacketType.PINGRESP: "",
    }
    wanted = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}
    servers = (PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP)
    for first in range(256):
        kind, flags = PacketType(first >> 4), first & 0x0F
        wire = packet(first, bodies.get(kind, "0001"))
        from_server = kind in servers
        if kind == PacketType.WILL:
            right = False
        elif kind == PacketType.PUBLISH:
            right = flags >> 1 & 3 != 3 and not (flags & 8 and not flags >> 1 & 3)
        else:
            right = flags == wanted.get(kind, 0)
        if right:
            assert decode_all(wire, MQTT_5_0, from_server=from_server)[1] == len(wire)
        else:
            assert refused(wire, MQTT_5_0, from_server=from_server) == MALFORMED


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5_0])
def test_a_side_sends_only_its_own_packets(version):
    for wire in ("20 02 00 00", "90 03 0001 00", "b0 02 0001", "d0 00"):
        assert refused(wire, version) == PROTOCOL
    for wire in ("82 06 0001 0001 61 00", "a2 05 0001 0001 61", "c0 00", "10 00"):
        assert refused(wire, version, from_server=True) == PROTOCOL


def test_nothing_comes_before_connect():
    """[MQTT-3.1.0-1]"""
    for wire in ("c0 00", "30 03 0001 61", "e0 00"):
        assert refused(wire, UNKNOWN) == PROTOCOL
    assert refused("00 00", UNKNOWN) == MALFORMED
    assert refused("f0 00", MQTT_3_1_1) == MALFORMED  # MQTT 3.1.1 has no AUTH


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5_0])
def test_a_length_has_four_bytes_at_most_and_a_packet_a_limit(version):
    assert refused("30 ff ff ff ff 7f", version) == MALFORMED
    assert refused("30 ff ff ff 7f", version) == ReasonCode.PACKET_TOO_LARGE
    assert refused("30 03 0001", version, packet_bytes_max=4) == ReasonCode.PACKET_TOO_LARGE


HEAD = "0004 4d515454"
CONNECTS = [
    # what it is, its fields, the code
    ("another protocol [MQTT-3.1.2-1]", "0006 4d5149736470 03 02 0000 0000", 0x84),
    ("the name in lower case [MQTT-3.1.2-1]", "0004 6d717474 05 02 0000 00 0000", 0x84),
    ("a version to come [MQTT-3.1.2-2]", HEAD + "06 02 0000 00 0000", 0x84),
    ("a bridge's version [MQTT-3.1.2-2]", HEAD + "84 02 0000 0000", 0x84),
    ("the reserved flag [MQTT-3.1.2-3]", HEAD + "05 03 0000 00 0000", 0x81),
    ("the reserved flag in 3.1.1", HEAD + "04 03 0000 0000", 0x81),
    ("a will's QoS without a will [MQTT-3.1.2-11]", HEAD + "05 0a 0000 00 0000", 0x81),
    ("a will of QoS 3 [MQTT-3.1.2-12]", HEAD + "05 1e 0000 00 0000 00 0001 77 0000", 0x81),
    ("a retained will without one [MQTT-3.1.2-13]", HEAD + "05 22 0000 00 0000", 0x81),
    ("no will's fields [MQTT-3.1.2-9]", HEAD + "05 06 0000 00 0000", 0x81),
    ("a will's topic alone [MQTT-3.1.2-9]", HEAD + "05 06 0000 00 0000 00 0001 77", 0x81),
    ("a user name too many [MQTT-3.1.2-16]", HEAD + "05 02 0000 00 0000 0001 75", 0x81),
    ("no user name [MQTT-3.1.2-17]", HEAD + "05 82 0000 00 0000", 0x81),
    ("no password [MQTT-3.1.2-19]", HEAD + "05 c2 0000 00 0000 0001 75", 0x81),
    ("a password too many [MQTT-3.1.2-18]", HEAD + "05 82 0000 00 0000 0001 75 0001 70", 0x81),
    ("a password without a user name in 3.1.1", HEAD + "04 42 0000 0001 61 0001 70", 0x81),
    ("no client id to keep a session for in 3.1.1", HEAD + "04 00 0000 0000", 0x85),
    ("no client id at all [MQTT-3.1.3-3]", HEAD + "05 02 0000 00", 0x81),
    ("a client id that is no UTF-8 [MQTT-3.1.3-4]", HEAD + "05 02 0000 00 0001 ff", 0x81),
    ("a surrogate in a client id [MQTT-1.5.4-1]", HEAD + "05 02 0000 00 0003 eda080", 0x81),
    ("a U+0000 in a client id [MQTT-1.5.4-2]", HEAD + "05 02 0000 00 0002 6100", 0x81),
    ("a will's topic that is no UTF-8 [MQTT-3.1.3-11]", HEAD + "05 06 0000 00 0000 00 0001 ff 0000", 0x81),
    ("a will's topic with wildcards [MQTT-4.7.0-1]", HEAD + "05 06 0000 00 0000 00 0001 23 0000", 0x90),
    ("a will's topic that is empty [MQTT-4.7.3-1]", HEAD + "05 06 0000 00 0000 00 0000 0000", 0x82),
    ("a user name that is no UTF-8 [MQTT-3.1.3-12]", HEAD + "05 82 0000 00 0000 0001 ff", 0x81),
    ("bytes after its end", HEAD + "04 02 0000 0001 61 00", 0x81),
    ("no flags", HEAD + "05", 0x81),
    ("no fields", "", 0x81),
    ("no properties' length in 5 [MQTT-2.2.2-1]", HEAD + "05 02 0000", 0x81),
    ("properties beyond its end", HEAD + "05 02 0000 7f 11", 0x81),
    ("authentication data without a method", HEAD + "05 02 0000 04 16 0001 78 0000", 0x82),
]  # fmt: skip


@pytest.mark.parametrize(("what", "fields", "code"), CONNECTS, ids=[what for what, _, _ in CONNECTS])
def test_connects_that_are_refused(what, fields, code):
    """[MQTT-3.1.4-1]"""
    assert refused(packet(0x10, fields), UNKNOWN) == code


def test_connects_that_are_taken_although_they_look_odd():
    for fields in (
        HEAD + "05 42 0000 00 0000 0001 70",  # MQTT 5 has passwords without user names
        HEAD + "05 00 0000 00 0000",  # and asks the server for a client id, also of a session to keep
        HEAD + "04 02 0000 0000",
        HEAD + "04 26 0000 0001 61 0001 77 0000",  # a will that is retained and empty
    ):
        decode_all(packet(0x10, fields))


V4, V5 = MQTT_3_1_1, MQTT_5_0
OTHERS = [
    ("QoS 3 [MQTT-3.3.1-4]", V5, 0x36, "0001 61 0001 00", 0x81),
    ("QoS 3 [MQTT-3.3.1-4]", V4, 0x36, "0001 61 0001", 0x81),
    ("sent again at QoS 0 [MQTT-3.3.1-2]", V5, 0x38, "0001 61 00", 0x81),
    ("no topic [MQTT-3.3.2-1]", V5, 0x30, "", 0x81),
    ("a topic that is cut off [MQTT-3.3.2-1]", V4, 0x30, "0002 61", 0x81),
    ("a topic that is no UTF-8 [MQTT-3.3.2-1]", V4, 0x30, "0001 ff", 0x81),
    ("an overlong slash in a topic [MQTT-1.5.4-1]", V4, 0x30, "0002 c0af", 0x81),
    ("a U+0000 in a topic [MQTT-4.7.3-2]", V4, 0x30, "0001 00", 0x81),
    ("a + in a topic [MQTT-3.3.2-2]", V5, 0x30, "0001 2b 00", 0x90),
    ("a # in a topic [MQTT-3.3.2-2]", V4, 0x30, "0003 612f23", 0x90),
    ("an empty topic [MQTT-4.7.3-1]", V4, 0x30, "0000", 0x82),
    ("an empty topic without an alias", V5, 0x30, "0000 00", 0x82),
    ("no packet id", V5, 0x32, "0001 61", 0x81),
    ("packet id 0 [MQTT-2.2.1-3]", V5, 0x32, "0001 61 0000 00", 0x81),
    ("packet id 0 [MQTT-2.2.1-3]", V4, 0x34, "0001 61 0000", 0x81),
    ("no properties' length", V5, 0x32, "0001 61 0001", 0x81),
    ("a topic alias of 0 [MQTT-3.3.2-8]", V5, 0x30, "0001 61 03 23 0000", 0x94),
    ("a response topic with wildcards [MQTT-3.3.2-14]", V5, 0x30, "0001 61 04 08 0001 2b", 0x82),
    ("a response topic that is no UTF-8 [MQTT-3.3.2-13]", V5, 0x30, "0001 61 04 08 0001 ff", 0x81),
    ("a content type that is no UTF-8 [MQTT-3.3.2-19]", V5, 0x30, "0001 61 04 03 0001 ff", 0x81),
    ("a subscription identifier from a client [MQTT-3.3.4-6]", V5, 0x30, "0001 61 02 0b 01", 0x82),
    ("a payload format of 2", V5, 0x30, "0001 61 02 01 02", 0x82),
    ("two payload formats", V5, 0x30, "0001 61 04 01 00 01 00", 0x82),
    ("an unknown property", V5, 0x30, "0001 61 02 7f 00", 0x81),
    ("another packet's property", V5, 0x30, "0001 61 03 21 0001", 0x81),
    ("a property beyond the properties", V5, 0x30, "0001 61 02 02 00000000", 0x81),
    ("PUBACK of packet id 0", V5, 0x40, "0000", 0x81),
    ("PUBACK with half a packet id", V4, 0x40, "00", 0x81),
    ("PUBACK with more in 3.1.1", V4, 0x40, "0001 00", 0x81),
    ("PUBACK with another's reason [MQTT-3.4.2-1]", V5, 0x40, "0001 92", 0x82),
    ("PUBACK with no reason that exists [MQTT-3.4.2-1]", V5, 0x40, "0001 ff", 0x82),
    ("PUBREC with another's reason [MQTT-3.5.2-1]", V5, 0x50, "0001 01", 0x82),
    ("PUBREL with another's reason [MQTT-3.6.2-1]", V5, 0x62, "0001 80", 0x82),
    ("PUBCOMP with another's reason [MQTT-3.7.2-1]", V5, 0x70, "0001 10", 0x82),
    ("PUBCOMP with bytes after its properties", V5, 0x70, "0001 00 00 00", 0x81),
    ("SUBSCRIBE without a filter [MQTT-3.8.3-2]", V5, 0x82, "0001 00", 0x82),
    ("SUBSCRIBE without a filter [MQTT-3.8.3-2]", V4, 0x82, "0001", 0x82),
    ("SUBSCRIBE of packet id 0 [MQTT-2.2.1-3]", V4, 0x82, "0000 0001 61 00", 0x81),
    ("a filter without options", V5, 0x82, "0001 00 0001 61", 0x81),
    ("a filter that is no UTF-8 [MQTT-3.8.3-1]", V5, 0x82, "0001 00 0001 ff 00", 0x81),
    ("an empty filter [MQTT-4.7.3-1]", V5, 0x82, "0001 00 0000 00", 0x8F),
    ("a # before the end [MQTT-4.7.1-1]", V5, 0x82, "0001 00 0003 232f61 00", 0x8F),
    ("a # that isn't alone [MQTT-4.7.1-1]", V4, 0x82, "0001 0002 6123 00", 0x8F),
    ("a + that isn't alone [MQTT-4.7.1-2]", V4, 0x82, "0001 0002 612b 00", 0x8F),
    ("reserved options [MQTT-3.8.3-5]", V5, 0x82, "0001 00 0001 61 40", 0x81),
    ("MQTT 5's options in 3.1.1", V4, 0x82, "0001 0001 61 04", 0x81),
    ("a filter of QoS 3", V5, 0x82, "0001 00 0001 61 03", 0x82),
    ("a filter of QoS 3", V4, 0x82, "0001 0001 61 03", 0x82),
    ("retain handling of 3", V5, 0x82, "0001 00 0001 61 30", 0x82),
    ("No Local in a group [MQTT-3.8.3-4]", V5, 0x82, b"\0\1\0\0\x0a$share/g/a\4", 0x82),
    ("a group without a name [MQTT-4.8.2-1]", V5, 0x82, b"\0\1\0\0\x09$share//a\0", 0x8F),
    ("a group without a filter [MQTT-4.8.2-2]", V5, 0x82, b"\0\1\0\0\x08$share/g\0", 0x8F),
    ("a group with a wildcard [MQTT-4.8.2-2]", V5, 0x82, b"\0\1\0\0\x0a$share/+/a\0", 0x8F),
    ("two subscription identifiers", V5, 0x82, "0001 04 0b01 0b02 0001 61 00", 0x82),
    ("a subscription identifier of 0", V5, 0x82, "0001 02 0b00 0001 61 00", 0x82),
    ("UNSUBSCRIBE without a filter [MQTT-3.10.3-2]", V5, 0xA2, "0001 00", 0x82),
    ("UNSUBSCRIBE, no UTF-8 [MQTT-3.10.3-1]", V5, 0xA2, "0001 00 0001 ff", 0x81),
    ("PINGREQ with a body", V4, 0xC0, "00", 0x81),
    ("DISCONNECT with a body in 3.1.1", V4, 0xE0, "00", 0x81),
    ("DISCONNECT with a server's reason [MQTT-3.14.2-1]", V5, 0xE0, "8e", 0x82),
    ("DISCONNECT with bytes after its properties", V5, 0xE0, "00 00 00", 0x81),
    ("DISCONNECT with a server's property", V5, 0xE0, "00 04 1c 0001 78", 0x82),
    ("AUTH that says nothing", V5, 0xF0, "", 0x81),
    ("AUTH with a server's reason [MQTT-3.15.2-1]", V5, 0xF0, "00 04 15 0001 78", 0x82),
    ("AUTH without a method", V5, 0xF0, "18 00", 0x82),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "version", "first", "fields", "code"), OTHERS, ids=[f"{row[0]} v{row[1]}" for row in OTHERS]
)
def test_packets_of_clients_that_are_refused(what, version, first, fields, code):
    """[MQTT-4.13.1-1]"""
    assert refused(packet(first, fields), version) == code


SERVERS = [
    ("CONNACK with reserved flags [MQTT-3.2.2-1]", V5, 0x20, "02 00 00", 0x81),
    ("CONNACK with another's reason [MQTT-3.2.2-8]", V5, 0x20, "00 8e 00", 0x82),
    ("CONNACK that refuses, with a session [MQTT-3.2.2-6]", V5, 0x20, "01 87 00", 0x82),
    ("CONNACK that refuses, with a session, in 3.1.1", V4, 0x20, "01 05", 0x82),
    ("CONNACK with no return code that exists", V4, 0x20, "00 06", 0x82),
    ("CONNACK with a QoS of 2 at most", V5, 0x20, "00 00 02 24 02", 0x82),
    ("CONNACK with a packet size of 0", V5, 0x20, "00 00 05 27 00000000", 0x82),
    ("CONNACK with two reasons", V5, 0x20, "00 00 06 1f 0000 1f 0000", 0x82),
    ("SUBACK without a reason", V5, 0x90, "0001 00", 0x82),
    ("SUBACK with another's reason [MQTT-3.9.3-2]", V5, 0x90, "0001 00 03", 0x82),
    ("SUBACK with a reason of MQTT 5", V4, 0x90, "0001 87", 0x82),
    ("UNSUBACK with another's reason [MQTT-3.11.3-2]", V5, 0xB0, "0001 00 01", 0x82),
    ("UNSUBACK with reasons in 3.1.1", V4, 0xB0, "0001 00", 0x81),
    ("DISCONNECT with an expiry [MQTT-3.14.2-2]", V5, 0xE0, "81 05 11 00000000", 0x82),
    ("DISCONNECT with a client's reason [MQTT-3.14.2-1]", V5, 0xE0, "04", 0x82),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "version", "first", "fields", "code"), SERVERS, ids=[f"{row[0]} v{row[1]}" for row in SERVERS]
)
def test_packets_of_servers_that_are_refused(what, version, first, fields, code):
    assert refused(packet(first, fields), version, from_server=True) == code


def test_a_refusal_can_be_handed_to_another_process():
    error = pickle.loads(pickle.dumps(BadPacket(0x81, "no")))
    assert (error.reason_code, error.why, str(error)) == (0x81, "no", "no (0x81)")


def test_a_buffer_can_be_cut_while_a_refusal_is_dealt_with():
    buffer = bytearray.fromhex("30 03 0001 ff c0 00")
    try:
        decode_all(buffer, MQTT_3_1_1)
    except BadPacket:
        del buffer[:5]
    assert decode_all(buffer, MQTT_3_1_1) == ([Pingreq()], 2)
    assert decode_all(memoryview(buffer), MQTT_3_1_1) == ([Pingreq()], 2)
