"""Messages of the log as PUBLISH packets, and the properties that the log keeps of a PUBLISH.

The log keeps the properties of a message under these names::

    qos, retain                     as it was published
    from                            the id of the client that published it
    id                              at QoS 2: its packet id, to recognize it when it is sent again
    format, expiry, content_type, response_topic, correlation, user         properties of MQTT 5

In MQTT 5 a message that is replayed by `$replay/` also has the user property `forelog-time`, the time at which it
was logged.
"""

from __future__ import annotations

from typing import Any

from forelog.broker.log.batch import StoredMessage
from forelog.broker.log.clock import MessageClock
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, PacketType, Properties, Publish
from forelog.broker.mqtt.properties import parse_properties
from forelog.broker.sessions.session import Link
from forelog.times import format_time

LOGGED = "forelog-time"
"""The user property with the time at which a replayed message was logged, as 2026-11-15T18:00:00.123456789Z."""
_NAMES = {
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
    """The properties that the log keeps of a message."""
    kept: dict[str, Any] = {}
    if qos:
        kept["qos"] = qos
    if sender:
        kept["from"] = sender
    if retain:
        kept["retain"] = True
    if packet_id:
        kept["id"] = packet_id
    for name, short in _NAMES.items():
        if name in properties:
            kept[short] = properties[name]  # type: ignore[literal-required]
    return kept


def sent_properties(message: StoredMessage, clock: MessageClock, *, again: bool = False) -> Properties | None:
    """The properties that a subscriber gets. None if the message has expired, unless it is sent again."""
    found: dict[str, Any] = {}
    for name, short in _NAMES.items():
        if short in message.properties:
            found[name] = message.properties[short]
    if "user_properties" in found:
        found["user_properties"] = [tuple(pair) for pair in found["user_properties"]]
    if "message_expiry_interval" in found:
        left = clock.seconds_left(message)
        if not left and not again:
            return None
        found["message_expiry_interval"] = left or 0
    return found  # type: ignore[return-value]


def packet_of(
    connection: Link,
    message: StoredMessage,
    qos: int,
    packet_id: int,
    clock: MessageClock,
    *,
    retain: bool = False,
    dup: bool = False,
    identifiers: bytes = b"",
    logged: bool = False,
) -> bytes | None:
    """The packet for a connection; None if the message has expired or is larger than the client takes."""
    properties = sent_properties(message, clock, again=dup)
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
            connection.aliases.withdraw(topic)  # the client won't learn it
