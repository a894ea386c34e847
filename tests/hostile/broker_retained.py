"""Retained messages: how many, how large, how often, how long, and after a restart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from forelog.broker.mqtt.packets import Publish, Subscribe, Subscription
from tests.hostile.attacks import attack
from tests.hostile.site import Site, Unmet, packet

MIB = 1 << 20
QUOTA = 0x97


def ten(_: Path) -> Sequence[str]:
    return ("--max-retained", "10")


def kept(site: Site, name: str = "#") -> int:
    """How many retained messages a client gets that subscribes now; those of $SYS aren't among them."""
    talk = site.mqtt(f"counter{time.monotonic_ns()}")
    talk.subscribe(name, qos=0)
    found = [one for one in talk.drain() if isinstance(one, Publish) and one.retain]
    site.drop(talk)
    return len(found)


def ten_are_kept(site: Site) -> None:
    if (found := kept(site, "keep/#")) > 10:
        raise Unmet(f"{found} messages are retained, where 10 may be")


@attack("broker retained-over-the-limit", flags=ten, check=ten_are_kept, restart=True, short=1)
def retained_over_the_limit(site: Site) -> None:
    """200 topics with a retained message where 10 may have one; after a restart, too."""
    talk = site.mqtt("keeper")
    codes = [talk.publish(f"keep/{number}", b"x", 1, retain=True) for number in range(200)]
    if any(codes[:10]):
        raise Unmet(f"within the limit a retained message is answered {codes[:10]}")
    if QUOTA not in codes[10:]:
        raise Unmet(f"past the limit a retained message is acknowledged as if it were kept: {set(codes[10:])}")


def one_is_kept(site: Site) -> None:
    if kept(site, "later/#") != 1:
        raise Unmet("expired retained messages keep others out")


@attack("broker expired-retained", flags=ten, check=one_is_kept, short=1)
def expired_retained(site: Site) -> None:
    """Ten retained messages that have expired, then one more where ten may be kept."""
    talk = site.mqtt("keeper")
    for number in range(10):
        talk.publish(f"keep/{number}", b"x", 1, retain=True, properties={"message_expiry_interval": 1})
    site.settle(2.5)
    if code := talk.publish("later/one", b"x", 1, retain=True):
        raise Unmet(f"expired retained messages fill the limit: another is answered {code}")


@attack("broker million-retained", memory_mib=384, left_mib=384, seconds=60, restart=True, restart_seconds=40)
def million_retained(site: Site) -> None:
    """Retained messages of 50 bytes to 400,000 topics, from 4 clients."""
    some = site.mqtt_many(4, "million")
    count = site.many(100_000)

    def messages(client: int) -> object:
        for at in range(0, count, 100):
            yield b"".join(
                packet(Publish(f"million/{client}/{number}", bytes(50), retain=True))
                for number in range(at, at + 100)
            )

    site.pump({one: messages(number) for number, one in enumerate(some)}, quiet=0.5)  # type: ignore[misc]


@attack("broker large-retained", memory_mib=384, left_mib=384, seconds=60)
def large_retained(site: Site) -> None:
    """Retained messages of 8 MiB to 150 topics."""
    (one,) = site.mqtt_many(1, "large")
    payload = bytes(8 * MIB)
    site.pump(
        {one: (packet(Publish(f"large/{n}", payload, retain=True)) for n in range(site.many(150)))}, quiet=1.0
    )


@attack("broker long-retained-topics", memory_mib=384, left_mib=384, seconds=60)
def long_retained_topics(site: Site) -> None:
    """Retained messages to 5,000 topics of 60 kB, and to 5,000 of 200 levels."""
    (one,) = site.mqtt_many(1, "long")
    long, deep = "t" * 60_000, "/".join(["d"] * 198)
    data = (packet(Publish(f"{n}/{long}", b"x", retain=True)) for n in range(site.many(5000)))
    site.pump({one: data}, quiet=0.5, seconds=25)
    data = (packet(Publish(f"{n}/{deep}/{n}", b"x", retain=True)) for n in range(site.many(5000)))
    site.pump({one: data}, quiet=0.5, seconds=25)


@attack("broker retained-properties", memory_mib=256, left_mib=256)
def retained_properties(site: Site) -> None:
    """200 retained messages with 20,000 user properties each."""
    (one,) = site.mqtt_many(1, "props")
    properties = {"user_properties": [("k", "v")] * 20_000}
    body = packet(Publish("props/0000", b"x", retain=True, properties=properties))  # type: ignore[arg-type]
    data = (body.replace(b"props/0000", b"props/%04d" % n, 1) for n in range(site.many(200)))
    site.pump({one: data}, quiet=1.0)


@attack("broker retained-flood", memory_mib=128, left_mib=96)
def retained_flood(site: Site) -> None:
    """A retained message of 10 kB that changes 10,000 times."""
    (one,) = site.mqtt_many(1, "flood")
    data = packet(Publish("flood/a", bytes(10_000), retain=True)) * 10
    site.pump({one: (data for _ in range(site.many(1000)))}, quiet=0.5, seconds=25)


@attack("broker retained-deletes", memory_mib=96, left_mib=64)
def retained_deletes(site: Site) -> None:
    """100,000 deletions of retained messages that aren't there, and 20,000 that come and go."""
    (one,) = site.mqtt_many(1, "deletes")
    nothing = (
        b"".join(packet(Publish(f"nothing/{n}", b"", retain=True)) for n in range(at, at + 100))
        for at in range(0, site.many(100_000), 100)
    )
    site.pump({one: nothing}, quiet=0.3, seconds=20)
    both = (
        packet(Publish(f"go/{n}", b"x", retain=True)) + packet(Publish(f"go/{n}", b"", retain=True))
        for n in range(site.many(20_000))
    )
    site.pump({one: both}, quiet=0.3, seconds=20)


@attack("broker retained-expire-together", memory_mib=128, left_mib=96)
def retained_expire_together(site: Site) -> None:
    """50,000 retained messages that expire in the same second."""
    (one,) = site.mqtt_many(1, "expire")
    data = (
        packet(Publish(f"expire/{n}", b"x", retain=True, properties={"message_expiry_interval": 8}))
        for n in range(site.many(50_000))
    )
    site.pump({one: data}, quiet=0.3, seconds=20)
    site.settle(10)
    site.pump({one: packet(Subscribe(1, [Subscription("expire/#")]))}, quiet=0.5)
