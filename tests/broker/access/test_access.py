"""Who may come in, and what they may do there."""

from __future__ import annotations

import itertools
import socket
import stat
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog.broker import Access
from forelog.broker.access.passwords import Password, change_password, read_users
from forelog.broker.access.rights import Rights, Ruleset
from forelog.broker.access.rules import Rule, Rules, covers, overlaps
from forelog.broker.mqtt.decode import decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.mqtt.topics import matches
from forelog.cli.codes import NoServer, Refused
from forelog.errors import BadAccessFile
from tests.broker.local import Paho, checked, local, until

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


def rights_of(rules: Rules, user: str | None, client_id: str) -> Rights:
    return Rights(Ruleset(rules.of_user(user)), Ruleset(rules.of_patterns(user, client_id)))


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
    ids=[str(number) for number in range(10)],  # the same in every process: what is hashed isn't
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
    [
        "tpoic read a",
        "topic",
        "user",
        "pattern",
        "topic read a/#/b",
        "topic a+",
        "topic read $share/a/b",
        "topic dney sensors/secret/#",
        "topic READ a",
        "topic a b",
        "topic deny",
        "pattern raed a/%c",
        "Topic read a",
        "topic: read a",
        "topic read",
    ],
)
def test_a_rule_that_makes_no_sense_is_named(line):
    with pytest.raises(BadAccessFile, match="rules, line 2: "):
        Rules.parse(f"user ann\n{line}\n", "rules")


def test_a_wrong_word_is_told_what_it_could_have_been():
    with pytest.raises(
        BadAccessFile, match=r"'dney' isn't one of read\|write\|readwrite\|deny.*topic readwrite dney x"
    ):
        Rules.parse("topic dney x\n", "rules")


def test_a_topic_with_a_space_needs_a_word_before_it():
    rules = Rules.parse("topic read a b/#\ntopic\treadwrite  dney  x \n", "rules")
    assert [rule.filter for rule in rules.of_user(None)] == ["a b/#", "dney  x"]


def test_what_rules_allow():
    rules = Rules.parse(RULES, "rules")
    ann, bob, nobody = (rights_of(rules, *who) for who in (("ann", "c1"), ("bob", "c2"), (None, "c3")))
    assert ann.may_publish("sensors/attic/temperature")
    assert not ann.may_publish("sensors/secret/x")
    assert not ann.may_publish("news/today")
    assert ann.may_subscribe("sensors/attic/#")
    assert ann.may_subscribe("sensors/#"), "what is denied is left out of what it gets"
    assert ann.may_read("sensors/attic")
    assert not ann.may_read("sensors/secret")
    assert not ann.may_subscribe("sensors/secret/#")
    assert not ann.may_subscribe("sensors/secret/+/x")
    assert not ann.may_subscribe("sensors/secret/x")
    assert ann.may_subscribe("$SYS/#")
    assert ann.may_subscribe("users/ann")
    assert not ann.may_subscribe("users/bob")
    assert ann.may_subscribe("users/+")
    assert not ann.may_read("users/bob")
    assert not bob.may_subscribe("sensors/attic/temperature")
    assert bob.may_publish("sensors/attic/temperature")
    assert bob.may_publish("devices/c2/x")
    assert not bob.may_publish("devices/c1/x")
    assert nobody.may_subscribe("news/#")
    assert not nobody.may_subscribe("users/None")
    assert nobody.may_subscribe("#")
    assert not nobody.may_read("users/ann")
    assert not nobody.may_read("$SYS/x")
    assert not any(those.publishes_all or those.reads_all for those in (ann, bob, nobody))


def test_the_first_rule_that_matches_decides_denials_first_and_a_users_own_before_patterns():
    rules = Rules.parse("user ann\ntopic a/#\ntopic deny a/b\npattern deny #\npattern read b/#\n", "rules")
    ann, bob = rights_of(rules, "ann", "c"), rights_of(rules, "bob", "c")
    assert ann.may_read("a/x"), "her own rule is before the pattern"
    assert not ann.may_read("a/b")
    assert not ann.may_read("b/x")
    assert not bob.may_read("b/x")


def test_a_name_with_a_wildcard_gets_nothing_of_a_pattern():
    rules = Rules.parse("pattern readwrite devices/%c/#\npattern read users/%u/x", "rules")
    for name in ("+", "#", "a/b", ""):
        assert list(rules.of_patterns(name, name)) == []


def test_what_is_filled_into_a_pattern_is_not_filled_again():
    rules = Rules.parse("pattern read c/%c/%u\n", "rules")
    assert [rule.filter for rule in rules.of_patterns("ann", "%u")] == ["c/%u/ann"]
    assert [rule.filter for rule in rules.of_patterns("%c", "x")] == ["c/x/%c"]


def test_who_may_publish_everywhere_is_known():
    assert rights_of(Rules.parse("topic #", "rules"), None, "").publishes_all
    assert not rights_of(Rules.parse("topic #\ntopic deny a", "rules"), None, "").publishes_all
    assert not rights_of(Rules.parse("topic read #", "rules"), None, "").publishes_all
    assert rights_of(Rules.parse("topic read #", "rules"), None, "").reads_all


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


@given(st.lists(FILTERS, max_size=6), FILTERS)
def test_what_denies_all_of_a_filter_is_found_among_many_rules(denied, wanted):
    rules = Ruleset([Rule(one, False, False) for one in denied])
    assert rules.denies_all_of(wanted) == any(covers(one, wanted) for one in denied)


def test_thousands_of_rules_are_read_in_an_instant():
    """Each that allows was compared with each that denies: 3,000 of both took 3 s, for every client that came."""
    rules = [Rule(f"a/{n}/+") for n in range(3000)]
    rules += [Rule(f"b/{n}/#", False, False) for n in range(3000)]
    begun = time.process_time()
    assert Ruleset(rules).denies_all_of("b/7/x")
    assert time.process_time() - begun < 1


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
        assert checked(access.admit("ann", b"ann's", "10.1.2.3")) is None
        assert access.admit("ann", b"ann's", "10.1.2.3") is None
        assert checked(access.admit("ann", b"bob's", "127.0.0.1")) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert checked(access.admit("ann", b"bob's", "127.0.0.1")) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert checked(access.admit("eve", b"ann's", "127.0.0.1")) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert access.admit("ann", None, "127.0.0.1") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert access.admit(None, None, "127.0.0.1") == ReasonCode.NOT_AUTHORIZED
        access.reload()
        assert access.admit("ann", b"ann's", "10.1.2.3") is None, "her line is what it was"
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
        packets: list[Packet] = [Connect("early", MQTT_5_0, True, 60, None, "bob", b"bob's")]
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
        until(lambda: not here.broker.presence.connections)


def test_rules_count_for_publishing_subscribing_and_wills(tmp_path, users, rules):
    with local(tmp_path / "log", access=Access(users=users, rules=str(rules))) as here:
        ann = here.client(user="ann", password=b"ann's", client_id="a")
        bob = here.client(user="bob", password=b"bob's", client_id="b")
        ann.subscribe(["sensors/attic/#"])
        with pytest.raises(Refused, match="not authorized"):
            ann.subscribe(["sensors/secret/#"])
        with pytest.raises(Refused, match="not authorized"):
            ann.subscribe(["$share/g/sensors/secret/#"])
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
        assert isinstance(answer, Connack)
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


def test_of_many_messages_sent_together_only_those_that_are_allowed_arrive(tmp_path, rules):
    rules.write_text("topic readwrite a/#\ntopic read b/#\n")
    with local(tmp_path / "log", access=Access(rules=str(rules))) as here:
        watcher = here.client()
        watcher.subscribe(["a/#", "b/#"])
        for mixed in (False, True):
            topics = ["b/x" if mixed and i % 5 == 0 else f"a/{i % 3}" for i in range(1, 400)]
            packets: list[Packet] = [Connect("p", MQTT_5_0)]
            packets += [Publish(topic, b"%d" % i, 1, packet_id=i) for i, topic in enumerate(topics, 1)]
            with socket.create_connection(("127.0.0.1", here.port), timeout=30) as raw:
                raw.sendall(b"".join(encode(packet, MQTT_5_0, from_server=False) for packet in packets))
                data = b""
                answers: list[Packet] = []
                while len(answers) < 400:
                    data += raw.recv(65536)
                    answers, _ = decode_all(data, MQTT_5_0, from_server=True)
            acks = [answer for answer in answers[1:] if isinstance(answer, Puback)]
            refused = {ack.packet_id for ack in acks if ack.reason_code == ReasonCode.NOT_AUTHORIZED}
            assert refused == {i for i, topic in enumerate(topics, 1) if topic == "b/x"}
            assert sorted(ack.packet_id for ack in acks) == list(range(1, 400))
            wanted = [(topic, b"%d" % i) for i, topic in enumerate(topics, 1) if topic != "b/x"]
            found = [watcher.receive(30) for _ in wanted]
            assert [(message.topic, message.payload) for message in found] == wanted
