"""Guesses, refusals, and what an operator's log has of them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forelog.broker.mqtt.packets import Connack, Connect, Publish, Subscribe, Subscription, Will
from tests.broker.talking import Talk
from tests.hostile.attacks import attack
from tests.hostile.servers import PASSWORD, users_file
from tests.hostile.site import Closed, Site, Unmet, packet

RULES = """
user probe
topic readwrite probe/#

user mallory
topic readwrite mallory/#
pattern readwrite own/%c/%u/#

user ann
topic readwrite #
"""
LOG_BYTES_MAX = 300_000


def with_users(folder: Path) -> Sequence[str]:
    rules = folder / "rules"
    rules.write_text(RULES)
    users = users_file(folder, "probe", "mallory", "ann", "bob")
    return ("--users", str(users), "--acl", str(rules))


def wrong(
    site: Site, count: int, *, names: int = 1, addresses: int = 1, prefix: str = "mallory"
) -> list[socket.socket]:
    """Wrong passwords, all at the same time."""
    some = []
    for number in range(count):
        with contextlib.suppress(OSError):
            one = site.dial(source=f"127.0.{number % addresses // 200}.{number % addresses % 200 + 2}")
            name = prefix if names == 1 else f"{prefix}{number % names}"
            site.send(one, packet(Connect(f"guess{number}", user_name=name, password=b"wrong %d" % number)))
            some.append(one)
    return some


def login_seconds(site: Site, name: str, seconds: float) -> float:
    """How long the right password takes, of somebody who hasn't been here before."""
    began = time.monotonic()
    with Talk(site.port) as talk:
        talk.socket.settimeout(seconds)
        talk.send(Connect(f"right-{name}", user_name=name, password=PASSWORD))
        try:
            answer = talk.expect(Connack)
        except (OSError, Closed):
            raise Unmet(f"the right password of {name} got no answer within {seconds:.0f} s") from None
        if answer.reason_code:
            raise Unmet(f"the right password of {name} is refused with {answer.reason_code}")
    return time.monotonic() - began


def log_is_short(site: Site) -> None:
    """What is logged of a flood of refusals is bounded."""
    if (size := site.server.said_at.stat().st_size) > LOG_BYTES_MAX:
        raise Unmet(f"{size:,} bytes were logged of refusals, more than {LOG_BYTES_MAX:,}")


ACCESS: dict[str, Any] = {"flags": with_users, "secret": True, "memory_mib": 96, "check": log_is_short}


@attack("broker guesses-of-one", short=0.2, **ACCESS)
def guesses_of_one(site: Site) -> None:
    """1,000 wrong passwords of one name at a time, from one address; then the right one of another."""
    some = wrong(site, site.many(1000))
    took = login_seconds(site, "ann", 10)
    if took > 2:
        raise Unmet(f"the right password took {took:.1f} s")
    site.pump(dict.fromkeys(some, b""), quiet=0.3, seconds=5)


@attack("broker guesses-of-many-names", **ACCESS)
def guesses_of_many_names(site: Site) -> None:
    """2,000 wrong passwords of 500 names that there aren't, from one address."""
    some = wrong(site, site.many(2000), names=500, prefix="nobody")
    took = login_seconds(site, "ann", 10)
    if took > 2:
        raise Unmet(f"the right password took {took:.1f} s")
    site.pump(dict.fromkeys(some, b""), quiet=0.3, seconds=5)


@attack("broker guesses-from-many-addresses", **ACCESS)
def guesses_from_many_addresses(site: Site) -> None:
    """2,000 wrong passwords of one name, from 1,000 addresses; another one comes in meanwhile."""
    some = wrong(site, site.many(2000), addresses=1000)
    took = login_seconds(site, "bob", 10)
    if took > 2:
        raise Unmet(f"the right password took {took:.1f} s")
    site.pump(dict.fromkeys(some, b""), quiet=0.3, seconds=5)


# A thousand passwords wait for up to 30 s. Each check takes 16 MiB and a processor, and its refusal some more.
@attack("broker guesses-of-many-from-many", **{**ACCESS, "left_mib": 48, "idle_cpu": 1.1})
def guesses_of_many_from_many(site: Site) -> None:
    """3,000 wrong passwords, each of another name and from another address."""
    some = wrong(site, site.many(3000), names=3000, addresses=3000, prefix="x")
    took = login_seconds(site, "ann", 10)
    if took > 3:
        raise Unmet(f"the right password took {took:.1f} s")
    site.pump(dict.fromkeys(some, b""), quiet=0.3, seconds=5)


@attack("broker long-passwords", **ACCESS)
def long_passwords(site: Site) -> None:
    """500 logins with names and passwords of 60 kB, and as many without a password."""
    for number in range(site.many(500)):
        one = site.dial()
        connect = Connect(f"l{number}", user_name=f"{number}" + "u" * 60_000, password=bytes(60_000))
        site.send(one, packet(connect))
        other = site.dial()
        site.send(other, packet(Connect(f"n{number}", user_name=f"{number}" + "u" * 60_000)))
    site.settle(1)


# Their passwords wait for up to 30 s.
@attack("broker behind-a-password", files=120, **ACCESS)
def behind_a_password(site: Site) -> None:
    """100 clients that send 4 MiB behind a CONNECT whose password is still being checked."""
    some = {}
    for number in range(site.many(100)):
        start = packet(Connect(f"b{number}", user_name=f"no{number}", password=b"wrong"))
        some[site.dial()] = start + packet(Publish("a", bytes(1000))) * 4000
    site.pump(some, seconds=15)


@attack("broker denied-publishes", short=0.5, **{**ACCESS, "left_mib": 32, "memory_mib": 48})
def denied_publishes(site: Site) -> None:
    """4,000 messages that may not be published, to topics of 50 kB."""
    talk = site.mqtt("denied", **site.login())
    long = "d" * 50_000
    data = (packet(Publish(f"no/{n}/{long}", b"x")) for n in range(site.many(4000)))
    site.pump({talk.socket: data}, quiet=0.3, seconds=20)


@attack("broker denied-publishes-at-1", **{**ACCESS, "memory_mib": 48})
def denied_publishes_qos_1(site: Site) -> None:
    """50,000 messages that may not be published, at QoS 1, to topics of 10 bytes, from 3.1.1 and 5 clients."""
    talk = site.mqtt("denied", **site.login())
    data = (
        b"".join(packet(Publish(f"no/{n}", b"x", 1, packet_id=n % 60_000 + 1)) for n in range(at, at + 100))
        for at in range(0, site.many(50_000), 100)
    )
    site.pump({talk.socket: data}, quiet=0.3, seconds=20)
    for number in range(50):  # who can't be told is disconnected
        old = site.mqtt(f"old{number}", 4, **site.login())
        old.raw(packet(Publish("no/way", b"x", 1, packet_id=1), 4))
        old.end()


@attack("broker denied-subscribes", **{**ACCESS, "memory_mib": 48})
def denied_subscribes(site: Site) -> None:
    """5,000 SUBSCRIBEs to filters of 10 kB that may not be had."""
    talk = site.mqtt("denied", **site.login())
    long = "d" * 10_000
    data = (packet(Subscribe(n % 60_000 + 1, [Subscription(f"no/{n}/{long}")])) for n in range(site.many(5000)))
    site.pump({talk.socket: data}, quiet=0.3, seconds=20)


@attack("broker allowed-in-many-ways", **{**ACCESS, "memory_mib": 128, "left_mib": 96})
def allowed_in_many_ways(site: Site) -> None:
    """100,000 messages that may be published, each to another topic, so that each is looked up."""
    talk = site.mqtt("allowed", **site.login())
    data = (
        b"".join(packet(Publish(f"mallory/{n}", b"x")) for n in range(at, at + 100))
        for at in range(0, site.many(100_000), 100)
    )
    site.pump({talk.socket: data}, quiet=0.3, seconds=20)
    long = "m" * 50_000
    data = (packet(Publish(f"mallory/{n}/{long}", b"x")) for n in range(site.many(3000)))
    site.pump({talk.socket: data}, quiet=0.3, seconds=20)


def log_has_no_injection(site: Site) -> None:
    """Nothing that a client says begins a line of the log, or moves a terminal's cursor."""
    said = site.server.said_at.read_bytes()
    for mark in (b"\nINJECTED", b"\x1b", b"\rINJECTED", b"\x00", "\u2028".encode(), "\x85INJECTED".encode()):
        if mark in said:
            raise Unmet(f"the log has {mark!r}, as a client has sent it")
    for secret in (b"hunter2", PASSWORD):
        if secret in said:
            raise Unmet("the log has a password")


@attack(
    "broker log-injection",
    flags=with_users,
    secret=True,
    check=log_has_no_injection,
    short=1,
)
def log_injection(site: Site) -> None:
    """Client ids, names, topics and filters with line ends, escapes and what looks like log lines."""
    for number, evil in enumerate(
        (
            "\nINJECTED",
            "\r\nINJECTED ann is here",
            "\x1b[2J\x1b[1;31mINJECTED",
            "\rINJECTED",
            "\u2028INJECTED",
            "\x85INJECTED",
            "%s%n%(user)s",
        )
    ):
        for connect in (
            Connect(f"id{number}{evil}", user_name="ann", password=b"hunter2"),
            Connect(f"id{number}", user_name=f"ann{evil}", password=b"hunter2"),
            Connect(f"id{number}{evil}", **site.login()),
            Connect(f"wi{number}", will=Will(f"will{evil}", b"x"), **site.login()),
        ):
            one = site.dial()
            site.send(one, packet(connect))
            site.send(one, packet(Publish(f"no{evil}", b"x", 1, packet_id=1)))
            site.send(one, packet(Subscribe(1, [Subscription(f"no{evil}/#"), Subscription(f"$replay/{evil}/x")])))
            site.send(one, b"\xf0" + evil.encode())
    site.settle(2)
