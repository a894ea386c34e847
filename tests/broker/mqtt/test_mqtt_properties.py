"""MQTT 5's properties: where each may be, what it is made of, and that it comes once."""

from __future__ import annotations

from typing import Any

import pytest

from forelog.broker.mqtt.packets import PacketType, Properties
from forelog.broker.mqtt.properties import PROPERTIES, parse_properties, property_bytes
from forelog.errors import BadPacket

W, CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUB, SUBACK, UNSUB, UNSUBACK, _, _, DIS, AUTH = (
    PacketType
)

# Table 2-4 of the standard, by hand.
TABLE = {
    0x01: ("byte", {PUBLISH, W}),
    0x02: ("four", {PUBLISH, W}),
    0x03: ("text", {PUBLISH, W}),
    0x08: ("text", {PUBLISH, W}),
    0x09: ("bytes", {PUBLISH, W}),
    0x0B: ("number", {PUBLISH, SUB}),
    0x11: ("four", {CONNECT, CONNACK, DIS}),
    0x12: ("text", {CONNACK}),
    0x13: ("two", {CONNACK}),
    0x15: ("text", {CONNECT, CONNACK, AUTH}),
    0x16: ("bytes", {CONNECT, CONNACK, AUTH}),
    0x17: ("byte", {CONNECT}),
    0x18: ("four", {W}),
    0x19: ("byte", {CONNECT}),
    0x1A: ("text", {CONNACK}),
    0x1C: ("text", {CONNACK, DIS}),
    0x1F: ("text", {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DIS, AUTH}),
    0x21: ("two", {CONNECT, CONNACK}),
    0x22: ("two", {CONNECT, CONNACK}),
    0x23: ("two", {PUBLISH}),
    0x24: ("byte", {CONNACK}),
    0x25: ("byte", {CONNACK}),
    0x26: (
        "pair",
        {
            CONNECT, CONNACK, PUBLISH, W, PUBACK, PUBREC, PUBREL, PUBCOMP, SUB, SUBACK, UNSUB, UNSUBACK, DIS, AUTH,
        },
    ),
    0x27: ("four", {CONNECT, CONNACK}),
    0x28: ("byte", {CONNACK}),
    0x29: ("byte", {CONNACK}),
    0x2A: ("byte", {CONNACK}),
}  # fmt: skip
BYTES = {"byte": "01", "two": "0001", "four": "00000001", "number": "01", "text": "0001 61", "bytes": "0001 61"}
BYTES["pair"] = "0001 61 0001 62"
VALUES: dict[str, Any] = {"byte": 1, "two": 1, "four": 1, "number": [1], "text": "a", "bytes": b"a"}
VALUES["pair"] = [("a", "b")]


def outcome(data: bytes, packet: PacketType, *, from_server: bool) -> Properties | int:
    try:
        return parse_properties(data, packet, from_server=from_server)
    except BadPacket as error:
        return error.reason_code


def test_the_table_is_the_standards():
    assert {one.identifier: (one.kind, set(one.packets)) for one in PROPERTIES.values()} == TABLE


@pytest.mark.parametrize("packet", PacketType)
def test_every_property_is_taken_where_it_may_be_and_refused_elsewhere(packet):
    for identifier in range(256):
        kind, packets = TABLE.get(identifier, ("byte", set()))
        data = bytes((identifier,)) + bytes.fromhex(BYTES[kind])
        results = [outcome(data, packet, from_server=side) for side in (False, True)]
        if packet not in packets:
            assert results == [0x81, 0x81], identifier
            continue
        wanted: Any = {PROPERTIES[identifier].name: VALUES[kind]}
        if identifier == 0x16:
            assert results == [0x82, 0x82]  # not without a method
        elif (packet, identifier) in ((PUBLISH, 0x0B), (DIS, 0x1C)):
            assert results == [0x82, wanted]  # [MQTT-3.3.4-6]
        elif (packet, identifier) == (DIS, 0x11):
            assert results == [wanted, 0x82]  # [MQTT-3.14.2-2]
        else:
            assert results == [wanted, wanted]
            assert property_bytes(wanted, packet) == data


@pytest.mark.parametrize("identifier", TABLE)
def test_a_property_comes_once_but_for_two(identifier):
    kind, packets = TABLE[identifier]
    method = b"" if identifier != 0x16 else b"\x15\0\1m"
    data = bytes((identifier,)) + bytes.fromhex(BYTES[kind])
    for packet in packets:
        from_server = packet in (PUBLISH, CONNACK) or (packet is DIS and identifier == 0x1C)
        result = outcome(method + data + data, packet, from_server=from_server)
        if identifier == 0x26 or (identifier == 0x0B and packet is PUBLISH):
            assert result == {PROPERTIES[identifier].name: VALUES[kind] * 2}
        else:
            assert result == 0x82


@pytest.mark.parametrize("identifier", TABLE)
def test_a_property_that_is_cut_off_is_malformed(identifier):
    kind, packets = TABLE[identifier]
    data = bytes((identifier,)) + bytes.fromhex(BYTES[kind])
    for size in range(1, len(data)):
        for packet in packets:
            assert outcome(data[:size], packet, from_server=packet is not SUB) == 0x81


@pytest.mark.parametrize(
    ("identifier", "value", "packet"),
    [
        (0x01, "02", PUBLISH), (0x17, "02", CONNECT), (0x19, "02", CONNECT), (0x21, "0000", CONNECT),
        (0x24, "02", CONNACK), (0x25, "02", CONNACK), (0x27, "00000000", CONNECT), (0x28, "02", CONNACK),
        (0x29, "02", CONNACK), (0x2A, "02", CONNACK), (0x0B, "00", SUB), (0x08, "0000", W), (0x08, "0001 23", W),
    ],
)  # fmt: skip
def test_a_value_that_a_property_may_not_have_is_a_protocol_error(identifier, value, packet):
    assert outcome(bytes((identifier,)) + bytes.fromhex(value), packet, from_server=False) == 0x82


def test_a_number_of_five_bytes_is_malformed_and_so_is_a_padded_one():
    """[MQTT-1.5.5-1]"""
    assert outcome(bytes.fromhex("0b 80808080 01"), SUB, from_server=False) == 0x81
    assert outcome(bytes.fromhex("0b 8100"), SUB, from_server=False) == 0x81
    assert outcome(bytes.fromhex("0b ffffff7f"), SUB, from_server=False) == {
        "subscription_identifiers": [0x0FFF_FFFF]
    }


def test_a_name_that_there_isnt_is_refused_when_written():
    with pytest.raises(BadPacket, match="CONNECT can't have the property 'colour'"):
        property_bytes({"colour": 1}, CONNECT)  # type: ignore[typeddict-unknown-key]
