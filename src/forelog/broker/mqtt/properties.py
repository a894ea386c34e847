"""MQTT 5's properties: their names, types, and the packets that may have them.

On the wire they are a length, then for each property an identifier and a value, in any order. A property may come
once. User properties, and subscription identifiers in a PUBLISH to a subscriber, may repeat and keep their order.
Here they are a dict by name:

>>> read_properties(Body(bytes((5, 0x11, 0, 0, 0, 60)), 0, 6, "CONNECT"), PacketType.CONNECT)
{'session_expiry_interval': 60}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

from forelog.broker.mqtt.packets import PacketType, Properties
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.mqtt.topics import is_topic_name
from forelog.broker.mqtt.wire import (
    NUMBER_MAX,
    Body,
    bytes_field,
    malformed,
    number_field,
    protocol_error,
    text_field,
)
from forelog.errors import BadPacket
from forelog.kernel import varint

Kind = Literal["byte", "two", "four", "number", "text", "bytes", "pair"]
_MOST = {"byte": 0xFF, "two": 0xFFFF, "four": 0xFFFF_FFFF, "number": 0x0FFF_FFFF}

_WILL, _CONNECT, _CONNACK, _PUBLISH = PacketType.WILL, PacketType.CONNECT, PacketType.CONNACK, PacketType.PUBLISH
_SUBSCRIBE, _DISCONNECT, _AUTH = PacketType.SUBSCRIBE, PacketType.DISCONNECT, PacketType.AUTH
_MESSAGE = frozenset((_PUBLISH, _WILL))
_ANSWERS = frozenset(
    (
        _CONNACK,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBACK,
        PacketType.UNSUBACK,
        _DISCONNECT,
        _AUTH,
    )
)


class Property(NamedTuple):
    """A property."""

    identifier: int
    name: str
    kind: Kind
    packets: frozenset[PacketType]
    least: int = 0
    most: int = 0xFFFF_FFFF


def _flag(identifier: int, name: str, *packets: PacketType) -> Property:
    return Property(identifier, name, "byte", frozenset(packets), most=1)


def _of(identifier: int, name: str, kind: Kind, *packets: PacketType, least: int = 0) -> Property:
    return Property(identifier, name, kind, frozenset(packets), least)


_ALL = (
    _flag(0x01, "payload_format_indicator", *_MESSAGE),
    _of(0x02, "message_expiry_interval", "four", *_MESSAGE),
    _of(0x03, "content_type", "text", *_MESSAGE),
    _of(0x08, "response_topic", "text", *_MESSAGE),
    _of(0x09, "correlation_data", "bytes", *_MESSAGE),
    _of(0x0B, "subscription_identifiers", "number", _PUBLISH, _SUBSCRIBE, least=1),
    _of(0x11, "session_expiry_interval", "four", _CONNECT, _CONNACK, _DISCONNECT),
    _of(0x12, "assigned_client_identifier", "text", _CONNACK),
    _of(0x13, "server_keep_alive", "two", _CONNACK),
    _of(0x15, "authentication_method", "text", _CONNECT, _CONNACK, _AUTH),
    _of(0x16, "authentication_data", "bytes", _CONNECT, _CONNACK, _AUTH),
    _flag(0x17, "request_problem_information", _CONNECT),
    _of(0x18, "will_delay_interval", "four", _WILL),
    _flag(0x19, "request_response_information", _CONNECT),
    _of(0x1A, "response_information", "text", _CONNACK),
    _of(0x1C, "server_reference", "text", _CONNACK, _DISCONNECT),
    _of(0x1F, "reason_string", "text", *_ANSWERS),
    _of(0x21, "receive_maximum", "two", _CONNECT, _CONNACK, least=1),
    _of(0x22, "topic_alias_maximum", "two", _CONNECT, _CONNACK),
    _of(0x23, "topic_alias", "two", _PUBLISH, least=1),
    _flag(0x24, "maximum_qos", _CONNACK),
    _flag(0x25, "retain_available", _CONNACK),
    _of(
        0x26, "user_properties", "pair",
        *_ANSWERS, *_MESSAGE, _CONNECT, _SUBSCRIBE, PacketType.UNSUBSCRIBE,
    ),
    _of(0x27, "maximum_packet_size", "four", _CONNECT, _CONNACK, least=1),
    _flag(0x28, "wildcard_subscription_available", _CONNACK),
    _flag(0x29, "subscription_identifiers_available", _CONNACK),
    _flag(0x2A, "shared_subscription_available", _CONNACK),
)  # fmt: skip
PROPERTIES = {one.identifier: one for one in _ALL}
"""The properties by their identifiers."""
_BY_NAME = {one.name: one for one in _ALL}
_LISTS = ("user_properties", "subscription_identifiers")
# Those that only one side may send in a packet that both send.
_NOT_FROM_CLIENT = {(_PUBLISH, "subscription_identifiers"), (_DISCONNECT, "server_reference")}
_NOT_FROM_SERVER = {(_DISCONNECT, "session_expiry_interval")}


def read_properties(
    body: Body, packet: PacketType, *, from_server: bool = False, bytes_max: int = NUMBER_MAX
) -> Properties:
    """Read and check properties. Their size is limited, because five bytes become an object of hundreds."""
    length = body.number("properties' length")
    if length > bytes_max:
        raise BadPacket(
            ReasonCode.PACKET_TOO_LARGE, f"{packet.name} has {length} bytes of properties: at most {bytes_max}"
        )
    return _parse(body.part(length, "properties"), packet, from_server) if length else {}


def parse_properties(data: bytes, packet: PacketType, *, from_server: bool = False) -> Properties:
    """Parse properties without their length, as `property_bytes` writes them."""
    return _parse(Body(data, 0, len(data), packet.name), packet, from_server)


def _parse(part: Body, packet: PacketType, from_server: bool) -> Properties:
    found: dict[str, Any] = {}
    while part.left():
        identifier = part.byte("property")
        one = PROPERTIES.get(identifier)
        if one is None or packet not in one.packets:
            raise malformed(f"{packet.name} can't have the property 0x{identifier:02X}")
        value = _READERS[one.kind](part, one.name)
        _check(one, value, packet, from_server=from_server)
        if one.name in found and not _repeats(one, packet):
            raise protocol_error(f"{packet.name} has its {one.name} twice")
        if one.name in _LISTS:
            found.setdefault(one.name, []).append(value)
        else:
            found[one.name] = value
    _check_together(found, packet)
    return cast(Properties, found)


_READERS: dict[Kind, Callable[[Body, str], Any]] = {
    "byte": Body.byte,
    "two": Body.two,
    "four": Body.four,
    "number": Body.number,
    "text": Body.text,
    "bytes": Body.data,
    "pair": lambda body, what: (body.text(what), body.text(what)),
}


def property_bytes(properties: Properties, packet: PacketType, *, from_server: bool = False) -> bytes:
    """Properties as bytes, without their length."""
    parts = []
    for name, given in properties.items():
        one = _BY_NAME.get(name)
        if one is None or packet not in one.packets:
            raise malformed(f"{packet.name} can't have the property {name!r}")
        values: Any = given if name in _LISTS else (given,)
        if len(values) > 1 and not _repeats(one, packet):
            raise protocol_error(f"{packet.name} has its {name} twice")
        for value in values:
            _check(one, value, packet, from_server=from_server)
            parts.append(bytes((one.identifier,)) + _value_bytes(one, value))
    _check_together(cast(dict[str, Any], properties), packet)
    return b"".join(parts)


def properties_field(properties: Properties, packet: PacketType, *, from_server: bool = False) -> bytes:
    """Properties as bytes, with their length."""
    if not properties:
        return b"\0"
    data = property_bytes(properties, packet, from_server=from_server)
    return varint(number_field(len(data), "length of properties")) + data


def _value_bytes(one: Property, value: Any) -> bytes:
    if one.kind == "text":
        return text_field(value, one.name)
    if one.kind == "bytes":
        return bytes_field(value, one.name)
    if one.kind == "pair":
        return b"".join(text_field(text, one.name) for text in value)
    number = number_field(value, one.name, _MOST[one.kind])
    if one.kind == "number":
        return varint(number)
    return number.to_bytes({"byte": 1, "two": 2, "four": 4}[one.kind])


def _repeats(one: Property, packet: PacketType) -> bool:
    return one.kind == "pair" or (one.kind == "number" and packet is _PUBLISH)


def _check(one: Property, value: Any, packet: PacketType, *, from_server: bool) -> None:
    """Raise BadPacket for a value that is well-formed but not allowed."""
    if (packet, one.name) in (_NOT_FROM_SERVER if from_server else _NOT_FROM_CLIENT):
        raise protocol_error(f"a {'server' if from_server else 'client'} sends no {one.name} in {packet.name}")
    if one.name == "response_topic" and not is_topic_name(value):
        raise protocol_error(f"the response topic {value!r} isn't a topic: it is empty or has wildcards")
    if isinstance(value, int) and not one.least <= value <= one.most:
        if one.name == "topic_alias":
            raise BadPacket(ReasonCode.TOPIC_ALIAS_INVALID, "the topic alias is 0")
        raise protocol_error(f"the {one.name} of {packet.name} is {value}")


def _check_together(properties: dict[str, Any], packet: PacketType) -> None:
    if "authentication_data" in properties and "authentication_method" not in properties:
        raise protocol_error(f"{packet.name} has authentication data without a method")
