"""Paho's client, over a socket, understands what we write, and we what it writes."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any

import pytest

from forelog.broker.mqtt.decode import UNKNOWN, decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
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

paho = pytest.importorskip("paho.mqtt.client")
from paho.mqtt.packettypes import PacketTypes  # noqa: E402 - after the check that it is there
from paho.mqtt.properties import Properties  # noqa: E402
from paho.mqtt.subscribeoptions import SubscribeOptions  # noqa: E402

WAIT_S = 60


class Peer(threading.Thread):
    """The other end of one connection: answers as a broker does, sends messages back, and keeps what came."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WAIT_S)
        self.port = self.listener.getsockname()[1]
        self.packets: list = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            connection, _ = self.listener.accept()
            with connection, self.listener:
                connection.settimeout(WAIT_S)
                self.serve(connection)
        except Exception as error:
            self.error = error

    def serve(self, connection: socket.socket) -> None:
        version, buffer = UNKNOWN, b""
        while data := connection.recv(65_536):
            buffer += data
            packets, size = decode_all(buffer, version)
            buffer = buffer[size:]
            for packet in packets:
                self.packets.append(packet)
                version = packet.version if isinstance(packet, Connect) else version
                for answer in answers(packet, version):
                    connection.sendall(encode(answer, version))


def answers(packet, version):
    if isinstance(packet, Connect):
        given: Any = {"topic_alias_maximum": 5, "user_properties": [("who", "forelog")], "receive_maximum": 9}
        return [Connack(properties=given if version == MQTT_5_0 else {})]
    if isinstance(packet, Subscribe):
        return [Suback(packet.packet_id, [one.qos for one in packet.subscriptions])]
    if isinstance(packet, Unsubscribe):
        return [Unsuback(packet.packet_id, [0x11 for _ in packet.filters])]
    if isinstance(packet, Pingreq):
        return [Pingresp()]
    if isinstance(packet, Pubrel):
        return [Pubcomp(packet.packet_id)]
    if isinstance(packet, Pubrec):
        return [Pubrel(packet.packet_id)]
    if not isinstance(packet, Publish):
        return []
    given = packet.properties.copy()
    given.pop("topic_alias", None)
    packet_id = 40_000 + packet.packet_id if packet.qos else 0
    back = Publish("back/" + packet.topic, packet.payload, packet.qos, packet_id=packet_id, properties=given)
    if version == MQTT_5_0:
        back.properties["subscription_identifiers"] = [3, 300]
    return [*([], [Puback(packet.packet_id)], [Pubrec(packet.packet_id)])[packet.qos], back]


@pytest.fixture
def peer():
    peer = Peer()
    peer.start()
    yield peer
    peer.join(WAIT_S)
    assert peer.error is None


class Seen:
    """A client, and what its callbacks were told."""

    def __init__(self, version: int) -> None:
        self.events: queue.Queue = queue.Queue()
        protocol = paho.MQTTv5 if version == MQTT_5_0 else paho.MQTTv311
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="paho-ü", protocol=protocol)
        tell = self.events.put
        self.client.on_connect = lambda c, u, flags, reason, given: tell(("connect", reason.value, given))
        self.client.on_subscribe = lambda c, u, mid, reasons, given: tell(("sub", [r.value for r in reasons]))
        self.client.on_unsubscribe = lambda c, u, mid, reasons, given: tell(("unsub", [r.value for r in reasons]))
        self.client.on_message = lambda c, u, message: tell(("message", message))
        self.client.on_publish = lambda c, u, mid, reason, given: tell(("published", mid))

    def next(self, kind: str):
        """What the next event of this kind says; the others are put back."""
        others = []
        try:
            while True:
                event = self.events.get(timeout=WAIT_S)
                if event[0] == kind:
                    return event
                others.append(event)
        finally:
            for event in others:
                self.events.put(event)


PAYLOADS = [b"", b"x", b"y" * 127, bytes(range(256)) * 300]


def paho_properties(kind: int, **values) -> Properties:
    given = Properties(kind)
    for name, value in values.items():
        setattr(given, name, value)
    return given


def test_a_whole_connection_in_5_0(peer):
    seen = Seen(MQTT_5_0)
    client = seen.client
    client.username_pw_set("ann", "secret")
    client.will_set("will/ü", b"gone", 2, True, paho_properties(PacketTypes.WILLMESSAGE, WillDelayInterval=7))
    connecting = paho_properties(
        PacketTypes.CONNECT, SessionExpiryInterval=60, ReceiveMaximum=20, UserProperty=[("a", "1"), ("a", "2")]
    )
    client.connect("127.0.0.1", peer.port, keepalive=30, clean_start=False, properties=connecting)
    client.loop_start()
    try:
        _, reason, given = seen.next("connect")
        assert (reason, given.TopicAliasMaximum, given.ReceiveMaximum) == (0, 5, 9)
        assert given.UserProperty == [("who", "forelog")]
        options = SubscribeOptions(qos=2, noLocal=True, retainAsPublished=True, retainHandling=2)
        client.subscribe(
            [("a/+", options), ("$share/g/#", SubscribeOptions(qos=1))],
            properties=paho_properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=300),
        )
        assert seen.next("sub") == ("sub", [2, 1])
        message_properties = paho_properties(
            PacketTypes.PUBLISH,
            PayloadFormatIndicator=1, MessageExpiryInterval=99, ContentType="text/ü", ResponseTopic="to/me",
            CorrelationData=b"\0\xff", UserProperty=[("k", "v"), ("k", "w")], TopicAlias=2,
        )  # fmt: skip
        for qos in (0, 1, 2):
            for payload in PAYLOADS:
                client.publish("a/b", payload, qos, retain=qos == 1, properties=message_properties)
                _, message = seen.next("message")
                assert (message.topic, message.payload, message.qos) == ("back/a/b", payload, qos)
                back = message.properties
                assert (back.PayloadFormatIndicator, back.MessageExpiryInterval) == (1, 99)
                assert (back.ContentType, back.ResponseTopic, back.CorrelationData) == (
                    "text/ü",
                    "to/me",
                    b"\0\xff",
                )
                assert back.UserProperty == [("k", "v"), ("k", "w")]
                assert back.SubscriptionIdentifier == [3, 300]
                seen.next("published")
        client.unsubscribe(["a/+", "b"])
        assert seen.next("unsub") == ("unsub", [0x11, 0x11])
        client.disconnect(properties=paho_properties(PacketTypes.DISCONNECT, SessionExpiryInterval=5))
    finally:
        client.loop_stop()
    peer.join(WAIT_S)
    check_what_came_in_5_0(peer.packets)


def check_what_came_in_5_0(packets):
    connect, subscribe, *rest, disconnect = packets
    (unsubscribe,) = (packet for packet in rest if isinstance(packet, Unsubscribe))
    assert connect == Connect(
        "paho-ü", MQTT_5_0, False, 30, Will("will/ü", b"gone", 2, True, {"will_delay_interval": 7}),
        "ann", b"secret",
        {"session_expiry_interval": 60, "receive_maximum": 20, "user_properties": [("a", "1"), ("a", "2")]},
    )  # fmt: skip
    assert subscribe.subscriptions == [Subscription("a/+", 2, True, True, 2), Subscription("$share/g/#", 1)]
    assert subscribe.properties == {"subscription_identifiers": [300]}
    published = [packet for packet in rest if isinstance(packet, Publish)]
    assert [packet.payload for packet in published] == PAYLOADS * 3
    assert [packet.qos for packet in published] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(packet.retain == (packet.qos == 1) and not packet.dup for packet in published)
    wanted = {
        "payload_format_indicator": 1, "message_expiry_interval": 99, "content_type": "text/ü",
        "response_topic": "to/me", "correlation_data": b"\0\xff", "topic_alias": 2,
        "user_properties": [("k", "v"), ("k", "w")],
    }  # fmt: skip
    assert all(packet.properties == wanted for packet in published)
    assert sum(isinstance(packet, Puback) for packet in rest) == 4
    assert sum(isinstance(packet, Pubrec) for packet in rest) == 4
    assert sum(isinstance(packet, Pubcomp) for packet in rest) == 4
    assert sum(isinstance(packet, Pubrel) for packet in rest) == 4
    assert unsubscribe.filters == ["a/+", "b"]
    assert disconnect == Disconnect(0, {"session_expiry_interval": 5})


def test_a_whole_connection_in_3_1_1(peer):
    seen = Seen(MQTT_3_1_1)
    client = seen.client
    client.will_set("will", b"gone", 1)
    client.connect("127.0.0.1", peer.port, keepalive=30)
    client.loop_start()
    try:
        assert seen.next("connect")[1] == 0
        client.subscribe([("a/+", 2), ("#", 1)])
        assert seen.next("sub") == ("sub", [2, 1])
        for qos in (0, 1, 2):
            for payload in PAYLOADS:
                client.publish("a/b", payload, qos)
                _, message = seen.next("message")
                assert (message.topic, message.payload, message.qos) == ("back/a/b", payload, qos)
                seen.next("published")
        client.unsubscribe("a/+")
        seen.next("unsub")
        client.disconnect()
    finally:
        client.loop_stop()
    peer.join(WAIT_S)
    connect, subscribe, *rest, disconnect = peer.packets
    (unsubscribe,) = (packet for packet in rest if isinstance(packet, Unsubscribe))
    assert connect == Connect("paho-ü", MQTT_3_1_1, True, 30, Will("will", b"gone", 1))
    assert subscribe.subscriptions == [Subscription("a/+", 2), Subscription("#", 1)]
    assert [packet.payload for packet in rest if isinstance(packet, Publish)] == PAYLOADS * 3
    assert (unsubscribe.filters, disconnect) == (["a/+"], Disconnect())
