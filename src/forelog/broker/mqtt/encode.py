"""Packets to bytes, for both versions. What MQTT 3.1.1 doesn't have is left out, or replaced by the nearest.

A packet that breaks a rule raises BadPacket here, before the other side would close the connection.

>>> encode(Connack(reason_code=ReasonCode.NOT_AUTHORIZED), MQTT_3_1_1).hex(" ")
'20 02 00 05'
>>> encode(Connack(reason_code=ReasonCode.NOT_AUTHORIZED), MQTT_5_0).hex(" ")
'20 03 00 87 00'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forelog import kernel
from forelog.broker.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
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
)
from forelog.broker.mqtt.properties import properties_field, property_bytes
from forelog.broker.mqtt.reasons import ReasonCode, allowed_reasons, return_code
from forelog.broker.mqtt.topics import has_wildcards, parse_filter
from forelog.broker.mqtt.wire import (
    NUMBER_MAX,
    bytes_field,
    malformed,
    number_field,
    packet_bytes,
    packet_id_field,
    protocol_error,
    text_field,
)
from forelog.errors import BadPacket

_Answer = Puback | Pubrec | Pubrel | Pubcomp
_FAILED = 0x80
_PUBLISH_BYTES_MORE = 8
"""Bytes of a PUBLISH besides its topic, properties and payload, at most."""


@dataclass(eq=False, slots=True)
class _Side:
    """The version of the connection, and the side that sends."""

    version: int
    from_server: bool

    def properties(self, packet: Any, kind: PacketType | None = None) -> bytes:
        if self.version < MQTT_5_0:
            return b""
        kind = packet.type if kind is None else kind
        return properties_field(packet.properties, kind, from_server=self.from_server)

    def reason(self, packet: Any, code: int) -> int:
        if code not in allowed_reasons(packet.type, from_server=self.from_server):
            raise protocol_error(f"{packet.type.name} can't have the reason code 0x{code:02X}")
        return code


def encode(packet: Packet, version: int, *, from_server: bool = True) -> bytes:
    """The bytes of a packet. CONNECT has its own version."""
    if isinstance(packet, Connect):
        version = packet.version
    if version not in (MQTT_3_1_1, MQTT_5_0):
        raise BadPacket(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, f"MQTT {version}: expected 4 (for 3.1.1) or 5")
    side = _Side(version, from_server)
    writer = _WRITERS.get(packet.type)
    return bytes((packet.type << 4, 0)) if writer is None else writer(packet, side)


def _connect(packet: Connect, side: _Side) -> bytes:
    flags = packet.clean_start << 1 | (packet.user_name is not None) << 7 | (packet.password is not None) << 6
    payload = [text_field(packet.client_id, "client id")]
    if packet.will is not None:
        will = packet.will
        flags |= 0x04 | number_field(will.qos, "QoS of the will", 2) << 3 | will.retain << 5
        payload += [side.properties(will, PacketType.WILL), _topic(will.topic), bytes_field(will.payload, "will")]
    if packet.user_name is not None:
        payload.append(text_field(packet.user_name, "user name"))
    elif packet.password is not None and side.version == MQTT_3_1_1:
        raise malformed("a password without a user name, which MQTT 3.1.1 doesn't allow")
    if packet.password is not None:
        payload.append(bytes_field(packet.password, "password"))
    keep_alive = number_field(packet.keep_alive, "keep alive", 0xFFFF).to_bytes(2)
    head = b"\0\4MQTT" + bytes((side.version, flags)) + keep_alive
    return packet_bytes(0x10, head, side.properties(packet), *payload)


def _topic(topic: str) -> bytes:
    if not topic:
        raise protocol_error("the topic is empty")
    if has_wildcards(topic):
        raise BadPacket(ReasonCode.TOPIC_NAME_INVALID, f"the topic {topic[:80]!r} has wildcards in it")
    return text_field(topic, "topic")


def _connack(packet: Connack, side: _Side) -> bytes:
    reason = side.reason(packet, packet.reason_code)
    if reason and packet.session_present:
        raise protocol_error("CONNACK refuses a client and has Session Present")
    code = reason if side.version == MQTT_5_0 else return_code(reason)
    return packet_bytes(0x20, bytes((packet.session_present, code)), side.properties(packet))


def _publish(packet: Publish, side: _Side) -> bytes:
    has_alias = side.version == MQTT_5_0 and "topic_alias" in packet.properties
    topic = b"" if has_alias and not packet.topic else _topic(packet.topic)[2:]
    properties = b""
    if side.version == MQTT_5_0 and packet.properties:
        properties = property_bytes(packet.properties, PacketType.PUBLISH, from_server=side.from_server)
    size = len(topic) + len(properties) + len(packet.payload)
    if size > NUMBER_MAX - _PUBLISH_BYTES_MORE:
        raise BadPacket(ReasonCode.PACKET_TOO_LARGE, f"a message of {size} bytes is more than a packet can hold")
    try:
        return kernel.mqtt_encode_publish(
            side.version,
            topic,
            packet.payload,
            packet.qos,
            packet.retain,
            packet.dup,
            packet.packet_id,
            properties,
        )
    except ValueError as error:
        raise malformed(str(error)) from None


def _answer(packet: _Answer, side: _Side) -> bytes:
    first = packet.type << 4 | (2 if packet.type is PacketType.PUBREL else 0)
    parts = [packet_id_field(packet.packet_id)]
    reason = side.reason(packet, packet.reason_code)
    if side.version == MQTT_5_0 and (reason or packet.properties):
        parts.append(bytes((reason,)))
        if packet.properties:
            parts.append(side.properties(packet))
    return packet_bytes(first, *parts)


def _subscribe(packet: Subscribe, side: _Side) -> bytes:
    if not packet.subscriptions:
        raise protocol_error("SUBSCRIBE has no filter")
    filters = [_subscription(one, side) for one in packet.subscriptions]
    return packet_bytes(0x82, packet_id_field(packet.packet_id), side.properties(packet), *filters)


def _subscription(one: Subscription, side: _Side) -> bytes:
    shared = parse_filter(one.filter).group is not None
    options = number_field(one.qos, "QoS of a filter", 2)
    if side.version == MQTT_5_0:
        if shared and one.no_local:
            raise protocol_error(f"the shared filter {one.filter[:80]!r} has No Local")
        handling = number_field(one.retain_handling, "retain handling of a filter", 2)
        options |= one.no_local << 2 | one.retain_as_published << 3 | handling << 4
    return text_field(one.filter, "filter") + bytes((options,))


def _suback(packet: Suback, side: _Side) -> bytes:
    codes = _reasons(packet, side)
    if side.version < MQTT_5_0:
        codes = [min(code, _FAILED) for code in codes]
    return packet_bytes(0x90, packet_id_field(packet.packet_id), side.properties(packet), bytes(codes))


def _reasons(packet: Suback | Unsuback, side: _Side) -> list[int]:
    if not packet.reason_codes:
        raise protocol_error(f"{packet.type.name} has no reason code")
    return [side.reason(packet, code) for code in packet.reason_codes]


def _unsubscribe(packet: Unsubscribe, side: _Side) -> bytes:
    if not packet.filters:
        raise protocol_error("UNSUBSCRIBE has no filter")
    for text in packet.filters:
        parse_filter(text)
    filters = [text_field(text, "filter") for text in packet.filters]
    return packet_bytes(0xA2, packet_id_field(packet.packet_id), side.properties(packet), *filters)


def _unsuback(packet: Unsuback, side: _Side) -> bytes:
    codes = bytes(_reasons(packet, side)) if side.version == MQTT_5_0 else b""
    return packet_bytes(0xB0, packet_id_field(packet.packet_id), side.properties(packet), codes)


def _disconnect(packet: Disconnect, side: _Side) -> bytes:
    reason = side.reason(packet, packet.reason_code)
    if side.version < MQTT_5_0 or not (reason or packet.properties):
        return packet_bytes(0xE0)
    if not packet.properties:
        return packet_bytes(0xE0, bytes((reason,)))
    return packet_bytes(0xE0, bytes((reason,)), side.properties(packet))


def _auth(packet: Auth, side: _Side) -> bytes:
    if side.version < MQTT_5_0:
        raise protocol_error("MQTT 3.1.1 has no AUTH")
    reason = side.reason(packet, packet.reason_code)
    if not reason and not packet.properties:
        return packet_bytes(0xF0)
    if "authentication_method" not in packet.properties:
        raise protocol_error("AUTH has no authentication method")
    return packet_bytes(0xF0, bytes((reason,)), side.properties(packet))


_WRITERS: dict[PacketType, Callable[[Any, _Side], bytes]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _answer,
    PacketType.PUBREC: _answer,
    PacketType.PUBREL: _answer,
    PacketType.PUBCOMP: _answer,
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
