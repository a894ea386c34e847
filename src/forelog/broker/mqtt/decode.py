"""Bytes to packets, strictly: what the standard forbids raises BadPacket with the reason code to answer.

The kernel's `mqtt_split` finds where packets begin and end, and refuses a packet that is too large before all of
it has arrived. `decode` reads one packet. Plain messages go to the kernel's `Inbox` instead.

>>> decode_all(bytes.fromhex("c000 3007000161746f7001"), MQTT_5_0)
Traceback (most recent call last):
forelog.errors.BadPacket: PUBLISH ends within its properties (0x81)
>>> decode_all(bytes.fromhex("c000 300600016100686930"), MQTT_5_0)
([Pingreq(), Publish(topic='a', payload=b'hi', qos=0, retain=False, dup=False, packet_id=0, properties={})], 10)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    Pingreq,
    Pingresp,
    Properties,
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
from forelog.broker.mqtt.properties import read_properties
from forelog.broker.mqtt.reasons import ReasonCode, allowed_reasons, reason_of_return_code
from forelog.broker.mqtt.topics import has_wildcards, parse_filter
from forelog.broker.mqtt.wire import NUMBER_MAX, Body, malformed, protocol_error
from forelog.errors import BadPacket
from forelog.kernel.types import INCOMPLETE, PACKETS_MAX, TOO_LARGE

FILTERS_MAX = 10_000
"""Filters in one packet, which is decoded in one step."""

Buffer = bytes | bytearray | memoryview
UNKNOWN = 0
"""The version before CONNECT, when no other packet is accepted."""

_SENT_BY_CLIENTS_ONLY = frozenset(
    (PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ)
)
_SENT_BY_SERVERS_ONLY = frozenset(
    (PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP)
)
_FLAGS = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}
_MINIMUM_OF_BYTES = (0, 0, 1 << 7, 1 << 14, 1 << 21)


@dataclass(eq=False, slots=True)
class _Packet:
    """A packet that is being decoded."""

    body: Body
    kind: PacketType
    flags: int
    version: int
    from_server: bool
    properties_bytes_max: int

    def properties(self, kind: PacketType | None = None) -> Properties:
        if self.version < MQTT_5_0:
            return {}
        return read_properties(
            self.body,
            self.kind if kind is None else kind,
            from_server=self.from_server,
            bytes_max=self.properties_bytes_max,
        )

    def reason(self) -> ReasonCode:
        code = self.body.byte("reason code")
        if code not in allowed_reasons(self.kind, from_server=self.from_server):
            raise protocol_error(f"{self.kind.name} can't have the reason code 0x{code:02X}")
        return ReasonCode(code)


def decode(
    buffer: Buffer,
    start: int,
    body: int,
    end: int,
    version: int,
    *,
    from_server: bool = False,
    properties_bytes_max: int = NUMBER_MAX,
) -> Packet:
    """Decode the packet from `start` to `end`, whose body starts at `body`: a row of `mqtt_split`.

    `version` is that of the connection's CONNECT, or UNKNOWN before it.
    """
    first = buffer[start]
    try:
        kind = PacketType(first >> 4)
        reader = _READERS[kind]
    except KeyError:
        raise malformed("packet type 0 is reserved") from None
    if version == UNKNOWN and kind is not PacketType.CONNECT:
        raise protocol_error(f"{kind.name} comes before CONNECT")
    if kind in (_SENT_BY_CLIENTS_ONLY if from_server else _SENT_BY_SERVERS_ONLY):
        raise protocol_error(f"a {'server' if from_server else 'client'} sends no {kind.name}")
    flags = first & 0x0F
    if kind is not PacketType.PUBLISH and flags != _FLAGS.get(kind, 0):
        raise malformed(f"{kind.name} has the flags {flags}: expected {_FLAGS.get(kind, 0)}")
    fields = Body(buffer, body, end, kind.name)
    packet = _Packet(fields, kind, flags, version, from_server, properties_bytes_max)
    result = reader(packet)
    packet.body.end()
    # MQTT 3.1.1 doesn't require the shortest form of a length, and some of its clients pad it.
    if packet.version == MQTT_5_0 and end - body < _MINIMUM_OF_BYTES[body - start - 1]:
        raise malformed(f"the length of {kind.name} has more bytes than it needs")
    return result


def decode_all(
    data: Buffer, version: int = UNKNOWN, *, packet_bytes_max: int = 1 << 20, from_server: bool = False
) -> tuple[list[Packet], int]:
    """All complete packets, and their total size. Packets after a CONNECT are decoded by its version."""
    packets: list[Packet] = []
    end = 0
    while True:
        split = kernel.mqtt_split(data, end, len(data), packet_bytes_max)
        for start, body, end in zip(split.starts, split.bodies, split.ends, strict=True):
            packet = decode(data, start, body, end, version, from_server=from_server)
            if isinstance(packet, Connect):
                version = packet.version
            packets.append(packet)
        if split.reason > INCOMPLETE:
            raise bad_frame(split.reason, packet_bytes_max)
        if split.reason != PACKETS_MAX:
            return packets, split.end


def bad_frame(reason: int, packet_bytes_max: int) -> BadPacket:
    """The error for the reason why `mqtt_split` stopped, other than an incomplete packet."""
    if reason == TOO_LARGE:
        return BadPacket(ReasonCode.PACKET_TOO_LARGE, f"a packet has more than {packet_bytes_max} bytes")
    return malformed("a packet's length has more than four bytes")


def connect_level(buffer: Buffer, body: int, end: int) -> int:
    """The version that a CONNECT asks for, supported or not; 0 if it can't be read.

    A server that refuses the CONNECT needs it to answer in the client's version.
    """
    fields = Body(buffer, body, end, "CONNECT")
    try:
        fields.text("protocol name")
        return fields.byte("protocol version")
    except BadPacket:
        return 0


def _connect(packet: _Packet) -> Connect:
    body = packet.body
    name, version = body.text("protocol name"), body.byte("protocol version")
    if name != "MQTT" or version not in (MQTT_3_1_1, MQTT_5_0):
        raise BadPacket(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"the client speaks version {version} of {name[:20]!r}: expected 4 (for 3.1.1) or 5 of 'MQTT'",
        )
    packet.version = version
    flags, keep_alive = body.byte("flags"), body.two("keep alive")
    _check_connect_flags(flags, version)
    properties = packet.properties()
    client_id = body.text("client id")
    clean_start = bool(flags & 0x02)
    if version == MQTT_3_1_1 and not client_id and not clean_start:
        raise BadPacket(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a durable session needs a client id")
    will = None
    if flags & 0x04:
        will_properties = packet.properties(PacketType.WILL)
        topic = _topic(body.text("will topic"), "will topic")
        will = Will(topic, body.data("will"), flags >> 3 & 3, bool(flags & 0x20), will_properties)
    user_name = body.text("user name") if flags & 0x80 else None
    password = body.data("password") if flags & 0x40 else None
    return Connect(client_id, version, clean_start, keep_alive, will, user_name, password, properties)


def _check_connect_flags(flags: int, version: int) -> None:
    if flags & 0x01:
        raise malformed("the reserved flag of CONNECT is 1")
    if flags >> 3 & 3 == 3:
        raise malformed("the will of CONNECT has QoS 3")
    if not flags & 0x04 and flags & 0x38:
        raise malformed("CONNECT has a will's QoS or retain flag, but no will")
    if version == MQTT_3_1_1 and flags & 0xC0 == 0x40:
        raise malformed("CONNECT has a password without a user name, which MQTT 3.1.1 doesn't allow")


def _topic(topic: str, what: str) -> str:
    if not topic:
        raise protocol_error(f"the {what} is empty")
    if has_wildcards(topic):
        raise BadPacket(ReasonCode.TOPIC_NAME_INVALID, f"the {what} {topic[:80]!r} has wildcards in it")
    return topic


def _connack(packet: _Packet) -> Connack:
    flags = packet.body.byte("flags")
    if flags > 1:
        raise malformed(f"the flags of CONNACK are {flags}: expected 0 or 1")
    if packet.version == MQTT_5_0:
        connack = Connack(flags == 1, packet.reason(), packet.properties())
    else:
        code = packet.body.byte("return code")
        reason = reason_of_return_code(code)
        if reason is None:
            raise protocol_error(f"there is no return code {code} in CONNACK")
        connack = Connack(flags == 1, reason)
    if connack.reason_code and connack.session_present:
        raise protocol_error("CONNACK refuses a client and says that it has its session")
    return connack


def _publish(packet: _Packet) -> Publish:
    flags, body = packet.flags, packet.body
    qos, dup = flags >> 1 & 3, bool(flags & 8)
    if qos == 3:
        raise malformed("PUBLISH has QoS 3")
    if dup and not qos:
        raise malformed("PUBLISH of QoS 0 has the DUP flag")
    topic = body.text("topic")
    packet_id = body.packet_id() if qos else 0
    properties = packet.properties()
    if topic or "topic_alias" not in properties:
        _topic(topic, "topic of PUBLISH")
    return Publish(topic, body.rest(), qos, bool(flags & 1), dup, packet_id, properties)


def _answer(make: type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]) -> Callable[[_Packet], Packet]:
    def read(packet: _Packet) -> Packet:
        packet_id = packet.body.packet_id()
        if packet.version < MQTT_5_0 or not packet.body.left():
            return make(packet_id, ReasonCode.SUCCESS)
        reason = packet.reason()
        return make(packet_id, reason, packet.properties() if packet.body.left() else {})

    return read


def _too_many() -> BadPacket:
    return BadPacket(ReasonCode.QUOTA_EXCEEDED, f"a packet has more than {FILTERS_MAX} filters")


def _subscribe(packet: _Packet) -> Subscribe:
    packet_id, properties = packet.body.packet_id(), packet.properties()
    subscriptions = []
    while packet.body.left():
        subscriptions.append(_subscription(packet))
        if len(subscriptions) > FILTERS_MAX:
            raise _too_many()
    if not subscriptions:
        raise protocol_error("SUBSCRIBE has no filter")
    return Subscribe(packet_id, subscriptions, properties)


def _subscription(packet: _Packet) -> Subscription:
    text = packet.body.text("filter")
    shared = parse_filter(text).group is not None
    options = packet.body.byte("options")
    if options & (0xC0 if packet.version == MQTT_5_0 else 0xFC):
        raise malformed(f"the options of a filter are 0x{options:02X}: reserved bits are set")
    qos, retain_handling = options & 3, options >> 4 & 3
    if qos == 3 or retain_handling == 3:
        raise protocol_error("a filter's QoS or retain handling is 3: expected 0, 1 or 2")
    no_local = bool(options & 4)
    if no_local and shared:
        raise protocol_error(f"the shared filter {text[:80]!r} has No Local")
    return Subscription(text, qos, no_local, bool(options & 8), retain_handling)


def _suback(packet: _Packet) -> Suback:
    packet_id, properties = packet.body.packet_id(), packet.properties()
    codes = _reasons(packet)
    if packet.version < MQTT_5_0 and any(code not in (0, 1, 2, 0x80) for code in codes):
        raise protocol_error("SUBACK has a code that MQTT 3.1.1 doesn't have")
    return Suback(packet_id, codes, properties)


def _reasons(packet: _Packet) -> list[ReasonCode]:
    codes = []
    while packet.body.left():
        codes.append(packet.reason())
    if not codes:
        raise protocol_error(f"{packet.kind.name} has no reason code")
    return codes


def _unsubscribe(packet: _Packet) -> Unsubscribe:
    packet_id, properties = packet.body.packet_id(), packet.properties()
    filters = []
    while packet.body.left():
        text = packet.body.text("filter")
        parse_filter(text)
        filters.append(text)
        if len(filters) > FILTERS_MAX:
            raise _too_many()
    if not filters:
        raise protocol_error("UNSUBSCRIBE has no filter")
    return Unsubscribe(packet_id, filters, properties)


def _unsuback(packet: _Packet) -> Unsuback:
    packet_id = packet.body.packet_id()
    if packet.version < MQTT_5_0:
        return Unsuback(packet_id)
    properties = packet.properties()
    return Unsuback(packet_id, _reasons(packet), properties)


def _disconnect(packet: _Packet) -> Disconnect:
    if packet.version < MQTT_5_0 or not packet.body.left():
        return Disconnect(ReasonCode.SUCCESS)
    reason = packet.reason()
    return Disconnect(reason, packet.properties() if packet.body.left() else {})


def _auth(packet: _Packet) -> Auth:
    if packet.version < MQTT_5_0:
        raise malformed("packet type 15 is reserved in MQTT 3.1.1")
    if not packet.body.left() and packet.from_server:
        return Auth(ReasonCode.SUCCESS)
    reason, properties = packet.reason(), packet.properties()
    if "authentication_method" not in properties:
        raise protocol_error("AUTH has no authentication method")
    return Auth(reason, properties)


_READERS: dict[PacketType, Callable[[_Packet], Packet]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _answer(Puback),
    PacketType.PUBREC: _answer(Pubrec),
    PacketType.PUBREL: _answer(Pubrel),
    PacketType.PUBCOMP: _answer(Pubcomp),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: lambda _: Pingreq(),
    PacketType.PINGRESP: lambda _: Pingresp(),
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
