"""The fifteen packets, each a small class, for both MQTT 3.1.1 and 5.0.

    client -> server   Connect Subscribe Unsubscribe Pingreq
    server -> client   Connack Suback    Unsuback    Pingresp
    either way         Publish Puback Pubrec Pubrel Pubcomp Disconnect Auth

Fields that only MQTT 5 has (properties, most reason codes) have defaults, and are left out for a 3.1.1 client.
Reason codes are always those of MQTT 5, see `reasons`.

>>> Publish("sensors/attic", b"21.5", qos=1, packet_id=7)
Publish(topic='sensors/attic', payload=b'21.5', qos=1, retain=False, dup=False, packet_id=7, properties={})
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypedDict

MQTT_3_1_1 = 4
MQTT_5_0 = 5
"""Versions, by the number that CONNECT carries."""


class PacketType(IntEnum):
    """The upper half of a packet's first byte. WILL isn't a packet, but the will inside of a CONNECT."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Properties(TypedDict, total=False):
    """The properties of a packet in MQTT 5, by name. `properties` says which packet may have which."""

    payload_format_indicator: int
    message_expiry_interval: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    subscription_identifiers: list[int]
    session_expiry_interval: int
    assigned_client_identifier: str
    server_keep_alive: int
    authentication_method: str
    authentication_data: bytes
    request_problem_information: int
    will_delay_interval: int
    request_response_information: int
    response_information: str
    server_reference: str
    reason_string: str
    receive_maximum: int
    topic_alias_maximum: int
    topic_alias: int
    maximum_qos: int
    retain_available: int
    user_properties: list[tuple[str, str]]
    maximum_packet_size: int
    wildcard_subscription_available: int
    subscription_identifiers_available: int
    shared_subscription_available: int


def _none() -> Properties:
    return {}


@dataclass(slots=True)
class Will:
    """A message that the server publishes when the client is lost."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Connect:
    """A client asks for a session."""

    type: ClassVar = PacketType.CONNECT
    client_id: str
    version: int = MQTT_5_0
    clean_start: bool = True
    keep_alive: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = field(default_factory=_none, repr=False)
    """Not part of repr(), like the password, so that no log shows a secret."""


@dataclass(slots=True)
class Connack:
    """The answer to CONNECT: accepted, or refused with a reason."""

    type: ClassVar = PacketType.CONNACK
    session_present: bool = False
    reason_code: int = 0
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Publish:
    """A message. `packet_id` is 0 at QoS 0."""

    type: ClassVar = PacketType.PUBLISH
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Answer:
    """The fields of the four packets that answer a message, or each other."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Puback(Answer):
    """The receiver took a message of QoS 1, or refuses it."""

    type: ClassVar = PacketType.PUBACK


@dataclass(slots=True)
class Pubrec(Answer):
    """The receiver took a message of QoS 2, or refuses it."""

    type: ClassVar = PacketType.PUBREC


@dataclass(slots=True)
class Pubrel(Answer):
    """The sender won't send a message of QoS 2 again."""

    type: ClassVar = PacketType.PUBREL


@dataclass(slots=True)
class Pubcomp(Answer):
    """The receiver has released the packet id of a message of QoS 2."""

    type: ClassVar = PacketType.PUBCOMP


@dataclass(slots=True)
class Subscription:
    """A filter and its options. MQTT 3.1.1 has only the QoS."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """A client subscribes to filters."""

    type: ClassVar = PacketType.SUBSCRIBE
    packet_id: int
    subscriptions: Sequence[Subscription]
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Suback:
    """The answer to SUBSCRIBE: for each filter the granted QoS, or an error."""

    type: ClassVar = PacketType.SUBACK
    packet_id: int
    reason_codes: Sequence[int]
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Unsubscribe:
    """A client unsubscribes from filters."""

    type: ClassVar = PacketType.UNSUBSCRIBE
    packet_id: int
    filters: Sequence[str]
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Unsuback:
    """The answer to UNSUBSCRIBE: a reason code for each filter, which MQTT 3.1.1 leaves out."""

    type: ClassVar = PacketType.UNSUBACK
    packet_id: int
    reason_codes: Sequence[int] = ()
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Pingreq:
    """A client asks whether the server is there."""

    type: ClassVar = PacketType.PINGREQ


@dataclass(slots=True)
class Pingresp:
    """The server is there."""

    type: ClassVar = PacketType.PINGRESP


@dataclass(slots=True)
class Disconnect:
    """The last packet of a connection. In MQTT 3.1.1 only clients send it, without a reason."""

    type: ClassVar = PacketType.DISCONNECT
    reason_code: int = 0
    properties: Properties = field(default_factory=_none)


@dataclass(slots=True)
class Auth:
    """A step of extended authentication. MQTT 5 only."""

    type: ClassVar = PacketType.AUTH
    reason_code: int = 0
    properties: Properties = field(default_factory=_none, repr=False)


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
