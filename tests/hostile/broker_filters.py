"""Subscriptions that cost others: wide, deep, many, overlapping, shared, repeated, replayed."""

from __future__ import annotations

import itertools

from forelog.broker.mqtt.packets import Publish, Subscribe, Subscription, Unsubscribe
from tests.hostile.attacks import attack
from tests.hostile.site import Site, Unmet, packet

RETAINED = 20_000
FOREVER = 0xFFFF_FFFF


def subscribe(*filters: str, packet_id: int = 1, qos: int = 0, **options: int) -> bytes:
    return packet(Subscribe(packet_id, [Subscription(one, qos, **options) for one in filters]))  # type: ignore[arg-type]


def retain(site: Site, count: int, name: str = "s/{}/v", payload: bytes = b"x" * 20) -> None:
    """Retained messages of somebody else."""
    (one,) = site.mqtt_many(1, "keeper")
    data = (packet(Publish(name.format(number), payload, retain=True)) for number in range(count))
    site.pump({one: data}, quiet=0.3)
    site.drop(one)


def some_retained(site: Site) -> None:
    retain(site, site.many(RETAINED))


def some_messages(site: Site) -> None:
    """A log of messages that are nobody's business."""
    (one,) = site.mqtt_many(1, "history")
    data = packet(Publish("history/of/all", bytes(100))) * 1000
    site.pump({one: (data for _ in range(site.many(200)))}, quiet=0.5)
    site.drop(one)


# -- what is retained, once for each filter


@attack("broker wide-subscribe", prepare=some_retained, short=0.3)
def wide_subscribe(site: Site) -> None:
    """A SUBSCRIBE of 19 kB with 2,000 filters, where 20,000 topics have a retained message."""
    (one,) = site.mqtt_many(1, "wide")
    filters = [f"+/{number}" for number in range(2000)]
    site.pump({one: subscribe(*filters)}, quiet=1.0)


@attack("broker everything-a-thousand-times", prepare=some_retained, memory_mib=64)
def everything_often(site: Site) -> None:
    """A SUBSCRIBE of 4 kB: # a thousand times, where 20,000 topics have a retained message."""
    (one,) = site.mqtt_many(1, "often")
    site.pump({one: subscribe(*["#"] * site.many(1000))}, quiet=1.0)


@attack("broker everything-unread", prepare=some_retained, memory_mib=64)
def everything_unread(site: Site) -> None:
    """The same from 20 clients that read nothing, in 50 packets each."""
    some = site.mqtt_many(20, "unread", receive_bytes=4096)
    data = subscribe(*["#"] * 20)
    site.pump(dict.fromkeys(some, data * 50), reads=False, seconds=10)
    site.settle(2)


@attack("broker plus-subscribe", prepare=some_retained)
def plus_subscribe(site: Site) -> None:
    """2,000 filters that match all of 20,000 retained topics in many ways, retain handling 0 and 1."""
    (one,) = site.mqtt_many(1, "plus")
    filters = ["+/+/v", "s/+/v", "s/#", "+/+/+", "+/#", "#", "s/+/#", "+/+/#"] * 250
    data = [subscribe(*filters[at : at + 100], packet_id=1 + at) for at in range(0, len(filters), 100)]
    data += [subscribe(*filters[:100], packet_id=3000 + at, retain_handling=1) for at in range(20)]
    site.pump({one: data}, quiet=1.0)


@attack("broker retained-by-many", prepare=some_retained, memory_mib=96, idle_cpu=1)
def retained_by_many(site: Site) -> None:
    """100 clients that each ask for 20,000 retained messages at the same moment, and read them."""
    some = site.mqtt_many(site.many(100), "greedy")
    site.pump(dict.fromkeys(some, subscribe("#", qos=1)), quiet=1.0, seconds=25)


# -- filters as such


@attack("broker deep-filters", memory_mib=64, short=0.1)
def deep_filters(site: Site) -> None:
    """4,000 filters of 200 levels, then messages to 50 new topics of 200 levels."""
    (one,) = site.mqtt_many(1, "deep")
    levels = "/".join("ab" for _ in range(198))
    data = [
        subscribe(*(f"{number}/{levels}/x" for number in range(at, at + 50)), packet_id=at + 1)
        for at in range(0, site.many(4000), 50)
    ]
    site.pump({one: data}, quiet=0.5)
    (other,) = site.mqtt_many(1, "deep-publisher")
    topics = [f"{number}/{levels}/{number}" for number in range(50)]
    site.pump({other: [packet(Publish(topic, b"x")) for topic in topics]}, quiet=0.5)


@attack("broker plus-trees", memory_mib=64)
def plus_trees(site: Site) -> None:
    """8,192 filters, all of + and a over 13 levels, then messages to topics that match all of them."""
    (one,) = site.mqtt_many(1, "trees")
    filters = ["/".join(parts) for parts in itertools.product("+a", repeat=13)]
    data = [subscribe(*filters[at : at + 128], packet_id=at + 1) for at in range(0, site.many(len(filters)), 128)]
    site.pump({one: data}, quiet=0.5)
    (other,) = site.mqtt_many(1, "trees-publisher")
    topics = ["/".join(["a"] * 12 + [f"a{number}"]) for number in range(100)] + ["/".join("a" * 13)] * 100
    site.pump({other: [packet(Publish(topic, b"x")) for topic in topics]}, quiet=1.0)


@attack("broker plus-depth", memory_mib=64)
def plus_depth(site: Site) -> None:
    """50 clients with +/+/+... of 1 to 200 levels, + and # mixed, then 200 new topics of 200 levels."""
    some = site.mqtt_many(50, "depth")
    filters = ["/".join(["+"] * depth) for depth in range(1, 200)] + [
        "/".join([*["+"] * depth, "#"]) for depth in range(1, 199)
    ]
    data = b"".join(subscribe(*filters[at : at + 40], packet_id=at + 1) for at in range(0, len(filters), 40))
    site.pump(dict.fromkeys(some, data), quiet=0.5)
    (other,) = site.mqtt_many(1, "depth-publisher")
    level = "/".join("q" for _ in range(199))
    topics = [f"{number}/{level}" for number in range(site.many(200))]
    site.pump({other: [packet(Publish(topic, b"x")) for topic in topics]}, quiet=1.0)


@attack("broker long-filters", memory_mib=96, left_mib=48)
def long_filters(site: Site) -> None:
    """4,300 filters of 65,000 bytes in one durable session: 281 MB, if they are taken."""
    (one,) = site.mqtt_many(1, "long", expiry=FOREVER, clean=False)
    long = "l" * 64_900
    data = (subscribe(f"{number}/{long}", packet_id=number % 60_000 + 1) for number in range(site.many(4300)))
    site.pump({one: data}, quiet=0.5, seconds=25)
    durable_works(site)


@attack("broker long-filters-passing", memory_mib=512, left_mib=48)  # half of what all sessions may take
def long_filters_passing(site: Site) -> None:
    """The same from 100 clients whose sessions end with their connections, 2 MiB of filters each."""
    some = site.mqtt_many(100, "lp")
    long = "l" * 64_900
    work = {
        one: b"".join(subscribe(f"{number}/{n}/{long}", packet_id=n + 1) for n in range(32))
        for number, one in enumerate(some)
    }
    site.pump(work, quiet=0.5, seconds=25)


def durable_works(site: Site) -> None:
    """Somebody else's durable session is written, and gets what was published while it was away."""
    other = site.mqtt("bystander", clean=False, expiry=3600)
    other.subscribe("by/stander", qos=1)
    site.drop(other)
    with_message = site.mqtt("bystander-publisher")
    with_message.publish("by/stander", b"for you", 1)
    again = site.mqtt("bystander", clean=False, expiry=3600)
    again.socket.settimeout(5)
    try:
        found = again.messages(1)
    except (OSError, AssertionError) as error:
        raise Unmet(f"another durable session doesn't get its message: {error!r}") from None
    if found != [("by/stander", b"for you")]:
        raise Unmet(f"another durable session got {found}")


# -- what is written


@attack("broker session-notes", memory_mib=48, disk_mib=4, restart=True, short=1)
def session_notes(site: Site) -> None:
    """100 SUBSCRIBEs of 60 kB each of a durable session."""
    (one,) = site.mqtt_many(1, "notes", expiry=FOREVER, clean=False)
    data = [
        subscribe(*(f"{at}/{number}/" + "n" * 560 for number in range(100)), packet_id=at + 1) for at in range(100)
    ]
    site.pump({one: data}, quiet=0.5)


@attack("broker subscribe-again", disk_mib=4, restart=True)
def subscribe_again(site: Site) -> None:
    """A durable session with 5,000 filters, of which one comes and goes 2,000 times."""
    (one,) = site.mqtt_many(1, "again", expiry=FOREVER, clean=False)
    data = [
        subscribe(*(f"again/{number}" for number in range(at, at + 500)), packet_id=at + 1)
        for at in range(0, 5000, 500)
    ]
    site.pump({one: data}, quiet=0.3)
    loop = subscribe("again/and/again") + packet(Unsubscribe(2, ["again/and/again"]))
    site.pump({one: (loop for _ in range(site.many(2000)))}, quiet=0.5, seconds=25)


@attack("broker durable-reconnects", disk_mib=4, restart=True)
def durable_reconnects(site: Site) -> None:
    """A durable session with 5,000 filters whose client connects 300 times."""
    (one,) = site.mqtt_many(1, "return", expiry=FOREVER, clean=False)
    data = [
        subscribe(*(f"return/{number}/x" for number in range(at, at + 500)), packet_id=at + 1)
        for at in range(0, 5000, 500)
    ]
    site.pump({one: data}, quiet=0.3)
    for _ in range(site.many(300)):
        if site.left() < 5:
            break
        (other,) = site.mqtt_many(1, "return", expiry=FOREVER, clean=False)
        site.drop(other)


@attack("broker reconnect-product", prepare=lambda site: retain(site, site.many(1500), "topic/{}/x"))
def reconnect_product(site: Site) -> None:
    """A durable session with 1,000 filters comes back after messages to 1,500 topics, ten times."""
    (one,) = site.mqtt_many(1, "product", expiry=FOREVER, clean=False)
    filters = [f"topic/+/x/{number}" for number in range(500)] + [f"topic/{number}/+" for number in range(500)]
    site.pump({one: subscribe(*filters, qos=1)}, quiet=0.5)
    (publisher,) = site.mqtt_many(1, "publisher")
    topics = b"".join(packet(Publish(f"topic/{number}/x", b"x")) for number in range(1500))
    for _ in range(site.many(10)):
        site.drop(one)
        site.pump({publisher: topics}, quiet=0.1)
        (one,) = site.mqtt_many(1, "product", expiry=FOREVER, clean=False)
        site.pump({one: b"\xc0\x00"}, quiet=0.3, seconds=8)


@attack("broker subscribe-loop")
def subscribe_loop(site: Site) -> None:
    """10 clients that subscribe to 200 filters and unsubscribe, 200 times."""
    some = site.mqtt_many(10, "loop")
    filters = [f"loop/{number}/+" for number in range(200)]
    data = subscribe(*filters) + packet(Unsubscribe(2, filters))
    site.pump({one: (data for _ in range(site.many(200))) for one in some}, quiet=0.3, seconds=25)


# -- shared


@attack("broker shared-groups", memory_mib=64, short=0.3)
def shared_groups(site: Site) -> None:
    """An idle client with 10,000 shared groups."""
    (one,) = site.mqtt_many(1, "groups")
    data = [
        subscribe(*(f"$share/g{number}/groups/{number}" for number in range(at, at + 500)), packet_id=at + 1)
        for at in range(0, site.many(10_000), 500)
    ]
    site.pump({one: data}, quiet=0.5)
    site.settle(1)


@attack("broker shared-groups-of-one-topic", memory_mib=96)
def shared_groups_of_one_topic(site: Site) -> None:
    """5,000 shared groups of the same topic, and 200 messages to it; the member never acknowledges."""
    (one,) = site.mqtt_many(1, "groups1", properties={"receive_maximum": 10})
    data = [
        subscribe(*(f"$share/g{number}/groups/one" for number in range(at, at + 500)), packet_id=at + 1, qos=1)
        for at in range(0, 5000, 500)
    ]
    site.pump({one: data}, quiet=0.5)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: (packet(Publish("groups/one", bytes(200))) for _ in range(200))}, quiet=1.0)
    site.pump({one: b"\xc0\x00"}, quiet=1.0, seconds=10)


@attack("broker shared-churn", memory_mib=64)
def shared_churn(site: Site) -> None:
    """20 members of 100 groups that leave without acknowledging, again and again."""
    (publisher,) = site.mqtt_many(1, "publisher")
    data = subscribe(*(f"$share/churn{number}/churn/#" for number in range(100)), qos=1)
    messages = b"".join(packet(Publish(f"churn/{number}", bytes(100))) for number in range(50))
    for round_number in range(site.many(15)):
        some = site.mqtt_many(20, f"churn{round_number}-")
        site.pump(dict.fromkeys(some, data), quiet=0.05)
        site.pump({publisher: messages}, quiet=0.05)
        for one in some:
            site.drop(one)
        if site.left() < 3:
            break


@attack("broker shared-left-behind", memory_mib=64, restart=True)
def shared_left_behind(site: Site) -> None:
    """5,000 shared groups of a durable session whose client is away, while 2,000 messages come."""
    (one,) = site.mqtt_many(1, "away", expiry=FOREVER, clean=False)
    data = [
        subscribe(*(f"$share/g{number}/away/{number}" for number in range(at, at + 500)), packet_id=at + 1, qos=1)
        for at in range(0, 5000, 500)
    ]
    site.pump({one: data}, quiet=0.5)
    site.drop(one)
    (publisher,) = site.mqtt_many(1, "publisher")
    site.pump({publisher: (packet(Publish(f"away/{n}", b"x")) for n in range(2000))}, quiet=0.5)
    (one,) = site.mqtt_many(1, "away", expiry=FOREVER, clean=False)
    site.pump({one: b"\xc0\x00"}, quiet=1.0, seconds=15)


# -- the past


@attack("broker replay-loop", prepare=some_messages, memory_mib=96)
def replay_loop(site: Site) -> None:
    """Everything since ever, for a topic that there isn't, over a log of 200,000 messages, 200 times."""
    (one,) = site.mqtt_many(1, "replay")
    data = subscribe("$replay/all/no/such/topic") + packet(Unsubscribe(2, ["$replay/all/no/such/topic"]))
    site.pump({one: (data for _ in range(site.many(200)))}, quiet=0.5, seconds=20)


@attack("broker replay-cursors", prepare=some_messages, memory_mib=128)
def replay_cursors(site: Site) -> None:
    """500 replays of the whole log at a time, by one client, of which it reads nothing."""
    (one,) = site.mqtt_many(1, "cursors")
    data = subscribe(*(f"$replay/all/history/+/{'all' if n % 2 else 'none'}/{n}" for n in range(250)))
    data += subscribe(*(f"$replay/-{n}s/history/#" for n in range(1, 250)), packet_id=2)
    site.pump({one: data}, reads=False, seconds=5)
    site.settle(5)


@attack("broker replay-by-many", prepare=some_messages, memory_mib=160, idle_cpu=1)
def replay_by_many(site: Site) -> None:
    """100 clients that replay 200,000 messages each, and read them."""
    some = site.mqtt_many(site.many(100), "reader")
    site.pump(dict.fromkeys(some, subscribe("$replay/all/history/#")), quiet=0.5, seconds=20)


@attack("broker replay-times", prepare=some_messages)
def replay_times(site: Site) -> None:
    """Replays from every kind of time: far past, far future, nonsense, thousands of them."""
    (one,) = site.mqtt_many(1, "times")
    words = ["-1s", "-1000000d", "1970-01-01", "9999-12-31T23:59:59Z", "-0s", "0", "x" * 1000, "-1h", "2026-02-30"]
    data = (
        subscribe(f"$replay/{words[n % len(words)]}/t/{n}", packet_id=n % 60_000 + 1)
        for n in range(site.many(3000))
    )
    site.pump({one: data}, quiet=0.5, seconds=20)
