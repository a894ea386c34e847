"""Connections that aren't in yet, half packets, and clients that don't read: they cost others nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
import unittest.mock
from collections.abc import Callable

import pytest
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_web
from websockets.typing import Subprotocol

from forelog.broker import Access, Limits
from forelog.broker.access.passwords import Password
from forelog.broker.connections.joined import Joined
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Properties,
    Publish,
    Subscribe,
    Subscription,
)
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.local import Local, certificate, local, until
from tests.broker.serving import served
from tests.broker.talking import Closed, Talk

MB = 1 << 20
ELSEWHERE = "127.0.0.2"
"""An address that isn't the other clients'."""
MQTT = Subprotocol("mqtt")


def packed(*packets) -> bytes:
    return b"".join(encode(packet, MQTT_5_0, from_server=False) for packet in packets)


def unfinished(first: int, size: int) -> bytes:
    """A packet's first byte and its length, which promise so many bytes."""
    length = bytearray()
    while True:
        byte, size = size & 0x7F, size >> 7
        length.append(byte | (0x80 if size else 0))
        if not size:
            return bytes((first, *length))


def opened(port: int, address: str = "127.0.0.1") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(address, 0))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it; what it said is dropped."""
    connection.settimeout(0.02)
    try:
        while connection.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def drip(connection: socket.socket, data: bytes, seconds: float = 60.0) -> None:
    """A byte now and then, until the other side closes."""
    deadline = time.monotonic() + seconds
    for at in range(10**9):
        with contextlib.suppress(OSError):
            connection.sendall(data[at % len(data) :][:1])
        if is_closed(connection):
            return
        assert time.monotonic() < deadline, "a byte now and then keeps a connection"


@pytest.fixture
def secure(tmp_path):
    crt, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(crt, key)
    return context, ssl.create_default_context(cafile=str(crt))


# -- before CONNECT


def test_unfinished_connects_of_16_mb_cost_nothing(tmp_path):
    with served(tmp_path / "log") as broker, contextlib.ExitStack() as opened_ones:
        with Talk(broker.port) as client:
            client.connect()
        before = broker.rss_bytes()
        for _ in range(20):
            one = opened_ones.enter_context(opened(broker.port))
            with contextlib.suppress(OSError):
                one.sendall(unfinished(0x10, 16 * MB - 100) + b"\0\4MQTT\5" + bytes(15 * MB))
        assert broker.rss_bytes() - before < 40 * MB


def test_a_connect_that_is_too_large_is_told_so_before_it_has_come(tmp_path):
    with local(tmp_path / "log", limits=Limits(connect_bytes_max=1000)) as here:
        with Talk(here.port) as client:
            client.raw(unfinished(0x10, 5000) + b"\0\4MQTT\5")
            assert client.expect(Connack).reason_code == ReasonCode.PACKET_TOO_LARGE
        with Talk(here.port) as client:
            assert client.connect("x" * 900).reason_code == 0
        with Talk(here.port, MQTT_3_1_1) as client:
            client.raw(unfinished(0x10, 5000) + b"\0\4MQTT\4")
            assert client.end() is None


@pytest.mark.parametrize("kind", ["plain", "tls", "after tls", "web", "after web"])
def test_a_byte_now_and_then_does_not_move_the_deadline(tmp_path, secure, kind):
    """The time before CONNECT counts from accepting the socket, handshakes included."""
    connect = packed(Connect("slow", user_name="x" * 60_000))
    with local(tmp_path / "log", limits=Limits(connect_seconds=1.0)) as here:
        ours, theirs = secure
        port = here.listen(ours if "tls" in kind else None, websockets="web" in kind)
        with contextlib.ExitStack() as stack:
            if kind == "after web":
                client = stack.enter_context(connect_web(f"ws://127.0.0.1:{port}/mqtt", subprotocols=[MQTT]))
                with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the library makes of it
                    for at in range(600):
                        client.send(connect[at : at + 1])
                        time.sleep(0.05)
                return
            raw = stack.enter_context(opened(port))
            if kind == "after tls":
                raw = stack.enter_context(theirs.wrap_socket(raw, server_hostname="localhost"))
            hello = {
                "tls": b"\x16\x03\x01\x20\x00" + bytes(9000),
                "web": b"GET /mqtt HTTP/1.1\r\nX: " + b"x" * 9000,
            }
            drip(raw, hello.get(kind, connect))
        until(lambda: not len(here.broker.admission))


@pytest.mark.parametrize("kind", ["plain", "tls", "web"])
def test_silent_connections_keep_nobody_out(tmp_path, secure, kind):
    """The one that has waited longest gives way, of the address that has most."""
    limits = Limits(unconnected_max=10, clients_max=5, connect_seconds=600)
    with local(tmp_path / "log", limits=limits) as here, contextlib.ExitStack() as stack:
        ours, _ = secure
        port = here.listen(ours if kind == "tls" else None, websockets=kind == "web")
        waiting = stack.enter_context(opened(here.port))
        silent = [stack.enter_context(opened(port, ELSEWHERE)) for _ in range(40)]
        until(lambda: here.broker.admission.turned_away >= 31)
        assert len(here.broker.admission) <= 10
        assert sum(map(is_closed, silent)) >= 31
        waiting.sendall(packed(Connect("patient")))
        assert waiting.recv(4)[0] == 0x20, "an address that has one connection keeps it"
        with Talk(here.port) as client:
            assert client.connect("quick").reason_code == 0


def test_one_address_has_no_more_than_its_share(tmp_path):
    limits = Limits(unconnected_per_address_max=3, connect_seconds=600)
    with local(tmp_path / "log", limits=limits) as here, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(opened(here.port, ELSEWHERE)) for _ in range(6)]
        until(lambda: here.broker.admission.turned_away == 3)
        until(lambda: [is_closed(one) for one in silent] == [True] * 3 + [False] * 3)
        assert len(here.broker.admission) == 3


def test_what_those_who_are_not_in_have_sent_is_bounded_together(tmp_path):
    limits = Limits(unconnected_bytes_max=200_000, connect_seconds=600)
    with local(tmp_path / "log", limits=limits) as here, contextlib.ExitStack() as stack:
        patient = stack.enter_context(opened(here.port))
        patient.sendall(packed(Connect("patient"))[:5])
        for _ in range(20):
            one = stack.enter_context(opened(here.port, ELSEWHERE))
            one.sendall(unfinished(0x10, 60_000) + bytes(50_000))
            until(lambda: here.broker.admission.pending_bytes <= 200_000)
        until(lambda: here.broker.admission.turned_away >= 16)
        patient.sendall(packed(Connect("patient"))[5:])
        assert patient.recv(4)[0] == 0x20


def test_clients_that_are_in_are_counted_apart(tmp_path):
    with local(tmp_path / "log", limits=Limits(clients_max=2)) as here, contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(opened(here.port))
        first, second = (stack.enter_context(Talk(here.port)) for _ in range(2))
        assert first.connect("first").reason_code == second.connect("second").reason_code == 0
        for version, reason in ((MQTT_5_0, ReasonCode.SERVER_BUSY), (MQTT_3_1_1, ReasonCode.SERVER_UNAVAILABLE)):
            third = stack.enter_context(Talk(here.port, version))
            assert third.connect("third").reason_code == reason
        again = stack.enter_context(Talk(here.port))
        assert again.connect("first").reason_code == 0, "who takes its own session over is no client more"


def test_what_comes_while_a_password_is_checked_is_bounded(tmp_path, monkeypatch):
    """A client that sends on before it is known to anybody isn't read from."""
    users, asked, checked = tmp_path / "users", threading.Event(), threading.Event()
    users.write_text(f"ann:{Password.of(b'secret')}\n")
    works = Password.is_of

    def is_of(self, tried):
        asked.set()
        return checked.wait(60) and works(self, tried)

    monkeypatch.setattr(Password, "is_of", is_of)
    limits = Limits(connect_seconds=0.5)
    access = Access(users=str(users))
    with local(tmp_path / "log", limits=limits, access=access) as here:  # noqa: SIM117
        with opened(here.port) as client:
            client.sendall(packed(Connect("c", user_name="ann", password=b"secret")))
            assert asked.wait(60)
            client.setblocking(False)
            sent, message = 0, packed(Publish("t", bytes(10_000))) * 10
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                try:
                    sent += client.send(message[sent % len(message) :])
                except BlockingIOError:
                    time.sleep(0.01)
            assert here.broker.admission.pending_bytes <= 512 << 10
            checked.set()
            client.setblocking(True)
            assert client.recv(4)[0] == 0x20, "its time has run out on our side only"


# -- half packets


def test_half_packets_are_bounded_together_and_the_one_who_has_most_goes(tmp_path):
    limits = Limits(partial_bytes_max=3 * MB, packet_bytes_max=MB)
    with local(tmp_path / "log", limits=limits) as here, contextlib.ExitStack() as stack:
        mine = stack.enter_context(Talk(here.port))
        mine.connect("mine")
        mine.raw(packed(Publish("t", bytes(900_000)))[:600_000])
        hogs = []
        for number in range(12):
            hog = stack.enter_context(opened(here.port, ELSEWHERE))
            hog.sendall(packed(Connect(f"hog{number}")))
            assert hog.recv(100)[0] == 0x20
            hog.sendall(packed(Publish("t", bytes(900_000)))[:800_000])
            hogs.append(hog)
        until(lambda: sum(map(is_closed, hogs)) >= 9)
        assert here.broker.buffers.partial.total <= 3 * MB
        mine.raw(packed(Publish("t", bytes(900_000)))[600_000:])
        assert mine.drain() == []
        until(lambda: here.broker.intake.messages == 1)


@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_a_packet_that_is_no_message_is_small(tmp_path, first):
    with local(tmp_path / "log") as here, Talk(here.port) as client:
        client.connect()
        client.raw(unfinished(first, 1_000_000))
        assert client.expect(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE


def test_properties_are_few(tmp_path):
    with local(tmp_path / "log") as here:
        many: Properties = {"user_properties": [("", "")] * 20_000}
        with Talk(here.port) as client:
            client.connect()
            client.send(Publish("t", b"", properties=many))
            assert client.expect(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE
        with Talk(here.port) as client:
            client.connect()
            assert client.publish("t", b"", 1, properties={"user_properties": [("", "")] * 10_000}) == 0


# -- clients that don't read


def unread(here: Local, port: int, name: str, address: str = ELSEWHERE) -> socket.socket:
    """A subscriber that reads nothing, with little room in its socket."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.bind((address, 0))
    found.connect(("127.0.0.1", port))
    found.sendall(packed(Connect(name), Subscribe(1, [Subscription("t", 0)])))
    until(lambda: name in here.broker.store.sessions and len(here.broker.routes))
    return found


def test_what_waits_for_all_sockets_is_bounded_and_nobody_misses_a_message(tmp_path):
    limits = Limits(out_total_bytes_max=6 * MB, out_bytes_max=MB)
    with local(tmp_path / "log", limits=limits) as here, contextlib.ExitStack() as stack:
        reader = stack.enter_context(Talk(here.port))
        reader.connect("reader")
        reader.subscribe("t", qos=0)
        for number in range(30):
            stack.enter_context(unread(here, here.port, f"lazy{number}"))
        publisher = stack.enter_context(Talk(here.port))
        publisher.connect("publisher")
        most = 0
        for _ in range(60):
            publisher.publish("t", bytes(500_000), qos=1)
            most = max(most, here.do(lambda: here.broker.buffers.unsent.total))
        assert most <= 6 * MB
        assert sum(len(payload) for _, payload in reader.messages(60)) == 60 * 500_000


class Wire:
    """What a transport was given, and what of it waits."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.waiting = 0
        self.later: list[Callable[[], None]] = []

    def write(self, data: bytes | bytearray) -> int:
        if data:
            self.pieces.append(bytes(data))
        return self.waiting

    def call_later(self, _seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        self.later.append(action)
        return unittest.mock.Mock(cancel=lambda: self.later.remove(action))

    def look(self) -> None:
        for action in self.later[:]:
            self.later.remove(action)
            action()


def test_small_replies_that_wait_are_joined():
    """A transport keeps each piece apart: a million of two bytes took a hundred times as much memory."""
    wire = Wire()
    joined = Joined(wire, wire.write)  # type: ignore[arg-type]
    joined.send(b"first", wire.waiting)
    assert wire.pieces == [b"first"], "nothing waits for an empty socket"
    wire.waiting = 5
    for number in range(10_000):
        joined.send(b"%05d" % number, wire.waiting)
        assert len(joined) < 4096
    wire.look()
    joined.send(b"x" * 2000, wire.waiting)
    joined.send(b"last", wire.waiting)
    assert len(wire.pieces) < 20
    assert len(wire.later) == 1
    wire.look()
    assert len(joined) == 4
    wire.waiting = 0
    wire.look()
    assert not joined
    assert not wire.later
    assert b"".join(wire.pieces) == b"first" + b"".join(b"%05d" % n for n in range(10_000)) + b"x" * 2000 + b"last"


def test_a_million_pings_are_answered_in_no_time(tmp_path):
    """40 MB of them kept the broker busy for a minute."""
    with local(tmp_path / "log") as here, Talk(here.port) as client:
        client.connect("c")
        worked = here.do(time.thread_time)
        left = 2_000_000
        for _ in range(20):
            client.raw(b"\xc0\x00" * 50_000)
            left -= len(client.socket.recv(1 << 20))
        while left:
            left -= len(client.socket.recv(1 << 20))
        assert here.do(time.thread_time) - worked < 2, "one by one they take ten"


def test_pings_of_a_web_client_that_does_not_read_are_not_answered_for_ever(tmp_path):
    with local(tmp_path / "log", limits=Limits(out_bytes_max=10_000)) as here:
        port = here.listen(websockets=True)
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", port))
            raw.sendall(
                b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
            )
            assert b"101" in raw.recv(1000)
            connect = packed(Connect("web"))
            raw.sendall(bytes((0x82, 0x80 | len(connect), 0, 0, 0, 0)) + connect)
            until(lambda: "web" in here.broker.store.sessions)
            ping = (bytes((0x89, 0x80 | 125, 0, 0, 0, 0)) + bytes(125)) * 100
            raw.setblocking(False)
            sent, quiet = 0, 0
            while quiet < 100 and sent < 100 * MB:
                try:
                    sent += raw.send(ping[sent % len(ping) :])
                    quiet = 0
                except BlockingIOError:
                    quiet += 1
                    time.sleep(0.01)
            assert quiet == 100, f"{sent} bytes were taken"
            assert here.do(lambda: here.broker.buffers.unsent.total) < 200_000
            raw.setblocking(True)
            raw.settimeout(60)
            got = 0
            while got < sent // 131 * 127 - 10_000:
                got += len(raw.recv(1 << 20))


# -- WebSockets before a password


def shaken(port: int, *headers: bytes) -> bytes:
    with opened(port) as raw:
        raw.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n" + b"".join(header + b"\r\n" for header in headers) + b"\r\n"
        )
        try:
            return raw.recv(1000).partition(b"\r\n")[0]
        except OSError:
            return b"reset"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([b"Origin: https://evil.example", b"Origin: http://localhost"], b"403"),
        ([b"Origin: http://localhost", b"Origin: http://localhost"], b"400"),
        ([b"Origin: \xff\xfe"], b"403"),
        ([b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="], b"400"),
        ([b"Sec-WebSocket-Version: 13"], b"400"),
        ([b"Sec-WebSocket-Protocol: \xff"], b"400"),
        ([b"Sec-WebSocket-Extensions: permessage-deflate; =;"], b""),
        ([b"Host: y", b"Upgrade: h2c", b"Connection: close"], b""),
        ([b"X-%d: y" % number for number in range(1000)], b""),
        ([b"X: " + b"y" * 12_000], b""),
        ([b"no colon"], b""),
    ],
)
def test_odd_headers_are_refused_without_a_traceback(tmp_path, caplog, headers, status):
    with local(tmp_path / "log") as here, caplog.at_level(logging.DEBUG):
        port = here.listen(websockets=True)
        assert status in shaken(port, *headers)
        assert shaken(port).split()[1] == b"101"
    assert not [record for record in caplog.records if record.exc_info]


def test_a_large_frame_before_connect_is_refused_before_it_has_come(tmp_path):
    with local(tmp_path / "log") as here:
        port = here.listen(websockets=True)
        with connect_web(f"ws://127.0.0.1:{port}/mqtt", subprotocols=[MQTT]) as client:
            client.socket.sendall(bytes((0x82, 0x80 | 127)) + (16 * MB).to_bytes(8, "big") + bytes(4))
            with pytest.raises(Exception, match="1009"):
                client.recv(timeout=60)


def received(web: ClientConnection) -> bytes:
    part = web.recv(timeout=60)
    assert isinstance(part, bytes)
    return part


def test_small_frames_let_others_have_their_turn(tmp_path):
    with local(tmp_path / "log") as here:
        port = here.listen(websockets=True)
        with connect_web(f"ws://127.0.0.1:{port}/mqtt", subprotocols=[MQTT]) as client:
            client.send(packed(Connect("web")))
            assert client.recv(timeout=60)[0] == 0x20
            data = packed(*(Pingreq() for _ in range(30_000)))
            client.socket.sendall(b"".join(bytes((0x82, 0x81, 0, 0, 0, 0, byte)) for byte in data))
            got = b""
            while len(got) < len(data):
                got += received(client)
            assert got == b"\xd0\x00" * 30_000


def test_a_password_in_a_frame_is_logged_at_no_level(tmp_path, caplog):
    with local(tmp_path / "log") as here, caplog.at_level(1):
        port = here.listen(websockets=True)
        with connect_web(
            f"ws://127.0.0.1:{port}/mqtt", subprotocols=[MQTT], logger=logging.Logger("x", 99)
        ) as web:
            web.send(packed(Connect("web", user_name="ann", password=b"hunter2")))
            web.recv(timeout=60)
    assert "hunter2" not in caplog.text


# -- reasons


@pytest.mark.parametrize("kind", ["plain", "tls", "web"])
def test_a_client_that_is_still_sending_reads_why_it_is_disconnected(tmp_path, secure, kind):
    wrong = packed(Connect("c"), Connect("c"))  # a second one is against the rules
    more = packed(Publish("t", bytes(100_000)))
    ours, theirs = secure
    with local(tmp_path / "log") as here:
        port = here.listen(ours if kind == "tls" else None, websockets=kind == "web")
        if kind == "web":
            with connect_web(f"ws://127.0.0.1:{port}/mqtt", subprotocols=[MQTT]) as web:
                web.send(wrong)
                with contextlib.suppress(Exception):
                    for _ in range(20):
                        web.send(more)
                got = received(web)
                while b"\xe0" not in got:
                    got += received(web)
            return
        with opened(port) as raw:
            client = raw if kind == "plain" else theirs.wrap_socket(raw, server_hostname="localhost")
            client.sendall(wrong)
            for _ in range(80):
                client.sendall(more)
            got = b""
            while b"\xe0" not in got:
                part = client.recv(1000)
                assert part, "the reason was never read"
                got += part
            client.close()
        until(lambda: not here.broker.admission.lingering)


def test_a_refused_connect_is_read_by_a_client_that_sends_on(tmp_path):
    with local(tmp_path / "log", limits=Limits(clients_max=1)) as here, Talk(here.port) as first:
        first.connect()
        for version in (MQTT_5_0, MQTT_3_1_1):
            with Talk(here.port, version) as client:
                message = encode(Publish("t", bytes(100_000)), version, from_server=False)
                client.raw(encode(Connect("c", version), version, from_server=False) + message * 50)
                assert client.expect(Connack).reason_code >= 0x80


def test_lingering_ends(tmp_path):
    """By time, and by bytes, whatever the client does."""
    limits = Limits(linger_seconds=0.2, linger_bytes_max=MB)
    with local(tmp_path / "log", limits=limits) as here, opened(here.port) as client:
        client.sendall(packed(Connect("c"), Connect("c")))
        until(lambda: not here.broker.admission.lingering and not here.broker.presence.connections)
        until(lambda: is_closed(client))
    with local(tmp_path / "log", limits=Limits(linger_seconds=600, linger_bytes_max=MB)) as here:
        with opened(here.port) as client, pytest.raises(OSError):  # noqa: PT011 - a reset, or a broken pipe
            client.sendall(packed(Connect("c"), Connect("c")))
            for _ in range(1000):
                client.sendall(bytes(MB))
        until(lambda: not here.broker.admission.lingering)


def test_a_client_that_never_reads_its_goodbye_is_gone_all_the_same(tmp_path):
    with local(tmp_path / "log", limits=Limits(linger_seconds=0.3)) as here:  # noqa: SIM117
        with unread(here, here.port, "lazy") as lazy:
            with Talk(here.port) as publisher:
                publisher.connect()
                for _ in range(500):
                    publisher.publish("t", bytes(10_000), qos=1)
            lazy.sendall(packed(Disconnect()))
            until(lambda: here.do(lambda: not here.broker.presence.connections))
            with pytest.raises((Closed, OSError)):
                while lazy.recv(MB):
                    pass
                raise Closed
