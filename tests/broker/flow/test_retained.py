"""Retained messages: found through the tree of topics, and sent a few at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forelog.broker.log.batch import StoredMessage
from forelog.broker.mqtt.packets import Pingreq, Pingresp, Publish, Suback, Subscribe, Subscription
from forelog.broker.mqtt.topics import matches
from forelog.broker.sessions.retained import RetainedMessages
from tests.broker.local import local
from tests.broker.serving import served
from tests.broker.talking import Talk

LEVEL = st.sampled_from(["a", "b", "", "ab", "a b", "\u00e9", "\x01", "$s"])
TOPICS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(
    st.lists(LEVEL | st.just("+"), min_size=0, max_size=4), st.sampled_from([[], ["#"]])
).map(lambda parts: "/".join([*parts[0], *parts[1]])).filter(bool)  # fmt: skip


def kept(*topics: str) -> RetainedMessages:
    retained = RetainedMessages()
    for topic in topics:
        retained.add(StoredMessage(1, topic, b"x", {}))
    return retained


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), TOPICS), max_size=40), FILTERS)
def test_a_walk_finds_what_comparing_with_each_topic_finds(changes, wanted):
    retained, model = RetainedMessages(), set()
    for is_added, topic in changes:
        if is_added:
            assert (retained.add(StoredMessage(1, topic, b"x", {})) is not None) == (topic in model)
            model.add(topic)
        else:
            assert (retained.remove(topic) is not None) == (topic in model)
            model.discard(topic)
    found = [message.topic for message in retained.match(wanted) if message is not None]
    assert sorted(found) == sorted(topic for topic in model if matches(wanted, topic))
    assert set(retained) == model
    assert len(retained) == len(model)
    assert [one.topic for one in retained.after(None, 1000)] == sorted(model, key=lambda topic: topic.split("/"))


@settings(max_examples=100)
@given(st.data(), FILTERS)
def test_a_walk_goes_on_while_topics_come_and_go(data, wanted):
    """What is there throughout is found once, whatever happens between two steps."""
    model = set(data.draw(st.lists(TOPICS, max_size=30)))
    retained, lasting, found = kept(*model), set(model), []
    for message in retained.match(wanted):
        if message is not None:
            found.append(message.topic)
        topic = data.draw(TOPICS)
        if data.draw(st.booleans()):
            retained.add(StoredMessage(2, topic, b"y", {}))
        else:
            retained.remove(topic)
            lasting.discard(topic)
    assert len(found) == len(set(found))
    assert {topic for topic in lasting if matches(wanted, topic)} <= set(found)


@pytest.mark.parametrize(
    ("wanted", "steps_max"),
    [
        ("house/7/temperature", 1),
        ("house/7/#", 5),
        ("house/+/temperature", 2 * 5000 + 3),
        ("street/#", 3),
        ("house/7/+", 6),
        ("+/7/temperature", 8),
    ],
)
def test_branches_that_dont_match_are_not_walked(wanted, steps_max):
    retained = kept(*(f"house/{n}/{what}" for n in range(5000) for what in ("door", "light", "temperature")))
    assert sum(1 for _ in retained.match(wanted)) <= steps_max


def test_topics_are_found_among_a_hundred_thousand():
    """Blocks of topics are cut and vanish, and nothing gets lost on the way."""
    retained = kept(*(f"a/{n * 7919 % 100_000}" for n in range(100_000)))
    assert max(map(len, retained._blocks)) <= 1000
    for n in range(0, 100_000, 2):
        retained.remove(f"a/{n}")
    assert sum(1 for found in retained.match("#") if found is not None) == 50_000
    assert next(retained.match("a/77777")).topic == "a/77777"


# -- with a broker


def test_retained_messages_come_after_the_suback_in_slices_between_those_of_others(tmp_path: Path):
    """The other client's PINGREQ is answered long before all of 20,000 messages are sent."""
    with served(tmp_path / "log") as broker:
        publisher = Talk(broker.port)
        publisher.connect("publisher")
        for first in range(0, 20_000, 1000):
            publisher.send(*(Publish(f"t/{first + n}", b"x" * 100, 0, True) for n in range(1000)))
            publisher.drain()
        greedy, other = Talk(broker.port), Talk(broker.port)
        greedy.connect("greedy")
        other.connect("other")
        greedy.send(Subscribe(1, [Subscription("#", 0)]))
        assert isinstance(greedy.read(), Suback)
        other.send(Pingreq())
        other.expect(Pingresp)
        topics = {message.topic for message in greedy.take(20_000)}
        assert topics == {f"t/{n}" for n in range(20_000)}
        for one in (publisher, greedy, other):
            one.close()


def test_the_same_filter_a_thousand_times_is_one_subscription(tmp_path: Path):
    with local(tmp_path / "log") as broker, Talk(broker.port) as client:
        client.connect("c")
        for n in range(50):
            client.publish(f"t/{n}", b"x", retain=True)
        steps = broker.do(lambda: broker.broker.slices.steps)
        assert client.subscribe(*["#"] * 1000, qos=1) == [1] * 1000
        assert len(client.take(50)) == 50
        assert client.drain() == []
        assert broker.do(lambda: broker.broker.slices.steps) - steps < 1000 + 50 + 20
        assert broker.do(lambda: broker.broker.store.sessions["c"].subscriptions()) == 1


def test_filters_that_match_nothing_cost_a_step_each_however_much_is_retained(tmp_path: Path):
    """2,000 filters and 20,000 topics were a walk over 40 million."""
    with local(tmp_path / "log") as broker, Talk(broker.port) as client:
        client.connect("c")
        broker.do(
            lambda: [broker.broker.store.retain(StoredMessage(1, f"t/{n}", b"x", {})) for n in range(20_000)]
        )
        steps = broker.do(lambda: broker.broker.slices.steps)
        assert client.subscribe(*(f"other/{n}/+" for n in range(2000))) == [0] * 2000
        assert client.drain() == []
        assert broker.do(lambda: broker.broker.slices.steps) - steps < 3 * 2000 + 20


def test_what_waits_for_room_is_a_place_and_not_a_list(tmp_path: Path):
    """A client that acknowledges nothing keeps a walk for each filter, and gets what is retained later on."""
    with local(tmp_path / "log") as broker, Talk(broker.port) as client, Talk(broker.port) as publisher:
        publisher.connect("publisher")
        for n in range(30):
            publisher.publish(f"t/{n:02}", b"old", qos=1, retain=True)
        client.connect("c", properties={"receive_maximum": 10})
        assert client.subscribe(Subscription("t/#", 1)) == [1]
        first = [client.expect(Publish) for _ in range(10)]
        assert client.quiet()
        left = broker.do(lambda: broker.broker.store.sessions["c"].retained_left)
        assert list(left) == ["t/#"]
        publisher.publish("t/20", b"", qos=1, retain=True)
        publisher.publish("t/21", b"new", qos=1, retain=True)
        for message in first:
            client.acknowledge(message)
        rest = client.take(19 + 2)
        retained = {one.topic: one.payload for one in [*first, *rest] if one.retain}
        assert set(retained) == {f"t/{n:02}" for n in range(30)} - {"t/20"}
        assert retained["t/21"] == b"new"
        assert broker.do(lambda: dict(left)) == {}


def test_after_unsubscribing_nothing_retained_comes_any_more(tmp_path: Path):
    with local(tmp_path / "log") as broker, Talk(broker.port) as client:
        client.connect("c", properties={"receive_maximum": 5})
        for n in range(30):
            client.publish(f"t/{n:02}", b"x", qos=1, retain=True)
        client.subscribe(Subscription("t/#", 1))
        first = [client.expect(Publish) for _ in range(5)]
        client.unsubscribe("t/#")
        for message in first:
            client.acknowledge(message)
        assert client.drain() == []
