"""MQTT inside of WebSockets, and inside of TLS: real clients, and what a hostile one may try."""

from __future__ import annotations

import socket
import ssl

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from forelog.broker import Limits
from forelog.broker.mqtt.decode import decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
)
from tests.broker.local import Paho, certificate, local, until


@pytest.fixture
def here(tmp_path):
    with local(tmp_path / "log", limits=Limits(packet_bytes_max=100_000, connect_seconds=1.0)) as found:
        found.web = found.listen(websockets=True, origins=["https://good.example"])
        yield found


def packed(*packets) -> bytes:
    return b"".join(encode(packet, MQTT_5_0, from_server=False) for packet in packets)


def opened(here, path="/mqtt", **options):
    options.setdefault("subprotocols", ["mqtt"])
    return connect(f"ws://127.0.0.1:{here.web}{path}", compression=None, open_timeout=30, **options)


def packets_of(ws, count):
    """So many packets, whatever frames they come in."""
    data = b""
    found: list[Packet] = []
    while len(found) < count:
        part = ws.recv(timeout=30)
        assert isinstance(part, bytes)
        data += part
        found, _ = decode_all(data, MQTT_5_0, from_server=True)
    return found


@pytest.mark.parametrize("path", ["/mqtt", "/", "/mqtt?token=1"])
def test_a_client_connects_and_the_subprotocol_is_mqtt(here, path):
    """[MQTT-6.0.0-3], [MQTT-6.0.0-4]."""
    with opened(here, path) as ws:
        assert ws.subprotocol == "mqtt"
        ws.send(packed(Connect("w")))
        (answer,) = packets_of(ws, 1)
        assert isinstance(answer, Connack)
        assert answer.reason_code == 0


def test_packets_may_span_frames_and_frames_may_have_several_packets(here):
    """[MQTT-6.0.0-2]."""
    data = packed(Connect("w"), Subscribe(1, [Subscription("a", 1)]), Publish("a", b"x" * 300, 1, packet_id=1))
    with opened(here) as ws:
        for at in range(0, len(data), 7):
            ws.send(data[at : at + 7])
        found = packets_of(ws, 4)
        assert sorted(packet.type.name for packet in found) == ["CONNACK", "PUBACK", "PUBLISH", "SUBACK"]
        ws.send([data[0:0], packed(Pingreq()), packed(Pingreq(), Pingreq())])  # one message, in fragments
        assert [type(packet) for packet in packets_of(ws, 3)] == [Pingresp] * 3


def test_a_text_frame_closes_the_connection(here):
    """[MQTT-6.0.0-1]."""
    with opened(here) as ws:
        ws.send(packed(Connect("w")))
        packets_of(ws, 1)
        ws.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=30)
        assert closed.value.rcvd.code == 1003
    until(lambda: not here.broker.presence.connections)


def test_a_frame_that_is_too_large_closes_the_connection(here):
    with opened(here) as ws:
        ws.send(packed(Connect("w")))
        packets_of(ws, 1)
        ws.send(bytes(200_000))
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=30)
        assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/other", {}, 404),
        ("/mqtt", {"subprotocols": None}, 400),
        ("/mqtt", {"subprotocols": ["chat"]}, 400),
        ("/mqtt", {"origin": "https://evil.example"}, 403),
        ("/mqtt", {"origin": "https://localhost.evil.example"}, 403),
        ("/mqtt", {"origin": "https://[bad"}, 403),
    ],
)
def test_who_asks_for_something_else_is_turned_away(here, path, options, status):
    with pytest.raises(InvalidStatus) as refused:
        opened(here, path, **options)
    assert refused.value.response.status_code == status
    until(lambda: not here.broker.presence.connections)


@pytest.mark.parametrize("origin", ["https://good.example", "http://localhost:8000", "http://127.0.0.1"])
def test_pages_that_are_listed_or_of_this_machine_may_connect(here, origin):
    with opened(here, origin=origin) as ws:
        ws.send(packed(Connect("w")))
        assert packets_of(ws, 1)[0].reason_code == 0


def test_an_endless_handshake_ends(here):
    with socket.create_connection(("127.0.0.1", here.web), timeout=30) as raw:
        raw.sendall(b"GET /mqtt HTTP/1.1\r\n")
        with pytest.raises(OSError):  # noqa: PT011 - it is reset, or closed
            while True:
                raw.sendall(b"X-A: %s\r\n" % (b"a" * 4000))
                raw.settimeout(0.001)
                try:
                    if not raw.recv(100):
                        raise OSError("closed")
                except TimeoutError:
                    pass
                raw.settimeout(30)


def test_a_handshake_that_never_comes_is_given_up(here):
    with socket.create_connection(("127.0.0.1", here.web), timeout=30) as raw:
        raw.sendall(b"GET /mqtt HTTP/1.1\r\n")
        try:
            assert raw.recv(100) == b""
        except ConnectionError:
            pass
    with opened(here) as ws, pytest.raises(ConnectionClosed):
        ws.recv(timeout=30)  # and so is one who shakes hands and says nothing


@pytest.mark.parametrize("data", [b"\0" * 100, b"\x10" * 1000, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 50])
def test_bytes_that_are_no_handshake_harm_nobody(here, data):
    with socket.create_connection(("127.0.0.1", here.web), timeout=30) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        with pytest.raises((ConnectionError, EOFError)):
            while raw.recv(1000):
                pass
            raise EOFError
    until(lambda: not here.broker.presence.connections)
    with opened(here) as ws:
        ws.send(packed(Connect("w")))
        assert packets_of(ws, 1)[0].reason_code == 0


def test_what_is_said_after_a_goodbye_is_said_with_a_close_frame(here):
    with opened(here) as ws:
        ws.send(packed(Connect("w")))
        packets_of(ws, 1)
        ws.send(packed(Connect("w")))  # a second one is against the rules
        assert packets_of(ws, 1)[0].reason_code == 0x82
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=30)
        assert closed.value.rcvd.code == 1000


def test_paho_over_websockets_gets_what_others_publish(here):
    mine = Paho(here.web, transport="websockets", path="/mqtt")
    other = Paho(here.port)
    mine.subscribe("a/#")
    for i in range(200):
        other.publish("a/b", b"%d" % i)
    large = b"x" * 90_000
    mine.publish("a/c", large, qos=2)
    until(lambda: len(mine.messages) == 201)
    assert [payload for _, payload, _ in mine.messages] == [*(b"%d" % i for i in range(200)), large]
    mine.close()
    other.close()


def test_a_reader_that_doesnt_read_falls_behind_and_gets_everything_later(here):
    with opened(here) as ws:
        ws.send(packed(Connect("w"), Subscribe(1, [Subscription("a", 0)])))
        packets_of(ws, 2)
        publisher = here.client()
        for _ in range(200):
            publisher.publish("a", bytes(90_000))
        publisher.flush()
        assert sum(len(packet.payload) for packet in packets_of(ws, 200)) == 200 * 90_000


def test_tls_over_tcp_and_websockets(tmp_path, here):
    crt, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(crt, key)
    trusting = ssl.create_default_context(cafile=str(crt))
    secure, secure_web = here.listen(context), here.listen(context, websockets=True)
    ours = here.client(port=secure, tls=trusting)
    theirs = Paho(secure_web, transport="websockets", path="/mqtt", tls=trusting)
    plain = Paho(secure, tls=trusting)
    for client in (theirs, plain):
        client.subscribe("a")
    ours.publish("a", b"1" * 50_000)
    ours.flush()
    until(lambda: theirs.messages and plain.messages)
    assert theirs.messages == plain.messages == [("a", b"1" * 50_000, False)]
    theirs.close()
    plain.close()
    with socket.create_connection(("127.0.0.1", secure), timeout=30) as raw:  # who speaks no TLS
        raw.sendall(packed(Connect("w")))
        with pytest.raises((ConnectionError, EOFError)):
            while raw.recv(1000):
                pass
            raise EOFError
