"""What a broker notes of its sessions: what has changed, the same after a replay, and again when a disk heals."""

from __future__ import annotations

import contextlib
import errno
import gc
import random
import resource
import weakref
from pathlib import Path
from typing import Any

import pytest

from forelog.broker import Limits
from forelog.broker.mqtt.packets import Connack, Publish, Suback, Subscribe, Subscription
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.sessions.events import snapshot
from forelog.broker.sessions.session import Cursor, Sent, Session, Sub
from forelog.broker.sessions.store import SessionStore
from forelog.errors import AppenderFailed
from forelog.log.position import Position
from forelog.testing import CrashDisk
from tests.broker.local import local, until
from tests.broker.serving import rss_bytes, served, wait_until
from tests.broker.talking import Talk

MB = 1 << 20


def written(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.dat")) + sum(
        file.stat().st_size for file in (path / "sessions").rglob("*.log")
    )


def state(store: SessionStore) -> dict[str, Any]:
    """What is known of durable sessions, in a form that can be compared."""
    found = {}
    for session in store.sessions.values():
        if session.durable:
            one = snapshot(session, Position(0, 0), 2**62, session.ended_ns)
            one["cursors"] = sorted(
                (key, at, sorted(subs), sorted(done)) for key, at, subs, done in one["cursors"]
            )
            one["groups"], one["received"] = sorted(one["groups"]), sorted(one["received"])
            one["out"], one["released"] = sorted(map(tuple, one["out"])), sorted(one["released"])
            found[session.client_id] = one
    return {"sessions": found, "groups": dict(store.groups), "known": store.known_ns}


class Life:
    """Random things happen to sessions, as a broker has them happen."""

    def __init__(self, disk: CrashDisk, seed: int, limits: Limits | None = None, **options: Any) -> None:
        self.random, self.time = random.Random(seed), 1
        self.store = SessionStore("sessions", limits or Limits(), files=disk, written=lambda: self.time, **options)
        self.store.open()
        self.store.learned()

    def place(self) -> Position:
        self.time += 1
        return Position(1, self.time)

    def session(self) -> Session:
        client_id = f"c{self.random.randrange(4)}"
        if client_id not in self.store.sessions:
            session = self.store.sessions[client_id] = Session(client_id, self.place(), 100)
            session.expiry_seconds = self.random.choice((0, 100, 200))
            self.store.note_session(session)
        return self.store.sessions[client_id]

    def step(self) -> None:
        kinds = (
            "sub",
            "sub",
            "share",
            "replay",
            "unsub",
            "at",
            "out",
            "rec",
            "comp",
            "took",
            "let",
            "away",
            "end",
        )
        getattr(self, self.random.choice(kinds))(self.session())
        if self.random.random() < 0.2:
            self.store.note_known()

    def settle(self) -> None:
        """As a broker does now and then."""
        self.store.note_known()
        for session in self.store.sessions.values():
            if session.durable:
                self.store.note_places(session)
        self.store.flush()

    def _sub(self) -> Sub:
        flag = self.random.random
        return Sub(self.random.randrange(3), flag() < 0.5, flag() < 0.5, self.random.randrange(3), self.place())

    def sub(self, session: Session) -> None:
        sub = self._sub()
        for name in self.random.sample(("a", "b/+", "c/#", "d"), 2):
            session.main.add(name, sub)
            self.store.note_sub(session, name, sub)

    def share(self, session: Session) -> None:
        name, sub = self.random.choice(("$share/g/a", "$share/h/b")), self._sub()
        session.groups[name] = sub
        self.store.note_sub(session, name, sub, shared=True)
        self.store.groups[name] = self.place()
        self.store.note("group", name, *self.store.groups[name])

    def replay(self, session: Session) -> None:
        key = self.random.choice(("$replay/all/a", "$replay/1m/b"))
        cursor = session.cursors[key] = Cursor(key, session, self.place())
        cursor.add(key[-1], self._sub()._replace(since=Position(0, 0)))
        self.store.note_replay(session, cursor)

    def unsub(self, session: Session) -> None:
        for name in self.random.sample(("a", "b/+", "$share/g/a", "$replay/all/a", "none"), 2):
            self.store.note_unsub(session, name)
            if session.groups.pop(name, None) is None and session.cursors.pop(name, None) is None:
                session.main.remove(name)

    def at(self, session: Session) -> None:
        cursor = self.random.choice(list(session.cursors.values()))
        cursor.next = self.place()
        if session.durable:
            self.store.note_places(session)

    def out(self, session: Session) -> None:
        packet_id, position = session.next_id(), self.place()
        session.take_ids(1)
        session.in_flight[packet_id] = Sent(position, 2, session.main)
        if session.durable:
            self.store.note("out", session.client_id, [[packet_id, *position, ""]])

    def rec(self, session: Session) -> None:
        for packet_id in list(session.in_flight)[:1]:
            session.receive(packet_id)
            if session.durable:
                self.store.note("rec", session.client_id, [packet_id])

    def comp(self, session: Session) -> None:
        for packet_id in list(session.released)[:1]:
            session.complete(packet_id)
            if session.durable:
                self.store.note("comp", session.client_id, [packet_id])

    def took(self, session: Session) -> None:
        self.time += 1
        session.received[self.random.randrange(1, 9)] = self.time
        self.store.taking[session] = None

    def let(self, session: Session) -> None:
        for packet_id in list(session.received)[:1]:
            time_ns = session.received.pop(packet_id)
            if session.durable:
                self.store.note("let go", session.client_id, packet_id, time_ns)

    def away(self, session: Session) -> None:
        session.ended_ns = self.random.choice((None, self.time))
        session.owner = self.random.choice((None, "ann"))
        session.expiry_seconds = self.random.choice((0, 100, 100, 200))
        self.store.note_session(session)

    def end(self, session: Session) -> None:
        if self.random.random() < 0.3:
            del self.store.sessions[session.client_id]
            self.store.note("end", session.client_id)


def replayed(disk: CrashDisk) -> SessionStore:
    store = SessionStore("sessions", Limits(), files=disk)
    store._log.open()  # without what `open` makes of it for the next run
    return store


@pytest.mark.parametrize("seed", range(30))
def test_a_replay_gives_what_there_was(seed):
    """Whatever happened, with snapshots at any moment, and with writes that failed in between."""
    disk = CrashDisk()
    life = Life(disk, seed)
    store = life.store
    for number in range(300):
        life.step()
        if life.random.random() < 0.1:
            failing = disk.fail(lambda operation: operation.kind == "write", errno.ENOSPC)
            with contextlib.suppress(OSError):
                store.flush()
            failing.stop()
        if life.random.random() < 0.05:
            with contextlib.suppress(OSError):
                store._log.rotate()
        if number % 10 == 9:
            life.settle()
            assert state(replayed(CrashDisk.of(disk.contents()))) == state(store), (seed, number)


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_between_any_two_writes_leaves_a_state_that_there_was(seed):
    disk = CrashDisk()
    life, seen = Life(disk, seed, sync="always"), []
    for _ in range(25):
        life.step()
        life.settle()
        seen.append(state(life.store)["sessions"])
    for crash in disk.states_everywhere(limit=3):
        found = state(replayed(crash.disk))["sessions"]
        assert found in [{}, *seen]


def test_what_subscriptions_cost_grows_with_what_was_sent(tmp_path):
    """100 SUBSCRIBEs of 60 kB: 6 MB were sent, and 344 MB written."""
    with served(tmp_path / "log") as broker:
        with Talk(broker.port) as client:
            client.connect("much", clean=False, expiry=1000)
            sent = 0
            for number in range(100):
                names = [f"{number}/{one}/{'x' * 600}" for one in range(100)]
                sent += sum(map(len, names))
                assert set(client.subscribe(*names, qos=1)) == {1}
        wait_until(lambda: written(tmp_path / "log") > sent)
        assert written(tmp_path / "log") < 3 * sent
        broker.kill()
        broker.start()
        with Talk(broker.port) as client:
            assert client.connect("much", clean=False, expiry=1000).session_present
            client.publish(f"99/99/{'x' * 600}", b"!", qos=1)
            assert client.messages() == [(f"99/99/{'x' * 600}", b"!")]


def test_coming_and_going_costs_little_however_much_a_session_has(tmp_path):
    with local(tmp_path / "log") as here:
        with Talk(here.port) as client:
            client.connect("much", clean=False, expiry=1000)
            for number in range(10):
                client.subscribe(*(f"{number}/{one}/{'x' * 100}" for one in range(500)), qos=1)
        before = written(tmp_path / "log")
        for _ in range(20):
            with Talk(here.port) as client:
                assert client.connect("much", clean=False, expiry=1000).session_present
        until(lambda: here.do(lambda: here.broker.store.sessions["much"].connection is None))
        assert written(tmp_path / "log") - before < 20_000


def test_messages_of_quality_2_are_noted_once(tmp_path):
    """A publisher that never releases its messages had its session written every five seconds."""
    with local(tmp_path / "log") as here, Talk(here.port) as client:
        client.connect("her", clean=False, expiry=1000)
        for packet_id in range(1, 500):
            client.send(Publish("t", b"", 2, packet_id=packet_id))
        client.drain()
        store = here.broker.store
        here.do(store.note_known)
        here.do(store.flush)
        before = written(tmp_path / "log" / "sessions")
        for _ in range(20):
            client.publish("t", b"", qos=1)
            here.do(store.note_known)
            here.do(store.flush)
        assert written(tmp_path / "log" / "sessions") - before < 5000


def test_an_event_that_can_never_be_written_keeps_no_other(tmp_path, caplog):
    store = SessionStore(str(tmp_path / "sessions"), Limits())
    store.open()
    session = Session("c", Position(1, 1), 10)
    session.expiry_seconds = 100
    store.sessions["c"] = session
    store.note_session(session)
    store.note("retain", "bad", 1, b"", {"x": {1, 2}})
    store.note("group", "g", 1, 2)
    store.flush()
    store.close()
    assert "can never be written" in caplog.text
    again = SessionStore(str(tmp_path / "sessions"), Limits())
    again.open()
    assert list(again.sessions) == ["c"]
    assert again.groups == {"g": Position(1, 2)}
    again.close()


def test_changes_that_cannot_be_written_are_bounded_and_written_anew_later():
    disk = CrashDisk()
    life = Life(disk, 7, Limits(pending_bytes_max=10_000))
    store = life.store
    failing = disk.fail(lambda operation: operation.kind == "write", errno.ENOSPC)
    for _ in range(2000):
        life.step()
        with contextlib.suppress(OSError):
            store.flush()
        assert store._pending_bytes < 20_000
    assert store.is_ill
    with pytest.raises(OSError, match="written anew"):
        store.flush()
    with pytest.raises(OSError):  # noqa: PT011 - the disk is still full
        store.heal()
    assert store.is_ill
    failing.stop()
    store.heal()
    life.settle()
    assert state(replayed(CrashDisk.of(disk.contents()))) == state(store)


def test_a_failed_sync_is_healed_by_opening_the_log_again():
    disk = CrashDisk()
    life = Life(disk, 8, sync="always")
    store = life.store
    for _ in range(50):
        life.step()
    failing = disk.fail(lambda operation: operation.kind == "sync", errno.EIO)
    with pytest.raises(AppenderFailed):
        store.flush()
    failing.stop()
    assert store.is_ill
    store.heal()
    for _ in range(50):
        life.step()
    life.settle()
    assert state(replayed(CrashDisk.of(disk.contents()))) == state(store)


def test_a_full_disk_under_sessions_refuses_cleanly_and_heals(tmp_path):
    """A durable client was met with a traceback, and half of its session stayed."""
    with served(tmp_path / "log", "--room-bytes", "10000000") as broker:
        with Talk(broker.port) as old:
            old.connect("old", clean=False, expiry=1000)
            old.subscribe("t", qos=1)
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        refused = 0
        for number in range(200):
            for client_id in (f"new{number}{'x' * 900}", "old"):
                with Talk(broker.port) as client:
                    found = client.connect(client_id, clean=False, expiry=1000)
                    assert isinstance(found, Connack)
                    refused += found.reason_code == ReasonCode.SERVER_UNAVAILABLE
        assert refused == 400
        with Talk(broker.port) as client:
            assert client.connect("for now").reason_code == 0, "who wants no session is welcome"
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, unlimited)

        def welcome() -> bool:
            with Talk(broker.port) as client:
                return client.connect("new", clean=False, expiry=1000).reason_code == 0

        wait_until(welcome)
        with Talk(broker.port) as publisher:
            publisher.connect()
            publisher.publish("t", b"!", qos=1)
        broker.kill()
        broker.start()
        with Talk(broker.port) as client:
            assert client.connect("old", clean=False, expiry=1000).session_present
            assert client.messages() == [("t", b"!")]
        with Talk(broker.port) as client:
            assert client.connect("new", clean=False, expiry=1000).session_present
        assert "Traceback" not in broker.said(), broker.said()[-3000:]


# -- what clients leave behind


def test_clients_that_have_left_are_freed_without_a_collection(tmp_path):
    with local(tmp_path / "log") as local_broker:
        broker, gone = local_broker.broker, []

        def watch() -> None:
            for connection in broker.presence.connections:
                gone.extend((weakref.ref(connection), weakref.ref(connection.session)))

        gc.collect()
        gc.disable()  # in a broker with a million objects a collection is rare, because it would stop everything
        try:
            for number in range(3):
                with Talk(local_broker.port) as talk:
                    talk.connect(f"c{number}")
                    talk.subscribe(Subscription("a/#"), Subscription("$replay/-1h/b"), Subscription("$share/g/c"))
                    local_broker.do(watch)
            until(lambda: local_broker.do(lambda: not broker.store.sessions))
            assert len(gone) == 6
            until(lambda: not any(one() for one in gone))
        finally:
            gc.enable()


def test_freed_memory_goes_back_to_the_system(tmp_path):
    with served(tmp_path / "log") as broker, contextlib.ExitStack() as some:
        reader = some.enter_context(Talk(broker.port))
        reader.connect("reader")
        before = rss_bytes(broker.process.pid)
        with contextlib.ExitStack() as others:
            for client in range(5):
                talk = others.enter_context(Talk(broker.port))
                talk.connect(f"many{client}")
                for first in range(0, 480, 3):  # in pieces that malloc would keep
                    talk.send(Subscribe(1, [Subscription(f"{first + n}/{'x' * 20_000}", 0) for n in range(3)]))
                    talk.expect(Suback)
                    if first % 30 == 0:
                        reader.subscribe(Subscription(f"between/{client}/{first}", 0))
            assert rss_bytes(broker.process.pid) > before + 40 * MB
        wait_until(lambda: rss_bytes(broker.process.pid) < before + 17 * MB)
