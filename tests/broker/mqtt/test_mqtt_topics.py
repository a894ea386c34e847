"""Topics, filters, and subscriptions found by topic. Numbers are those of the MQTT 5.0 standard."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forelog.broker.mqtt.shapes import Shapes
from forelog.broker.mqtt.topics import LEVELS_MAX, Filter, is_topic_name, matches, parse_filter, replay_since_ns
from forelog.broker.mqtt.trie import Trie
from forelog.errors import BadPacket
from forelog.times import parse_time
from tests.broker.mqtt.strategies import FILTERS, NAMES

# Filter, topic, whether it matches: sections 4.7.1 to 4.7.3.
EXAMPLES = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("#", "sport/tennis", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+", "/finance", False),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+/tennis/#", "sport/tennis", True),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("#", "$SYS/monitor", False),  # [MQTT-4.7.2-1]
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),  # [MQTT-4.7.2-1]
    ("+", "$SYS", False),  # [MQTT-4.7.2-1]
    ("$SYS/#", "$SYS/monitor/Clients", True),
    ("$SYS/#", "$SYS", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("a/+", "a/$b", True),  # a $ is special at the start only
    ("a/#", "a/$b/c", True),
    ("ACCOUNTS", "Accounts", False),
    ("finance", "/finance", False),
    ("a//b", "a/b", False),
    ("a//b", "a//b", True),
    ("a/+/b", "a//b", True),
    ("a/b/#", "a", False),
    ("e\u0301", "\u00e9", False),  # [MQTT-4.7.3-4]: no normalization
    ("\u00e9", "\u00e9", True),
]


@pytest.mark.parametrize(("text", "topic", "wanted"), EXAMPLES)
def test_filters_match_as_the_standard_says(text, topic, wanted):
    assert matches(text, topic) is wanted
    trie: Trie[str, int] = Trie()
    trie.add(text, "x", 1)
    assert trie.match(topic) == ((("x", 1),) if wanted else ())
    assert trie.match(topic.encode()) == trie.match(topic)


@pytest.mark.parametrize("text", ["#", "+", "/", "a", "a/#", "+/+/#", "/+", "a b/ü", "$SYS/#", "$sharex/a", "$"])
def test_filters_that_are_taken_as_they_are(text):
    assert parse_filter(text) == Filter(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "a#", "a/#/b", "#/", "##", "a+", "+a/b", "a/b+/c", "a/++", "a/+#", "a\0",
        "$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/g+/a", "$share/#/a", "$share/g/a#",
        "$share/g/$share/h/a", "$share/g/$replay/all/a",
        "$replay", "$replay/", "$replay/all", "$replay/all/", "$replay/all/a+", "$replay/all/$replay/all/a",
        "$replay/all/$share/g/a",
        "a" * 65_536, "\U0001f600" * 16_384, "/" * LEVELS_MAX,
    ],
)  # fmt: skip
def test_filters_that_are_none(text):
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3] [MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    with pytest.raises(BadPacket) as caught:
        parse_filter(text)
    assert caught.value.reason_code == 0x8F
    assert len(str(caught.value)) < 800


def test_prefixes_say_what_they_mean():
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    assert parse_filter("$share/g/a/+") == Filter("a/+", group="g")
    assert parse_filter("$share/g//a") == Filter("/a", group="g")
    assert parse_filter("$share/g/$SYS/#") == Filter("$SYS/#", group="g")
    assert parse_filter("$replay/all/#") == Filter("#", when="all")
    assert parse_filter("$replay/2026-11-15T18:00:00Z/a") == Filter("a", when="2026-11-15T18:00:00Z")
    assert parse_filter("/" * (LEVELS_MAX - 1)) == Filter("/" * (LEVELS_MAX - 1))


def test_when_to_replay_from_is_a_time_a_time_ago_or_everything():
    now = parse_time("2026-11-15T18:00:00Z")
    assert replay_since_ns("all", now_ns=now) is None
    assert replay_since_ns("-15m", now_ns=now) == parse_time("2026-11-15T17:45:00Z")
    assert replay_since_ns("2026-11-15", now_ns=now) == parse_time("2026-11-15T00:00:00Z")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a", True), ("/", True), (" ", True), ("$SYS/a", True), ("a" * 65_535, True),
        ("", False),  # [MQTT-4.7.3-1]
        ("a\0", False),  # [MQTT-4.7.3-2]
        ("a" * 65_536, False), ("\U0001f600" * 16_384, False),  # [MQTT-4.7.3-3]
        ("a/+", False), ("#", False),  # [MQTT-4.7.0-1]
    ],
)  # fmt: skip
def test_names_that_messages_may_have(name, wanted):
    assert is_topic_name(name) is wanted


SMALL = st.sampled_from(["a", "b", "", "a/b", "+", "#", "a/+", "+/b", "a/#", "+/#", "$s", "$s/a", "$s/#", "a/b/c"])
TOPIC = st.sampled_from(["a", "b", "a/b", "a/b/c", "/", "b/b", "$s", "$s/a", "a/"])


@settings(max_examples=100)
@given(st.data())
def test_a_trie_finds_what_comparing_with_each_filter_finds(data):
    """Whatever is added, replaced and removed between two messages."""
    trie: Trie[int, int] = Trie()
    model: dict[tuple[str, int], int] = {}
    for step in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["add", "remove", "match", "match"]))
        text, key = data.draw((SMALL | FILTERS).filter(bool)), data.draw(st.integers(0, 3))
        if action == "add":
            assert trie.add(text, key, step) == model.get((text, key))
            model[text, key] = step
        elif action == "remove":
            assert trie.remove(text, key) == model.pop((text, key), None)
        else:
            topic = data.draw(TOPIC | NAMES)
            wanted = sorted((k, v) for (f, k), v in model.items() if matches(f, topic))
            assert sorted(trie.match(topic)) == sorted(trie.match(topic.encode())) == wanted
        assert len(trie) == len(model)
    assert sorted(trie) == sorted((f, k, v) for (f, k), v in model.items())
    for text, key in model:
        trie.remove(text, key)
    assert trie._root.is_empty()


def steps(trie: Trie, topic: str) -> int:
    """How many nodes of the tree a match looks at."""
    before = trie.steps
    trie.match(topic)
    return trie.steps - before


def test_filters_that_dont_match_cost_nothing():
    small: Trie[int, int] = Trie()
    large: Trie[int, int] = Trie()
    for trie, count in ((small, 10), (large, 20_000)):
        for n in range(count):
            trie.add(f"house/{n}/+/temperature", n, 0)
            trie.add(f"house/{n}/#", -n, 0)
    assert steps(large, "house/7/attic/temperature") == steps(small, "house/7/attic/temperature") < 20
    assert len(large.match("house/7/attic/temperature")) == 2


def test_filters_with_many_levels_are_few_nodes():
    """Each filter has a different choice of wildcards among its first levels, so that one topic matches all."""
    trie: Trie[int, int] = Trie()
    for n in range(1000):
        first = ["+" if n >> bit & 1 else "a" for bit in range(10)]
        trie.add("/".join([*first, *["a", "+"] * 90]), n, 0)
    nodes, pending = 0, [trie._root]
    while pending:
        nodes += 1
        pending += pending.pop().children.values()
    assert nodes <= 2001
    assert steps(trie, "/".join("a" * 190)) <= 2001
    assert len(trie.match("/".join("a" * 190))) == 1000


def test_a_walk_can_stop_anywhere_while_subscriptions_come_and_go():
    trie: Trie[int, int] = Trie()
    for n in range(100):
        trie.add(f"{'+' if n % 2 else 'a'}/{'+' if n % 3 else 'b'}/#", n, n)
    walk = trie.walk("a/b/c", steps=1)
    found = None
    while found is None:
        try:
            next(walk)
            trie.add("a/b/c/d", 1000, 0)
            trie.remove("a/b/c/d", 1000)
            trie.remove("+/b/#", 3)
        except StopIteration as end:
            found = end.value
    assert {key for key, _ in found} | {3} == set(range(100))


@settings(max_examples=100)
@given(st.data())
def test_shapes_find_what_comparing_with_each_filter_finds(data):
    shapes, names = Shapes(), set()
    for _ in range(data.draw(st.integers(1, 20))):
        text = data.draw((SMALL | FILTERS).filter(bool))
        if text in names:
            names.discard(text)
            shapes.remove(text)
        else:
            names.add(text)
            shapes.add(text)
    topic = data.draw(TOPIC | NAMES)
    found = list(shapes.matching(topic))
    assert sorted(name for name in found if name in names) == sorted(n for n in names if matches(n, topic))
    assert len(found) <= 1 + len(shapes)


def test_removing_what_isnt_there_changes_nothing():
    trie: Trie[int, int] = Trie()
    trie.add("a/b", 1, 1)
    for text in ("a", "a/b/c", "a/#", "#", "x", "a/+"):
        assert trie.remove(text, 1) is None
    assert trie.remove("a/b", 2) is None
    assert list(trie) == [("a/b", 1, 1)]


def test_thousands_of_subscriptions_come_and_go():
    rng = random.Random(5)
    trie: Trie[int, int] = Trie()
    texts = [f"{rng.choice('ab+')}/{rng.randrange(100)}/{rng.choice(['x', '+', '#'])}" for _ in range(5000)]
    for n, text in enumerate(texts):
        trie.add(text, n, n)
    topic = "a/42/x"
    assert sorted(k for k, _ in trie.match(topic)) == [n for n, text in enumerate(texts) if matches(text, topic)]
    for n, text in enumerate(texts):
        assert trie.remove(text, n) == n
    assert (len(trie), trie.match(topic)) == (0, ())
