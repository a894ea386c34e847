"""What costs a client little costs the broker little: memory, time and disk, whatever multiplies what was sent."""

from __future__ import annotations

import itertools
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest

from forelog.broker import Access, Limits
from forelog.broker.access.passwords import change_password
from forelog.broker.flow import sender as sender_module
from forelog.broker.flow.routes import Routes
from forelog.broker.log.batch import MessageBatch, StoredMessage
from forelog.broker.mqtt.packets import Publish, Suback, Subscribe, Subscription
from forelog.broker.sessions.session import Cursor, Sent, Session, Sub
from forelog.broker.sessions.store import SessionStore
from forelog.log.position import Position
from tests.broker.local import Local, local, until
from tests.broker.talking import Talk

HERE = Position(1, 0)


@pytest.fixture
def broker(tmp_path: Path):
    with local(tmp_path / "log") as found:
        yield found


def connected(broker: Local, client_id: str, **more) -> Talk:
    talk = Talk(broker.port)
    broker.clients.append(talk)
    talk.connect(client_id, **more)
    return talk


def written(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "sessions").rglob("*") if file.is_file())


# -- memory


def test_the_tail_counts_small_messages_as_what_they_take(tmp_path):
    """100,000 messages of 26 bytes, each written by itself, took 117 MB and counted as 2.6 MB."""
    with local(tmp_path / "log", limits=Limits(tail_bytes_max=1 << 20)) as broker:

        def publish() -> None:
            for n in range(3000):
                broker.broker.publications.put(f"q/{n}", b"", {})
                broker.broker.turns.run()

        broker.do(publish)
        assert len(broker.broker.history._tail) <= 1000


def test_what_a_client_could_do_is_forgotten_with_it(tmp_path):
    """3,000 clients, each with rules of its own by 21 patterns, took 65 MB after they had gone."""
    change_password(str(tmp_path / "users"), "ann", b"ann")
    (tmp_path / "rules").write_text("".join(f"pattern write devices/%c/{n}\n" for n in range(20)))
    access = Access(users=str(tmp_path / "users"), rules=str(tmp_path / "rules"))
    with local(tmp_path / "log", access=access) as broker:
        stays = connected(broker, "stays", user_name="ann", password=b"ann")
        stays.publish("devices/stays/1", b"", qos=1)
        for n in range(5):
            talk = connected(broker, f"c{n}", user_name="ann", password=b"ann")
            talk.publish(f"devices/c{n}/1", b"", qos=1)
            talk.close()
        until(lambda: broker.do(lambda: len(broker.broker.presence.connections)) == 1)
        verdicts = access.verdicts
        assert len(verdicts._found) == 1
        assert verdicts._bytes == 250 + 4 * len("devices/stays/1")


def test_identifiers_count_in_what_is_known_of_topics():
    """4,096 filters with identifiers that match a topic are 17 kB for each topic, and counted as 460 bytes."""
    routes, session = Routes(), Session("c", HERE, 100)
    for n in range(500):
        name = "/".join("+" if n >> bit & 1 else "a" for bit in range(9)) + "/#"
        sub = Sub(0, identifier=200_000_000 + n)
        session.main.add(name, sub)
        routes.add(session.main, name, sub)
    session.rights = Access().rights(None, "c")
    for n in range(20):
        topic = b"a/" * 9 + b"%d" % n
        ((_, verdict),) = routes.of(topic)
        assert len(verdict.properties) > 2000
        assert session.main.verdict(topic, HERE) == verdict
    assert routes._bytes > 20 * 2000
    assert not session.main._cache
    routes.remove(session.main, "a/" * 9 + "#")
    assert routes._bytes == 0


def test_messages_with_many_identifiers_are_sent_a_few_at_a_time(broker, monkeypatch):
    """4,000 small messages for 20 clients with 2,048 identifiers each took 800 MB and held others up."""
    monkeypatch.setattr(sender_module, "TOGETHER_BYTES_MAX", 10_000)
    monkeypatch.setattr(sender_module, "OUT_BYTES_MAX", 20_000)
    sizes = []
    send = type(broker.broker.sender)._prepare

    def prepare(self, connection, data):
        sizes.append(len(data))
        send(self, connection, data)
        assert self._out_bytes <= 20_000

    monkeypatch.setattr(type(broker.broker.sender), "_prepare", prepare)
    client, publisher = connected(broker, "c"), connected(broker, "p")
    for n in range(128):
        name = "/".join("+" if n >> bit & 1 else "a" for bit in range(7))
        client.send(Subscribe(n + 1, [Subscription(name, 1)], {"subscription_identifiers": [200_000_000 + n]}))
        client.expect(Suback)
    for qos in (0, 1):
        messages = [Publish("a/a/a/a/a/a/a", b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(300)]
        publisher.send(*messages)
        assert [one.payload for one in client.take(300)] == [b"%d" % n for n in range(300)]
    assert max(sizes) < 20_000


def test_the_replays_of_a_client_remember_little_together(broker):
    """1,000 replays remembered 976 topics each: 40 MB."""
    client, publisher = connected(broker, "c"), connected(broker, "p")
    publisher.send(*(Publish(f"topic/{n}", b"") for n in range(1500)))
    publisher.drain()
    client.subscribe(*(f"$replay/all/other/{n}" for n in range(50)))
    session = broker.broker.store.sessions["c"]
    until(lambda: broker.do(lambda: not session.behind))
    assert sum(len(cursor._cache) for cursor in session.cursors.values()) <= 2 * 1024


def test_what_comes_again_waits_for_a_slow_socket(tmp_path):
    """100 messages of 1 MB that were under way lay in the buffer of a client that came back and read nothing."""
    with local(tmp_path / "log") as broker:
        client, publisher = connected(broker, "c", clean=False, expiry=100), connected(broker, "p")
        client.subscribe("big", qos=1)
        for n in range(30):
            publisher.publish("big", bytes([n]) * 500_000, qos=1)
            client.expect(Publish)
        client.close()
        until(lambda: broker.do(lambda: broker.broker.store.sessions["c"].connection is None))
        client = connected(broker, "c", clean=False, expiry=100)
        session = broker.broker.store.sessions["c"]
        until(lambda: broker.do(lambda: session._waiter is not None))
        assert broker.do(session.connection.transport.get_write_buffer_size) < 2 * 500_000
        publisher.publish("big", b"new", qos=1)
        assert [one.payload[:1] for one in client.take(31)] == [*(bytes([n]) for n in range(30)), b"n"]


# -- time


def test_what_many_subscribers_get_is_found_out_with_breaks():
    routes = Routes()
    for n in range(2000):
        session = Session(str(n), HERE, 100)
        session.rights = Access().rights(None, session.client_id)
        routes.add(session.main, "#", Sub(0))
    finding = routes.find(b"x")
    assert sum(1 for _ in finding) >= 4
    assert len(routes.known(b"x")) == 2000


def test_many_that_expire_or_time_out_together_are_done_in_slices(broker):
    """20,000 sessions that expired in the same moment held up everybody for 176 ms."""
    clients, sessions = broker.broker.clients, broker.broker.store.sessions

    def expire() -> int:
        for n in range(2000):
            session = sessions[f"s{n}"] = Session(f"s{n}", HERE, 100)
            session.expiry_seconds, session.ended_ns = 1, 1
            broker.broker.store.note_session(session)
            clients._expire_in_turn(session)
        return len(sessions)

    assert broker.do(expire) == 2000
    until(lambda: not sessions)
    talks = [connected(broker, f"k{n}", keep_alive=1) for n in range(5)]
    assert broker.do(lambda: (clients.sweep(broker.broker.turns.now + 10), broker.broker.slices.has(clients))[1])
    for talk in talks:
        assert talk.end().reason_code == 0x8D
    assert not sessions


def test_members_whose_rights_have_to_be_looked_at_get_some_messages_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(sender_module, "RIGHTS_MAX", 40)
    change_password(str(tmp_path / "users"), "ann", b"ann")
    change_password(str(tmp_path / "users"), "bob", b"bob")
    (tmp_path / "rules").write_text("user ann\ntopic read a/#\ntopic read b/#\nuser bob\ntopic #\n")
    access = Access(users=str(tmp_path / "users"), rules=str(tmp_path / "rules"))
    with local(tmp_path / "log", access=access) as broker:
        members = [connected(broker, f"m{n}", user_name="ann", password=b"ann") for n in range(3)]
        for member in members:
            member.subscribe("$share/g/#")
        publisher = connected(broker, "p", user_name="bob", password=b"bob")
        publisher.send(*(Publish(f"{'abc'[n % 3]}/{n}", b"%d" % n) for n in range(600)))
        publisher.drain()
        found: list[Any] = []

        def enough() -> bool:
            found.extend(one for talk in members for one in talk.drain())
            return len(found) >= 400

        until(enough)
        assert sorted(int(one.payload) for one in found) == [n for n in range(600) if n % 3 < 2]


def test_the_places_of_many_cursors_are_those_of_each():
    session = Session("c", HERE, 100)
    for n in range(5):
        cursor = session.cursors[str(n)] = Cursor(str(n), session, Position(1, 10 * n))
        cursor.live = n % 2 == 0
        if n != 3:
            session.in_flight[n + 1] = Sent(Position(1, 5 * n), 1, cursor)
    end = Position(1, 1000)
    assert dict(session.places(end)) == {cursor: session.at(cursor, end) for cursor in session.cursors.values()}


# -- disk


def test_large_things_are_written_anew_a_few_at_a_time(tmp_path):
    """100 retained messages of 1 MB were written in one step, when the log of sessions was written anew."""
    steps = []

    def run(work) -> None:
        work()
        steps.append(work)

    store = SessionStore(str(tmp_path / "sessions"), Limits(), run=run)
    store.open()
    for n in range(40):
        store.note_retained(f"r/{n}", store.retain(StoredMessage(1, f"r/{n}", bytes(200_000), {})))
        store.flush()
    steps.clear()
    store._log.rotate()
    store.close()
    assert len(steps) >= 6


@pytest.mark.parametrize("prefix", ["$replay/all", "$share/g"])
def test_subscriptions_of_a_client_with_a_long_id_cost_what_was_sent(tmp_path, prefix):
    """80 kB of replays were 5.3 MB on the disk: the client's id was written with each of them."""
    with local(tmp_path / "log") as broker:
        client = connected(broker, "c" * 1000, clean=False, expiry=100)
        names = [f"{prefix}/{n}" for n in range(2000)]
        before, sent = written(tmp_path / "log"), sum(len(name) + 3 for name in names)
        client.subscribe(*names, qos=1)
        assert written(tmp_path / "log") - before < 3 * sent
        shutil.copytree(tmp_path / "log", tmp_path / "after")  # as a crash leaves it
        client.close()
    with local(tmp_path / "after") as broker:
        client = connected(broker, "c" * 1000, clean=False, expiry=100)
        session = broker.broker.store.sessions["c" * 1000]
        assert {*session.cursors, *session.groups} == {"", *names}
        client.publish("77", b"!", qos=1)
        assert [one.payload for one in client.take(1)] == [b"!"]


def test_a_group_that_has_given_nothing_yet_is_where_it_began_after_a_crash(tmp_path):
    with local(tmp_path / "log") as broker:
        first = connected(broker, "first")
        first.subscribe("$share/g/x", qos=1)
        client = connected(broker, "c", clean=False, expiry=100)
        client.subscribe("$share/g/x", qos=1)
        client.close()
        first.close()
        until(lambda: broker.do(lambda: not broker.broker.presence.connections))
        with Talk(broker.port) as publisher:
            publisher.connect("p")
            for n in range(3):
                publisher.publish("x", b"%d" % n, qos=1)
        shutil.copytree(tmp_path / "log", tmp_path / "after")
    with local(tmp_path / "after") as broker:
        client = connected(broker, "c", clean=False, expiry=100)
        assert [one.payload for one in client.take(3)] == [b"0", b"1", b"2"]


def test_many_groups_that_have_moved_are_noted_some_at_a_time(broker):
    client, publisher = connected(broker, "c"), connected(broker, "p")
    client.subscribe(*(f"$share/g{n}/x" for n in range(2500)))
    before = written(Path(broker.broker.path))

    def note() -> None:
        groups = broker.broker.groups
        for group in groups.all.values():
            groups.moved[group] = None
        groups.note_moved(Position(9, 9))
        broker.broker.store.flush()

    broker.do(note)
    assert written(Path(broker.broker.path)) - before < 1500 * 60
    publisher.drain()


def test_a_batch_weighs_what_it_takes():
    columns = array("q", [0])
    batch = MessageBatch(b"x" * 20, columns, (columns, columns), (columns, columns), b"\0")
    assert batch.weight > 1000


def test_a_part_of_a_batch_has_so_many_rows_and_bytes():
    sizes = [10, 20, 30, 5, 5, 100, 1, 1]
    starts = array("q", itertools.accumulate(sizes[:-1], initial=0))
    batch = MessageBatch(bytes(sum(sizes)), starts, (starts, starts), (starts, starts), bytes(len(sizes)))
    for first, rows, most in itertools.product(
        range(len(sizes)), range(1, 10), (1, 29, 30, 31, 70, 171, 172, 1000)
    ):
        last = batch.part(first, rows, most)
        fits = [end for end in range(first + 1, len(sizes) + 1) if sum(sizes[first:end]) <= most]
        assert last == min(max(fits, default=first + 1), first + rows)


def test_a_batch_weighs_its_topics_too():
    """They are kept beside its bytes."""
    size = 60_000
    starts, ends, none = array("q", [0]), array("q", [size]), array("q", [size])
    assert MessageBatch(bytes(size), starts, (starts, ends), (none, none), b"\0").weight > 2 * size


def test_what_is_retained_is_written_without_saying_so_twice(tmp_path):
    with local(tmp_path / "log") as here, Talk(here.port) as client:
        client.connect()
        client.publish("a", b"x", qos=1, retain=True)
        here.do(here.broker.store.flush)
    with local(tmp_path / "log") as here:
        (message,) = here.do(lambda: list(here.broker.store.retained.match("a")))
        assert (message.topic, message.payload, message.properties["retain"]) == ("a", b"x", True)
