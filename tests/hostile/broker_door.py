"""Clients that never get in, or that make getting in expensive: before CONNECT is answered."""

from __future__ import annotations

import base64
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from forelog.broker.mqtt.packets import MQTT_5_0, Connect, Pingreq, Publish, Will
from tests.hostile.attacks import attack
from tests.hostile.servers import certificate
from tests.hostile.site import Site, Unmet, packet, pieces

MIB = 1 << 20
DOOR_SECONDS = 10
"""For a CONNECT, from when the connection was accepted."""


def head(kind: int, remaining: int) -> bytes:
    """A packet's first bytes, which promise so many more."""
    out = bytearray([kind])
    while True:
        out.append(remaining % 128 | (0x80 if remaining >= 128 else 0))
        remaining //= 128
        if not remaining:
            return bytes(out)


def still_open(site: Site, some: Sequence[socket.socket], seconds: float) -> int:
    """How many of these the server hasn't ended after so many seconds more."""
    until = time.monotonic() + seconds
    return sum(not site.is_closed(one, max(0.005, until - time.monotonic())) for one in some)


def must_end(site: Site, some: Sequence[socket.socket], seconds: float, what: str) -> None:
    if left := still_open(site, some, seconds):
        raise Unmet(f"{left} of {len(some)} connections are still open: {what}")


# -- plain sockets


@attack("broker half-connects", memory_mib=16, left_mib=12, short=0.5)
def half_connects(site: Site) -> None:
    """20 connections, each with a CONNECT of 16 MiB of which the last byte never comes."""
    start = head(0x10, 16 * MIB - 5)
    data = start + bytes(16 * MIB - 5 - len(start) - 1)
    site.pump({site.dial(): data for _ in range(site.many(20))}, seconds=15)


@attack("broker trickled-connects", memory_mib=16, left_mib=12)
def trickled_connects(site: Site) -> None:
    """300 connections that send a byte of their CONNECT now and then, for longer than a CONNECT may take."""
    whole = packet(Connect("trickle" * 20, MQTT_5_0))
    some = [site.dial() for _ in range(300)]
    alive = list(some)
    for at in range(14):
        alive = [one for one in alive if site.send(one, whole[at : at + 1])]
        site.settle(1)
    must_end(site, some, 2, f"a byte a second keeps a connection for longer than {DOOR_SECONDS} s")


@attack("broker trickled-connects-mid", memory_mib=16, left_mib=12)
def trickled_big(site: Site) -> None:
    """100 connections with the begin of a CONNECT of 60 kB, then a byte now and then."""
    start = head(0x10, 60_000) + b"\x00\x04MQTT\x05\x00\x00\x00\x00" + bytes(30_000)
    some = [site.dial() for _ in range(100)]
    for one in some:
        site.send(one, start)
    for _ in range(13):
        for one in some:
            site.send(one, b"\x00")
        site.settle(1)
    must_end(site, some, 2, f"a byte a second keeps a connection for longer than {DOOR_SECONDS} s")


@attack("broker silent-connections", memory_mib=48, left_mib=24)
def silent(site: Site) -> None:
    """3,000 connections that never say anything."""
    some = [site.dial() for _ in range(site.many(3000))]
    must_end(site, some, DOOR_SECONDS + 4, "a connection without a CONNECT ends after 10 s")


@attack("broker connect-properties-bomb", memory_mib=32, left_mib=24, short=0.5)
def connect_bomb(site: Site) -> None:
    """10 CONNECTs of 4 MiB each, full of user properties of 7 bytes."""
    pair = b"\x26\x00\x01a\x00\x01b"
    count = 600_000
    size = len(pair) * count
    properties = head(0, size)[1:] + pair * count
    body = b"\x00\x04MQTT\x05\x02\x00\x00" + properties + b"\x00\x04bomb"
    data = head(0x10, len(body)) + body
    site.pump({site.dial(): data for _ in range(site.many(10))}, quiet=0.5, seconds=20)


@attack("broker big-wills", memory_mib=64, left_mib=24)
def big_wills(site: Site) -> None:
    """30 CONNECTs with a will of nearly 64 KiB, and as many that claim one of 16 MiB in their properties."""
    for number in range(30):
        will = Will("will/x", bytes(65_000), 1, True, {"will_delay_interval": 3600})
        one = site.dial()
        site.send(one, packet(Connect(f"w{number}", will=will, properties={"session_expiry_interval": 3600})))
    body = b"\x00\x04MQTT\x05\x06\x00\x00\x00" + bytes(15 * MIB)
    site.pump({site.dial(): head(0x10, 16 * MIB - 5) + body for _ in range(site.many(10))}, seconds=10)


def little_for_sessions(_: Path) -> Sequence[str]:
    """Of which one address gets half. Sessions may take 1 GiB, if nothing else is said."""
    return ("--limit", f"sessions_bytes_max={64 * MIB}")


@attack("broker delayed-wills", flags=little_for_sessions, memory_mib=64, left_mib=48, disk_mib=16)
def delayed_wills(site: Site) -> None:
    """3,000 clients leave wills of 60 kB that are to be published in an hour, and go without a word."""
    will = Will("will/x", bytes(60_000), 1, True, {"will_delay_interval": 3600})
    for number in range(site.many(3000)):
        one = site.dial()
        connect = Connect(f"dw{number}", will=will, properties={"session_expiry_interval": 7200})
        if not site.send(one, packet(connect)) or site.left() < 0:
            break
        one.settimeout(10)
        try:
            one.recv(4096)
        except OSError:
            break
        site.drop(one)


@attack("broker connect-storm", memory_mib=32, short=0.2)
def connect_storm(site: Site) -> None:
    """5,000 clients that connect and disconnect at once, each under a name of its own."""
    for batch in range(site.many(50)):
        for one in site.mqtt_many(100, f"storm{batch}-"):
            site.drop(one)


@attack("broker accept-storm", memory_mib=32)
def accept_storm(site: Site) -> None:
    """10,000 connections that end as soon as they are there."""
    for _ in range(site.many(10_000)):
        site.drop(site.dial())


@attack("broker no-mqtt", memory_mib=16)
def no_mqtt(site: Site) -> None:
    """Whatever else speaks at that port: HTTP, TLS, random bytes, packets that are no CONNECT."""
    junk = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
        os.urandom(4000),
        packet(Publish("a", b"b")),
        packet(Pingreq()),
        head(0x10, 268_435_455) + b"\x00\x04MQTT\x05",
        b"\x10\xff\xff\xff\xff\xff",
        head(0x10, 12) + b"\x00\x04MQTT\x09\x02\x00\x00\x00\x00",
        head(0x10, 2) + b"\xff\xff",
    ]
    some = []
    for number in range(site.many(900)):
        one = site.dial()
        site.send(one, junk[number % len(junk)])
        some.append(one)
    must_end(site, some, DOOR_SECONDS + 3, "what is no CONNECT ends the connection")


@attack("broker partial-publishes", memory_mib=192, left_mib=64, seconds=60)
def partial_publishes(site: Site) -> None:
    """1,000 clients, each with the first MiB of a PUBLISH of 16 MiB."""
    some = site.mqtt_many(site.many(1000), "partial")
    start = head(0x30, 16 * MIB - 10) + b"\x00\x03a/b\x00"
    site.pump({one: start + bytes(MIB) for one in some}, seconds=30)
    site.settle(1)


@attack("broker partial-everything", memory_mib=192, left_mib=64, seconds=60)
def partial_everything(site: Site) -> None:
    """200 clients, each with half of a SUBSCRIBE, UNSUBSCRIBE or DISCONNECT of 8 MiB."""
    some = site.mqtt_many(200, "part")
    kinds = (0x82, 0xA2, 0xE0, 0x32)
    work = {
        one: head(kinds[number % 4], 8 * MIB) + b"\x00\x05\x00" + bytes(4 * MIB) for number, one in enumerate(some)
    }
    site.pump(work, seconds=30)
    site.settle(1)


@attack("broker byte-at-a-time", memory_mib=16, short=0.5)
def byte_at_a_time(site: Site) -> None:
    """20 clients whose messages come a byte at a time, 100,000 bytes in all."""
    some = site.mqtt_many(20, "slow")
    data = packet(Publish("slow/a", bytes(200))) * 24
    site.pump({one: pieces(data, 1) for one in some}, seconds=25)


@attack("broker byte-of-a-large-one", memory_mib=48)
def byte_of_a_large_one(site: Site) -> None:
    """A PUBLISH of 16 MiB whose first 15 MiB come at once, and 20,000 of the rest one by one."""
    (one,) = site.mqtt_many(1, "large")
    site.pump({one: head(0x30, 16 * MIB - 10) + b"\x00\x03a/b\x00" + bytes(15 * MIB)}, seconds=20)
    site.pump({one: pieces(bytes(20_000), 1)}, seconds=15)


# -- TLS and WebSockets


def with_tls(folder: Path) -> Sequence[str]:
    crt, key = certificate(folder)
    return ("--listen-tls", "127.0.0.1:0", "--tls-cert", str(crt), "--tls-key", str(key))


def with_websockets(_: Path) -> Sequence[str]:
    return ("--listen-ws", "127.0.0.1:0")


def second_port(site: Site) -> int:
    return next(port for name, port in site.server.ports.items() if name != "MQTT")


def upgrade(more: bytes = b"") -> bytes:
    key = base64.b64encode(os.urandom(16))
    return (
        b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: " + key + b"\r\n" + more
    )


def frame(data: bytes, opcode: int = 2, *, fin: bool = True) -> bytes:
    """A WebSocket frame of a client, masked with zeros."""
    first = (0x80 if fin else 0) | opcode
    if len(data) < 126:
        start = bytes([first, 0x80 | len(data)])
    elif len(data) < 65_536:
        start = bytes([first, 0x80 | 126]) + struct.pack(">H", len(data))
    else:
        start = bytes([first, 0x80 | 127]) + struct.pack(">Q", len(data))
    return start + bytes(4) + data


def websocket(site: Site, client_id: str = "ws", *, receive_bytes: int = 0) -> socket.socket:
    """A client behind a WebSocket, let in."""
    one = site.dial(port=second_port(site), receive_bytes=receive_bytes)
    site.send(one, upgrade() + b"\r\n")
    if not one.recv(4096).startswith(b"HTTP/1.1 101"):
        raise Unmet("a WebSocket isn't accepted")
    site.send(one, frame(packet(Connect(client_id))))
    one.recv(4096)
    return one


@attack("broker tls-loris", flags=with_tls, ports=2, memory_mib=48, left_mib=32)
def tls_loris(site: Site) -> None:
    """300 connections at the TLS port, with a byte of a ClientHello now and then."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    some = [site.dial(port=second_port(site)) for _ in range(300)]
    for at in range(15):
        for one in some:
            site.send(one, hello[at : at + 1])
        site.settle(1)
    must_end(site, some, 3, "a TLS handshake that doesn't end is given up after 10 s, as a CONNECT is")


@attack("broker tls-handshakes", flags=with_tls, ports=2, memory_mib=64, left_mib=64)
def tls_handshakes(site: Site) -> None:
    """1,000 TLS handshakes, each whole, then silence or a half CONNECT."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    some = []
    for number in range(site.many(1000)):
        raw = site.dial(port=second_port(site))
        try:
            one = context.wrap_socket(raw)
        except (OSError, ssl.SSLError):
            continue
        site._open.append(one)
        site.sent += 600
        if number % 2:
            one.sendall(head(0x10, 60_000) + b"\x00\x04MQTT")
        some.append(one)
    must_end(site, some, DOOR_SECONDS + 4, "after a TLS handshake a CONNECT must come within 10 s")


@attack("broker ws-loris", flags=with_websockets, ports=2, memory_mib=32)
def ws_loris(site: Site) -> None:
    """300 WebSocket handshakes of which a byte comes now and then."""
    data = upgrade()
    some = [site.dial(port=second_port(site)) for _ in range(300)]
    for at in range(14):
        for one in some:
            site.send(one, data[at : at + 1])
        site.settle(1)
    must_end(site, some, 3, f"a handshake that doesn't end is given up after {DOOR_SECONDS} s")


@attack("broker ws-connect-loris", flags=with_websockets, ports=2, memory_mib=32)
def ws_connect_loris(site: Site) -> None:
    """200 WebSockets that are open, and send a byte of a CONNECT now and then, and pings."""
    some = []
    for _ in range(200):
        one = site.dial(port=second_port(site))
        site.send(one, upgrade() + b"\r\n")
        some.append(one)
    data = packet(Connect("ws-trickle" * 10))
    for at in range(14):
        for one in some:
            site.send(one, frame(data[at : at + 1]) + frame(b"", 9))
        site.settle(1)
    must_end(site, some, 3, f"a CONNECT must come within {DOOR_SECONDS} s, inside of a WebSocket too")


@attack("broker ws-headers", flags=with_websockets, ports=2, memory_mib=32)
def ws_headers(site: Site) -> None:
    """Handshakes that make no sense: two of each header, long ones, many, other verbs, other paths."""
    some = []
    for more in (
        b"Origin: http://a\r\nOrigin: http://b\r\n",
        b"Host: x\r\nHost: y\r\n",
        b"Sec-WebSocket-Key: AAAA\r\n",
        b"Sec-WebSocket-Version: 12\r\n",
        b"Upgrade: h2c\r\nConnection: close\r\n",
        b"Sec-WebSocket-Protocol: mqtt\r\n",
        b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99\r\n" * 2,
        b"Origin: http://[::1\r\n",
        b"Origin: \xff\xfe\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        b"X: " + b"x" * 8000 + b"\r\n",
        b"X: y\r\n" * 1000,
        b" folded\r\n",
        b": no name\r\n",
        b"\0: zero\r\n",
    ):
        for start in (upgrade(more), b"POST / HTTP/1.1\r\n" + more, b"GET /\xff HTTP/9\r\n" + more):
            one = site.dial(port=second_port(site))
            site.send(one, start + b"\r\n")
            some.append(one)
    site.pump(dict.fromkeys(some, b""), quiet=0.5, seconds=5)
    site.pump({site.dial(port=second_port(site)): b"GET /" + b"a" * 300_000 for _ in range(50)}, seconds=8)


@attack("broker ws-pongs", flags=with_websockets, ports=2, memory_mib=32, short=0.5)
def ws_pongs(site: Site) -> None:
    """A WebSocket client that sends 64 MiB of pings and reads none of the pongs."""
    one = websocket(site, receive_bytes=4096)
    data = frame(bytes(125), 9) * 1000
    site.pump({one: (data for _ in range(site.many(500)))}, reads=False, seconds=15)


@attack("broker ws-pongs-before-connect", flags=with_websockets, ports=2, memory_mib=32)
def ws_pongs_before(site: Site) -> None:
    """50 WebSockets that send pings instead of a CONNECT, and read nothing."""
    some = []
    for _ in range(50):
        one = site.dial(port=second_port(site), receive_bytes=4096)
        site.send(one, upgrade() + b"\r\n")
        some.append(one)
    data = frame(bytes(125), 9) * 1000
    site.pump({one: (data for _ in range(20)) for one in some}, reads=False, seconds=12)


@attack("broker ws-tiny-frames", flags=with_websockets, ports=2, memory_mib=32)
def ws_tiny_frames(site: Site) -> None:
    """500,000 frames of a byte each, and 500,000 that are empty, from 5 clients."""
    some = [websocket(site, f"tiny{number}") for number in range(5)]
    data = frame(b"\xc0") + frame(b"\x00") + frame(b"", 0, fin=False) * 0 + frame(b"")
    site.pump({one: (data * 1000 for _ in range(site.many(66))) for one in some}, seconds=20)


@attack("broker ws-fragments", flags=with_websockets, ports=2, memory_mib=64)
def ws_fragments(site: Site) -> None:
    """A message in fragments that never ends: 32 MiB in frames of 1 KiB, and 32 MiB of a PUBLISH."""
    one, other = websocket(site, "fragments"), websocket(site, "fragments2")
    first = frame(head(0x30, 16 * MIB - 10) + b"\x00\x03a/b\x00", 2, fin=False)
    rest = frame(bytes(1024), 0, fin=False) * 64
    site.pump(
        {one: (first, *[rest] * 500), other: (first, *[frame(bytes(65_536), 0, fin=False)] * 500)}, seconds=20
    )


@attack("broker ws-frame-size", flags=with_websockets, ports=2, memory_mib=48)
def ws_frame_size(site: Site) -> None:
    """20 frames that announce 16 MiB, or 2**62 bytes, of which all but the last byte come, before a CONNECT."""
    work = {}
    for number in range(site.many(20)):
        one = site.dial(port=second_port(site))
        site.send(one, upgrade() + b"\r\n")
        size = 2**62 if number % 2 else 16 * MIB
        work[one] = bytes([0x82, 0x80 | 127]) + struct.pack(">Q", size) + bytes(4) + bytes(15 * MIB)
    site.pump(work, seconds=15)
