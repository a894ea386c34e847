"""Packets to bytes and back, and the bytes that the standard shows. Numbers are those of the MQTT 5.0 standard."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forelog.broker.mqtt.decode import UNKNOWN, connect_level, decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.errors import BadPacket
from tests.broker.mqtt.strategies import VERSIONS, damaged, from_clients, from_servers


def one(wire: bytes | str, version: int, *, from_server: bool = False):
    """The one packet that the bytes are."""
    wire = bytes.fromhex(wire) if isinstance(wire, str) else wire
    packets, size = decode_all(wire, version, from_server=from_server)
    assert size == len(wire)
    assert len(packets) == 1
    return packets[0]


def read_or_refused(wire: bytes, version: int, *, from_server: bool) -> list:
    """The packets; none if there is one among them that is refused, with a code that says so."""
    try:
        packets, size = decode_all(wire, version, from_server=from_server)
    except BadPacket as error:
        code = error.reason_code
    else:
        assert size <= len(wire)
        return packets
    assert ReasonCode(code) >= 0x80
    return []


@settings(max_examples=300)
@given(VERSIONS, st.data())
def test_what_a_client_writes_a_server_reads(version, data):
    """[MQTT-3.1.3-10] [MQTT-3.3.2-18]: user properties keep their order, too."""
    packet = data.draw(from_clients(version))
    assert one(encode(packet, version, from_server=False), version) == packet


@settings(max_examples=300)
@given(VERSIONS, st.data())
def test_what_a_server_writes_a_client_reads(version, data):
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20]: nothing is altered."""
    packet = data.draw(from_servers(version))
    assert one(encode(packet, version), version, from_server=True) == packet


@settings(max_examples=300)
@given(VERSIONS, st.booleans(), st.data())
def test_damaged_packets_are_read_or_refused_and_nothing_else(version, from_server, data):
    """And what is read can be written: nothing comes in that couldn't go out."""
    packets = data.draw(st.lists((from_servers if from_server else from_clients)(version), min_size=1, max_size=3))
    wire = data.draw(damaged(b"".join(encode(packet, version, from_server=from_server) for packet in packets)))
    for packet in read_or_refused(wire, version, from_server=from_server):
        version = packet.version if isinstance(packet, Connect) else version
        again = encode(packet, version, from_server=from_server)
        assert one(again, version, from_server=from_server) == packet


@given(st.binary(max_size=60), st.sampled_from([UNKNOWN, MQTT_3_1_1, MQTT_5_0]), st.booleans())
@example(b"\x10\x0c\0\4MQTT\5\0\0\0\0", UNKNOWN, False)
def test_no_bytes_do_anything_but_be_read_or_refused(wire, version, from_server):
    for start in (b"", b"\x10\x20\0\4MQTT", b"\x30\x10", b"\x82\x10\0\1"):
        read_or_refused(start + wire, version, from_server=from_server)


GOLDEN = [
    # version, from a server, bytes, packet
    (4, False, "10 0d 0004 4d515454 04 02 003c 0001 61", Connect("a", MQTT_3_1_1, True, 60)),
    (5, False, "10 0e 0004 4d515454 05 02 003c 00 0001 61", Connect("a", MQTT_5_0, True, 60)),
    (
        # Flags 0xCE: user name, password, will of QoS 1, clean start; as in figure 3-6 of the standard.
        5, False,
        "10 23 0004 4d515454 05 ce 000a 05 11 0000000a 0001 63 02 01 01 0001 77 0002 6869 0001 75 0001 70",
        Connect(
            "c", MQTT_5_0, True, 10, Will("w", b"hi", 1, False, {"payload_format_indicator": 1}), "u", b"p",
            {"session_expiry_interval": 10},
        ),
    ),
    (4, True, "20 02 01 00", Connack(True)),
    (4, True, "20 02 00 05", Connack(False, ReasonCode.NOT_AUTHORIZED)),
    (5, True, "20 03 00 87 00", Connack(False, ReasonCode.NOT_AUTHORIZED)),
    (5, True, "20 06 00 00 03 21 0014", Connack(properties={"receive_maximum": 20})),
    (4, False, "32 09 0003 612f62 000a 6869", Publish("a/b", b"hi", 1, packet_id=10)),
    (5, False, "32 0a 0003 612f62 000a 00 6869", Publish("a/b", b"hi", 1, packet_id=10)),
    (5, False, "31 04 0001 61 00", Publish("a", b"", retain=True)),
    (5, False, "3c 06 0001 61 ffff 00", Publish("a", b"", 2, dup=True, packet_id=65535)),
    (5, False, "30 06 0000 03 23 0007", Publish("", b"", properties={"topic_alias": 7})),
    (5, True, "30 0a 0001 61 05 0b 01 0b 8001 78",
        Publish("a", b"x", properties={"subscription_identifiers": [1, 128]})),
    (5, True, "40 02 0001", Puback(1)),
    (5, True, "40 03 0001 10", Puback(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)),
    (5, True, "50 09 0001 97 05 1f 0002 6e6f", Pubrec(1, ReasonCode.QUOTA_EXCEEDED, {"reason_string": "no"})),
    (4, True, "62 02 0001", Pubrel(1)),
    (5, True, "62 03 0001 92", Pubrel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
    (4, False, "70 02 0001", Pubcomp(1)),
    (4, False, "82 0e 000a 0003 612f62 01 0003 632f64 02",
        Subscribe(10, [Subscription("a/b", 1), Subscription("c/d", 2)])),
    (5, False, "82 09 000a 02 0b 05 0001 23 2e",
        Subscribe(10, [Subscription("#", 2, True, True, 2)], {"subscription_identifiers": [5]})),
    (4, True, "90 05 000a 00 02 80", Suback(10, [0, 2, 0x80])),
    (5, True, "90 05 000a 00 02 8f", Suback(10, [2, 0x8F])),
    (4, False, "a2 07 000a 0003 612f62", Unsubscribe(10, ["a/b"])),
    (5, False, "a2 08 000a 00 0003 612f62", Unsubscribe(10, ["a/b"])),
    (4, True, "b0 02 000a", Unsuback(10)),
    (5, True, "b0 05 000a 00 00 11", Unsuback(10, [0, 0x11])),
    (4, False, "c0 00", Pingreq()),
    (5, True, "d0 00", Pingresp()),
    (4, False, "e0 00", Disconnect()),
    (5, False, "e0 01 04", Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE)),
    (5, True, "e0 01 8e", Disconnect(ReasonCode.SESSION_TAKEN_OVER)),
    (5, False, "e0 07 00 05 11 00000000", Disconnect(properties={"session_expiry_interval": 0})),
    (5, True, "f0 00", Auth()),
    (5, False, "f0 06 18 04 15 0001 78", Auth(0x18, {"authentication_method": "x"})),
]  # fmt: skip


@pytest.mark.parametrize(("version", "from_server", "wire", "packet"), GOLDEN, ids=lambda value: str(value)[:40])
def test_the_bytes_are_these(version, from_server, wire, packet):
    """[MQTT-2.2.2-1]: no properties are a length of zero. [MQTT-3.1.3-1]: the order of fields in CONNECT."""
    assert encode(packet, version, from_server=from_server) == bytes.fromhex(wire)
    assert one(wire, version, from_server=from_server) == packet


@pytest.mark.parametrize(
    ("wire", "packet"),
    [
        ("40 03 0001 00", Puback(1)),
        ("40 04 0001 00 00", Puback(1)),
        ("50 03 0001 00", Pubrec(1)),
        ("62 04 0001 00 00", Pubrel(1)),
        ("70 04 0001 92 00", Pubcomp(1, 0x92)),
        ("e0 01 00", Disconnect()),
        ("e0 02 00 00", Disconnect()),
        ("e0 02 81 00", Disconnect(0x81)),
    ],
)
def test_what_may_be_left_out_may_also_be_said(wire, packet):
    assert one(wire, MQTT_5_0) == packet


@pytest.mark.parametrize(
    ("size", "length"),
    [
        (127, "7f"), (128, "80 01"), (16_383, "ff 7f"), (16_384, "80 80 01"),
        (2_097_151, "ff ff 7f"), (2_097_152, "80 80 80 01"),
    ],
)  # fmt: skip
def test_lengths_have_as_many_bytes_as_they_need(size, length):
    """[MQTT-1.5.5-1], at the borders of the standard's table 1-1."""
    wire = encode(Publish("a", bytes(size - 3)), MQTT_3_1_1)
    assert wire.startswith(bytes.fromhex("30" + length) + b"\0\1a\0")
    packets, used = decode_all(wire, MQTT_3_1_1, packet_bytes_max=1 << 22)
    assert (packets, used) == ([Publish("a", bytes(size - 3))], len(wire))


def test_a_length_that_is_longer_than_needed_is_refused_in_5_and_bearable_in_3_1_1():
    """[MQTT-1.5.5-1]; MQTT 3.1.1 has no such rule."""
    assert one("30 83 80 00 0001 61", MQTT_3_1_1) == Publish("a")
    with pytest.raises(BadPacket, match="more bytes than it needs"):
        one("30 84 80 00 0001 61 00", MQTT_5_0)
    with pytest.raises(BadPacket, match="more bytes than it needs"):  # the properties' length
        one("30 05 0001 61 80 00", MQTT_5_0)
    with pytest.raises(BadPacket, match="more bytes than it needs"):
        one("10 8e 00 0004 4d515454 05 02 003c 00 0001 61", UNKNOWN)


def test_the_standards_example_of_a_text_is_written_as_it_shows():
    """Figure 1-2: the letter A and U+2A6D4. [MQTT-1.5.4-3]: U+FEFF is a character, wherever it is."""
    assert encode(Unsubscribe(1, ["A\U0002a6d4"]), MQTT_3_1_1)[4:] == bytes.fromhex("0005 41 f0aa9b94")
    for topic in ("\ufeff", "a\ufeff/b"):
        assert one(encode(Publish(topic), MQTT_5_0), MQTT_5_0).topic == topic


def test_a_connect_tells_the_version_of_what_comes_after_it():
    wire = encode(Connect("a"), UNKNOWN) + encode(Publish("a"), MQTT_5_0) + b"\xe0\x01\x04\xc0"
    packets, size = decode_all(wire)
    assert [type(packet).__name__ for packet in packets] == ["Connect", "Publish", "Disconnect"]
    assert size == len(wire) - 1


def test_many_packets_are_read_at_once():
    assert decode_all(b"\xc0\0" * 10_000, MQTT_5_0) == ([Pingreq()] * 10_000, 20_000)


@pytest.mark.parametrize(
    ("reason", "code"),
    [(0, 0), (0x84, 1), (0x85, 2), (0x88, 3), (0x89, 3), (0x86, 4), (0x8C, 4), (0x87, 5), (0x8A, 5), (0x97, 3)],
)
def test_a_3_1_1_client_is_told_the_nearest_that_it_understands(reason, code):
    assert encode(Connack(reason_code=reason), MQTT_3_1_1) == bytes((0x20, 2, 0, code))
    assert encode(Suback(1, [0, 1, 0x97]), MQTT_3_1_1) == bytes.fromhex("90 05 0001 00 01 80")


def test_what_only_5_has_is_left_out_for_3_1_1():
    packet = Publish("a", b"x", 1, packet_id=3, properties={"content_type": "text/plain", "topic_alias": 3})
    assert one(encode(packet, MQTT_3_1_1), MQTT_3_1_1) == Publish("a", b"x", 1, packet_id=3)
    assert encode(Puback(1, 0x97), MQTT_3_1_1) == bytes.fromhex("40 02 0001")


def test_the_version_that_a_refused_connect_asked_for_can_be_told():
    assert connect_level(bytes.fromhex("0004 4d515454 06"), 0, 7) == 6
    assert connect_level(bytes.fromhex("0006 4d5149736470 03"), 0, 9) == 3
    assert connect_level(bytes.fromhex("0004 4d51"), 0, 4) == 0


@pytest.mark.parametrize(
    ("packet", "version", "code"),
    [
        (Publish("a/+"), 5, 0x90),  # [MQTT-3.3.2-2]
        (Publish(""), 5, 0x82),  # [MQTT-4.7.3-1]
        (Publish("", properties={"topic_alias": 1}), 4, 0x82),
        (Publish("a", properties={"topic_alias": 0}), 5, 0x94),  # [MQTT-3.3.2-8]
        (Publish("a", qos=3, packet_id=1), 5, 0x81),  # [MQTT-3.3.1-4]
        (Publish("a", dup=True), 5, 0x81),  # [MQTT-3.3.1-2]
        (Publish("a", packet_id=1), 4, 0x81),  # [MQTT-2.2.1-2]
        (Publish("a", qos=1), 4, 0x81),  # [MQTT-2.2.1-4]
        (Publish("a\0"), 5, 0x81),  # [MQTT-1.5.4-2]
        (Publish("a\ud800"), 5, 0x81),  # [MQTT-1.5.4-1]
        (Publish("a" * 65_536), 5, 0x81),  # [MQTT-4.7.3-3]
        (Puback(0), 5, 0x81),
        (Puback(1, 0x92), 5, 0x82),  # [MQTT-3.4.2-1]
        (Pubrec(1, 0x01), 5, 0x82),  # [MQTT-3.5.2-1]
        (Pubrel(1, 0x80), 5, 0x82),  # [MQTT-3.6.2-1]
        (Pubcomp(1, 0x80), 5, 0x82),  # [MQTT-3.7.2-1]
        (Suback(1, []), 5, 0x82),  # [MQTT-3.8.4-6]
        (Suback(1, [3]), 5, 0x82),  # [MQTT-3.9.3-2]
        (Unsuback(1, [1]), 5, 0x82),  # [MQTT-3.11.3-2]
        (Connack(True, 0x87), 5, 0x82),  # [MQTT-3.2.2-6]
        (Connack(False, 0x8E), 5, 0x82),  # [MQTT-3.2.2-8]
        (Disconnect(0x04), 5, 0x82),  # [MQTT-3.14.2-1]: only a client's
        (Disconnect(properties={"session_expiry_interval": 1}), 5, 0x82),  # [MQTT-3.14.2-2]
        (Auth(0x19, {"authentication_method": "x"}), 5, 0x82),  # [MQTT-3.15.2-1]: only a client's
        (Auth(0x18), 5, 0x82),
        (Auth(), 4, 0x82),
        (Pingreq(), 3, 0x84),
        (Connack(properties={"receive_maximum": 0}), 5, 0x82),
        (Connack(properties={"server_keep_alive": 65_536}), 5, 0x82),
        (Connack(properties={"topic_alias": 1}), 5, 0x81),
        (Connack(properties={"authentication_data": b""}), 5, 0x82),
        (Puback(1, properties={"user_properties": [("a", "b" * 65_536)]}), 5, 0x81),
        (Subscribe(1, []), 5, 0x82),  # [MQTT-3.8.3-2]
        (Subscribe(1, [Subscription("a#")]), 5, 0x8F),  # [MQTT-4.7.1-1]
        (Subscribe(1, [Subscription("$share/g/a", no_local=True)]), 5, 0x82),  # [MQTT-3.8.3-4]
        (Subscribe(1, [Subscription("a")], {"subscription_identifiers": [1, 2]}), 5, 0x82),
        (Unsubscribe(1, []), 5, 0x82),  # [MQTT-3.10.3-2]
        (Connect("a", 4, password=b"x"), 4, 0x81),
        (Connect("a", will=Will("#", b"")), 5, 0x90),
        (Connect("a", keep_alive=65_536), 5, 0x82),
    ],
)
def test_nothing_is_written_that_the_other_side_would_have_to_refuse(packet, version, code):
    with pytest.raises(BadPacket) as caught:
        encode(packet, version)
    assert caught.value.reason_code == code


def test_a_message_that_no_packet_can_hold_is_refused():
    with pytest.raises(BadPacket) as caught:
        encode(Publish("a", bytes(0x0FFF_FFFF)), MQTT_3_1_1)
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE
