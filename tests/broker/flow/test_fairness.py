"""Nothing that a client asks for holds up the event loop: what is measured is the longest round of it.

The documented bound is 20 ms. Here it is several times that, for slow machines: each of these took seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forelog.broker import Limits
from forelog.broker.flow import delivery
from forelog.broker.log.batch import StoredMessage
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    Connack,
    Connect,
    Pingreq,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.broker.held import held
from tests.broker.local import Local, local, until
from tests.broker.talking import Talk
from tests.notes import noted

HELD_MS_MAX = 100.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Local]:
    with local(tmp_path / "log") as found:
        yield found


@pytest.fixture
def talk(broker: Local) -> Callable[..., Talk]:
    def start(client_id: str, **more) -> Talk:
        client = Talk(broker.port)
        broker.clients.append(client)
        client.connect(client_id, **more)
        return client

    return start


@contextlib.contextmanager
def reading(client: Talk) -> Iterator[list[int]]:
    """Take whatever comes, on another thread; how many bytes that were."""
    count = [0]

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := client.socket.recv(1 << 16):
                count[0] += len(data)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield count
    finally:
        with contextlib.suppress(OSError):
            client.socket.shutdown(2)
        thread.join()


@contextlib.contextmanager
def sending(client: Talk, data: bytes) -> Iterator[None]:
    """Send, on another thread."""

    def send() -> None:
        with contextlib.suppress(OSError):
            client.socket.sendall(data)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            client.socket.shutdown(2)
        thread.join()


def packets(*wanted) -> bytes:
    return b"".join(encode(packet, 5, from_server=False) for packet in wanted)


def test_thousands_of_filters_and_retained_messages(broker, talk):
    broker.do(lambda: [broker.broker.store.retain(StoredMessage(1, f"t/{n}", b"x", {})) for n in range(20_000)])
    client = talk("c")
    with held(broker) as loop:
        assert client.subscribe(*(f"t/+/{n}" for n in range(2000))) == [0] * 2000
        client.drain()
    assert loop.longest_ms < HELD_MS_MAX


def test_a_session_with_many_filters_comes_and_goes(broker, talk):
    with held(broker) as loop:
        client = talk("c")
        for first in range(0, 9000, 1000):
            client.subscribe(*(f"z/{n}/+" for n in range(first, first + 1000)))
        publisher = talk("p")
        publisher.send(*(Publish(f"z/{n}/x", b"y") for n in range(1500)))
        publisher.drain()
        client.close()
        until(lambda: broker.do(lambda: len(broker.broker.routes)) == 0)
    assert loop.longest_ms < HELD_MS_MAX


def test_a_client_that_comes_back_gets_all_that_it_missed_though_it_joins_in_slices(broker, talk):
    """Messages that are published while its filters are taken up again are not lost."""
    client = talk("c", clean=False, expiry=1000)
    for first in range(0, 5000, 1000):
        client.subscribe(*(f"z/{n}" for n in range(first, first + 1000)), qos=1)
    client.close()
    publisher, count = talk("p"), 2000
    publisher.send(*(Publish(f"z/{n % 5000}", b"%d" % n, 1, packet_id=n + 1) for n in range(count // 2)))
    again = talk("c", clean=False, expiry=1000)
    publisher.send(*(Publish(f"z/{n % 5000}", b"%d" % n, 1, packet_id=n + 1) for n in range(count // 2, count)))
    assert [message.payload for message in again.take(count)] == [b"%d" % n for n in range(count)]


def test_filters_with_many_levels_and_new_topics(broker, talk):
    client, publisher = talk("c"), talk("p")
    with held(broker) as loop:
        for first in range(0, 4000, 100):
            filters = (["+" if n >> bit & 1 else "a" for bit in range(12)] for n in range(first, first + 100))
            client.subscribe(*("/".join([*levels, *["a", "+"] * 93]) for levels in filters))
        for n in range(5):
            publisher.publish("/".join(["a"] * 12 + ["a", str(n)] * 93), b"x", qos=1)
        assert len(client.take(5)) == 5
    assert loop.longest_ms < HELD_MS_MAX


@pytest.mark.parametrize(
    "packet",
    [
        Pingreq(),
        Publish("q/x", b"", 0, properties={"content_type": "x"}),
        Publish("q/x", b"", 0, retain=True),
    ],
    ids=["pings", "properties", "retained"],
)
def test_many_small_packets_in_one_read(broker, talk, packet):
    client, other = talk("c"), talk("other")
    with reading(client), held(broker) as loop:
        client.raw(packets(packet) * 20_000)
        for _ in range(20):
            other.drain()
    assert loop.longest_ms < HELD_MS_MAX


def test_a_publish_and_a_subscribe_again_and_again(broker, talk):
    client, other = talk("c", clean=False, expiry=100), talk("other")
    with reading(client), held(broker) as loop:
        client.raw(packets(Publish("q"), Subscribe(1, [Subscription("w", 0)])) * 2000)
        for _ in range(20):
            other.drain()
    assert loop.longest_ms < HELD_MS_MAX


@pytest.mark.parametrize("flood", [Publish("q/a", b"x", retain=True), Publish("q/a", b"x", 2, packet_id=1)])
def test_a_message_does_not_wait_behind_a_hundred_clients_that_send_much(broker, talk, flood):
    """It waited for the turns of all of them: seconds, before it was delivered, or its client was heard again."""
    floods = [talk(f"c{number}") for number in range(100)]
    other = talk("other")
    other.subscribe("mine", qos=1)
    data, worst = packets(flood) * 1000, 0.0
    with contextlib.ExitStack() as stack:
        for client in floods:
            stack.enter_context(reading(client))
            stack.enter_context(sending(client, data))
        until(lambda: broker.do(lambda: len(broker.broker.slices)) > 20)
        while len(broker.broker.slices):
            begun = time.process_time()
            other.publish("mine", b"x", 1)
            other.messages(1)
            other.drain()
            worst = max(worst, time.process_time() - begun)
    assert 0 < worst < 2  # seconds of this process, whatever else the machine does; it was many times as much


def test_tens_of_thousands_of_topics_at_once(broker, talk):
    client, publisher = talk("c"), talk("p")
    client.subscribe("#")
    with reading(client), held(broker) as loop:
        publisher.raw(packets(*(Publish(f"a/{n}") for n in range(20_000))))
        publisher.drain()
        until(lambda: not broker.do(lambda: broker.broker.delivery.is_behind))
    assert loop.longest_ms < HELD_MS_MAX


def test_tens_of_thousands_of_messages_for_a_client_with_aliases(broker, talk):
    """They are made one by one, and it gets each of them."""
    client, publisher = talk("c", properties={"topic_alias_maximum": 5}), talk("p")
    client.subscribe("a")
    with held(broker) as loop:
        publisher.raw(packets(Publish("a")) * 20_000)
        publisher.drain()
        assert len(client.take(20_000)) == 20_000
    assert loop.longest_ms < HELD_MS_MAX


def test_one_message_with_an_expiry_among_thousands_of_plain_ones(broker, talk):
    clients, publisher = [talk(f"c{n}") for n in range(20)], talk("p")
    for client in clients:
        client.subscribe("a")
    special = Publish("a", b"special", properties={"message_expiry_interval": 1000})
    with held(broker) as loop:
        publisher.raw(packets(Publish("a")) * 3000 + packets(special) + packets(Publish("a")) * 3000)
        publisher.drain()
        for client in clients:
            assert [n for n, one in enumerate(client.take(6001)) if one.payload] == [3000]
    assert loop.longest_ms < HELD_MS_MAX


def test_a_message_for_many_subscribers_reaches_each_once_and_in_order(broker, talk):
    """Some come, go and subscribe while it is under way."""
    clients, publisher = [talk(f"c{n}") for n in range(200)], talk("p")
    for client in clients:
        client.subscribe("fan", qos=1)
    publisher.send(*(Publish("fan", b"%d" % n, 1, packet_id=n + 1) for n in range(50)))
    clients[150].subscribe("other", "fan/#", qos=1)
    clients[199].unsubscribe("nothing")
    for client in clients:
        assert [one.payload for one in client.take(50)] == [b"%d" % n for n in range(50)]
        assert [one for one in client.drain() if isinstance(one, Publish)] == []


# -- groups


def test_idle_groups_cost_nothing(broker, talk, monkeypatch):
    """10,000 groups were looked at ten times a second, for ever."""
    from forelog.broker.sessions.group import Group

    client = talk("c")
    for first in range(0, 2000, 500):
        client.subscribe(*(f"$share/g{n}/x/{n}" for n in range(first, first + 500)), qos=1)
    looked: list[Group] = []
    real = Group.at
    monkeypatch.setattr(Group, "at", lambda self, end: noted(looked, self) or real(self, end))
    time.sleep(0.5)
    assert looked == []
    client.publish("x/7", b"x", qos=1)
    (message,) = client.take(1)
    assert message.topic == "x/7"
    until(lambda: looked)
    assert {group.key for group in looked} == {"$share/g7/x/7"}


def test_a_member_without_room_is_not_asked_again_and_again(broker, talk, monkeypatch):
    """A batch for a group asks those that may have room, and not all of its members."""
    stuck = [talk(f"s{n}", properties={"receive_maximum": 1}) for n in range(30)]
    for client in stuck:
        client.subscribe("$share/g/x", qos=1)
    free, publisher = talk("free"), talk("p")
    for n in range(30):
        publisher.publish("x", b"%d" % n, qos=1)
    free.subscribe("$share/g/x", qos=1)
    asked: list[Any] = []
    real = broker.broker.sender.can_take
    monkeypatch.setattr(broker.broker.sender, "can_take", lambda session: noted(asked, session) or real(session))
    for n in range(100):
        publisher.publish("x", b"%d" % n, qos=1)
    assert len(free.take(100)) == 100
    assert len(asked) < 100 * 8
    first = stuck[0].take(1)
    assert len(first) == 1  # it has acknowledged it, and has room again
    for _ in range(20):
        publisher.publish("x", b"again", qos=1)
    assert stuck[0].expect(Publish).payload == b"again"


def test_what_a_member_leaves_behind_goes_to_another_and_a_restart_knows_where_the_group_is(tmp_path: Path):
    with local(tmp_path / "log") as broker:
        first, second, publisher = Talk(broker.port), Talk(broker.port), Talk(broker.port)
        broker.clients += [first, second, publisher]
        first.connect("first", clean=False, expiry=1000)
        publisher.connect("p")
        first.subscribe("$share/g/x", qos=1)
        for n in range(100):
            publisher.publish("x", b"%d" % n, qos=1)
        unacknowledged = [first.expect(Publish).payload for _ in range(100)]
        second.connect("second", clean=False, expiry=1000)
        second.subscribe("$share/g/x", qos=1)
        first.close()
        assert sorted(one.payload for one in second.take(100)) == sorted(unacknowledged)
        group = broker.broker.presence.groups["$share/g/x"]
        until(lambda: broker.do(lambda: broker.broker.store.groups[group.key] == broker.broker.history.end))
        second.close()
    with local(tmp_path / "log") as broker, Talk(broker.port) as second:
        second.connect("second", clean=False, expiry=1000)
        assert second.drain() == []


# -- subscriptions that come and go


def test_subscribing_in_a_loop_leaves_what_is_known_of_other_topics(broker, talk):
    client, other, publisher = talk("c"), talk("other"), talk("p")
    other.subscribe("house/+")
    for n in range(50):
        publisher.publish(f"house/{n}", b"x")
    routes = broker.broker.routes
    known = broker.do(lambda: [routes.known(b"house/%d" % n) for n in range(50)])
    assert None not in known
    for n in range(20):
        client.subscribe(f"mine/{n}/#", "mine/+")
        client.unsubscribe(f"mine/{n}/#", "mine/+")
    assert broker.do(lambda: [routes.known(b"house/%d" % n) for n in range(50)]) == known
    client.subscribe("house/7")
    assert broker.do(lambda: routes.known(b"house/7")) is None


def test_what_is_known_of_topics_is_bounded_in_bytes(broker, talk):
    client, publisher = talk("c"), talk("p")
    client.subscribe("nothing/#")
    for first in range(0, 3000, 100):
        publisher.send(*(Publish(f"{first + n}/{'x' * 10_000}") for n in range(100)))
        publisher.drain()
    routes = broker.broker.routes
    until(lambda: not broker.do(lambda: broker.broker.delivery.is_behind))
    kept = broker.do(lambda: sum(map(len, routes._cache)))
    assert 0 < kept <= 16 << 20
    assert broker.do(lambda: sum(map(len, routes._topics.values())) == len(routes._cache))


def test_a_client_can_ask_for_no_more_than_it_may_have(tmp_path: Path):
    limits = Limits(subscriptions_max=10)
    with local(tmp_path / "log", limits=limits) as broker, Talk(broker.port) as client:
        client.connect("c")
        codes = client.subscribe(*(f"a/{n}" for n in range(8)), "$share/g/x", "$replay/all/y", "z")
        assert codes == [0] * 10 + [0x97]
        client.unsubscribe("$replay/all/y")
        assert client.subscribe("z") == [0]


@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_a_packet_has_a_limited_number_of_filters(broker, talk, kind):
    """They are decoded at one go."""
    client = talk("c")
    filters = ["a"] * 10_001
    with held(broker) as loop:
        client.send(kind(1, [Subscription(one) for one in filters] if kind is Subscribe else filters))
        told = client.end()
    assert told.reason_code == 0x97
    assert loop.longest_ms < HELD_MS_MAX


# -- replays


def test_replayed_messages_say_when_they_were_logged(broker, talk):
    publisher, old = talk("p"), Talk(broker.port, 4)
    broker.clients.append(old)
    for n in range(10):
        publisher.publish(
            "a", b"%d" % n, qos=1, properties={"user_properties": [("mine", "yes")]} if n == 3 else {}
        )
    times = [broker.broker.history.recent(broker.broker.history._tail[0].position(0)).message(0).time_ns]
    client = talk("c")
    client.subscribe("$replay/all/a", qos=1)
    found = client.take(10)
    logged = [dict(one.properties["user_properties"])["forelog-time"] for one in found]
    assert logged == sorted(logged)
    from forelog.times import parse_time

    assert parse_time(logged[0]) == times[0]
    assert found[3].properties["user_properties"][0] == ("mine", "yes")
    old.connect("old")
    old.subscribe("$replay/all/a", qos=1)
    assert [one.payload for one in old.take(10)] == [b"%d" % n for n in range(10)]
    client.subscribe("b", qos=1)
    publisher.publish("b", b"live", qos=1)
    assert "user_properties" not in client.take(1)[0].properties


def test_a_large_message_for_many_subscribers_is_sent_in_steps(broker, talk):
    for number in range(100):
        talk(f"reader{number}").subscribe("large", qos=1)
    publisher = talk("publisher")
    sender = broker.broker.sender
    most, before, flush = 0, 0, sender.flush

    def watch() -> None:
        nonlocal most, before
        flush()
        most, before = max(most, sender.sent_bytes - before), sender.sent_bytes

    broker.do(lambda: setattr(sender, "flush", watch))
    publisher.publish("large", bytes(300_000), 1)
    until(lambda: sender.sent_bytes > 100 * 300_000)
    assert most < 3_000_000


def test_many_that_connect_and_subscribe_at_once_hold_up_nobody(broker):
    with held(broker) as found:
        some = []
        for number in range(300):
            client = Talk(broker.port)
            broker.clients.append(client)
            client.send(Connect(f"c{number}"), Subscribe(1, [Subscription(f"{number}/{n}", 0) for n in range(50)]))
            some.append(client)
        for client in some:
            client.expect(Connack)
            client.expect(Suback)
        for client in some:
            client.close()
        until(lambda: not broker.do(lambda: broker.broker.store.sessions))
    assert found.longest_ms < HELD_MS_MAX


def overlapping(client: Talk, levels: int = 12) -> None:
    """Subscribe to filters that are all looked at for a topic whose levels are all `a`."""
    filters = ["/".join(parts) for parts in itertools.product("+a", repeat=levels)]
    for first in range(0, len(filters), 512):
        client.subscribe(*filters[first : first + 512])


def test_a_message_does_not_wait_behind_those_to_new_topics(broker, talk):
    """Finding who wants each of these takes milliseconds, and they were sent before it."""
    subscriber, flood, publisher = talk("s"), talk("f"), talk("p")
    overlapping(talk("c"))
    subscriber.subscribe("known", "a/#")
    publisher.publish("known", b"first", qos=1)
    flood.send(*(Publish("/".join([*"a" * 11, f"a{n}"]), b"x") for n in range(300)))
    until(lambda: broker.do(lambda: len(broker.broker.slices) > 0))
    publisher.publish("known", b"second", qos=1)
    topics = [message.topic for message in subscriber.take(302)]
    assert topics[0] == "known"
    assert "known" in topics[1:300]


def test_messages_to_new_topics_keep_their_order(broker, talk):
    """Plain ones, those with an alias or a property, and those of a client with limited rights."""
    overlapping(talk("c"))
    subscriber, publisher = talk("s"), talk("p")
    subscriber.subscribe("a/#")
    topics = ["/".join([*"a" * 11, f"a{n}"]) for n in range(700)]
    kinds: list[Properties] = [{}, {}, {}, {"topic_alias": 1}, {"message_expiry_interval": 100}]
    publisher.send(
        *(
            Publish(topic, b"%d" % n, n % 2, packet_id=n + 1 if n % 2 else 0, properties=kinds[n % 5].copy())
            for n, topic in enumerate(topics)
        )
    )
    assert [message.topic for message in subscriber.take(700)] == topics
    assert len(publisher.drain()) == 350


def test_who_leaves_while_its_topics_are_looked_up_leaves_no_work_behind(broker, talk):
    overlapping(talk("c"))
    flood = talk("f")
    flood.send(*(Publish("/".join([*"a" * 11, f"a{n}"]), b"x") for n in range(2000)))
    until(lambda: broker.do(lambda: len(broker.broker.slices) > 0))
    flood.socket.close()
    until(lambda: broker.do(lambda: len(broker.broker.slices) == 0))
    assert broker.do(lambda: broker.broker.intake.messages) < 2000


def test_what_is_large_for_all_of_many_subscribers_does_not_hold_up_others(broker, talk, monkeypatch):
    """They are sent it in turns, and a message to somebody else comes before the last of them has it."""
    monkeypatch.setattr(delivery, "TOGETHER_BYTES_MAX", 1 << 20)
    many, other, publisher = [talk(f"s{n}") for n in range(30)], talk("o"), talk("p")
    for one in many:
        one.subscribe("large", qos=1)
    other.subscribe("small", qos=1)
    catchup, later = broker.broker.catchup, []
    resume = catchup.resume
    monkeypatch.setattr(catchup, "resume", later.append)
    publisher.publish("large", bytes(300_000), qos=1)
    publisher.publish("small", b"x", qos=1)
    assert [message.topic for message in other.take(1)] == ["small"]
    assert broker.do(lambda: len(later)) == 26
    monkeypatch.setattr(catchup, "resume", resume)
    broker.do(lambda: [resume(cursor) for cursor in later])
    publisher.publish("large", b"second", qos=1)
    for one in many:
        assert [len(message.payload) for message in one.take(2)] == [300_000, 6]


def test_a_message_to_a_new_topic_does_not_wait_for_the_turns_of_others(broker, talk):
    """Unless finding who wants it takes long."""
    overlapping(talk("c"), 10)
    publisher = talk("p")
    (connection,) = (one for one in broker.broker.presence.connections if one.client_id == "p")

    def publish(topic: str) -> bool:
        broker.broker.slices.use(1000.0)  # others have used up the time of this round
        connection.data_received(packets(Publish(topic, b"x")))
        return connection._held is None

    assert broker.do(lambda: publish("new"))
    assert not broker.do(lambda: publish("/".join("a" * 10)))
    publisher.drain()
    assert broker.do(lambda: broker.broker.intake.messages) == 2
