"""Messages from client to client: QoS, packet ids, flow, properties, aliases, sizes. Numbers are of MQTT 5.0."""

from __future__ import annotations

import time

import pytest

from forelog.broker.mqtt.packets import Disconnect, Pingreq, Puback, Pubcomp, Publish, Pubrec, Pubrel
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.serving import served

BOTH = pytest.mark.parametrize("version", [4, 5])


@BOTH
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_message_comes_at_the_lower_of_two_qualities(talk, name, version, published, wanted):
    """[MQTT-3.8.4-8] [MQTT-3.3.4-1] [MQTT-4.3.1-1] [MQTT-4.3.2-2] [MQTT-4.3.2-4] [MQTT-4.3.3-2] [MQTT-4.3.3-8]

    [MQTT-4.3.3-11] [MQTT-4.3.3-4] [MQTT-2.2.1-2] [MQTT-2.2.1-4] [MQTT-2.2.1-5] [MQTT-3.3.2-3] [MQTT-3.7.2-1]
    """
    subscriber, publisher = talk(version), talk(version)
    subscriber.connect()
    assert subscriber.subscribe(name, qos=wanted) == [wanted]
    publisher.connect()
    assert publisher.publish(name, b"x", qos=published) == 0
    message = subscriber.expect(Publish)
    assert (message.topic, message.payload, message.qos) == (name, b"x", min(published, wanted))
    assert not message.dup
    assert bool(message.packet_id) == bool(message.qos)
    if message.qos == 1:
        subscriber.send(Puback(message.packet_id))
    elif message.qos == 2:
        subscriber.send(Pubrec(message.packet_id))
        assert subscriber.expect(Pubrel).packet_id == message.packet_id
        subscriber.send(Pubcomp(message.packet_id))
    assert subscriber.drain() == []


@BOTH
def test_messages_come_in_the_order_in_which_they_were_sent(talk, name, version):
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6]"""
    subscriber, publisher = talk(version), talk(version)
    subscriber.connect()
    subscriber.subscribe(f"{name}/+", qos=2)
    publisher.connect()
    count = 3000
    publisher.send(*(Publish(f"{name}/{n % 3}", b"%d" % n, 1, packet_id=n + 1) for n in range(count)))
    found = [int(one.payload) for one in subscriber.take(count)]
    assert found == list(range(count))
    assert [publisher.expect(Puback).packet_id for _ in range(count)] == list(range(1, count + 1))


def test_a_message_of_quality_1_that_comes_twice_counts_twice(talk, name):
    """[MQTT-4.3.2-5]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect()
    subscriber.subscribe(name, qos=1)
    publisher.connect()
    for dup in (False, True):
        publisher.send(Publish(name, b"x", 1, dup=dup, packet_id=7))
        assert publisher.expect(Puback).packet_id == 7
    first, second = subscriber.take(2)
    assert not first.dup
    assert not second.dup  # [MQTT-3.3.1-3] it says how it was sent to the subscriber, not how it came
    assert first.packet_id != second.packet_id


@BOTH
def test_how_often_a_message_came_in_says_nothing_of_how_it_goes_out(talk, name, version):
    """[MQTT-3.3.1-3]"""
    subscriber, publisher = talk(version), talk(version)
    subscriber.connect()
    subscriber.subscribe(name, qos=2)
    publisher.connect()
    publisher.send(Publish(name, b"x", 1, dup=True, packet_id=3), Publish(name, b"y", 2, dup=True, packet_id=4))
    assert [one.dup for one in subscriber.take(2)] == [False, False]


@BOTH
@pytest.mark.parametrize("reconnects", [False, True])
def test_a_message_of_quality_2_counts_once_until_it_is_released(talk, name, version, reconnects):
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12] [MQTT-4.3.3-11]"""
    subscriber, publisher = talk(version), talk(version)
    subscriber.connect()
    subscriber.subscribe(name, qos=2)
    publisher.connect(f"{name}-p", clean=False, expiry=100)
    publisher.send(Publish(name, b"one", 2, packet_id=9))
    assert publisher.expect(Pubrec).packet_id == 9
    if reconnects:
        publisher.close()
        publisher = talk(version)
        assert publisher.connect(f"{name}-p", clean=False, expiry=100).session_present
    publisher.send(Publish(name, b"one", 2, dup=True, packet_id=9))
    assert publisher.expect(Pubrec).packet_id == 9
    publisher.send(Pubrel(9))
    assert publisher.expect(Pubcomp) == Pubcomp(9, 0)
    publisher.send(Publish(name, b"two", 2, packet_id=9))
    assert publisher.expect(Pubrec).packet_id == 9
    assert subscriber.messages(2) == [(name, b"one"), (name, b"two")]
    assert [one for one in subscriber.drain() if isinstance(one, Publish)] == []


def test_a_release_of_nothing_is_answered_too(talk, name):
    """[MQTT-4.3.3-11] [MQTT-3.7.2-1]"""
    client = talk()
    client.connect(name)
    client.send(Pubrel(77))
    assert client.expect(Pubcomp) == Pubcomp(77, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


@BOTH
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_not_acknowledged_is_sent_again_under_its_id_after_a_reconnect_only(talk, name, version, qos):
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.3.2-3] [MQTT-4.3.3-3]"""
    subscriber, publisher = talk(version), talk(version)
    subscriber.connect(name, clean=False, expiry=100)
    subscriber.subscribe(name, qos=qos)
    publisher.connect()
    for number in range(20):
        publisher.publish(name, b"%d" % number, qos=qos)
    first = [subscriber.expect(Publish) for _ in range(20)]
    assert subscriber.quiet()
    subscriber.close()
    subscriber = talk(version)
    assert subscriber.connect(name, clean=False, expiry=100).session_present
    again = [subscriber.expect(Publish) for _ in range(20)]
    assert [(one.packet_id, one.payload) for one in again] == [(one.packet_id, one.payload) for one in first]
    assert all(one.dup and one.qos == qos for one in again)
    publisher.publish(name, b"new", qos=qos)
    new = subscriber.expect(Publish)
    assert (new.payload, new.dup) == (b"new", False)
    assert new.packet_id not in {one.packet_id for one in first}


@BOTH
def test_a_release_is_sent_again_and_its_message_is_not(talk, name, version):
    """[MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.4.0-1] [MQTT-3.6.2-1]"""
    subscriber, publisher = talk(version), talk()
    subscriber.connect(name, clean=False, expiry=100)
    subscriber.subscribe(name, qos=2)
    publisher.connect()
    publisher.publish(name, b"x", qos=2)
    message = subscriber.expect(Publish)
    subscriber.send(Pubrec(message.packet_id))
    assert subscriber.expect(Pubrel).packet_id == message.packet_id
    subscriber.close()
    subscriber = talk(version)
    subscriber.connect(name, clean=False, expiry=100)
    assert subscriber.expect(Pubrel).packet_id == message.packet_id
    subscriber.send(Pubcomp(message.packet_id))
    assert subscriber.drain() == []


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
def test_a_message_that_its_receiver_refuses_is_not_sent_again(talk, name, qos, answer):
    """[MQTT-4.4.0-2]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(name, clean=False, expiry=100)
    subscriber.subscribe(name, qos=qos)
    publisher.connect()
    publisher.publish(name, b"x", qos=qos)
    subscriber.send(answer(subscriber.expect(Publish).packet_id, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR))
    assert subscriber.drain() == []
    subscriber.close()
    subscriber = talk()
    assert subscriber.connect(name, clean=False, expiry=100).session_present
    assert subscriber.drain() == []
    assert subscriber.quiet()


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_is_under_way_than_the_receiver_allows(talk, name, qos):
    """[MQTT-3.3.4-9] [MQTT-3.3.4-10] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(name, clean=False, expiry=100, properties={"receive_maximum": 3})
    subscriber.subscribe(f"{name}/#", qos=qos)
    publisher.connect()
    for number in range(10):
        publisher.publish(f"{name}/x", b"%d" % number, qos=qos)
    held = [one for one in subscriber.drain() if isinstance(one, Publish)]
    assert [one.payload for one in held] == [b"0", b"1", b"2"]
    publisher.publish(f"{name}/zero", b"z")  # of QoS 0: needs no room, but comes after what waits
    assert subscriber.subscribe(f"{name}-other") == [0]
    subscriber.send((Puback if qos == 1 else Pubrec)(held[0].packet_id))
    if qos == 2:
        assert subscriber.expect(Pubrel).packet_id == held[0].packet_id
        assert subscriber.drain() == []  # only a PUBCOMP makes room
        subscriber.send(Pubcomp(held[0].packet_id))
    assert subscriber.expect(Publish).payload == b"3"
    assert subscriber.drain() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_sent_again_keeps_to_a_smaller_receive_maximum_too(talk, name, qos):
    """[MQTT-3.3.4-9] [MQTT-4.9.0-2]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(name, clean=False, expiry=100)
    subscriber.subscribe(name, qos=qos)
    publisher.connect()
    for number in range(10):
        publisher.publish(name, b"%d" % number, qos=qos)
    assert len([one for one in subscriber.drain() if isinstance(one, Publish)]) == 10
    subscriber.close()
    subscriber = talk()
    subscriber.connect(name, clean=False, expiry=100, properties={"receive_maximum": 2})
    held = [subscriber.expect(Publish), subscriber.expect(Publish)]
    assert subscriber.drain() == []
    subscriber.send(*((Puback if qos == 1 else Pubrec)(one.packet_id) for one in held))
    if qos == 2:
        assert [subscriber.expect(Pubrel).packet_id for _ in held] == [one.packet_id for one in held]
        subscriber.send(*(Pubcomp(one.packet_id) for one in held))
    assert [one.payload for one in (*held, *subscriber.take(8))] == [b"%d" % n for n in range(10)]


def test_who_sends_more_of_quality_2_than_may_be_under_way_is_disconnected(tmp_path, talk):
    """[MQTT-3.3.4-7]"""
    with served(tmp_path / "log", "--limits", '{"receive_max": 5}') as broker:
        client = talk(to=broker)
        assert client.connect().properties["receive_maximum"] == 5
        client.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 8)))
        assert client.end().reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_what_is_said_of_a_message_is_passed_on_as_it_is(talk, name):
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]

    [MQTT-1.5.4-3] [MQTT-1.5.7-1]
    """
    told = {
        "payload_format_indicator": 1,
        "content_type": "text/plain\ufeff",
        "response_topic": f"{name}/answers",
        "correlation_data": bytes(range(256)),
        "user_properties": [("b", "1"), ("a", "2"), ("b", "3"), ("", "")],
    }
    subscriber, old, publisher = talk(), talk(4), talk()
    for one in (subscriber, old):
        one.connect()
        one.subscribe(name, qos=2)
    publisher.connect()
    for qos in (0, 1, 2):
        publisher.publish(name, b"x", qos=qos, properties=dict(told))
        assert subscriber.take()[0].properties == told
        assert old.messages() == [(name, b"x")]


def test_a_request_is_answered(talk, name):
    """[MQTT-3.3.2-15] [MQTT-3.3.2-16]"""
    server, client = talk(), talk()
    server.connect()
    server.subscribe(f"{name}/ask", qos=1)
    client.connect()
    client.subscribe(f"{name}/answers/me", qos=1)
    asked = {"response_topic": f"{name}/answers/me", "correlation_data": b"17"}
    client.publish(f"{name}/ask", b"6 * 7", qos=1, properties=asked)
    found = server.take()[0]
    answered = {"correlation_data": found.properties["correlation_data"]}
    server.publish(found.properties["response_topic"], b"42", qos=1, properties=answered)
    answer = client.take()[0]
    assert (answer.payload, answer.properties["correlation_data"]) == (b"42", b"17")


def test_a_message_that_has_expired_is_not_delivered_and_others_say_what_is_left(talk, name):
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6] [MQTT-4.3.3-13]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(name, clean=False, expiry=100)
    subscriber.subscribe(name, qos=2)
    subscriber.disconnect()
    publisher.connect()
    publisher.publish(name, b"short", qos=1, properties={"message_expiry_interval": 1})
    publisher.publish(name, b"shorter", qos=2, properties={"message_expiry_interval": 1})
    publisher.publish(name, b"long", qos=1, properties={"message_expiry_interval": 1000})
    sent = time.monotonic()
    while time.monotonic() < sent + 2.3:  # the broker knows a message's age to a quarter of a second
        assert publisher.quiet()
    subscriber = talk()
    subscriber.connect(name, clean=False, expiry=100)
    (message,) = subscriber.take()
    assert message.payload == b"long"
    assert 900 < message.properties["message_expiry_interval"] <= 998
    assert subscriber.drain() == []


def test_what_was_sent_before_it_expired_is_sent_again_after(talk, name):
    """[MQTT-4.3.3-7]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(name, clean=False, expiry=100)
    subscriber.subscribe(name, qos=2)
    publisher.connect()
    publisher.publish(name, b"x", qos=2, properties={"message_expiry_interval": 1})
    first = subscriber.expect(Publish)
    subscriber.close()
    sent = time.monotonic()
    while time.monotonic() < sent + 2.1:
        assert publisher.quiet()
    subscriber = talk()
    subscriber.connect(name, clean=False, expiry=100)
    again = subscriber.expect(Publish)
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)


def test_a_publisher_may_use_aliases(talk, name):
    """[MQTT-3.3.2-12] [MQTT-3.3.2-7]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect()
    subscriber.subscribe(f"{name}/#", qos=1)
    most = publisher.connect(f"{name}-p", clean=False, expiry=100).properties["topic_alias_maximum"]
    for alias in (1, most):
        publisher.publish(f"{name}/{alias}", b"defined", qos=1, properties={"topic_alias": alias})
        publisher.publish("", b"used", qos=1, properties={"topic_alias": alias})
        assert subscriber.messages(2) == [(f"{name}/{alias}", b"defined"), (f"{name}/{alias}", b"used")]
    publisher.publish(f"{name}/new", b"again", qos=1, properties={"topic_alias": 1})
    publisher.publish("", b"used", properties={"topic_alias": 1})
    assert subscriber.messages(2) == [(f"{name}/new", b"again"), (f"{name}/new", b"used")]
    publisher.close()
    publisher = talk()
    publisher.connect(f"{name}-p", clean=False, expiry=100)
    publisher.send(Publish("", b"x", properties={"topic_alias": 1}))
    assert publisher.end().reason_code in (ReasonCode.PROTOCOL_ERROR, ReasonCode.TOPIC_ALIAS_INVALID)


def test_an_alias_beyond_what_is_allowed_ends_the_connection(talk, name):
    """[MQTT-3.2.2-17] [MQTT-3.3.2-9]"""
    client = talk()
    most = client.connect(name).properties["topic_alias_maximum"]
    client.send(Publish(name, b"x", properties={"topic_alias": most + 1}))
    assert client.end().reason_code == ReasonCode.TOPIC_ALIAS_INVALID


def test_a_subscriber_gets_aliases_if_it_takes_them(talk, name):
    """[MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11]"""
    subscriber, plain, publisher = talk(), talk(), talk()
    subscriber.connect(properties={"topic_alias_maximum": 2})
    plain.connect()
    for one in (subscriber, plain):
        one.subscribe(f"{name}/#", qos=1)
    publisher.connect()
    topics = [f"{name}/{number % 5}" for number in range(50)]
    for topic in topics:
        publisher.publish(topic, topic.encode(), qos=1)
    known: dict[int, str] = {}
    used = 0
    for topic, message in zip(topics, subscriber.take(50), strict=True):
        alias = message.properties.get("topic_alias", 0)
        assert 0 <= alias <= 2
        if alias and message.topic:
            known[alias] = message.topic
        used += not message.topic
        assert (message.topic or known[alias]) == topic
    assert used
    assert all("topic_alias" not in one.properties and one.topic for one in plain.take(50))


def test_what_is_larger_than_a_subscriber_takes_is_left_out(talk, name):
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    subscriber, publisher = talk(), talk()
    subscriber.connect(properties={"maximum_packet_size": 200, "receive_maximum": 2})
    subscriber.subscribe(name, qos=2)
    publisher.connect()
    for size in (10, 500, 600, 700, 20):
        publisher.publish(name, bytes(size), qos=size % 3)
    assert [len(one.payload) for one in subscriber.take(2)] == [10, 20]
    assert [one for one in subscriber.drain() if isinstance(one, Publish)] == []
    subscriber.send(Disconnect(0, {"session_expiry_interval": 10}))
    last = subscriber.end()
    assert last is None or len(str(last)) < 400


def test_what_is_larger_than_the_broker_takes_ends_the_connection(tmp_path, talk):
    """[MQTT-3.2.2-15]"""
    with served(tmp_path / "log", "--limits", '{"packet_bytes_max": 1000}') as broker:
        client = talk(to=broker)
        assert client.connect().properties["maximum_packet_size"] == 1000
        client.publish("t", bytes(900), qos=1)
        client.raw(b"\x30\xff\xff\xff\x7f")  # it needn't be there as a whole
        assert client.end().reason_code == ReasonCode.PACKET_TOO_LARGE


@BOTH
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 2_097_152, 5_000_000])
def test_payloads_of_any_size_arrive(talk, name, version, size):
    """[MQTT-2.2.2-1]"""
    subscriber, publisher = talk(version), talk(version)
    subscriber.connect()
    subscriber.subscribe(name, qos=1)
    publisher.connect()
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    publisher.publish(name, payload, qos=1)
    assert subscriber.messages() == [(name, payload)]


@BOTH
def test_topics_that_begin_with_a_dollar_are_not_for_clients(talk, name, version):
    """[MQTT-4.7.2-1]"""
    client = talk(version)
    client.connect(name)
    for qos in (0, 1, 2) if version == 5 else (1,):
        client.send(Publish("$SYS/x", b"x", qos, packet_id=5 if qos else 0), Pingreq())
        if version == 4:
            assert client.end() is None
        elif qos:
            assert client.read().reason_code == ReasonCode.TOPIC_NAME_INVALID
            client.read()
        else:
            client.read()


def test_a_message_of_quality_2_that_was_refused_is_new_the_next_time(talk, name):
    """[MQTT-4.3.3-9] [MQTT-3.5.2-1] [MQTT-3.4.2-1]"""
    subscriber, client = talk(), talk()
    subscriber.connect()
    subscriber.subscribe(name, qos=2)
    client.connect()
    client.send(Publish("$x", b"x", 2, packet_id=5), Publish(name, b"new", 2, packet_id=5))
    assert client.expect(Pubrec).reason_code == ReasonCode.TOPIC_NAME_INVALID
    assert client.expect(Pubrec).reason_code == 0
    assert subscriber.messages() == [(name, b"new")]
