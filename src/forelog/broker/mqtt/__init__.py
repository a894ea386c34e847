"""MQTT 3.1.1 and 5.0 as far as it needs no network: bytes in, packets out, and back.

    packets      one small class for each of the fifteen
    reasons      reason codes, and which packet may have which
    properties   MQTT 5's properties, and which packet may have which
    wire         what packets are made of: numbers, texts, bytes
    decode       from bytes to packets, strictly
    encode       from packets to bytes
    topics       topics and filters: which are valid, what $share and $replay mean, which match
    trie         subscriptions by filter, found by topic
    shapes       the same for the filters of one client
    ids          packet ids
    aliases      topic aliases

Messages in bulk don't come as packets: the kernel's `Inbox` has them as bytes for the log. Sessions, wills,
retained messages and everything that needs a clock or a socket are the broker's.
"""

from __future__ import annotations

from forelog.broker.mqtt.aliases import InboundAliases, OutboundAliases
from forelog.broker.mqtt.decode import UNKNOWN, bad_frame, connect_level, decode, decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.ids import PACKET_ID_MAX, PacketIds
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
from forelog.broker.mqtt.properties import PROPERTIES, parse_properties, property_bytes
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.mqtt.shapes import Shapes
from forelog.broker.mqtt.topics import Filter, is_topic_name, matches, parse_filter, replay_since_ns
from forelog.broker.mqtt.trie import Trie
from forelog.errors import BadPacket

__all__ = [
    "MQTT_3_1_1",
    "MQTT_5_0",
    "PACKET_ID_MAX",
    "PROPERTIES",
    "UNKNOWN",
    "Auth",
    "BadPacket",
    "Connack",
    "Connect",
    "Disconnect",
    "Filter",
    "InboundAliases",
    "OutboundAliases",
    "Packet",
    "PacketIds",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "Shapes",
    "Suback",
    "Subscribe",
    "Subscription",
    "Trie",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "bad_frame",
    "connect_level",
    "decode",
    "decode_all",
    "encode",
    "is_topic_name",
    "matches",
    "parse_filter",
    "parse_properties",
    "property_bytes",
    "replay_since_ns",
]
