"""Reason codes: the result of a packet, by the numbers of MQTT 5.

Codes below 0x80 mean success. MQTT 3.1.1 has a few codes of its own in CONNACK and SUBACK. The packets here always
have those of MQTT 5, and `decode` and `encode` translate.

>>> ReasonCode(0x8E).name
'SESSION_TAKEN_OVER'
>>> return_code(ReasonCode.NOT_AUTHORIZED)
5
"""

from __future__ import annotations

from enum import IntEnum

from forelog.broker.mqtt.packets import PacketType


class ReasonCode(IntEnum):
    """All reason codes of MQTT 5, by the names of the standard."""

    SUCCESS = 0x00  # also: normal disconnection, granted QoS 0
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


_PUBLISHED = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASED = frozenset((0x00, 0x92))
# Only a client may disconnect with code 0. Servers are seen to send it too, and it does no harm.
_BOTH_DISCONNECT = frozenset((0x00, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99))
_SERVER_DISCONNECT = frozenset((0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)))

_ALLOWED = {
    PacketType.CONNACK: frozenset((0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)),
    PacketType.PUBACK: _PUBLISHED,
    PacketType.PUBREC: _PUBLISHED,
    PacketType.PUBREL: _RELEASED,
    PacketType.PUBCOMP: _RELEASED,
    PacketType.SUBACK: frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    PacketType.UNSUBACK: frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
}
_FROM_CLIENT = {
    PacketType.DISCONNECT: _BOTH_DISCONNECT | {0x04},
    PacketType.AUTH: frozenset((0x18, 0x19)),
}
_FROM_SERVER = {
    PacketType.DISCONNECT: _BOTH_DISCONNECT | _SERVER_DISCONNECT,
    PacketType.AUTH: frozenset((0x00, 0x18)),
}


def allowed_reasons(kind: PacketType, *, from_server: bool) -> frozenset[int]:
    """The codes that a packet of a type may have, by the side that sends it."""
    by_sender = _FROM_SERVER if from_server else _FROM_CLIENT
    return by_sender.get(kind) or _ALLOWED[kind]


_REASONS_OF_RETURN_CODES = (
    ReasonCode.SUCCESS,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
)
_RETURN_CODES = {reason: code for code, reason in enumerate(_REASONS_OF_RETURN_CODES)} | {
    ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
    ReasonCode.BANNED: 5,
}
_UNAVAILABLE = 3


def return_code(reason: int) -> int:
    """The nearest return code of MQTT 3.1.1 for CONNACK; "server unavailable" if there is none."""
    return _RETURN_CODES.get(ReasonCode(reason), _UNAVAILABLE)


def reason_of_return_code(code: int) -> ReasonCode | None:
    """The reason code of a return code of MQTT 3.1.1; None if there is no such return code."""
    return _REASONS_OF_RETURN_CODES[code] if code < len(_REASONS_OF_RETURN_CODES) else None
