"""Subscriptions: options, wildcards, overlaps, groups, replays; and retained messages. Numbers of MQTT 5.0."""

from __future__ import annotations

import itertools

import pytest

from forelog.broker.mqtt.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.serving import served
from tests.broker.talking import Closed

BOTH = pytest.mark.parametrize("version", [4, 5])


@BOTH
def test_each_filter_has_an_answer_in_its_place(talk, name, version):
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.9.3-2]

    [MQTT-2.2.1-6]
    """
    client = talk(version)
    client.connect(name)
    client.send(Subscribe(513, [Subscription(f"{name}/{n}", n % 3) for n in range(7)]))
    answer = client.expect(Suback)
    assert (answer.packet_id, list(answer.reason_codes)) == (513, [n % 3 for n in range(7)])


@BOTH
def test_unsubscribing_is_answered_whether_there_was_something_or_not(talk, name, version):
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1]

    [MQTT-3.11.3-2] [MQTT-2.2.1-6]
    """
    client = talk(version)
    client.connect(name)
    client.subscribe(f"{name}/a", f"{name}/+", qos=1)
    client.send(Unsubscribe(700, [f"{name}/nothing", f"{name}/+", f"{name}/+"]))
    answer = client.expect(Unsuback)
    none = ReasonCode.NO_SUBSCRIPTION_EXISTED
    assert (answer.packet_id, list(answer.reason_codes)) == (700, [none, 0, none] if version == 5 else [])
    client.publish(f"{name}/b", b"unwanted", qos=1)
    client.publish(f"{name}/a", b"wanted", qos=1)
    assert client.messages() == [(f"{name}/a", b"wanted")]


def test_what_is_under_way_is_finished_after_unsubscribing(talk, name):
    """[MQTT-3.10.4-3]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(name, clean=False, expiry=100)
    subscriber.subscribe(name, qos=2)
    publisher.connect()
    publisher.publish(name, b"x", qos=2)
    message = subscriber.expect(Publish)
    subscriber.unsubscribe(name)
    subscriber.close()
    subscriber = talk()
    subscriber.connect(name, clean=False, expiry=100)
    assert subscriber.expect(Publish).packet_id == message.packet_id
    subscriber.send(Pubrec(message.packet_id))
    assert subscriber.expect(Pubrel).packet_id == message.packet_id
    subscriber.send(Pubcomp(message.packet_id))
    assert subscriber.drain() == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("{0}/#", {"", "/a", "/a/b", "/b", "/", "/a/"}),
        ("{0}/+", {"/a", "/b", "/"}),
        ("{0}/+/b", {"/a/b"}),
        ("{0}/a/+", {"/a/b", "/a/"}),
        ("{0}/+/+", {"/a/b", "/a/"}),
        ("{0}/a", {"/a"}),
        ("{0}/A", set()),
        ("{0}", {""}),
        ("+/a", {"/a"}),
    ],
)
@BOTH
def test_wildcards(talk, name, version, wanted, found):
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-4]"""
    name = f"{name}-{abs(hash(wanted))}"
    client = talk(version)
    client.connect()
    assert client.subscribe(wanted.format(name), qos=1) == [1]
    for end in ("", "/a", "/a/b", "/b", "/", "/a/"):
        client.publish(f"{name}{end}", b"", qos=1)
    topics = [one.topic for one in client.drain() if isinstance(one, Publish) and one.topic.startswith(name)]
    assert sorted(topics) == sorted(f"{name}{end}" for end in found)


@pytest.mark.parametrize("bad", ["a/#/b", "a#", "#a", "a+", "+a/b", "a/b+", "a/#b"])
def test_a_wildcard_takes_a_whole_level(talk, bad):
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2]"""
    data = bad.encode()
    for version in (4, 5):
        client = talk(version)
        client.connect()
        body = b"\0\1" + (b"\0" if version == 5 else b"") + len(data).to_bytes(2) + data + b"\1"
        client.raw(bytes((0x82, len(body))) + body)
        try:
            answer = client.read()
        except Closed:
            continue
        assert max(getattr(answer, "reason_codes", None) or [answer.reason_code]) >= 0x80


def test_filters_with_a_wildcard_first_leave_dollar_topics_out(talk, name):
    """[MQTT-4.7.2-1]"""
    client = talk()
    client.connect()
    client.subscribe("#", "+/x", qos=1)
    client.publish(f"{name}", b"", qos=1)
    assert all(not one.topic.startswith("$") for one in client.drain() if isinstance(one, Publish))


def test_subscriptions_that_overlap_give_one_message_at_the_best_quality(talk, name):
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect()
    subscriber.subscribe(f"{name}/#", qos=0, identifier=11)
    subscriber.subscribe(f"{name}/+", qos=2, identifier=268_435_455)
    subscriber.subscribe(f"{name}/a", qos=1)
    publisher.connect()
    publisher.publish(f"{name}/a", b"x", qos=2)
    publisher.publish(f"{name}/a/b", b"y", qos=2)
    first, second = subscriber.take(2)
    assert (first.qos, sorted(first.properties["subscription_identifiers"])) == (2, [11, 268_435_455])
    assert (second.qos, second.properties["subscription_identifiers"]) == (0, [11])
    assert [one for one in subscriber.drain() if isinstance(one, Publish)] == []


@BOTH
def test_subscribing_again_replaces_what_was_and_loses_nothing(talk, name, version):
    """[MQTT-3.8.4-3] [MQTT-3.8.4-4]"""
    subscriber, publisher = talk(version), talk()
    subscriber.connect()
    publisher.connect()
    publisher.publish(name, b"kept", qos=1, retain=True)
    for qos in (0, 2, 1):
        subscriber.subscribe(name, qos=qos)
        publisher.publish(name, b"%d" % qos, qos=2)
        kept, live = subscriber.take(2)
        assert (kept.payload, kept.retain, kept.qos) == (b"kept", True, min(qos, 1))
        assert (live.payload, live.retain, live.qos) == (b"%d" % qos, False, qos)


def test_subscribing_again_while_behind_loses_nothing(talk, name):
    """[MQTT-3.8.4-4]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(properties={"receive_maximum": 1})
    subscriber.subscribe(f"{name}/a", qos=1)
    publisher.connect()
    for number in range(10):
        publisher.publish(f"{name}/a", b"%d" % number, qos=1)
    first = subscriber.expect(Publish)
    subscriber.subscribe(f"{name}/a", qos=1)
    subscriber.subscribe(f"{name}/b", qos=1)
    for number in range(10):
        publisher.publish(f"{name}/b", b"%d" % number, qos=1)
    subscriber.send(Puback(first.packet_id))
    found = subscriber.messages(19)
    expected = [(f"{name}/{topic}", b"%d" % number) for topic in "ab" for number in range(10)]
    assert found == expected[1:]


def test_no_local_leaves_out_ones_own(talk, name):
    """[MQTT-3.8.3-3]"""
    client, other = talk(), talk()
    client.connect(name, clean=False, expiry=100)
    client.subscribe(Subscription(name, 1, no_local=True))
    other.connect()
    for number in range(3):
        client.publish(name, b"mine", qos=1)
        client.publish(name, b"mine", qos=0)
        other.publish(name, b"%d" % number, qos=1)
    client.close()
    other.publish(name, b"3", qos=1)
    client = talk()
    client.connect(name, clean=False, expiry=100)
    assert {payload for _, payload in client.messages(4)} == {b"0", b"1", b"2", b"3"}
    assert client.drain() == []


def test_no_local_is_not_for_groups(talk, name):
    """[MQTT-3.8.3-4]"""
    client = talk()
    client.connect()
    filter_ = f"$share/g/{name}".encode()
    body = b"\0\1\0" + len(filter_).to_bytes(2) + filter_ + b"\x05"
    client.raw(bytes((0x82, len(body))) + body)
    assert client.end().reason_code == ReasonCode.PROTOCOL_ERROR


# -- retained messages


@BOTH
def test_a_retained_message_awaits_who_subscribes(talk, name, version):
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8] [MQTT-3.3.1-9]"""
    publisher = talk(version)
    publisher.connect()

    def found(qos: int = 2) -> list[tuple[bytes, bool, int]]:
        client = talk(version)
        client.connect()
        client.subscribe(f"{name}/#", qos=qos)
        return [(one.payload, one.retain, one.qos) for one in client.drain() if isinstance(one, Publish)]

    assert found() == []
    for qos in (0, 1, 2):
        publisher.publish(f"{name}/a", b"%d" % qos, qos=qos, retain=True)
        assert found() == [(b"%d" % qos, True, qos)]
    assert found(1) == [(b"2", True, 1)]
    publisher.publish(f"{name}/a", b"not kept", qos=1)
    assert found(0) == [(b"2", True, 0)]
    watcher = talk(version)
    watcher.connect()
    watcher.subscribe(f"{name}/#", qos=0)
    watcher.take()
    publisher.publish(f"{name}/a", b"", qos=1, retain=True)
    assert [(one.payload, one.retain) for one in watcher.take()] == [(b"", False)]
    assert found() == []
    publisher.publish(f"{name}/a", b"", qos=0, retain=True)
    assert found() == []


def test_retain_handling(talk, name):
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]"""
    publisher = talk()
    publisher.connect()
    publisher.publish(name, b"kept", qos=1, retain=True)
    client = talk()
    client.connect()
    for handling, again in ((2, 0), (1, 0), (0, 1), (0, 1), (1, 0), (2, 0)):
        client.subscribe(Subscription(name, 0, retain_handling=handling))
        assert len(client.drain()) == again, handling
    client.unsubscribe(name)
    client.subscribe(Subscription(name, 0, retain_handling=1))
    assert len(client.drain()) == 1


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_as_published(talk, name, as_published, qos):
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    client, publisher = talk(), talk()
    client.connect()
    client.subscribe(Subscription(name, qos, retain_as_published=as_published))
    publisher.connect()
    publisher.publish(name, b"x", qos=qos, retain=True)
    publisher.publish(name, b"y", qos=qos)
    assert [one.retain for one in client.take(2)] == [as_published, False]


def test_a_group_gets_no_retained_messages(talk, name):
    """A shared subscription begins with what is published then."""
    publisher, client = talk(), talk()
    publisher.connect()
    publisher.publish(name, b"kept", qos=1, retain=True)
    client.connect()
    client.subscribe(f"$share/g/{name}", qos=1)
    publisher.publish(name, b"new", qos=1)
    assert client.messages() == [(name, b"new")]


def test_many_retained_messages_wait_for_room(talk, name):
    """[MQTT-3.3.1-9] [MQTT-3.3.4-9]"""
    publisher, client = talk(), talk()
    publisher.connect()
    for number in range(30):
        publisher.publish(f"{name}/{number}", b"%d" % number, qos=1, retain=True)
    client.connect(properties={"receive_maximum": 4})
    client.subscribe(f"{name}/#", qos=1)
    held = [client.expect(Publish) for _ in range(4)]
    assert client.drain() == []
    for one in held:
        client.send(Puback(one.packet_id))
    assert len({one.topic for one in (*held, *client.take(26))}) == 30


def test_retained_messages_and_sessions_are_there_after_a_crash(tmp_path, talk):
    """[MQTT-3.3.1-5] [MQTT-3.1.2-23] [MQTT-4.4.0-1]"""
    with served(tmp_path / "log") as broker:
        client, publisher = talk(to=broker), talk(to=broker)
        client.connect("durable", clean=False, expiry=1000)
        client.subscribe("t/#", qos=2, identifier=5)
        publisher.connect("publisher", clean=False, expiry=1000)
        publisher.publish("t/kept", b"kept", qos=1, retain=True)
        publisher.publish("t/gone", b"gone", qos=1, retain=True)
        publisher.publish("t/gone", b"", qos=1, retain=True)
        publisher.publish("t/two", b"2", qos=2)
        publisher.send(Publish("t/once", b"once", 2, packet_id=40))
        assert publisher.expect(Pubrec).packet_id == 40
        before = [client.expect(Publish) for _ in range(5)]
        client.send(Pubrec(before[3].packet_id))
        assert client.expect(Pubrel).packet_id == before[3].packet_id
        broker.kill()
        broker.start()
        client, publisher = talk(to=broker), talk(to=broker)
        assert publisher.connect("publisher", clean=False, expiry=1000).session_present
        publisher.send(Publish("t/once", b"once", 2, dup=True, packet_id=40))
        assert publisher.expect(Pubrec).packet_id == 40
        publisher.send(Pubrel(40))
        assert publisher.expect(Pubcomp) == Pubcomp(40, 0)
        assert client.connect("durable", clean=False, expiry=1000).session_present
        release, once = client.expect(Pubrel), client.expect(Publish)
        assert (once.packet_id, once.payload, once.dup) == (before[4].packet_id, b"once", True)
        assert release.packet_id == before[3].packet_id
        again = client.take(3)
        assert [one.payload for one in again] == [b"kept", b"gone", b""]
        assert all(one.properties == {"subscription_identifiers": [5]} for one in again)
        late = talk(to=broker)
        late.connect()
        late.subscribe("#")
        assert late.messages() == [("t/kept", b"kept")]
        assert late.drain() == []


# -- groups


@BOTH
def test_a_group_shares_its_messages(talk, name, version):
    """[MQTT-4.8.2-3] [MQTT-3.8.4-8]"""
    members, publisher = [talk(version) for _ in range(3)], talk()
    for member, qos in zip(members, (0, 1, 2), strict=True):
        member.connect()
        assert member.subscribe(f"$share/g/{name}/#", qos=qos) == [qos]
    publisher.connect()
    for number in range(60):
        publisher.publish(f"{name}/{number % 4}", b"%d" % number, qos=2)
    found = []
    for member, qos in zip(members, (0, 1, 2), strict=True):
        mine = [one for one in member.drain() if isinstance(one, Publish)]
        assert mine, "a member got nothing"
        assert all(one.qos == qos for one in mine)
        found += [int(one.payload) for one in mine]
    assert sorted(found) == list(range(60))


@pytest.mark.parametrize("how", ["leaves", "is cut", "unsubscribes"])
def test_what_a_member_did_not_acknowledge_goes_to_the_others(talk, name, how):
    """None of a group's messages is lost with one of its members."""
    first, second, publisher = talk(), talk(), talk()
    for member in (first, second):
        member.connect()
        member.subscribe(f"$share/g/{name}", qos=1)
    publisher.connect()
    for number in range(40):
        publisher.publish(name, b"%d" % number, qos=1)
    held = [one for one in first.drain() if isinstance(one, Publish)]
    assert held
    for one in held[:3]:
        first.send(Puback(one.packet_id))
    if how == "unsubscribes":
        first.unsubscribe(f"$share/g/{name}")
    elif how == "leaves":
        first.disconnect()
    else:
        first.drain()
        first.close()
    found = {int(one.payload) for one in held[:3]} | {int(one.payload) for one in second.take(37)}
    assert found == set(range(40))


def test_a_group_that_is_behind_loses_nothing_when_a_member_leaves(talk, name):
    """It had no room for most of the messages when the member left."""
    first, second, publisher = talk(), talk(), talk()
    for member in (first, second):
        member.connect(properties={"receive_maximum": 2})
        member.subscribe(f"$share/g/{name}", qos=1)
    publisher.connect()
    for number in range(100):
        publisher.publish(name, b"%d" % number, qos=1)
    assert len([one for one in first.drain() if isinstance(one, Publish)]) == 2
    first.close()
    found = [int(one.payload) for one in second.take(100)]
    assert sorted(found) == list(range(100))


def test_quality_2_stays_with_its_member(talk, name):
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5]"""
    first, second, publisher = talk(), talk(), talk()
    first.connect(name, clean=False, expiry=100)
    first.subscribe(f"$share/g/{name}", qos=2)
    publisher.connect()
    publisher.publish(name, b"x", qos=2)
    message = first.expect(Publish)
    second.connect()
    second.subscribe(f"$share/g/{name}", qos=2)
    first.close()
    assert second.drain() == []
    first = talk()
    assert first.connect(name, clean=False, expiry=100).session_present
    again = first.expect(Publish)
    assert (again.packet_id, again.payload, again.dup) == (message.packet_id, b"x", True)
    first.disconnect(session_expiry_interval=0)
    assert second.drain() == []
    assert second.quiet()


def test_what_a_member_refuses_is_offered_to_nobody_else(talk, name):
    """[MQTT-4.8.2-6]"""
    first, second, publisher = talk(), talk(), talk()
    first.connect()
    first.subscribe(f"$share/g/{name}", qos=1)
    publisher.connect()
    publisher.publish(name, b"x", qos=1)
    message = first.expect(Publish)
    second.connect()
    second.subscribe(f"$share/g/{name}", qos=1)
    first.send(Puback(message.packet_id, ReasonCode.NOT_AUTHORIZED))
    assert first.drain() == []
    first.disconnect()
    assert second.drain() == []
    assert second.quiet()


def test_a_group_that_nobody_is_in_misses_nothing(talk, name):
    """[MQTT-4.5.0-1]"""
    publisher = talk()
    publisher.connect()
    for round_ in range(3):
        member = talk()
        member.connect(name, clean=False, expiry=100)
        if not round_:
            member.subscribe(f"$share/g/{name}", qos=1)
        else:
            assert sorted(int(one.payload) for one in member.take(50)) == list(range(50))
        member.drain()
        member.disconnect()
        for number in range(50):
            publisher.publish(name, b"%d" % number, qos=1)


def test_a_group_is_where_it_was_after_a_crash(tmp_path, talk):
    """At once, too: whoever has had an answer to its SUBSCRIBE gets what comes after."""
    with served(tmp_path / "log") as broker:
        member, publisher = talk(to=broker), talk(to=broker)
        publisher.connect()
        publisher.publish("t", b"before", qos=1)
        member.connect("member", clean=False, expiry=1000)
        member.subscribe("$share/g/t", qos=1)
        member.close()
        for number in range(20):
            publisher.publish("t", b"%d" % number, qos=1)
        broker.kill()
        broker.start()
        member = talk(to=broker)
        assert member.connect("member", clean=False, expiry=1000).session_present
        found = [one.payload for one in member.take(20)]
        assert sorted(set(found)) == sorted(b"%d" % number for number in range(20))


@pytest.mark.parametrize("bad", ["$share/", "$share/g", "$share//t", "$share/g/", "$share/a+b/t", "$share/#/t"])
def test_a_group_has_a_name_and_a_filter(talk, bad):
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    client = talk()
    client.connect()
    data = bad.encode()
    body = b"\0\1\0" + len(data).to_bytes(2) + data + b"\1"
    client.raw(bytes((0x82, len(body))) + body)
    answer = client.read()
    reasons = answer.reason_codes if isinstance(answer, Suback) else [answer.reason_code]
    assert all(reason >= 0x80 for reason in reasons)


# -- replays


@BOTH
@pytest.mark.parametrize("when", ["all", "-15m", "2020-01-01T00:00:00Z"])
def test_a_replay_begins_in_the_past_and_goes_on(talk, name, version, when):
    """$replay is our own: the protocol knows nothing of it, and needs nothing for it."""
    publisher, client = talk(), talk(version)
    publisher.connect()
    for number in range(20):
        publisher.publish(f"{name}/{number % 2}", b"%d" % number, qos=number % 3)
    client.connect()
    assert client.subscribe(f"$replay/{when}/{name}/+", qos=1) == [1]
    assert [payload for _, payload in client.messages(20)] == [b"%d" % number for number in range(20)]
    publisher.publish(f"{name}/1", b"new", qos=1)
    assert client.messages() == [(f"{name}/1", b"new")]
    client.unsubscribe(f"$replay/{when}/{name}/+")
    publisher.publish(f"{name}/1", b"unwanted", qos=1)
    assert client.drain() == []


def test_a_replay_is_beside_what_is_subscribed_to(talk, name):
    """Each subscription has its own course, and a message that both want comes for each."""
    publisher, client = talk(), talk()
    publisher.connect()
    client.connect()
    client.subscribe(name, qos=1, identifier=1)
    publisher.publish(name, b"a", qos=1)
    client.subscribe(f"$replay/all/{name}", qos=1, identifier=2)
    publisher.publish(name, b"b", qos=1)
    found = [(one.payload, one.properties["subscription_identifiers"][0]) for one in client.take(4)]
    assert sorted(found) == sorted(itertools.product([b"a", b"b"], [1, 2]))


@BOTH
@pytest.mark.parametrize("when", ["never", "", "-1x", "+", "yesterday", "2026-11-15T18:00:00", f"-{'9' * 400}d"])
def test_a_replay_from_no_time_is_refused_and_the_connection_goes_on(talk, name, version, when):
    """It is a filter to everybody else: so its answer is that of a filter that can't be had."""
    client = talk(version)
    client.connect()
    wanted = [Subscription(f"$replay/{when}/{name}", 1), Subscription(name, 1)]
    client.send(Subscribe(7, wanted))
    refused = ReasonCode.TOPIC_FILTER_INVALID if version == 5 else ReasonCode.UNSPECIFIED_ERROR
    assert list(client.expect(Suback).reason_codes) == [refused, 1]
    client.publish(name, b"heard", qos=1)
    assert client.messages() == [(name, b"heard")]


@pytest.mark.parametrize("bad", ["$replay/t", "$replay/-15m/"])
def test_a_replay_of_no_filter_ends_the_connection(talk, bad):
    """As a filter that is none."""
    client = talk()
    client.connect()
    data = bad.encode()
    body = b"\0\1\0" + len(data).to_bytes(2) + data + b"\1"
    client.raw(bytes((0x82, len(body))) + body)
    assert client.read().reason_code == ReasonCode.TOPIC_FILTER_INVALID
