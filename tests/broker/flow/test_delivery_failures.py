"""Whatever fails for one message or one subscriber: nobody loses anything else."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import pytest

from forelog import kernel
from forelog.broker import Limits
from forelog.broker.flow import sender as sender_module
from forelog.broker.flow.translation import packet_of
from forelog.broker.log.batch import StoredMessage
from forelog.broker.log.clock import MessageClock, SteadyClock
from forelog.broker.mqtt.packets import Puback, Publish
from forelog.broker.sessions.store import SessionStore
from forelog.times import SECOND_NS
from tests.broker.local import Local, local, until
from tests.broker.talking import Talk

EXPIRY_MAX = 0xFFFF_FFFF


@pytest.fixture
def broker(tmp_path: Path):
    with local(tmp_path / "log") as found:
        yield found


def subscriber(broker: Local, client_id: str, *filters: str, qos: int = 1, **properties) -> Talk:
    client = Talk(broker.port)
    broker.clients.append(client)
    client.connect(client_id, clean=False, expiry=1000, properties=properties)
    client.subscribe(*(filters or ("t/#",)), qos=qos)
    return client


def bodies(client: Talk, count: int) -> list[bytes]:
    return [message.payload for message in client.take(count)]


# -- the clock


class Clocks:
    """A time of day that somebody sets, and a steady clock."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000 * SECOND_NS
        self.steady = 50 * SECOND_NS

    def pass_seconds(self, seconds: float) -> None:
        self.wall += int(seconds * SECOND_NS)
        self.steady += int(seconds * SECOND_NS)

    def clock(self) -> MessageClock:
        return MessageClock(lambda: self.wall, lambda: self.steady)


@pytest.mark.parametrize("step", [-3600, -5, 0, 5, 3600])
def test_an_age_doesnt_change_when_the_clock_is_set(step):
    clocks = Clocks()
    clock = clocks.clock()
    before = clocks.wall
    clock.wrote(before)
    clocks.pass_seconds(10)
    clocks.wall += step * SECOND_NS
    assert clock.age_ns(before) == 10 * SECOND_NS
    written = max(clocks.wall, before + 1)  # as the log has it: no message is earlier than the one before it
    clock.wrote(written)
    clocks.pass_seconds(7)
    assert clock.age_ns(written) == 7 * SECOND_NS
    assert clock.age_ns(before) == 17 * SECOND_NS
    assert clock.seconds_left(StoredMessage(written, "t", b"", {"expiry": 10})) == 3
    assert clock.seconds_left(StoredMessage(before, "t", b"", {"expiry": 10})) == 0


def test_messages_from_before_the_start_are_as_old_as_the_time_of_day_says():
    clocks = Clocks()
    clock = clocks.clock()
    assert clock.age_ns(clocks.wall - 30 * SECOND_NS) == 30 * SECOND_NS
    clocks.wall -= 100 * SECOND_NS
    clocks.steady += 5 * SECOND_NS
    assert clock.age_ns(clocks.wall + 70 * SECOND_NS) == 35 * SECOND_NS
    assert clock.age_ns(clocks.wall + 10**6 * SECOND_NS) == 0


def test_a_clock_that_steps_all_the_time_costs_a_bounded_memory():
    clocks = Clocks()
    clock = clocks.clock()
    for _ in range(10_000):
        clocks.wall += 3600 * SECOND_NS
        clock.wrote(clocks.wall)
    assert len(clock._times) == len(clock._ahead) <= 1000


def test_the_longest_expiry_and_a_clock_that_steps_back_lose_nothing(broker, monkeypatch):
    """It said that more than all of the interval is left, which no packet can say: the whole turn was lost."""
    client = subscriber(broker, "s")
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        publisher.publish("t/0", b"first", qos=1)
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 5 * SECOND_NS)
        monkeypatch.setattr(time, "time_ns", lambda: real() - 5 * SECOND_NS)
        packets = [Publish(f"t/{n}", b"%d" % n, 1, packet_id=n + 10) for n in range(10)]
        packets[5].properties["message_expiry_interval"] = EXPIRY_MAX
        publisher.send(*packets)
        assert [publisher.expect(Puback).reason_code for _ in packets] == [0] * 10
    found = client.take(11)
    assert [one.payload for one in found] == [b"first", *(b"%d" % n for n in range(10))]
    (left,) = (
        one.properties["message_expiry_interval"] for one in found if "message_expiry_interval" in one.properties
    )
    assert 0 < left <= EXPIRY_MAX


# -- one message that can't be sent


def test_a_message_that_cant_be_sent_is_dropped_alone(broker, monkeypatch, caplog):
    """One by one: the message with a property makes trouble for one client, and is left out there."""
    real = packet_of

    def failing(connection, message, *args, **more):
        if message.payload == b"5" and connection.session.client_id == "bad":
            raise ZeroDivisionError
        return real(connection, message, *args, **more)

    monkeypatch.setattr(sender_module, "packet_of", failing)
    bad, good = subscriber(broker, "bad", topic_alias_maximum=5), subscriber(broker, "good", topic_alias_maximum=5)
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        publisher.send(*(Publish("t/x", b"%d" % n, 1, packet_id=n + 1) for n in range(10)))
        assert [publisher.expect(Puback).reason_code for _ in range(10)] == [0] * 10
    assert bodies(good, 10) == [b"%d" % n for n in range(10)]
    assert bodies(bad, 9) == [b"%d" % n for n in range(10) if n != 5]
    assert broker.do(lambda: broker.broker.sender.dropped) == 1
    assert "dropped" in caplog.text


def test_one_bad_row_among_plain_ones_is_found_and_dropped(broker, monkeypatch):
    """The kernel refuses a whole call: each message is tried by itself."""
    real, tried = kernel.mqtt_deliver, []

    def deliver(version, data, rows, *rest):
        tried.append(len(rows))
        if any(b"bad" in data[rest[2][row] : rest[3][row]] for row in rows):
            raise ValueError("a row that no packet can be made of")
        return real(version, data, rows, *rest)

    client = subscriber(broker, "s")
    monkeypatch.setattr(kernel, "mqtt_deliver", deliver)
    real_packet = packet_of
    monkeypatch.setattr(
        sender_module,
        "packet_of",
        lambda c, m, *a, **k: 1 // 0 if m.payload == b"bad" else real_packet(c, m, *a, **k),
    )
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        payloads = [b"bad" if n == 3 else b"%d" % n for n in range(10)]
        publisher.send(*(Publish("t/x", body, 1, packet_id=n + 1) for n, body in enumerate(payloads)))
        assert bodies(client, 9) == [body for body in payloads if body != b"bad"]
    assert tried


@pytest.mark.parametrize("where", ["give", "find", "parts"])
def test_whoever_was_to_get_something_reads_it_again(broker, monkeypatch, where):
    """An error in the middle of delivering a batch, once: everybody gets everything, and each message once."""
    failed: list[str] = []

    def once(real, *args, **kwargs):
        if len(failed) < 3:
            failed.append(where)
            raise ZeroDivisionError
        return real(*args, **kwargs)

    inner = broker.broker
    clients = [subscriber(broker, f"s{n}", qos=n % 3) for n in range(5)]
    if where == "give":
        monkeypatch.setattr(inner.sender, "give", functools.partial(once, inner.sender.give))
    elif where == "find":
        monkeypatch.setattr(inner.routes, "find", functools.partial(once, inner.routes.find))
    else:
        monkeypatch.setattr(inner.sender, "_send_plain", functools.partial(once, inner.sender._send_plain))
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        publisher.send(*(Publish(f"t/{n % 3}", b"%d" % n, 1, packet_id=n + 1) for n in range(50)))
        assert [publisher.expect(Puback).reason_code for _ in range(50)] == [0] * 50
    for client in clients:
        assert bodies(client, 50) == [b"%d" % n for n in range(50)]
        assert [one for one in client.drain() if isinstance(one, Publish)] == []
        assert failed


def test_a_message_that_always_fails_doesnt_hold_up_those_after_it(broker, monkeypatch):
    """Also where nothing is known of the error: the cursor goes on after it."""
    inner = broker.broker
    real = inner.sender.give_rows

    def failing(cursor, batch, rows, verdict):
        if any(batch.message(row).payload == b"bad" for row in rows):
            raise ZeroDivisionError
        return real(cursor, batch, rows, verdict)

    monkeypatch.setattr(inner.sender, "give_rows", failing)
    client = subscriber(broker, "s")
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        payloads = [b"bad" if n in (3, 4, 9) else b"%d" % n for n in range(20)]
        publisher.send(*(Publish("t/x", body, 1, packet_id=n + 1) for n, body in enumerate(payloads)))
        assert bodies(client, 17) == [body for body in payloads if body != b"bad"]
    until(lambda: broker.do(lambda: inner.store.sessions["s"].main.live))
    assert inner.sender.dropped == 3


def test_a_socket_that_fails_keeps_nothing_from_others(broker, monkeypatch):
    inner = broker.broker
    clients = [subscriber(broker, f"s{n}") for n in range(3)]
    connection = broker.do(lambda: inner.store.sessions["s1"].connection)
    monkeypatch.setattr(connection, "send", lambda data: 1 // 0)
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        for n in range(5):
            assert publisher.publish("t/x", b"%d" % n, qos=1) == 0
    for client in (clients[0], clients[2]):
        assert bodies(client, 5) == [b"%d" % n for n in range(5)]
    monkeypatch.undo()
    clients[1].close()
    again = Talk(broker.port)
    broker.clients.append(again)
    again.connect("s1", clean=False, expiry=1000)
    assert bodies(again, 5) == [b"%d" % n for n in range(5)]


def test_what_follows_from_a_message_and_fails_keeps_nothing_else_from_happening(broker, monkeypatch):
    inner = broker.broker
    real = inner.store.retain
    monkeypatch.setattr(inner.store, "retain", lambda m: 1 // 0 if m.payload == b"bad" else real(m))
    client = subscriber(broker, "s")
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        publisher.send(
            Publish("t/a", b"bad", 1, True, packet_id=1),
            Publish("t/b", b"good", 1, True, packet_id=2),
            Publish("t/c", b"plain", 1, packet_id=3),
        )
        assert [publisher.expect(Puback).packet_id for _ in range(3)] == [1, 2, 3]
    assert bodies(client, 3) == [b"bad", b"good", b"plain"]
    assert broker.do(lambda: list(inner.store.retained)) == ["t/b"]


def test_an_alias_that_was_never_sent_is_not_used(broker):
    """The first message of a topic is larger than the client takes: the next one has to name the topic."""
    client = subscriber(broker, "s", topic_alias_maximum=5, maximum_packet_size=100)
    with Talk(broker.port) as publisher:
        publisher.connect("p")
        publisher.publish("t/x", b"x" * 200, qos=1)
        publisher.publish("t/x", b"small", qos=1)
        publisher.publish("t/x", b"again", qos=1)
    first, second = client.take(2)
    assert (first.topic, first.payload, first.properties["topic_alias"]) == ("t/x", b"small", 1)
    assert (second.topic, second.properties["topic_alias"]) == ("", 1)


@pytest.mark.parametrize("step", [-400 * 86_400, 400 * 86_400])
def test_a_clock_that_is_set_ends_no_session_and_keeps_none(tmp_path, step):
    """A step forward of a year ended the sessions of a month, with the messages that waited for them."""
    wall, steady = [1_800_000_000 * SECOND_NS], [0]
    clock = SteadyClock(lambda: wall[0], lambda: steady[0])

    def passed(seconds: int) -> None:
        wall[0] += seconds * SECOND_NS
        steady[0] += seconds * SECOND_NS

    with local(tmp_path / "log") as here:
        broker = here.broker
        broker.store.clock = clock
        for name, expiry in (("month", 30 * 86_400), ("hour", 3600)):
            with Talk(here.port) as talk:
                talk.connect(name, clean=False, expiry=expiry)
        until(lambda: here.do(lambda: all(one.ended_ns for one in broker.store.sessions.values())))
        passed(60)
        wall[0] += step * SECOND_NS
        here.do(lambda: [broker.clients._expire(one) for one in list(broker.store.sessions.values())])
        assert set(broker.store.sessions) == {"month", "hour"}
        until(lambda: clock.wall_ns(0) == step * SECOND_NS)  # the step was seen
        until(lambda: here.do(lambda: not broker.slices.has(broker.clients)))
        passed(3600)
        here.do(lambda: [broker.clients._expire(one) for one in list(broker.store.sessions.values())])
        assert set(broker.store.sessions) == {"month"}
        here.do(broker.store.flush)
    store = SessionStore(str(tmp_path / "log" / "sessions"), Limits(), timeout=5)
    store.open()  # what a start makes of it, by the time of day as it is then
    assert wall[0] - store.sessions["month"].ended_ns == 3660 * SECOND_NS
    store.close()
