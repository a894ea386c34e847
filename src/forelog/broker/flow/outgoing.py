"""A message from the log as a PUBLISH packet, with everything that MQTT 5 has to say about it.

What a publisher said of a message is kept with it, under names that any reader of the log understands::

    qos, retain                     as it was published
    from                            the client that published it
    id                              of QoS 2: under which packet id, to know it again
    format, expiry, content_type, response_topic, correlation, user         properties of MQTT 5

Messages of the past, which a client asked for by `$replay/`, have a user property more in MQTT 5: `forelog-time`,
the time at which they were logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forelog.broker.flow.batches import Stored
from forelog.broker.flow.clock import MessageClock
from forelog.broker.mqtt import MQTT_5_0, PacketType, Properties, Publish, encode, parse_properties
from forelog.times import format_time

if TYPE_CHECKING:
    from forelog.broker.connections.connection import Connection

__all__ = ["LOGGED", "kept_properties", "packet_of"]

LOGGED = "forelog-time"
"""The user property that says when a replayed message was logged, as in 2026-11-15T18:00:00.123456789Z."""
NAMES = {
    "payload_format_indicator": "format",
    "message_expiry_interval": "expiry",
    "content_type": "content_type",
    "response_topic": "response_topic",
    "correlation_data": "correlation",
    "user_properties": "user",
}


def kept_properties(
    properties: Properties, qos: int, *, sender: str | None, retain: bool = False, packet_id: int = 0
) -> dict[str, Any]:
    """What the log keeps of a message besides topic and payload."""
    kept: dict[str, Any] = {}
    if qos:
        kept["qos"] = qos
    if sender:
        kept["from"] = sender
    if retain:
        kept["retain"] = True
    if packet_id:
        kept["id"] = packet_id
    for name, short in NAMES.items():
        if name in properties:
            kept[short] = properties[name]  # type: ignore[literal-required]
    return kept


def told_properties(message: Stored, clock: MessageClock, *, again: bool = False) -> Properties | None:
    """What a subscriber is told of it; None if it has expired, unless it is sent again."""
    told: dict[str, Any] = {}
    for name, short in NAMES.items():
        if short in message.properties:
            told[name] = message.properties[short]
    if "user_properties" in told:
        told["user_properties"] = [tuple(pair) for pair in told["user_properties"]]
    if "message_expiry_interval" in told:
        left = clock.seconds_left(message)
        if not left and not again:
            return None
        told["message_expiry_interval"] = left or 0
    return told  # type: ignore[return-value]


def packet_of(
    connection: Connection,
    message: Stored,
    qos: int,
    packet_id: int,
    clock: MessageClock,
    *,
    retain: bool = False,
    dup: bool = False,
    identifiers: bytes = b"",
    logged: bool = False,
) -> bytes | None:
    """The packet for a connection; None for a message that has expired, or is larger than the client takes."""
    properties = told_properties(message, clock, again=dup)
    if properties is None:
        return None
    topic, alias = message.topic, 0
    if connection.version == MQTT_5_0:
        if logged:
            pair = (LOGGED, format_time(message.time_ns))
            properties["user_properties"] = [*properties.get("user_properties", []), pair]
        if identifiers:
            properties.update(parse_properties(identifiers, PacketType.PUBLISH, from_server=True))
        if connection.aliases is not None and not dup:
            topic, alias = connection.aliases.shorten(topic)
            if alias:
                properties["topic_alias"] = alias
    else:
        properties = {}
    packet = Publish(topic, message.payload, qos, retain, dup, packet_id, properties)
    data = None
    try:
        data = encode(packet, connection.version)
        return data if len(data) <= connection.packet_bytes_max else None
    finally:
        if alias and topic and (data is None or len(data) > connection.packet_bytes_max):
            assert connection.aliases is not None
            connection.aliases.withdraw(topic)  # the client doesn't get to know it
