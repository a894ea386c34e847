"""What clients can have a broker keep is bounded in bytes, for each and for all, and docs/bounds.md says how."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from pathlib import Path

import pytest

from forelog.broker import Limits
from forelog.broker.mqtt.aliases import InboundAliases, OutboundAliases
from forelog.broker.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Connack,
    Disconnect,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
)
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.sessions.windows import ENTRY_BYTES, WINDOW_MIN
from forelog.errors import BadPacket
from forelog.serving.shares import Quota, Shares
from tests.broker.local import local, until
from tests.broker.serving import served
from tests.broker.talking import Closed, Talk

MB = 1 << 20
PAGE = (Path(__file__).parents[2] / "docs" / "bounds.md").read_text()


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_every_limit_is_on_the_page_of_bounds(field):
    assert re.search(rf"`{field.name}`", PAGE), f"docs/bounds.md doesn't name {field.name}"


def test_every_test_that_the_page_names_is_there():
    section = PAGE.partition("\n## The broker\n")[2].partition("\n## ")[0]
    found = re.findall(r"`(test_\w+\.py)(?:::(\w+)…?)?`", section)
    assert len(found) > 30
    for file, name in found:
        (path,) = Path(__file__).parent.rglob(file)
        text = path.read_text()
        assert f"def {name or 'test_'}" in text, f"{file} has no {name}"


# -- sessions


def test_filters_of_a_session_are_bounded_in_bytes(tmp_path):
    """4,000 filters of 200 levels took 280 MB."""
    with local(tmp_path / "log", limits=Limits(session_bytes_max=MB)) as here, Talk(here.port) as client:
        client.connect("hog", clean=False, expiry=100)
        codes: list[int] = []
        for number in range(40):
            codes += client.subscribe(*(f"{number}/{one}/" + "x/" * 190 for one in range(100)))
        granted = codes.count(0)
        assert 100 < granted < 1000
        assert set(codes[granted:]) == {ReasonCode.QUOTA_EXCEEDED}
        assert here.broker.store.sessions["hog"].held_bytes <= MB
        name = "0/0/" + "x/" * 190
        assert client.unsubscribe(name) == [0]
        assert client.subscribe(name) == [0], "what was given back can be had again"
        assert client.subscribe(name) == [0], "again costs nothing"


def test_a_filter_under_a_prefix_counts_beside_the_same_without_one(tmp_path):
    """Whoever had `a` could have any number of `$share/…/a` and `$replay/…/a` that nobody counted."""
    with local(tmp_path / "log", limits=Limits(session_bytes_max=20_000)) as here, Talk(here.port) as client:
        client.connect("hog")
        assert client.subscribe("a") == [0]
        codes = client.subscribe(*(f"$share/group-{number}-{'g' * 100}/a" for number in range(400)))
        assert 10 < codes.count(0) < 200
        assert set(codes) == {0, ReasonCode.QUOTA_EXCEEDED}
        session = here.broker.store.sessions["hog"]
        granted = codes.count(0)
        assert (
            client.unsubscribe(*(f"$share/group-{number}-{'g' * 100}/a" for number in range(granted)))
            == [0] * granted
        )
        assert client.unsubscribe("a") == [0]
        assert client.subscribe("a") == [0]
        assert session.held_bytes > 0


def test_a_filter_that_a_session_has_is_none_more(tmp_path):
    with local(tmp_path / "log", limits=Limits(subscriptions_max=3)) as here, Talk(here.port) as client:
        client.connect("full")
        names = ("a", "$share/g/b", "$replay/all/c")
        assert client.subscribe(*names) == [0, 0, 0]
        assert client.subscribe("d", "$share/h/b", "$replay/all/d") == [ReasonCode.QUOTA_EXCEEDED] * 3
        assert client.subscribe(*names) == [0, 0, 0], "the same ones again, perhaps with other options"


def test_many_filters_with_many_levels_take_no_more_than_they_weigh(tmp_path):
    with served(tmp_path / "log") as broker, Talk(broker.port) as client:
        client.connect("hog")
        before = broker.rss_bytes()
        for number in range(40):
            client.subscribe(*(f"{number}/{one}/" + "x/" * 190 for one in range(100)))
        assert broker.rss_bytes() - before < 64 * MB


def test_what_sessions_take_is_counted_through_everything_that_happens(tmp_path):
    path = tmp_path / "log"
    with local(path) as here:
        for number in range(5):
            with Talk(here.port) as client:
                client.connect(f"c{number}", clean=False, expiry=100 * (number % 2), will=Will("w", bytes(1000)))
                client.subscribe("a", "b/#", "$share/g/c", "$replay/all/d", qos=1)
                client.unsubscribe("a", "none")
        until(lambda: all(one.connection is None for one in here.broker.store.sessions.values()))
        sessions = here.broker.store.sessions
        assert sorted(sessions) == ["c1", "c3"]
        count = here.broker.quotas.byte_count
        assert count == sum(session.held_bytes for session in sessions.values())
    with local(path) as here:
        again = here.broker.quotas.byte_count
        assert 0 < again == count - 2 * (1000 + 4), "after a start it is the same, without the wills"
        for name in ("c1", "c3"):
            with Talk(here.port) as client:
                client.connect(name, expiry=0)
                client.disconnect()
        until(lambda: not here.broker.store.sessions)
        assert here.broker.quotas.byte_count == 0


@pytest.mark.parametrize(
    "properties",
    [
        {"correlation_data": bytes(50_000)},
        {"response_topic": "r" * 50_000},
        {"user_properties": [("k", "v" * 50_000)]},
    ],
    ids=lambda properties: next(iter(properties)),
)
def test_everything_in_a_will_counts(tmp_path, properties):
    """Of its properties only those of users did: wills of 60 kB could be left without end."""
    limits = Limits(sessions_bytes_max=2 * MB)
    with local(tmp_path / "log", limits=limits) as here:
        reasons = []
        for number in range(40):
            will = Will("w", b"x", properties=properties | {"will_delay_interval": 1000})
            with Talk(here.port) as client:
                reasons.append(client.connect(f"c{number}", clean=False, expiry=1000, will=will).reason_code)
        assert reasons.count(0) <= MB // 50_000, "an owner gets half"
        assert reasons[-1] == ReasonCode.QUOTA_EXCEEDED


def test_nobody_gets_so_many_sessions_that_none_are_left(tmp_path):
    with local(tmp_path / "log", limits=Limits(sessions_max=10)) as here:
        reasons = []
        for number in range(10):
            with Talk(here.port) as client:
                reasons.append(client.connect(f"c{number}", clean=False, expiry=100).reason_code)
        assert reasons == [0] * 5 + [ReasonCode.QUOTA_EXCEEDED] * 5
        assert len(here.broker.store.sessions) == 5, "no half of a session stays"
        with Talk(here.port) as client:
            assert client.connect("c0", clean=False, expiry=100).session_present
        with Talk(here.port) as client:
            assert client.connect("passing").reason_code == 0
        with Talk(here.port) as client:
            client.connect("c1", expiry=0)
            client.disconnect()
        with Talk(here.port) as client:
            assert client.connect("c9", clean=False, expiry=100).reason_code == 0


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5_0])
def test_names_are_short(tmp_path, version):
    with local(tmp_path / "log", limits=Limits(name_bytes_max=100)) as here:
        for client_id, user, reason in (
            ("x" * 101, None, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
            ("x", "é" * 51, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
            ("x" * 100, "u" * 100, 0),
        ):
            with Talk(here.port, version) as client:
                found = client.connect(client_id, user_name=user)
                assert isinstance(found, Connack)
                assert found.reason_code == reason


# -- aliases, lists


def test_aliases_are_bounded_in_bytes():
    inbound = InboundAliases(64, 1000)
    for _ in range(10):
        inbound.resolve("x" * 600, 1)
    with pytest.raises(BadPacket, match="more than 1000 bytes"):
        inbound.resolve("y" * 600, 2)
    outbound = OutboundAliases(64, 1000)
    assert outbound.shorten("x" * 600) == ("x" * 600, 1)
    assert outbound.shorten("y" * 600) == ("y" * 600, 0)
    assert outbound.shorten("x" * 600) == ("", 1)


def test_a_client_whose_aliases_are_too_long_is_told(tmp_path):
    with local(tmp_path / "log", limits=Limits(alias_bytes_max=10_000)) as here, Talk(here.port) as client:
        client.connect()
        for alias in range(1, 4):
            client.send(Publish("x" * 4000 + str(alias), b"", properties={"topic_alias": alias}))
        assert client.expect(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED


def test_topics_of_the_current_file_are_bounded_in_bytes(tmp_path):
    with local(tmp_path / "log") as here, Talk(here.port) as client:
        client.connect()
        for number in range(200):
            client.publish(f"{number}/" + "x" * 60_000, b"", qos=1)
        assert here.do(lambda: here.broker.history._current)[1] is None


# -- sharing


def test_shares_and_quotas_add_up():
    shares: Shares[int] = Shares(100)
    for number in range(50):
        shares.set(number, f"o{number % 7}", number)
    for number in range(0, 50, 2):
        shares.set(number, f"o{number % 3}", 3)
    while (one := shares.surplus()) is not None:
        shares.drop(one)
    assert shares.total == sum(shares.sum_of(f"o{number}") for number in range(7)) <= 100
    for one in shares.holders():
        shares.drop(one)
    assert shares.total == 0
    quota = Quota(900)
    for _ in range(1000):
        for owner in ("a", "b"):
            quota.take(owner, 1)
    assert quota.has_room("c", 100), "there is always something left for the next"


# -- retained messages


def retained(here) -> int:
    return here.do(lambda: len(here.broker.store.retained))


def test_retained_messages_are_as_many_after_a_restart_as_before(tmp_path):
    """There were 10 before it, and 200 after."""
    limits = Limits(retained_max=10)
    with served(tmp_path / "log", "--limits", '{"retained_max": 10}') as broker:
        for round_ in range(3):
            for version in (MQTT_5_0, MQTT_3_1_1):
                with Talk(broker.port, version) as client:
                    client.connect()
                    for number in range(100):
                        client.publish(f"{version}/{number}", b"x", qos=0, retain=True)
            if round_ < 2:
                broker.kill()
                broker.start()
        broker.stop()
    with local(tmp_path / "log", limits=limits) as here:
        assert retained(here) == 10
    with local(tmp_path / "log", limits=Limits(retained_max=5)) as here:
        assert retained(here) == 10, "what was acknowledged stays"
        with Talk(here.port) as client:
            client.connect()
            assert client.publish("new", b"x", qos=1, retain=True) == ReasonCode.QUOTA_EXCEEDED
            assert client.publish("5/1", b"y", qos=1, retain=True) == 0
            assert client.publish("5/1", b"", qos=1, retain=True) == 0
        assert retained(here) == 9


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_cannot_be_retained_is_not_acknowledged_in_silence(tmp_path, caplog, qos):
    with local(tmp_path / "log", limits=Limits(retained_max=1)) as here, Talk(here.port) as client:
        client.connect()
        assert client.publish("a", b"x", qos=qos, retain=True) == 0
        assert client.publish("b", b"x", qos=qos, retain=True) == ReasonCode.QUOTA_EXCEEDED
        with Talk(here.port, MQTT_3_1_1) as old, Talk(here.port) as subscriber:
            subscriber.connect()
            subscriber.subscribe("#", qos=2)
            assert [one.payload for one in subscriber.take(1)] == [b"x"]
            old.connect()
            assert old.publish("c", b"y", qos=qos, retain=True) == 0
            assert subscriber.messages() == [("c", b"y")], "it is delivered all the same"
        assert retained(here) == 1
        assert here.broker.notices.counts["not retained"] == 1


def test_retained_messages_are_bounded_in_bytes(tmp_path):
    with local(tmp_path / "log", limits=Limits(retained_bytes_max=MB)) as here, Talk(here.port) as client:
        client.connect()
        codes = [client.publish(str(number), bytes(100_000), qos=1, retain=True) for number in range(20)]
        assert codes == [0] * 10 + [ReasonCode.QUOTA_EXCEEDED] * 10
        assert here.broker.store.retained.byte_count <= MB
        assert client.publish("0", bytes(100_000), qos=1, retain=True) == 0, "as large as before"
        for number in range(10):
            client.publish(str(number), b"", qos=1, retain=True)
        assert here.broker.store.retained.byte_count == 0
        many = [Publish(str(one), bytes(200_000), 1, True, packet_id=one + 1) for one in range(20)]
        client.send(*many)  # in one turn: what is being written counts, too
        until(lambda: here.broker.intake.messages >= 25)
        assert here.broker.store.retained.byte_count <= MB
        until(lambda: not here.broker.store.retained._reserved)


def test_retained_messages_that_have_expired_make_room(tmp_path):
    with local(tmp_path / "log", limits=Limits(retained_max=3)) as here:
        with Talk(here.port) as client:
            client.connect()
            for number in range(3):
                properties = {"message_expiry_interval": 1}
                assert client.publish(str(number), b"x", qos=1, retain=True, properties=properties) == 0
            until(lambda: retained(here) == 0)
            assert client.publish("new", b"x", qos=1, retain=True) == 0
            time.sleep(0)
        here.do(here.broker.store.flush)
    with local(tmp_path / "log", limits=Limits(retained_max=3)) as here:
        assert retained(here) == 1


# -- messages in flight


def test_messages_in_flight_of_all_sessions_are_bounded_together(tmp_path):
    """Each session had a limit, and all together none: 200,000 of them could have 1,000 messages each."""
    most = 1000 * ENTRY_BYTES
    with local(tmp_path / "log", limits=Limits(flights_bytes_max=most)) as here, contextlib.ExitStack() as some:
        broker = here.broker
        readers = [some.enter_context(Talk(here.port)) for _ in range(3)]
        for number, reader in enumerate(readers):
            reader.connect(f"reader{number}", clean=False, expiry=100)
            reader.subscribe("a/#", qos=1)
        publisher = some.enter_context(Talk(here.port))
        publisher.connect("publisher")
        publisher.send(*(Publish("a/b", b"%d" % number, 1, packet_id=number + 1) for number in range(2000)))
        sessions = [broker.store.sessions[f"reader{number}"] for number in range(3)]
        until(lambda: here.do(lambda: all(len(one.in_flight) >= WINDOW_MIN for one in sessions)))
        until(lambda: len(publisher.drain()) >= 0 and here.do(lambda: broker.intake.messages) == 2000)
        assert here.do(lambda: broker.quotas.flights.total) <= most / 2, "one owner has no more than half"
        assert here.do(lambda: sum(len(one.in_flight) for one in sessions)) <= 3 * WINDOW_MIN + 500
        for reader in readers:  # and nobody misses anything
            assert [int(message.payload) for message in reader.take(2000)] == list(range(2000))
        until(lambda: here.do(lambda: broker.quotas.flights.total) == 0)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5_0])
def test_publishers_that_release_nothing_are_bounded_together(tmp_path, version):
    with (
        local(tmp_path / "log", limits=Limits(flights_bytes_max=100 * ENTRY_BYTES)) as here,
        Talk(here.port, version) as client,
    ):
        client.connect("c")
        client.send(*(Publish("a", b"x", 2, packet_id=number + 1) for number in range(100)))
        answers = []
        with contextlib.suppress(Closed):
            while len(answers) < 100:
                answers.append(client.expect(Pubrec))
        taken = [one.packet_id for one in answers if one.reason_code < 0x80]
        if version == MQTT_3_1_1:
            assert len(taken) <= WINDOW_MIN + 50, "a client that can't be told is disconnected"
            return
        assert len(taken) == WINDOW_MIN + 50
        assert {one.reason_code for one in answers if one.packet_id not in taken} == {ReasonCode.QUOTA_EXCEEDED}
        client.send(*(Pubrel(packet_id) for packet_id in taken))
        for _ in taken:
            client.expect(Pubcomp)
        client.publish("a", b"y", 2)


def test_a_subscriber_of_qos_2_leaves_nothing_behind(tmp_path):
    """Without a durable session, each message that it had received was remembered for as long as it was there."""
    with local(tmp_path / "log") as here, Talk(here.port) as client, Talk(here.port) as publisher:
        client.connect("c")
        client.subscribe("a", qos=2)
        publisher.connect("publisher")
        session = here.broker.store.sessions["c"]
        for number in range(50):
            publisher.publish("a", b"%d" % number, 2)
        assert len(client.take(50)) == 50
        client.send(*(Pubcomp(one.packet_id) for one in client.drain() if isinstance(one, Pubrel)))
        until(lambda: here.do(lambda: not (session.in_flight or session.released or session.done_count)))
        assert not here.do(lambda: session.main.done)
        assert here.do(lambda: here.broker.quotas.flights.total) == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_in_flight_is_not_kept_once_it_is_replaced(tmp_path, qos):
    """A client that acknowledged nothing had all retained messages kept that had ever been sent to it."""
    with local(tmp_path / "log") as here, Talk(here.port) as publisher:
        publisher.connect("publisher")
        publisher.publish("a", b"1", qos, retain=True)
        with Talk(here.port) as reader:
            reader.connect("reader", clean=False, expiry=100)
            reader.subscribe("a", qos=qos)
            first = reader.expect(Publish)
        session = here.broker.store.sessions["reader"]
        until(lambda: here.do(lambda: session.connection is None))
        (sent,) = here.do(lambda: list(session.in_flight.values()))
        assert sent.kept.message.payload == b"1"
        publisher.publish("a", b"2", 1, retain=True)
        assert sent.kept.message is None
        with Talk(here.port) as reader:
            reader.connect("reader", clean=False, expiry=100)
            if qos == 2:  # it may remember the packet id, and take the next message of that id for the same one
                assert reader.expect(Pubrel).packet_id == first.packet_id
                reader.send(Pubcomp(first.packet_id))
            assert reader.take()[0].payload == b"2"
            assert first.packet_id not in here.do(lambda: dict(session.released))
