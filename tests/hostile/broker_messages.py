"""Messages: subscribers that don't read or don't acknowledge, publishers that send what is expensive."""

from __future__ import annotations

from collections.abc import Iterator

from forelog.broker.mqtt.packets import Pingreq, Puback, Publish, Pubrec, Pubrel, Subscribe, Subscription
from tests.hostile.attacks import attack
from tests.hostile.broker_filters import FOREVER, subscribe
from tests.hostile.site import Site, packet

MIB = 1 << 20


def messages(topic: str, payload_bytes: int, count: int, **more: object) -> Iterator[bytes]:
    """Many of the same, in blocks of about 64 KiB."""
    one = packet(Publish(topic, bytes(payload_bytes), **more))  # type: ignore[arg-type]
    block = max(1, min(count, 65_536 // len(one)))
    for _ in range(count // block):
        yield one * block


# -- subscribers


@attack("broker never-reads", memory_mib=160, left_mib=160, short=0.3)
def never_reads(site: Site) -> None:
    """20 subscribers that read nothing, while 100 MiB are published to them."""
    some = site.mqtt_many(20, "deaf", receive_bytes=4096)
    site.pump(dict.fromkeys(some, subscribe("deaf/#", qos=0)), quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("deaf/a", 10_000, site.many(10_000))}, quiet=0.3, seconds=25)
    site.settle(1)


# Half of what may wait for all sockets: 128 MiB; prepared packets: 8; the log's tail: 32; what is delivered: 16.
@attack("broker never-reads-large", memory_mib=184, left_mib=64)
def never_reads_large(site: Site) -> None:
    """300 subscribers that read nothing, and 20 messages of 1 MiB to all of them."""
    some = site.mqtt_many(site.many(300), "deaf", receive_bytes=4096)
    site.pump(dict.fromkeys(some, subscribe("deaf/#", qos=1)), quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("deaf/a", MIB, 20)}, quiet=0.3, seconds=25)
    site.settle(2)


@attack("broker never-reads-pings", memory_mib=96, left_mib=64)
def never_reads_pings(site: Site) -> None:
    """20 subscribers that read nothing, and send PINGREQs without end, 40 MiB of them."""
    some = site.mqtt_many(20, "deaf", receive_bytes=4096)
    site.pump(dict.fromkeys(some, subscribe("deaf/#", qos=1)), quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("deaf/a", 10_000, 2000)}, quiet=0.3, seconds=10)
    pings = packet(Pingreq()) * 32_768
    site.pump({one: (pings for _ in range(site.many(32))) for one in some}, reads=False, seconds=12)


@attack("broker answers-unread", memory_mib=96, left_mib=48, idle_cpu=1)  # it still answers what they have asked
def answers_unread(site: Site) -> None:
    """20 clients that send SUBSCRIBEs, PUBRELs and QoS 2 messages without end, and read no answer."""
    some = site.mqtt_many(20, "asks", receive_bytes=4096)
    data = subscribe("asks/a", "asks/+", "asks/#") * 200 + b"".join(packet(Pubrel(n)) for n in range(1, 1000))
    site.pump({one: (data for _ in range(site.many(100))) for one in some}, reads=False, seconds=12)


@attack("broker never-acknowledges", memory_mib=96, left_mib=64)
def never_acknowledges(site: Site) -> None:
    """50 durable subscribers that read all and acknowledge nothing; 20,000 messages at QoS 1 and 2."""
    some = site.mqtt_many(50, "mute", expiry=FOREVER, clean=False)
    work = {one: subscribe("mute/#", qos=1 + number % 2) for number, one in enumerate(some)}
    site.pump(work, quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("mute/a", 200, site.many(20_000)), **dict.fromkeys(some, b"")}, seconds=20)
    site.settle(1)


@attack("broker never-acknowledges-reconnects", memory_mib=96, left_mib=64)
def never_acknowledges_reconnects(site: Site) -> None:
    """20 durable subscribers with 1,000 messages of 10 kB in flight, which reconnect 10 times each."""
    names = [f"inflight{number}" for number in range(20)]
    for name in names:
        (one,) = site.mqtt_many(1, name, expiry=FOREVER, clean=False)
        site.pump({one: subscribe("inflight/#", qos=1)}, quiet=0.05)
        site.drop(one)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("inflight/a", 10_000, 1000)}, quiet=0.3)
    for _ in range(site.many(10)):
        some = [site.mqtt_many(1, name, expiry=FOREVER, clean=False)[0] for name in names]
        site.pump(dict.fromkeys(some, b""), quiet=0.2, seconds=4)
        for one in some:
            site.drop(one)


@attack("broker slow-readers", memory_mib=128, left_mib=64)
def slow_readers(site: Site) -> None:
    """200 durable subscribers at different places of 30,000 messages, which read a little now and then."""
    some = []
    for number in range(200):
        one = site.dial(receive_bytes=4096)
        from forelog.broker.mqtt.packets import Connect

        properties = {"session_expiry_interval": FOREVER}
        connect = Connect(f"sip{number}", clean_start=False, properties=properties)  # type: ignore[arg-type]
        site.send(one, packet(connect) + subscribe("sip/#", qos=0))
        some.append(one)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("sip/a", 1000, site.many(30_000))}, seconds=15)
    for turn in range(20):
        for one in some[turn % 4 :: 4]:
            one.setblocking(False)
            try:
                one.recv(4096)
            except OSError:
                pass
        site.settle(0.3)


@attack("broker aliases-out", memory_mib=96, left_mib=64)
def aliases_out(site: Site) -> None:
    """5 subscribers that take 65,535 topic aliases, and 3,000 messages to topics of 60 kB."""
    some = site.mqtt_many(5, "alias", properties={"topic_alias_maximum": 65_535})
    site.pump(dict.fromkeys(some, subscribe("alias/#")), quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    long = "a" * 60_000
    data = (packet(Publish(f"alias/{n}/{long}", b"x")) for n in range(site.many(3000)))
    site.pump({publisher: data, **dict.fromkeys(some, b"")}, quiet=0.5, seconds=25)


@attack("broker aliases-in", memory_mib=96, left_mib=48)
def aliases_in(site: Site) -> None:
    """300 publishers that each define 64 topic aliases for topics of 60 kB."""
    some = site.mqtt_many(site.many(300), "alias")
    long = "a" * 60_000

    def define(client: int) -> Iterator[bytes]:
        for n in range(64):
            yield packet(Publish(f"alias/{client}/{n}/{long}", b"x", properties={"topic_alias": n + 1}))

    site.pump({one: define(number) for number, one in enumerate(some)}, quiet=0.3, seconds=30)


@attack("broker tiny-packets-only", memory_mib=64)
def tiny_packets_only(site: Site) -> None:
    """50 subscribers that take packets of at most 20 bytes, and 5,000 messages that are larger."""
    some = site.mqtt_many(50, "tiny", properties={"maximum_packet_size": 20, "receive_maximum": 1})
    site.pump(dict.fromkeys(some, subscribe("tiny/#", qos=1)), quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("tiny/a", 100, site.many(5000)), **dict.fromkeys(some, b"")}, quiet=0.3)


@attack("broker overlapping", memory_mib=64)
def overlapping(site: Site) -> None:
    """10 clients with 1,000 overlapping filters and identifiers each, and 2,000 messages to all of them."""
    some = site.mqtt_many(10, "overlap")
    filters = ["/".join("+" if bits >> n & 1 else "o" for n in range(10)) for bits in range(1000)]
    data = b"".join(
        packet(Subscribe(n + 1, [Subscription(one)], {"subscription_identifiers": [n + 1]}))
        for n, one in enumerate(filters)
    )
    site.pump(dict.fromkeys(some, data), quiet=0.3)
    (publisher,) = site.mqtt_many(1, "publisher")
    topic = "/".join("o" * 10)
    site.pump({publisher: messages(topic, 10, site.many(2000)), **dict.fromkeys(some, b"")}, quiet=0.5, seconds=25)


# -- publishers


@attack("broker user-property-bomb", memory_mib=128, left_mib=64, short=0.3)
def user_property_bomb(site: Site) -> None:
    """5 messages of 14 MiB, each with 2,000,000 user properties, to a subscriber."""
    subscriber, publisher = site.mqtt_many(2, "bomb")
    site.pump({subscriber: subscribe("bomb/#")}, quiet=0.1)
    pair = b"\x26\x00\x01a\x00\x01b"
    size = len(pair) * site.many(2_000_000)
    body = b"\x00\x06bomb/a" + _varint(size) + pair * (size // len(pair)) + b"x"
    data = b"\x30" + _varint(len(body)) + body
    site.pump({publisher: (data for _ in range(5)), subscriber: b""}, quiet=1.0, seconds=30)


def _varint(number: int) -> bytes:
    out = bytearray()
    while True:
        out.append(number % 128 | (0x80 if number >= 128 else 0))
        number //= 128
        if not number:
            return bytes(out)


@attack("broker subscribe-property-bomb", memory_mib=128, left_mib=64)
def subscribe_property_bomb(site: Site) -> None:
    """SUBSCRIBE, UNSUBSCRIBE, PUBACK and DISCONNECT of 8 MiB, full of user properties."""
    pair = b"\x26\x00\x01a\x00\x01b"
    properties = _varint(len(pair) * 1_000_000) + pair * site.many(1_000_000)
    for kind, start, end in (
        (0x82, b"\x00\x05", b"\x00\x01a\x00"),
        (0xA2, b"\x00\x05", b"\x00\x01a"),
        (0x40, b"\x00\x05\x00", b""),
        (0xE0, b"\x00", b""),
    ):
        (one,) = site.mqtt_many(1, f"prop{kind}")
        body = start + properties + end
        site.pump({one: bytes([kind]) + _varint(len(body)) + body}, quiet=0.3, seconds=10)


@attack("broker filters-in-one-packet", memory_mib=160, left_mib=64)
def filters_in_one_packet(site: Site) -> None:
    """A SUBSCRIBE of 12 MiB with 2,000,000 filters, and an UNSUBSCRIBE of as many."""
    count = site.many(2_000_000)
    (one,) = site.mqtt_many(1, "million")
    body = b"\x00\x05\x00" + b"\x00\x02+a\x00" * count
    site.pump({one: b"\x82" + _varint(len(body)) + body}, quiet=0.5, seconds=20)
    (one,) = site.mqtt_many(1, "million-less")
    body = b"\x00\x05\x00" + b"\x00\x02ab" * count
    site.pump({one: b"\xa2" + _varint(len(body)) + body}, quiet=0.5, seconds=15)


@attack("broker large-messages", memory_mib=192, left_mib=96, seconds=60)
def large_messages(site: Site) -> None:
    """4 publishers, 40 messages of 15 MiB in all, to a subscriber that reads."""
    subscriber = site.mqtt_many(1, "reader")[0]
    site.pump({subscriber: subscribe("large/#")}, quiet=0.1)
    some = site.mqtt_many(4, "large")
    data = packet(Publish("large/a", bytes(15 * MIB)))
    work = {one: (data for _ in range(site.many(10))) for one in some}
    site.pump({**work, subscriber: b""}, quiet=1.0, seconds=40)


@attack("broker publish-flood", memory_mib=128, left_mib=96, short=0.3)
def publish_flood(site: Site) -> None:
    """10 publishers, 600,000 small messages at QoS 0 as fast as they are taken."""
    some = site.mqtt_many(10, "flood")
    site.pump({one: messages("flood/a", 30, site.many(60_000)) for one in some}, quiet=0.3, seconds=25)


@attack("broker publish-flood-fanned", memory_mib=160, left_mib=96)
def publish_flood_fanned(site: Site) -> None:
    """500 subscribers that read, and 2,000 messages to all of them at QoS 1: a million deliveries."""
    some = site.mqtt_many(site.many(500), "fan")
    site.pump(dict.fromkeys(some, subscribe("fan/#", qos=0)), quiet=0.3)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: messages("fan/a", 30, 2000), **dict.fromkeys(some, b"")}, quiet=0.5, seconds=25)


@attack("broker new-topics", memory_mib=128, left_mib=96)
def new_topics(site: Site) -> None:
    """100,000 messages, each to a topic that nobody has used before, with 100 wildcard subscribers."""
    some = site.mqtt_many(100, "wild")
    site.pump(dict.fromkeys(some, subscribe("wild/+/none", "+/+/x/#")), quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    data = (
        b"".join(packet(Publish(f"new/{number}/y", b"x")) for number in range(at, at + 100))
        for at in range(0, site.many(100_000), 100)
    )
    site.pump({publisher: data}, quiet=0.5, seconds=25)


@attack("broker new-long-topics", memory_mib=128, left_mib=96)
def new_long_topics(site: Site) -> None:
    """5,000 messages, each to a new topic of 60 kB, with a subscriber to all of them."""
    subscriber, publisher = site.mqtt_many(2, "long")
    site.pump({subscriber: subscribe("new/#")}, quiet=0.1)
    long = "n" * 60_000
    data = (packet(Publish(f"new/{number}/{long}", b"x")) for number in range(site.many(5000)))
    site.pump({publisher: data, subscriber: b""}, quiet=0.5, seconds=25)


@attack("broker slashes", memory_mib=160, left_mib=144)  # the tail, and 1,000 retained ones of 30 kB
def slashes(site: Site) -> None:
    """2,000 messages to topics of 30,000 levels, with wildcard subscribers, and retained ones."""
    some = site.mqtt_many(20, "slash")
    site.pump(dict.fromkeys(some, subscribe("+/#", "#", "/+/+/#", "+/+/+")), quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    level = "/" * 30_000
    data = (packet(Publish(f"{n}{level}", b"x", retain=n % 2 == 0)) for n in range(site.many(2000)))
    site.pump({publisher: data, **dict.fromkeys(some, b"")}, quiet=0.5, seconds=25)


@attack("broker unreleased", memory_mib=64, left_mib=48)  # 15 MiB of messages in the tail, 100,000 identifiers
def unreleased(site: Site) -> None:
    """100 publishers with 1,000 messages of QoS 2 each that they never release."""
    some = site.mqtt_many(site.many(100), "two", expiry=FOREVER, clean=False)
    data = b"".join(packet(Publish("two/a", bytes(100), 2, packet_id=n)) for n in range(1, 1000))
    site.pump(dict.fromkeys(some, data), quiet=0.5, seconds=25)


@attack("broker wrong-acknowledgements", memory_mib=48)
def wrong_acknowledgements(site: Site) -> None:
    """A million PUBACKs, PUBRECs and PUBRELs for messages that there aren't."""
    some = site.mqtt_many(10, "ack")
    data = b"".join(packet(Puback(n)) + packet(Pubrec(n)) + packet(Pubrel(n)) for n in range(1, 10_000))
    site.pump({one: (data for _ in range(site.many(4))) for one in some}, quiet=0.3, seconds=20)


@attack("broker expiring-messages", memory_mib=96, left_mib=64)
def expiring_messages(site: Site) -> None:
    """A durable subscriber that is away, and 50,000 messages that have expired when it is back."""
    (one,) = site.mqtt_many(1, "away", expiry=FOREVER, clean=False)
    site.pump({one: subscribe("expire/#", qos=1)}, quiet=0.1)
    site.drop(one)
    (publisher,) = site.mqtt_many(1, "publisher")
    one_message = packet(Publish("expire/a", bytes(50), properties={"message_expiry_interval": 1}))
    site.pump({publisher: (one_message * 500 for _ in range(site.many(100)))}, quiet=0.3)
    site.settle(2)
    (one,) = site.mqtt_many(1, "away", expiry=FOREVER, clean=False)
    site.pump({one: b"\xc0\x00"}, quiet=0.5, seconds=10)


@attack("broker far-expiry", memory_mib=48)
def far_expiry(site: Site) -> None:
    """Messages whose expiry is 0, 1 and 0xFFFFFFFF, to a durable subscriber at QoS 1."""
    (one,) = site.mqtt_many(1, "far", expiry=FOREVER, clean=False)
    site.pump({one: subscribe("far/#", qos=1)}, quiet=0.1)
    (publisher,) = site.mqtt_many(1, "publisher")
    data = b"".join(
        packet(Publish("far/a", b"x", 1, n % 2 == 0, packet_id=n, properties={"message_expiry_interval": seconds}))
        for n in range(1, 300)
        for seconds in (0, 1, 0xFFFF_FFFF)
    )
    site.pump({publisher: data, one: b""}, quiet=0.5)
