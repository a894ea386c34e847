"""Sessions: reconnects, takeovers, many of them, long names, and ends at the same moment."""

from __future__ import annotations

import contextlib

from forelog.broker.mqtt.packets import Connect, Disconnect, Publish
from tests.hostile.attacks import attack
from tests.hostile.broker_filters import FOREVER, subscribe
from tests.hostile.broker_messages import messages
from tests.hostile.site import Closed, Site, Unmet, packet


def connects(name: str, count: int, *, clean: bool, expiry: int = 0) -> list[bytes]:
    properties = {"session_expiry_interval": expiry}
    return [packet(Connect(name, clean_start=clean, properties=properties))] * count  # type: ignore[arg-type]


@attack("broker takeovers", memory_mib=32, short=0.3)
def takeovers(site: Site) -> None:
    """3,000 connections that take over the session of the same client, each while the last is still there."""
    (data,) = connects("one-and-only", 1, clean=False, expiry=FOREVER)
    for _ in range(0, site.many(3000), 100):
        some = [site.dial() for _ in range(100)]
        site.pump(dict.fromkeys(some, data), quiet=0.02)
        for one in some:
            site.drop(one)
        if site.left() < 2:
            break


@attack("broker takeovers-with-filters", memory_mib=48, disk_mib=4)
def takeovers_with_filters(site: Site) -> None:
    """1,000 takeovers of a durable session that has 2,000 filters and 500 messages in flight."""
    (one,) = site.mqtt_many(1, "rich", expiry=FOREVER, clean=False)
    for at in range(0, 2000, 500):
        site.pump({one: subscribe(*(f"rich/{n}/#" for n in range(at, at + 500)), qos=1)}, quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("rich/1/a", 100, 500)}, quiet=0.3)
    (data,) = connects("rich", 1, clean=False, expiry=FOREVER)
    for _ in range(0, site.many(1000), 50):
        some = [site.dial() for _ in range(50)]
        site.pump(dict.fromkeys(some, data), quiet=0.05)
        for other in some:
            site.drop(other)
        if site.left() < 5:
            break


@attack("broker come-and-go", memory_mib=48, disk_mib=4, short=0.3)
def come_and_go(site: Site) -> None:
    """A durable session with 5,000 filters whose client comes and leaves at once, 300 times."""
    (one,) = site.mqtt_many(1, "gone", expiry=FOREVER, clean=False)
    for at in range(0, 5000, 500):
        site.pump({one: subscribe(*(f"gone/{n}/#" for n in range(at, at + 500)), qos=1)}, quiet=0.02)
    (data,) = connects("gone0", 1, clean=False, expiry=FOREVER)
    for _ in range(site.many(300)):
        other = site.dial()
        site.send(other, data)
        site.drop(other)


@attack("broker clean-and-durable", memory_mib=32, disk_mib=8)
def clean_and_durable(site: Site) -> None:
    """3,000 connections of 10 client ids, with and without a clean start, in turns."""
    for at in range(site.many(60)):
        some = []
        for number in range(50):
            one = site.dial()
            clean = (at + number) % 2 == 0
            site.send(one, connects(f"turn{number % 10}", 1, clean=clean, expiry=0 if clean else FOREVER)[0])
            some.append(one)
        site.pump(dict.fromkeys(some, b""), quiet=0.02)
        for one in some:
            site.drop(one)
        if site.left() < 2:
            break


@attack("broker many-sessions", memory_mib=160, left_mib=160, disk=6, restart=True, seconds=60)
def many_sessions(site: Site) -> None:
    """20,000 durable sessions of clients that never come back, each with a subscription."""
    data = subscribe("many/sessions", qos=1)
    for batch in range(site.many(40)):
        some = site.mqtt_many(500, f"many{batch}-", expiry=FOREVER, clean=False)
        site.pump(dict.fromkeys(some, data), quiet=0.02)
        for one in some:
            site.drop(one)
        if site.left() < 3:
            break


@attack("broker long-client-ids", memory_mib=96, left_mib=64, restart=True)
def long_client_ids(site: Site) -> None:
    """3,000 durable sessions whose client ids have 60 kB."""
    long = "i" * 60_000
    for number in range(site.many(3000)):
        one = site.dial()
        if not site.send(one, connects(f"{number}{long}", 1, clean=False, expiry=FOREVER)[0]) or site.left() < 3:
            break
        one.settimeout(5)
        with contextlib.suppress(OSError):
            one.recv(4096)
        site.drop(one)


@attack("broker sessions-expire-together", memory_mib=96, left_mib=64)
def sessions_expire_together(site: Site) -> None:
    """5,000 durable sessions with 10 filters each that end in the same second."""
    data = subscribe(*(f"expire/{n}/together" for n in range(10)), qos=1)
    for batch in range(site.many(10)):
        some = site.mqtt_many(500, f"end{batch}-", expiry=4, clean=False)
        site.pump(dict.fromkeys(some, data), quiet=0.02)
        for one in some:
            site.drop(one)
    site.settle(7)


@attack("broker leave-together", memory_mib=128, left_mib=64)
def leave_together(site: Site) -> None:
    """3,000 clients with 50 filters each, in a shared group, which all leave at the same moment."""
    some = site.mqtt_many(site.many(3000), "leave")
    data = subscribe(*(f"leave/{n}/+" for n in range(50)), "$share/all/leave/#", qos=1)
    site.pump(dict.fromkeys(some, data), quiet=0.3)
    site.leave()
    site.settle(1)


@attack("broker behind-together", memory_mib=160, left_mib=96)
def behind_together(site: Site) -> None:
    """200 durable sessions that come back at once, each 20,000 messages behind, and read."""
    some = site.mqtt_many(site.many(200), "behind", expiry=FOREVER, clean=False)
    site.pump(dict.fromkeys(some, subscribe("behind/#", qos=0)), quiet=0.1)
    for one in some:
        site.drop(one)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("behind/a", 200, 20_000)}, quiet=0.3)
    some = site.mqtt_many(site.many(200), "behind", expiry=FOREVER, clean=False)
    site.pump(dict.fromkeys(some, b""), quiet=0.5, seconds=20)


@attack("broker last-word", short=1)
def last_word(site: Site) -> None:
    """A client that is still sending when it is disconnected must read why: 20 times, with 4 MiB on their way."""
    for number in range(20):
        talk = site.mqtt(f"word{number}")
        data = b"\x00\x00" + packet(Publish("word/a", bytes(1000))) * 4000  # no packet begins like this
        talk.socket.settimeout(5)
        with contextlib.suppress(OSError):
            talk.socket.sendall(data)
        site.sent += len(data)
        try:
            last = talk.end()
        except (Closed, OSError):
            last = None
        if not isinstance(last, Disconnect):
            raise Unmet(f"client {number} was reset before it could read the reason")
        site.drop(talk)
