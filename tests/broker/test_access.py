"""Who may come in, and what they may do there."""

from __future__ import annotations

import itertools
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog.broker import Access
from chiplog.broker.mqtt import (
    MQTT_5_0,
    Connect,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Will,
    decode_all,
    encode,
    matches,
)
from chiplog.broker.passwords import Password, change_password, read_users
from chiplog.broker.rules import Rules, covers, may_publish, may_publish_all, may_subscribe, overlaps
from chiplog.cli.codes import NoServer, Refused
from chiplog.errors import BadAccessFile
from tests.broker.local import Paho, local, until

RULES = """
topic read news/#
user ann
topic readwrite sensors/#
topic deny sensors/secret/#
topic read $SYS/#
user bob
topic write sensors/+/temperature
pattern readwrite devices/%c/#
pattern read users/%u
"""


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("users") / "users")
    change_password(path, "ann", b"ann's")
    change_password(path, "bob", b"bob's")
    return path


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules"
    path.write_text(RULES)
    return path


# -- the file of users


def test_a_password_is_known_again_and_not_in_the_file(tmp_path):
    path = tmp_path / "users"
    assert not change_password(str(path), "ann", b"secret")
    assert change_password(str(path), "ann", b"changed")
    assert not change_password(str(path), "bob", b"changed")
    text = path.read_text()
    assert "secret" not in text
    assert "changed" not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    users = read_users(str(path))
    assert users["ann"].is_of(b"changed")
    assert not users["ann"].is_of(b"secret")
    assert users["ann"].salt != users["bob"].salt
    assert [name.name for name in tmp_path.iterdir()] == ["users"], "nothing is left beside it"


def test_a_user_can_be_removed_and_the_rest_stays_as_it_is(tmp_path):
    path = tmp_path / "users"
    line = f"bob:{Password.of(b'b')}"
    path.write_text(f"# ours\n{line}\n")
    change_password(str(path), "ann", b"a")
    assert change_password(str(path), "ann", None)
    assert path.read_text() == f"# ours\n{line}\n"


@pytest.mark.parametrize(
    "line",
    [
        "ann",
        "ann:secret",
        "ann:$scrypt$16384,8,1$c2FsdA==",
        "ann:$scrypt$16383,8,1$c2FsdA==$" + "A" * 44,
        "ann:$scrypt$1048576,1024,1$c2FsdA==$" + "A" * 44,
        "ann:$scrypt$16384,8,1$c2FsdA=$" + "A" * 44,
        "ann:$scrypt$16384,8,1$c2FsdA==$AAAA",
        f"anonymous:{Password.of(b'x')}",
        f" ann:{Password.of(b'x')}",
        f"bob:{Password.of(b'x')}",
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path, line):
    path = tmp_path / "users"
    path.write_text(f"# users\nbob:{Password.of(b'b')}\n{line}\n")
    with pytest.raises(BadAccessFile, match=r"users, line 3: "):
        read_users(str(path))


def test_bytes_that_are_no_text_are_named_too(tmp_path):
    path = tmp_path / "users"
    path.write_bytes(b"# users\n\xff\xfe\n")
    with pytest.raises(BadAccessFile, match="users, line 2"):
        read_users(str(path))


# -- rules


@pytest.mark.parametrize(
    "line",
    ["tpoic read a", "topic", "user", "pattern", "topic read a/#/b", "topic a+", "topic read $share/a/b"],
)
def test_a_rule_that_makes_no_sense_is_named(line):
    with pytest.raises(BadAccessFile, match="rules, line 2: "):
        Rules.parse(f"user ann\n{line}\n", "rules")


def test_what_rules_allow():
    rules = Rules.parse(RULES, "rules")
    ann, bob, nobody = rules.of("ann", "c1"), rules.of("bob", "c2"), rules.of(None, "c3")
    assert may_publish(ann, "sensors/attic/temperature")
    assert not may_publish(ann, "sensors/secret/x")
    assert not may_publish(ann, "news/today")
    assert may_subscribe(ann, "sensors/attic/#")
    assert not may_subscribe(ann, "sensors/#"), "it would match what is denied"
    assert may_subscribe(ann, "$SYS/#")
    assert may_subscribe(ann, "users/ann")
    assert not may_subscribe(ann, "users/bob")
    assert not may_subscribe(bob, "sensors/attic/temperature")
    assert may_publish(bob, "sensors/attic/temperature")
    assert may_publish(bob, "devices/c2/x")
    assert not may_publish(bob, "devices/c1/x")
    assert may_subscribe(nobody, "news/#")
    assert not may_subscribe(nobody, "users/None")
    assert not may_subscribe(nobody, "#")
    assert not any(may_publish_all(those) for those in (ann, bob, nobody))


def test_a_name_with_a_wildcard_gets_nothing_of_a_pattern():
    rules = Rules.parse("pattern readwrite devices/%c/#\npattern read users/%u/x", "rules")
    for name in ("+", "#", "a/b", ""):
        assert rules.of(name, name) == []


def test_who_may_publish_everywhere_is_known():
    assert may_publish_all(Rules.parse("topic #", "rules").of(None, ""))
    assert not may_publish_all(Rules.parse("topic #\ntopic deny a", "rules").of(None, ""))
    assert not may_publish_all(Rules.parse("topic read #", "rules").of(None, ""))


LEVEL = st.sampled_from(["a", "b", "+", "", "$x"])
FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]) or "a",
    st.lists(LEVEL, min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)
TOPICS = [
    "/".join(levels) for size in range(1, 5) for levels in itertools.product(["a", "b", "", "$x"], repeat=size)
]


@given(FILTERS, FILTERS)
def test_covering_and_overlapping_are_what_they_are_for_every_topic(one, other):
    ours = {topic for topic in TOPICS if topic and matches(one, topic)}
    theirs = {topic for topic in TOPICS if topic and matches(other, topic)}
    if covers(one, other):
        assert theirs <= ours
    if not overlaps(one, other):
        assert not ours & theirs
    assert overlaps(one, other) == overlaps(other, one)
    if one == other:
        assert covers(one, other)


# -- coming in


def test_on_this_machine_anyone_may_come_in_and_from_elsewhere_only_if_that_is_said():
    assert Access().admit(None, None, "127.0.0.1") is None
    assert Access().admit("ann", b"x", "::1") is None
    assert Access().admit(None, None, "10.1.2.3") == ReasonCode.NOT_AUTHORIZED
    assert Access(anonymous=True).admit(None, None, "10.1.2.3") is None


def test_a_name_that_nobody_checked_has_no_rights(rules):
    access = Access(rules=str(rules))
    assert not access.may_publish("ann", "c", "sensors/x")
    assert access.may_subscribe("ann", "c", "news/#")


def test_a_password_is_checked_on_a_thread_and_then_remembered(users):
    access = Access(users=users)
    try:
        assert access.admit("ann", b"ann's", "10.1.2.3").result(30) is None
        assert access.admit("ann", b"ann's", "10.1.2.3") is None
        assert access.admit("ann", b"bob's", "127.0.0.1").result(30) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert access.admit("ann", b"bob's", "127.0.0.1").result(30) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert access.admit("eve", b"ann's", "127.0.0.1").result(30) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert access.admit("ann", None, "127.0.0.1") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert access.admit(None, None, "127.0.0.1") == ReasonCode.NOT_AUTHORIZED
        access.reload()
        assert access.admit("ann", b"ann's", "10.1.2.3").result(30) is None, "it is checked again"
    finally:
        access.close()


def test_files_that_became_wrong_change_nothing(users, rules):
    access = Access(users=users, rules=str(rules))
    rules.write_text("user ann\ntopic everything\nnonsense")
    with pytest.raises(BadAccessFile, match="line 3"):
        access.reload()
    assert access.may_publish("ann", "c", "sensors/x")
    access.close()


def test_a_client_with_the_right_password_comes_in_and_others_dont(tmp_path, users):
    with local(tmp_path / "log", access=Access(users=users)) as here:
        client = here.client(user="ann", password=b"ann's")
        client.subscribe(["a"])
        client.publish("a", b"1")
        client.flush()
        assert client.receive(30).payload == b"1"
        with pytest.raises(Refused, match="bad user name or password"):
            here.client(user="ann", password=b"wrong")
        with pytest.raises(Refused, match="not authorized"):
            here.client()
        theirs = Paho(here.port, user="bob", password="bob's")
        assert theirs.reason == "Success"
        theirs.close()


def test_what_comes_while_a_password_is_checked_waits_and_keeps_its_order(tmp_path, users):
    """[MQTT-3.1.4-5]: a client need not wait for its CONNACK."""
    with local(tmp_path / "log", access=Access(users=users)) as here:
        watcher = here.client(user="ann", password=b"ann's")
        watcher.subscribe(["a"])
        packets = [Connect("early", MQTT_5_0, True, 60, None, "bob", b"bob's")]
        packets += [Publish("a", b"%d" % i, 1, packet_id=i) for i in range(1, 50)]
        with socket.create_connection(("127.0.0.1", here.port)) as early:
            early.sendall(b"".join(encode(packet, MQTT_5_0, from_server=False) for packet in packets))
            assert [watcher.receive(30).payload for _ in range(1, 50)] == [b"%d" % i for i in range(1, 50)]
            assert early.recv(1)[0] >> 4 == 2, "first the CONNACK"


def test_a_client_that_leaves_while_its_password_is_checked_harms_nobody(tmp_path, users):
    with local(tmp_path / "log", access=Access(users=users)) as here:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", here.port)) as hasty:
                hasty.sendall(
                    encode(Connect("h", MQTT_5_0, user_name="ann", password=b"no"), MQTT_5_0, from_server=False)
                )
        here.client(user="ann", password=b"ann's").close()
        until(lambda: not here.broker.clients.connections)


def test_rules_count_for_publishing_subscribing_and_wills(tmp_path, users, rules):
    with local(tmp_path / "log", access=Access(users=users, rules=str(rules))) as here:
        ann = here.client(user="ann", password=b"ann's", client_id="a")
        bob = here.client(user="bob", password=b"bob's", client_id="b")
        ann.subscribe(["sensors/attic/#"])
        with pytest.raises(Refused, match="not authorized"):
            ann.subscribe(["sensors/#"])
        with pytest.raises(Refused, match="not authorized"):
            ann.subscribe(["$share/g/#"])
        with pytest.raises(Refused, match="not authorized"):
            ann.subscribe(["$replay/all/users/bob"])
        bob.publish("sensors/attic/temperature", b"21.5")
        bob.flush()
        assert ann.receive(30).payload == b"21.5"
        bob.publish("sensors/attic/humidity", b"50")
        with pytest.raises(Refused, match="not authorized"):
            bob.flush()
        with pytest.raises(Refused, match="not authorized"):
            _connect_with_will(here.port, "news/today")
        _connect_with_will(here.port, "sensors/attic/temperature")
        assert ann.receive(30).payload == b"gone"


def _connect_with_will(port, topic):
    """A client of bob's that breaks off."""
    connect = Connect("w", MQTT_5_0, True, 60, Will(topic, b"gone", 1), "bob", b"bob's")
    with socket.create_connection(("127.0.0.1", port)) as found:
        found.sendall(encode(connect, MQTT_5_0, from_server=False))
        ((answer,), _) = decode_all(found.recv(1000), MQTT_5_0, from_server=True)
        if answer.reason_code:
            raise Refused(ReasonCode(answer.reason_code).name.lower().replace("_", " "))


def test_new_rules_count_at_once_and_for_sessions_that_come_back(tmp_path, users, rules):
    with local(tmp_path / "log", access=Access(users=users, rules=str(rules))) as here:
        ann = here.client(user="ann", password=b"ann's", client_id="a", session_expiry=100)
        ann.subscribe(["sensors/attic/#", "users/ann"])
        bob = here.client(user="bob", password=b"bob's", client_id="b")
        away = here.client(user="ann", password=b"ann's", client_id="c", session_expiry=100)
        away.subscribe(["sensors/attic/#"])
        away.close()
        rules.write_text("user bob\ntopic #\npattern read users/%u")
        here.do(here.broker.reload)
        bob.publish("sensors/attic/temperature", b"1")
        bob.publish("users/ann", b"2")
        bob.flush()
        assert ann.receive(30).payload == b"2"
        back = here.client(user="ann", password=b"ann's", client_id="c", session_expiry=100)
        back.subscribe(["users/ann"])
        bob.publish("users/ann", b"3")
        bob.flush()
        assert back.receive(30).payload == b"3"


def test_a_user_who_is_removed_is_disconnected(tmp_path):
    path = str(tmp_path / "users")
    change_password(path, "ann", b"a")
    change_password(path, "bob", b"b")
    with local(tmp_path / "log", access=Access(users=path)) as here:
        ann = here.client(user="ann", password=b"a")
        bob = here.client(user="bob", password=b"b")
        change_password(path, "ann", None)
        here.do(here.broker.reload)
        with pytest.raises((Refused, NoServer)):
            ann.receive(30)
        bob.publish("x", b"")
        bob.flush()


def test_subscribe_answers_each_filter_by_itself(tmp_path, users, rules):
    with local(tmp_path / "log", access=Access(users=users, rules=str(rules))) as here:
        ann = here.client(user="ann", password=b"ann's")
        ann._send(Subscribe(7, [Subscription("sensors/a", 1), Subscription("no", 1)]))
        assert list(ann._wait_for(Suback).reason_codes) == [1, ReasonCode.NOT_AUTHORIZED]


def test_another_user_who_takes_a_session_over_gets_nothing_that_was_under_way(tmp_path, users, rules):
    rules.write_text("user ann\ntopic a\nuser bob\ntopic b\n")
    with local(tmp_path / "log", access=Access(users=users, rules=str(rules))) as here:
        ann = here.client(user="ann", password=b"ann's", client_id="shared", session_expiry=100)
        ann.subscribe(["a"])
        other = here.client(user="ann", password=b"ann's")
        other.publish("a", b"for ann")
        other.flush()
        until(lambda: here.do(lambda: here.broker.memory.sessions["shared"].in_flight))
        ann._socket.close()  # before it has acknowledged anything
        bob = here.client(user="bob", password=b"bob's", client_id="shared", session_expiry=100)
        bob.subscribe(["b"])
        bob.publish("b", b"for bob")
        bob.flush()
        assert bob.receive(30).payload == b"for bob"


def test_who_leaves_isnt_checked_any_more(tmp_path, users):
    access = Access(users=users)
    checks = [access.admit("ann", b"%d" % i, "127.0.0.1") for i in range(20)]
    assert sum(check.cancel() for check in checks) > 10
    assert access.admit("ann", b"ann's", "127.0.0.1").result(60) is None
    until(lambda: access._waiting == 0)
    access.close()


def test_more_than_can_be_checked_are_told_that_the_server_is_busy(tmp_path, users, monkeypatch):
    monkeypatch.setattr("chiplog.broker.access._WAITING_MAX", 2)
    access = Access(users=users)
    found = [access.admit("ann", b"%d" % i, "127.0.0.1") for i in range(10)]
    assert ReasonCode.SERVER_BUSY in found
    access.close()
