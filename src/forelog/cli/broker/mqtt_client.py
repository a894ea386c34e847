"""The small MQTT client that the command line uses. Programs use a real one, such as paho-mqtt or aiomqtt."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from forelog.broker.mqtt.decode import decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.ids import PacketIds
from forelog.broker.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.cli.codes import NoServer, Refused
from forelog.closing import Closing
from forelog.errors import BadPacket
from forelog.serving.tls import explain, tls_hint

KEEP_ALIVE = 60
_PACKET_BYTES_MAX = 0x1000_0004
_WINDOW = 500
"""Messages that may be under way before an acknowledgement is waited for."""


_CLOSED_AT_ONCE = "it closed the connection without an answer: does it expect TLS, or none?"


class BrokerClient(Closing):
    """A connection to a broker, in MQTT 5. Everything that is waited for has a timeout."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        client_id: str = "",
        user: str | None = None,
        password: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        session_expiry: int = 0,
        timeout: float = 30.0,
    ) -> None:
        self._where = f"{address[0]}:{address[1]}"
        self._timeout = timeout
        self._rest = b""
        self._greeted = False
        """Whether the broker has said anything."""
        self._arrived: deque[Packet] = deque()
        self._unacknowledged: dict[int, None] = {}
        self._ids = PacketIds()
        self._window = _WINDOW
        try:
            self._socket = socket.create_connection(address, timeout)
        except OSError as error:
            raise NoServer(f"no broker at {self._where}: {error}") from None
        try:
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        except OSError as error:
            self._socket.close()
            why = explain(error) if isinstance(error, ssl.SSLError) else error
            raise NoServer(f"no broker at {self._where}: {why}") from None
        self._sent = time.monotonic()
        properties: Properties = {"receive_maximum": 1000}
        if session_expiry:
            properties["session_expiry_interval"] = session_expiry
        try:
            self._send(
                Connect(client_id, MQTT_5_0, not session_expiry, KEEP_ALIVE, None, user, password, properties)
            )
            answer: Connack = self._wait_for(Connack)
            if answer.reason_code >= 0x80:
                raise self._refused("the connection", answer.reason_code, answer.properties)
            self._window = min(_WINDOW, answer.properties.get("receive_maximum", _WINDOW))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Send a DISCONNECT, and close the connection."""
        with contextlib.suppress(OSError, NoServer):
            self._send(Disconnect())
        self._socket.close()

    # -- publishing

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, expiry: int | None = None
    ) -> None:
        """Send a message, without waiting for its acknowledgement; `flush` does."""
        while len(self._unacknowledged) >= self._window:
            self._wait_for_acknowledgement()
        packet_id = 0
        if qos:
            packet_id = self._ids.take()
            self._unacknowledged[packet_id] = None
        properties: Properties = {} if expiry is None else {"message_expiry_interval": expiry}
        self._send(Publish(topic, payload, qos, retain, False, packet_id, properties))

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        while self._unacknowledged:
            self._wait_for_acknowledgement()

    def _wait_for_acknowledgement(self) -> None:
        packet: Puback | Pubrec | Pubcomp = self._wait_for(Puback, Pubrec, Pubcomp)
        if packet.reason_code >= 0x80:
            raise self._refused("a message", packet.reason_code, packet.properties)
        if isinstance(packet, Pubrec):
            self._send(Pubrel(packet.packet_id))
        elif packet.packet_id in self._unacknowledged:
            del self._unacknowledged[packet.packet_id]
            self._ids.release(packet.packet_id)

    # -- subscribing

    def subscribe(self, filters: Sequence[str], *, qos: int = 1, retain_handling: int = 0) -> None:
        """Subscribe to messages, which `receive` returns."""
        wanted = [Subscription(name, qos, retain_handling=retain_handling) for name in filters]
        self._send(Subscribe(1, wanted))
        answer: Suback = self._wait_for(Suback)
        for name, code in zip(filters, answer.reason_codes, strict=False):
            if code >= 0x80:
                raise self._refused(f"the subscription to {name}", code, answer.properties)

    def receive(self, timeout: float | None = None) -> Publish | None:
        """The next message, acknowledged; None if none comes in time."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            packet = self._next(until)
            if packet is None:
                return None
            if isinstance(packet, Publish):
                if packet.qos:
                    self._send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
                return packet
            if isinstance(packet, Pubrel):
                self._send(Pubcomp(packet.packet_id))

    # -- bytes

    def _send(self, packet: Packet) -> None:
        self._sent = time.monotonic()
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(encode(packet, MQTT_5_0, from_server=False))
        except OSError as error:
            raise self._lost(error) from None

    def _wait_for(self, *kinds: type) -> Any:
        """The next packet of a kind. Messages that come before it are kept for `receive`."""
        until = time.monotonic() + self._timeout
        others: list[Packet] = []
        try:
            while (packet := self._next(until)) is not None:
                if isinstance(packet, kinds):
                    return packet
                others.append(packet)
        finally:
            self._arrived.extendleft(reversed(others))
        raise NoServer(f"the broker at {self._where} didn't answer within {self._timeout:g} s")

    def _next(self, until: float | None) -> Packet | None:
        while not self._arrived:
            now = time.monotonic()
            wait = self._sent + KEEP_ALIVE / 2 - now
            if until is not None:
                wait = min(wait, until - now)
            try:
                self._socket.settimeout(max(wait, 0.001))
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                if until is not None and time.monotonic() >= until:
                    return None
                if time.monotonic() - self._sent >= KEEP_ALIVE / 2:
                    self._send(Pingreq())
                continue
            except OSError as error:
                raise self._lost(error) from None
            if not data:
                raise self._lost("it closed the connection" if self._greeted else _CLOSED_AT_ONCE)
            if not self._greeted and (hint := tls_hint(data)):
                raise self._lost(f"it {hint}: see --tls")
            self._greeted = True
            self._take(data)
        packet = self._arrived.popleft()
        if isinstance(packet, Disconnect):
            raise self._refused("the connection", packet.reason_code, packet.properties)
        return packet

    def _take(self, data: bytes) -> None:
        data = self._rest + data
        try:
            packets, end = decode_all(data, MQTT_5_0, packet_bytes_max=_PACKET_BYTES_MAX, from_server=True)
        except BadPacket as error:
            raise NoServer(f"what answers at {self._where} isn't an MQTT broker: {error}") from None
        self._arrived += packets
        self._rest = data[end:]

    def _lost(self, why: object) -> NoServer:
        return NoServer(f"the connection to the broker at {self._where} broke: {why}")

    def _refused(self, what: str, code: int, properties: Properties) -> Refused:
        try:
            named = ReasonCode(code).name.lower().replace("_", " ")
        except ValueError:
            named = f"reason {code}"
        why = properties.get("reason_string")
        return Refused(f"the broker at {self._where} refuses {what}: {named}{f' ({why})' if why else ''}")
