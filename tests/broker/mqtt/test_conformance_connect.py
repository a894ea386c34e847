"""CONNECT and its answer, takeover, keep alive, and how a connection ends. Numbers are those of MQTT 5.0."""

from __future__ import annotations

import time

import pytest

from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.serving import served

BOTH = pytest.mark.parametrize("version", [4, 5])


def connect_bytes(
    flags: int = 2, *, protocol: bytes = b"\0\4MQTT", level: int = 5, rest: bytes = b"\0\1a"
) -> bytes:
    body = protocol + bytes((level, flags)) + b"\0\0" + (b"\0" if level == 5 else b"") + rest
    return bytes((0x10, len(body))) + body


@BOTH
def test_a_client_is_let_in_before_anything_else_is_said(talk, name, version):
    """[MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT-3.2.2-1]"""
    client = talk(version)
    client.send(Connect(name, version), Subscribe(1, [Subscription(name, 1)]), Pingreq())
    assert isinstance(client.read(), Connack)
    assert [type(one).__name__ for one in (client.read(), client.read())] == ["Suback", "Pingresp"]


@pytest.mark.parametrize(
    "first",
    [encode(Pingreq(), 5, from_server=False), encode(Publish("a", b"x"), 4), bytes(20), b"GET / HTTP/1.1\r\n\r\n"],
)
def test_what_begins_with_anything_but_a_connect_is_closed(talk, first):
    """[MQTT-3.1.0-1] [MQTT-3.14.0-1]"""
    client = talk()
    client.raw(first)
    assert client.end() is None


@BOTH
def test_a_second_connect_ends_the_connection(talk, name, version):
    """[MQTT-3.1.0-2] [MQTT-4.13.1-1]"""
    client = talk(version)
    client.connect(name)
    client.send(Connect(name, version))
    last = client.end()
    assert last is None if version == 4 else last.reason_code == ReasonCode.PROTOCOL_ERROR


@BOTH
def test_a_second_connect_of_a_version_that_there_is_not_ends_it_all_the_same(talk, name, version):
    client = talk(version)
    client.connect(name)
    client.raw(connect_bytes(level=9))
    last = client.end()
    assert last is None if version == 4 else last.reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("level", [0, 3, 6, 255])
def test_other_versions_are_refused_with_a_reason(talk, level):
    """[MQTT-3.1.2-2]"""
    client = talk(5 if level > 5 else 4)
    client.raw(connect_bytes(level=level))
    answer = client.end()
    assert isinstance(answer, Connack)
    assert answer.reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.parametrize("protocol", [b"\0\4MQTS", b"\0\6MQIsdp", b"\0\0", b"\0\4mqtt"])
def test_other_protocols_are_closed(talk, protocol):
    """[MQTT-3.1.2-1]"""
    client = talk()
    client.raw(connect_bytes(protocol=protocol))
    answer = client.end()
    assert answer is None or answer.reason_code >= 0x80


@pytest.mark.parametrize(
    "data",
    [
        connect_bytes(flags=3),
        connect_bytes(flags=2 | 0x08),
        connect_bytes(flags=2 | 0x20),
        connect_bytes(flags=2 | 0x1C, rest=b"\0\1a\0\0\1t\0\1p"),
        connect_bytes(flags=2 | 4),
        connect_bytes(flags=2 | 0x80),
        connect_bytes(flags=2 | 0x40),
        connect_bytes(rest=b""),
        connect_bytes(rest=b"\0\1a\0\1b"),
        connect_bytes(rest=b"\0\2\xc0\x80"),
        connect_bytes(rest=b"\0\3\xed\xa0\x80"),
        connect_bytes(rest=b"\0\1\0"),
        connect_bytes(flags=2 | 4, rest=b"\0\1a\0\0\1+\0\1p"),
        connect_bytes(flags=2 | 4, rest=b"\0\1a\0\0\1\xff\0\1p"),
        connect_bytes(flags=2 | 0x80, rest=b"\0\1a\0\1\xff"),
    ],
    ids=[
        "reserved flag", "qos without will", "retain without will", "will qos 3", "no will", "no user",
        "no password", "no client id", "bytes too many", "overlong UTF-8", "surrogate", "null",
        "will to wildcards", "will topic is no UTF-8", "user is no UTF-8",
    ],
)  # fmt: skip
def test_a_connect_that_is_malformed_gets_nobody_in(talk, data):
    """[MQTT-3.1.4-1] [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13]

    [MQTT-3.1.2-17] [MQTT-3.1.2-19] [MQTT-3.1.3-3] [MQTT-3.1.3-4] [MQTT-3.1.3-11] [MQTT-3.1.3-12] [MQTT-1.5.4-1]
    [MQTT-1.5.4-2] [MQTT-3.1.2-16] [MQTT-3.1.2-18]
    """
    client = talk()
    client.raw(data)
    answer = client.end()
    assert answer is None or (answer.reason_code >= 0x80 and not answer.session_present)


def test_who_is_refused_is_not_listened_to(talk, name):
    """[MQTT-3.1.4-6] [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT-4.13.2-1] [MQTT-3.1.3-8]"""
    watcher = talk()
    watcher.connect()
    watcher.subscribe(name)
    client = talk(4)
    client.send(Connect("", 4, clean_start=False), Publish(name, b"unheard"))
    answer = client.end()
    assert isinstance(answer, Connack)
    assert answer.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert not answer.session_present
    assert watcher.drain() == []


def test_an_authentication_that_is_not_known_is_refused(talk):
    """[MQTT-4.12.0-1] [MQTT-4.12.0-6]"""
    client = talk()
    answer = client.connect(properties={"authentication_method": "SCRAM-SHA-256"})
    assert answer.reason_code in (ReasonCode.BAD_AUTHENTICATION_METHOD, ReasonCode.NOT_AUTHORIZED)
    assert client.end() is None
    plain = talk()
    assert "authentication_method" not in plain.connect().properties
    plain.send(Auth(0x19, {"authentication_method": "x"}))
    assert plain.end().reason_code == ReasonCode.PROTOCOL_ERROR


@BOTH
def test_any_client_id_of_letters_and_digits_will_do(talk, version):
    """[MQTT-3.1.3-5]"""
    for client_id in ("a", "0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ"):
        assert talk(version).connect(client_id).reason_code == 0


def test_a_client_without_an_id_is_given_one_of_its_own(talk, name):
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16] [MQTT-3.1.3-2]"""
    first, second = talk(), talk()
    ids = [one.connect("", expiry=100).properties["assigned_client_identifier"] for one in (first, second)]
    assert len(set(ids)) == 2
    first.subscribe(name, qos=1)
    first.close()
    again = talk()
    assert again.connect(ids[0], clean=False).session_present
    second.publish(name, b"found", qos=1)
    assert again.messages() == [(name, b"found")]
    assert talk(4).connect("", clean=True).reason_code == 0


@BOTH
def test_clean_start_ends_the_session_that_there_was(talk, name, version):
    """[MQTT-3.1.2-4] [MQTT-3.1.4-4] [MQTT-3.2.2-2] [MQTT-3.1.2-6] [MQTT-3.2.2-3]"""
    client = talk(version)
    assert not client.connect(name, clean=False, expiry=100).session_present
    client.subscribe(name, qos=1)
    client.disconnect()
    client = talk(version)
    assert not client.connect(name, clean=True, expiry=100).session_present
    assert client.publish(name, b"unheard", qos=1) in (0, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    assert client.drain() == []


@BOTH
@pytest.mark.parametrize("rudely", [False, True])
def test_a_session_goes_on_where_it_was(talk, name, version, rudely):
    """[MQTT-3.1.2-5] [MQTT-3.1.2-23] [MQTT-3.2.2-3] [MQTT-4.1.0-1] [MQTT-4.5.0-1]"""
    client, other = talk(version), talk()
    client.connect(name, clean=False, expiry=100)
    client.subscribe(f"{name}/#", qos=2)
    client.close() if rudely else client.disconnect()
    other.connect()
    for number in range(5):
        other.publish(f"{name}/{number}", b"%d" % number, qos=1 + number % 2)
    client = talk(version)
    assert client.connect(name, clean=False, expiry=100).session_present
    assert client.messages(5) == [(f"{name}/{number}", b"%d" % number) for number in range(5)]


@BOTH
def test_a_session_that_ends_with_its_connection_is_gone(talk, name, version):
    """[MQTT-4.1.0-2]"""
    client = talk(version)
    client.connect(name, clean=True)
    client.subscribe(name, qos=1)
    client.disconnect()
    assert not talk(version).connect(name, clean=False).session_present


def test_a_session_expires(talk, name):
    """[MQTT-4.1.0-2]"""
    client = talk()
    client.connect(name, expiry=1)
    client.disconnect()
    left = time.monotonic()
    other = talk()
    other.connect()
    while time.monotonic() < left + 2:  # it doesn't begin anew when others come
        assert other.quiet()
    assert not talk().connect(name, clean=False, expiry=1).session_present


def test_a_client_can_change_how_long_its_session_lasts_when_it_leaves(talk, name):
    """[MQTT-4.1.0-2] [MQTT-3.14.2-2]"""
    client = talk()
    client.connect(name, expiry=1000)
    client.disconnect(session_expiry_interval=0)
    assert not talk().connect(name, clean=False).session_present
    client = talk()
    client.connect(f"{name}-2", expiry=0)
    client.send(Disconnect(0, {"session_expiry_interval": 10}))
    assert client.end().reason_code == ReasonCode.PROTOCOL_ERROR


@BOTH
def test_a_second_connection_takes_the_session_over(talk, name, version):
    """[MQTT-3.1.4-3] [MQTT-3.14.4-2]"""
    first = talk(version)
    first.connect(name, clean=False, expiry=100)
    first.subscribe(name, qos=1)
    second = talk(version)
    assert second.connect(name, clean=False, expiry=100).session_present
    last = first.end()
    assert last is None if version == 4 else last.reason_code == ReasonCode.SESSION_TAKEN_OVER
    second.publish(name, b"mine", qos=1)
    assert second.messages() == [(name, b"mine")]


@BOTH
def test_who_is_silent_for_too_long_is_disconnected(talk, name, version):
    """[MQTT-3.1.2-22] [MQTT-3.2.2-22]"""
    watcher = talk()
    watcher.connect()
    watcher.subscribe(name)
    client = talk(version)
    client.connect(f"{name}-c", keep_alive=1, will=Will(name, b"gone"))
    assert watcher.messages() == [(name, b"gone")]
    last = client.end()
    assert last is None if version == 4 else last.reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT


@BOTH
def test_pings_keep_a_connection(talk, name, version):
    """[MQTT-3.12.4-1]"""
    client = talk(version)
    client.connect(name, keep_alive=1)
    for _ in range(14):
        assert client.quiet()
        client.send(Pingreq())
        assert isinstance(client.read(), Pingresp)


def test_the_broker_says_if_it_wants_shorter_keep_alives(tmp_path, talk):
    """[MQTT-3.1.2-21] [MQTT-3.2.2-21]"""
    with served(tmp_path / "log", "--limits", '{"keep_alive_max": 1, "session_expiry_max": 7}') as broker:
        client = talk(to=broker)
        told = client.connect(keep_alive=600, expiry=100).properties
        assert (told["server_keep_alive"], told["session_expiry_interval"]) == (1, 7)
        assert client.end().reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1\x00",
        b"\x60\x02\x00\x01",
        b"\x80\x07\x00\x01\x00\x00\x01a\x00",
        b"\xa0\x06\x00\x01\x00\x00\x01a",
        b"\xe1\x00",
        b"\xf1\x00",
        b"\x00\x00",
        b"\x82\x07\x00\x00\x00\x00\x01a\x00",
        b"\x82\x07\x00\x01\x00\x00\x01a\xc0",
        b"\x82\x07\x00\x01\x00\x00\x01a\x03",
        b"\x82\x07\x00\x01\x00\x00\x01a\x30",
        b"\x82\x03\x00\x01\x00",
        b"\xa2\x03\x00\x01\x00",
        b"\x82\x07\x00\x01\x00\x00\x01\xff\x00",
        b"\xa2\x06\x00\x01\x00\x00\x01\xff",
        b"\xc0\x80\x00",
        b"\xc0\xff\xff\xff\xff\x7f",
        b"\x36\x06\x00\x01a\x00\x01\x00",
        b"\x38\x04\x00\x01a\x00",
        b"\x32\x06\x00\x01a\x00\x00\x00",
        b"\x30\x04\x00\x01+\x00",
        b"\x30\x05\x00\x02\xc3\x28\x00",
        b"\x30\x04\x00\x01\x00\x00",
        b"\x30\x03\x00\x00\x00",
        b"\x30\x06\x00\x01a\x02\x0b\x05",
        b"\x30\x07\x00\x01a\x03\x23\x00\x00",
        b"\x30\x08\x00\x01a\x04\x08\x00\x01#",
        b"\x30\x08\x00\x01a\x04\x03\x00\x01\xff",
        b"\x30\x08\x00\x01a\x04\x08\x00\x01\xff",
    ],
    ids=[
        "PINGREQ flags", "PUBREL flags", "SUBSCRIBE flags", "UNSUBSCRIBE flags", "DISCONNECT flags", "AUTH flags",
        "type 0", "packet id 0", "reserved options", "QoS 3 of a filter", "retain handling 3", "no filter",
        "nothing to unsubscribe", "filter is no UTF-8", "other filter is no UTF-8", "length in too many bytes",
        "length in five bytes", "QoS 3", "DUP at QoS 0", "packet id 0 at QoS 1", "topic with wildcards",
        "topic is no UTF-8", "topic with U+0000", "no topic", "subscription identifier from a client",
        "alias 0", "response topic with wildcards", "content type is no UTF-8", "response topic is no UTF-8",
    ],
)  # fmt: skip
def test_a_malformed_packet_ends_the_connection_with_its_reason(talk, name, data):
    """[MQTT-4.13.1-1] [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-3.15.1-1]

    [MQTT-3.8.3-1] [MQTT-3.8.3-2] [MQTT-3.8.3-5] [MQTT-3.10.3-1] [MQTT-3.10.3-2] [MQTT-1.5.5-1] [MQTT-3.3.1-4]
    [MQTT-3.3.1-2] [MQTT-2.2.1-3] [MQTT-3.3.2-1] [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT-4.7.3-1] [MQTT-4.7.3-2]
    [MQTT-3.3.4-6] [MQTT-3.3.2-8] [MQTT-3.3.2-13] [MQTT-3.3.2-14] [MQTT-3.3.2-19] [MQTT-3.14.2-1] [MQTT-3.14.4-1]
    """
    client = talk()
    client.connect(name)
    client.raw(data + encode(Pingreq(), 5, from_server=False))
    last = client.expect(Disconnect)
    assert client.end() is None  # not even the ping is answered
    assert last.reason_code in (
        ReasonCode.MALFORMED_PACKET,
        ReasonCode.PROTOCOL_ERROR,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.TOPIC_ALIAS_INVALID,
    )


def test_a_disconnect_is_the_last_thing_that_is_heard(talk, name):
    """[MQTT-3.14.4-1]"""
    watcher, client = talk(), talk()
    watcher.connect()
    watcher.subscribe(name)
    client.connect()
    client.send(Publish(name, b"before"), Disconnect(), Publish(name, b"after"))
    client.end()
    assert watcher.messages() == [(name, b"before")]
    assert watcher.drain() == []
