"""Hostile clients of the replica server."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import msgpack

from forelog.copies.wire import VERSION, Kind
from forelog.state import PersistentDict
from tests.hostile.attacks import attack
from tests.hostile.servers import TOKEN, certificate
from tests.hostile.site import Site, Unmet, pieces

MIB = 1 << 20
HELLO_SECONDS = 10


def with_token(folder: Path) -> Sequence[str]:
    path = folder / "token"
    path.write_text(TOKEN + "\n")
    return ("--token-file", str(path))


def with_tls(folder: Path) -> Sequence[str]:
    crt, key = certificate(folder)
    return ("--tls-cert", str(crt), "--tls-key", str(key))


def frame(kind: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">IB", 1 + len(body) if length is None else length, kind) + body


def hello(role: str = "follower", log: str = "probe", **more: Any) -> bytes:
    return frame(Kind.HELLO, msgpack.encode({"version": VERSION, "role": role, "log": log} | more))


def identity(term: int = 1, run: int = 1, of: bytes | None = None) -> dict[str, Any]:
    return {"id": of or os.urandom(16), "term": term, "run": run, "word": os.urandom(8)}


def answer(site: Site, one: socket.socket, seconds: float = 5) -> tuple[int, Any]:
    """The next frame: its kind, and its map; 0 if the server closes or says nothing."""
    one.settimeout(seconds)
    try:
        head = _exactly(one, 5)
        length, kind = struct.unpack(">IB", head)
        body = _exactly(one, length - 1)
    except (OSError, EOFError):
        return 0, None
    try:
        return kind, msgpack.decode(body)
    except Exception:
        return kind, body


def _exactly(one: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = one.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def probe_identity(site: Site) -> dict[str, Any]:
    """The identity of the probe's log, as any follower is told it."""
    one = site.dial()
    site.send(one, hello())
    _, found = answer(site, one)
    site.drop(one)
    if not isinstance(found, dict) or "id" not in found:
        raise Unmet(f"a follower is answered {found}")
    return {key: found[key] for key in ("id", "term", "run", "word")}


def must_end(site: Site, some: list[socket.socket], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    left = sum(not site.is_closed(one, max(0.005, until - time.monotonic())) for one in some)
    if left:
        raise Unmet(f"{left} of {len(some)} connections are still open: {what}")


# -- before a HELLO


@attack("replica idle-connections", memory_mib=48)
def idle_connections(site: Site) -> None:
    """300 connections that say nothing, while others come: a newcomer must get in all along."""
    some = [site.dial() for _ in range(300)]
    site.settle(3)
    must_end(site, some, HELLO_SECONDS + 4, "a HELLO must come within 10 s")


@attack("replica idle-connections-again", memory_mib=48, newcomer_ms=2000)
def idle_connections_again(site: Site) -> None:
    """300 connections that say nothing, and whenever one is closed, another one."""
    some = [site.dial() for _ in range(300)]
    until = time.monotonic() + 8
    while time.monotonic() < until:
        for at, one in enumerate(some):
            one.setblocking(False)
            try:
                gone = not one.recv(100)
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                site.drop(one)
                some[at] = site.dial()
        time.sleep(0.1)


@attack("replica trickled-hellos", memory_mib=48)
def trickled_hellos(site: Site) -> None:
    """100 connections that send a byte of a HELLO now and then."""
    data = hello(log="x" * 100)
    some = [site.dial() for _ in range(100)]
    for at in range(14):
        for one in some:
            site.send(one, data[at : at + 1])
        site.settle(1)
    must_end(site, some, 4, "a byte a second keeps a connection for longer than 10 s")


@attack("replica giant-hellos", memory_mib=32, short=0.5)
def giant_hellos(site: Site) -> None:
    """100 HELLOs that announce 64 MiB or 4 GiB, with as much behind them as is taken."""
    sizes = (4096, 4097, 64 * MIB, 2**32 - 1)
    work = {site.dial(): frame(Kind.HELLO, bytes(MIB), sizes[n % 4]) for n in range(site.many(100))}
    site.pump(work, quiet=0.3, seconds=12)


@attack("replica nested-hellos", memory_mib=32, short=1)
def nested_hellos(site: Site) -> None:
    """HELLOs of nested arrays, of wrong types, of nothing, of rubbish: a reason each, and no traceback."""
    bodies = [
        b"\x91" * 4000,
        b"\x81\xa1a" * 1300,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"",
        b"\xc1",
        os.urandom(3000),
        msgpack.encode({"version": [[[]]], "role": {}, "log": 5}),
        msgpack.encode({"version": VERSION, "role": "primary", "log": "../../etc"}),
        msgpack.encode({"version": VERSION, "role": "primary", "log": "a" * 3000}),
        msgpack.encode({"version": VERSION, "role": "primary\n\x1b[31mX", "log": "a\nINJECTED"}),
        msgpack.encode({"version": VERSION, "role": "primary", "log": "ok", "id": 1, "term": -1}),
        msgpack.encode({"version": 2**63, "role": "primary", "log": "ok"}),
        msgpack.encode({"version": VERSION, "role": "primary", "log": "ok", **identity(2**63, 1)}),
        msgpack.encode({"version": VERSION, "role": "primary", "log": "ok", "token": ["x"] * 100}),
        msgpack.encode({1: 2, None: 3}),
        msgpack.encode([1, 2, 3]),
    ]
    some = []
    for body in bodies * 10:
        one = site.dial()
        site.send(one, frame(Kind.HELLO, body))
        some.append(one)
    must_end(site, some, 6, "a HELLO that is none ends the connection")
    said = site.server.said_at.read_bytes()
    if b"\x1b" in said or b"\nINJECTED" in said:
        raise Unmet("the log has what a client sent, as it sent it")


@attack("replica no-hello", memory_mib=32)
def no_hello(site: Site) -> None:
    """Frames of every other kind before a HELLO, HTTP, TLS, random bytes."""
    some = []
    for kind in range(256):
        one = site.dial()
        site.send(one, frame(kind, os.urandom(100)))
        some.append(one)
    for junk in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(500),
        os.urandom(5000),
        frame(1, b"", 0),
    ):
        one = site.dial()
        site.send(one, junk)
        some.append(one)
    must_end(site, some, HELLO_SECONDS + 4, "what is no HELLO ends the connection")


@attack("replica wrong-tokens", flags=with_token, secret=True, memory_mib=32, short=0.1)
def wrong_tokens(site: Site) -> None:
    """2,000 HELLOs with a wrong token."""
    for number in range(site.many(2000)):
        one = site.dial()
        site.send(one, hello(token=f"wrong{number}"))
        kind, _ = answer(site, one)
        if kind not in (0, Kind.REFUSED):
            raise Unmet(f"a wrong token is answered with frame {kind}")
        site.drop(one)
        if site.left() < 2:
            break
    if (size := site.server.said_at.stat().st_size) > 300_000:
        raise Unmet(f"{size:,} bytes were logged of wrong tokens")
    if b"token" not in site.server.said_at.read_bytes():
        raise Unmet("nothing is logged of wrong tokens")


@attack("replica tls-loris", memory_mib=48)
def tls_loris(site: Site) -> None:
    """Connections to a plain server that begin a TLS handshake and go on a byte at a time."""
    data = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    some = [site.dial() for _ in range(60)]
    site.pump({one: pieces(data, 1) for one in some}, quiet=0.2, seconds=5)
    must_end(site, some, HELLO_SECONDS + 4, "a TLS handshake at a plain port ends")


# -- after a HELLO


@attack("replica partial-frames", memory_mib=256, left_mib=128, seconds=60, files=108)  # a lock for each log
def partial_frames(site: Site) -> None:
    """100 primaries of logs of their own, each with a DATA frame of 60 MiB of which 8 MiB come."""
    work = {}
    for number in range(site.many(100)):
        one = site.dial()
        site.send(one, hello("primary", f"partial{number}", **identity()))
        if answer(site, one)[0] != Kind.KNOWN:
            continue
        site.send(one, frame(Kind.CLAIM, msgpack.encode({"continues": False})))
        answer(site, one)
        work[one] = frame(Kind.DATA, struct.pack(">QQ", 1, 0) + bytes(8 * MIB), 60 * MIB)
    site.pump(work, seconds=25)
    site.settle(1)


@attack("replica log-names", memory_mib=192, left_mib=96, seconds=60, disk_mib=64, files=1100)
def log_names(site: Site) -> None:
    """1,500 logs with names of 100 bytes, each opened by a primary that then leaves."""
    for number in range(site.many(1500)):
        one = site.dial()
        site.send(one, hello("primary", f"n{number}-" + "n" * 100, **identity()))
        kind, _ = answer(site, one)
        if kind == Kind.KNOWN:
            site.send(one, frame(Kind.CLAIM, msgpack.encode({"continues": False})))
            answer(site, one)
        site.drop(one)
        if site.left() < 3:
            break


@attack("replica terms", memory_mib=32, short=1)
def terms(site: Site) -> None:
    """A primary of the probe's log with a term of 2**62: it must not keep the real one out for ever."""
    known = probe_identity(site)
    one = site.dial()
    site.send(one, hello("primary", "probe", **{**known, "term": 2**62, "word": os.urandom(8)}))
    kind, told = answer(site, one)
    if kind == Kind.KNOWN:
        raise Unmet(f"a term of 2**62 is taken for a primary's: {str(told)[:80]}")


@attack("replica runs", memory_mib=32)
def runs(site: Site) -> None:
    """Primaries of the probe's log with other terms and runs, which claim nothing, or refuse, or leave."""
    known = probe_identity(site)
    for term, run in ((known["term"], 2**40), (known["term"], 0), (0, 1), (-1, -1), (known["term"], known["run"])):
        one = site.dial()
        site.send(one, hello("primary", "probe", **{**known, "term": term, "run": run, "word": os.urandom(8)}))
        kind, _ = answer(site, one, 3)
        if kind == Kind.KNOWN:
            site.send(one, frame(Kind.CLAIM, msgpack.encode({"continues": False, "refused": "no reason"})))
            answer(site, one, 2)
        site.drop(one)


@attack("replica claims", memory_mib=48)
def claims(site: Site) -> None:
    """100 primaries of the probe's log that are asked what they have, and never say: the real one goes on."""
    known = probe_identity(site)
    some = []
    for number in range(100):
        one = site.dial()
        site.send(
            one, hello("primary", "probe", **{**known, "run": known["run"] + number + 1, "word": os.urandom(8)})
        )
        some.append(one)
    site.settle(3)


@attack("replica other-tokens", flags=with_token, secret=True, memory_mib=32)
def promote_without_token(site: Site) -> None:
    """Promotions and primaries of the probe's log without its token: all refused, and nothing changes."""
    for role in ("promote", "primary", "follower"):
        for token in (None, "", "x", TOKEN + "x", TOKEN[:-1], 5, ["x"]):
            more = {} if token is None else {"token": token}
            one = site.dial()
            site.send(one, hello(role, "probe", **identity(), **more))
            kind, told = answer(site, one)
            if kind not in (0, Kind.REFUSED):
                raise Unmet(f"{role} with token {token!r} is answered with frame {kind}: {told}")
            site.drop(one)


def much_to_follow(site: Site) -> None:
    """A log of 64 MiB, which followers can ask for."""
    with PersistentDict(str(site.server.folder / "much")) as things:
        for number in range(64):
            things[number] = bytes(MIB).hex()[:MIB]
        things.log.add_destination(f"replica://127.0.0.1:{site.port}/much")
        until = time.monotonic() + 30
        while time.monotonic() < until:
            health = things.log.health()
            if health.healthy and not any(one.lag_bytes for one in health.destinations.values()):
                break
            time.sleep(0.05)


@attack("replica deaf-followers", prepare=much_to_follow, memory_mib=192, left_mib=64)
def deaf_followers(site: Site) -> None:
    """100 followers of a log of 64 MiB that read nothing."""
    some = [site.dial(receive_bytes=4096) for _ in range(site.many(100))]
    for one in some:
        site.send(one, hello("follower", "much"))
    site.settle(4)


@attack("replica greedy-followers", prepare=much_to_follow, memory_mib=192, left_mib=64)
def greedy_followers(site: Site) -> None:
    """50 followers of a log of 64 MiB that read all of it, leave, and come back with nonsense positions."""
    some = [site.dial() for _ in range(site.many(50))]
    site.pump({one: hello("follower", "much") for one in some}, quiet=0.5, seconds=15)
    places = ((1, 5, b"x" * 64), (2**62, 0, b""), (1, 2**62, bytes(64)), (2, 9, bytes(3000)))
    for segment, offset, tail in places:
        one = site.dial()
        site.send(one, hello("follower", "much", segment=segment, offset=offset, tail=tail))
        site.pump({one: b""}, quiet=0.3, seconds=3)


@attack("replica wrong-data", memory_mib=96, left_mib=48, disk=3)
def wrong_data(site: Site) -> None:
    """Primaries that send records which are none: zeros, rubbish, wrong places, snapshots of nowhere."""
    bodies = [
        (Kind.DATA, struct.pack(">QQ", 1, 0) + bytes(100_000)),
        (Kind.DATA, struct.pack(">QQ", 2**63, 2**63) + os.urandom(100_000)),
        (Kind.DATA, b"short"),
        (Kind.COMMITTED, struct.pack(">QQQQ", 1, 0, 2**62, 5)),
        (Kind.COMMITTED, b""),
        (Kind.FLUSH, b"\x01"),
        (Kind.RESTART, b"x" * 1000),
        (Kind.ACK, struct.pack(">QQ", 1, 2) + bytes(500)),
        (Kind.WELCOME, b"\x80"),
        (Kind.HELLO, msgpack.encode({"version": VERSION, "role": "promote", "log": "probe"})),
    ]
    for number, (kind, body) in enumerate(bodies * 10):
        one = site.dial()
        site.send(one, hello("primary", f"wrong{number % 7}", **identity()))
        if answer(site, one)[0] == Kind.KNOWN:
            site.send(one, frame(Kind.CLAIM, msgpack.encode({"continues": False})))
            answer(site, one)
        site.send(one, frame(kind, body) * 3)
        answer(site, one, 0.5)
        site.drop(one)


@attack("replica flushes", memory_mib=48, files=10)  # a log stays open, once it was written
def flushes(site: Site) -> None:
    """10 primaries that ask for a sync without end, and read no acknowledgement."""
    work = {}
    for number in range(10):
        one = site.dial(receive_bytes=4096)
        site.send(one, hello("primary", f"flush{number}", **identity()))
        if answer(site, one)[0] == Kind.KNOWN:
            site.send(one, frame(Kind.CLAIM, msgpack.encode({"continues": False})))
            answer(site, one)
        work[one] = frame(Kind.FLUSH, b"\x01") * site.many(20_000)
    site.pump(work, reads=False, seconds=10)


@attack("replica connect-storm", memory_mib=48)
def connect_storm(site: Site) -> None:
    """3,000 connections that leave at once, or after a HELLO for a log that there isn't."""
    for number in range(site.many(3000)):
        one = site.dial()
        if number % 2:
            site.send(one, hello("follower", f"none{number}"))
        site.drop(one)
        if site.left() < 2:
            break


@attack("replica tls-handshakes", flags=with_tls, tls=True, memory_mib=48)
def tls_handshakes(site: Site) -> None:
    """200 connections to a TLS server that send half of a handshake: all end by themselves."""
    some = [site.dial() for _ in range(200)]
    for one in some:
        site.send(one, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    for _ in range(12):
        for one in some:
            site.send(one, b"\x00")
        site.settle(1)
    must_end(site, some, 5, "a TLS handshake that doesn't end is given up after 10 s")
