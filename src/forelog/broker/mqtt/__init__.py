"""The protocol, MQTT 3.1.1 and 5.0, without I/O: bytes to packets, and packets to bytes.

    packets.py     a small class for each of the fifteen packets
    reasons.py     reason codes, and which packet may have which
    properties.py  MQTT 5's properties, and which packet may have which
    wire.py        the fields of packets: numbers, texts, bytes
    decode.py      bytes to packets, strictly
    encode.py      packets to bytes
    topics.py      topics and filters: which are valid, $share and $replay, which match
    trie.py        Trie: subscriptions by filter, found by topic
    shapes.py      Shapes: the filters of one client, found by topic
    ids.py         PacketIds: packet ids in use
    aliases.py     topic aliases

Plain messages in bulk aren't decoded to packets: the kernel's `Inbox` turns them into bytes for the log. Sessions,
wills, retained messages and everything that needs a clock or a socket are in other rooms.
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
