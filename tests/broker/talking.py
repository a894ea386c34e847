"""A client that says exactly what it is told to, over a socket, and shows every packet that comes back."""

from __future__ import annotations

import select
import socket
from typing import Any, TypeVar

from forelog.broker.mqtt.decode import decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
)

WAIT_S = 60
Kind = TypeVar("Kind")
Answer = TypeVar("Answer", bound=Suback | Unsuback | Puback | Pubrec | Pubcomp)


class Closed(Exception):
    """The broker has closed the connection."""


class Talk:
    """One connection."""

    def __init__(self, port: int, version: int = MQTT_5_0) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = bytearray()
        self._packets: list[Packet] = []
        self._last_id = 0
        self.raw_packets: list[bytes] = []
        self.answer: Connack | None = None
        """What the broker said to the last CONNECT."""

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Without a word."""
        self.socket.close()

    # -- bytes and packets

    def send(self, *packets: Packet) -> None:
        self.raw(b"".join(encode(packet, self.version, from_server=False) for packet in packets))

    def raw(self, data: bytes | bytearray) -> None:
        self.socket.sendall(data)

    def read(self) -> Packet:
        """The next packet."""
        while not self._packets:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                raise Closed from None
            if not data:
                raise Closed
            self._left += data
            self._packets, end = decode_all(self._left, self.version, from_server=True, packet_bytes_max=1 << 28)
            del self._left[:end]
        return self._packets.pop(0)

    def expect(self, kind: type[Kind]) -> Kind:
        packet = self.read()
        assert isinstance(packet, kind), packet
        return packet

    def quiet(self) -> bool:
        """Whether nothing is there, or comes within a moment."""
        return not self._packets and not select.select([self.socket], [], [], 0.2)[0]

    def drain(self) -> list[Packet]:
        """Everything that comes before the answer to a PINGREQ."""
        self.send(Pingreq())
        found: list[Packet] = []
        while not isinstance(packet := self.read(), Pingresp):
            found.append(packet)
        return found

    def end(self) -> Disconnect | Connack | None:
        """Read until the broker closes the connection; what it said last, if it was a reason."""
        last = None
        try:
            while True:
                last = self.read()
        except Closed:
            return last if isinstance(last, Disconnect | Connack) else None

    # -- what clients do

    def connect(
        self, client_id: str = "", *, clean: bool = True, expiry: int | None = None, **more: Any
    ) -> Connack:
        properties = more.pop("properties", {})
        keep_alive = more.pop("keep_alive", 0)
        if expiry is not None and self.version == MQTT_5_0:
            properties = {**properties, "session_expiry_interval": expiry}
        self.send(Connect(client_id, self.version, clean, keep_alive, properties=properties, **more))
        self.answer = self.expect(Connack)
        return self.answer

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def subscribe(self, *wanted: str | Subscription, qos: int = 0, identifier: int = 0) -> list[int]:
        """Returns what the broker says to each. Whatever comes meanwhile is kept."""
        subscriptions = [Subscription(one, qos) if isinstance(one, str) else one for one in wanted]
        properties: Any = {"subscription_identifiers": [identifier]} if identifier else {}
        packet = Subscribe(self.next_id(), subscriptions, properties)
        self.send(packet)
        return list(self._answer(Suback, packet.packet_id).reason_codes)

    def unsubscribe(self, *filters: str) -> list[int]:
        packet = Unsubscribe(self.next_id(), filters)
        self.send(packet)
        return list(self._answer(Unsuback, packet.packet_id).reason_codes)

    def _answer(self, kind: type[Answer], packet_id: int) -> Answer:
        packet = self._answered(kind)
        assert packet.packet_id == packet_id
        return packet

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **more: Any) -> int:
        """A message, to the end of its exchange; returns the reason code. At QoS 0 the broker has it, too."""
        if not qos:
            self.send(Publish(topic, payload, **more), Pingreq())
            assert isinstance(self._answered(Pingresp), Pingresp)
            return 0
        packet_id = self.next_id()
        self.send(Publish(topic, payload, qos, packet_id=packet_id, **more))
        if qos == 1:
            return self._answer(Puback, packet_id).reason_code
        reason = self._answer(Pubrec, packet_id).reason_code
        if reason < 0x80:
            self.send(Pubrel(packet_id))
            assert self._answer(Pubcomp, packet_id).reason_code == 0
        return reason

    def _answered(self, kind: type[Kind]) -> Kind:
        kept: list[Packet] = []
        while not isinstance(packet := self.read(), kind):
            kept.append(packet)
        self._packets[:0] = kept
        return packet

    def take(self, count: int = 1) -> list[Publish]:
        """So many messages, each acknowledged as its QoS asks for."""
        found: list[Publish] = []
        while len(found) < count:
            packet = self.read()
            if isinstance(packet, Pubrel):
                self.send(Pubcomp(packet.packet_id))
                continue
            assert isinstance(packet, Publish), packet
            found.append(packet)
            if packet.qos == 1:
                self.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                self.send(Pubrec(packet.packet_id))
        return found

    def acknowledge(self, message: Publish) -> None:
        """A message of QoS 1."""
        self.send(Puback(message.packet_id))

    def messages(self, count: int = 1) -> list[tuple[str, bytes]]:
        return [(one.topic, one.payload) for one in self.take(count)]

    def disconnect(self, reason: int = 0, **properties: Any) -> None:
        self.send(Disconnect(reason, properties))  # type: ignore[arg-type]
        self.end()
        self.close()
