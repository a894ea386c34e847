"""State that survives: restoring, rotating, crashing at every point."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forelog import Stream
from forelog.copies.shipping import _chunk
from forelog.copies.slots import whole_slot
from forelog.copies.targets import DirectoryTarget
from forelog.errors import AppenderClosed, BadEvent, LockTimeout, WriteFailed
from forelog.formats.state import FORMAT
from forelog.state import EventCodec, PersistentDict, StateLog, enumeration
from forelog.testing import CrashDisk


def restored(path: str, disk: CrashDisk | None = None, **options) -> dict:
    with PersistentDict(path, files=disk, **options) as found:
        return dict(found)


@dataclass
class Point:
    x: int
    y: int
    extra: list[Any] = field(default_factory=list)


# -- the dict


def test_a_dict_comes_back_as_it_was(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path) as data:
        data["a"] = 1
        data["b"] = {"list": [1, 2.5, None, True], "bytes": b"\0\xff"}
        data[("x", 1)] = "tuple"
        del data["a"]
        data.update(c=3, d=4)
        assert data.pop("d") == 4
        with pytest.raises(KeyError):
            del data["nothing"]
        whole = dict(data)
    assert (
        restored(path)
        == whole
        == {"b": {"list": [1, 2.5, None, True], "bytes": b"\0\xff"}, ("x", 1): "tuple", "c": 3}
    )


def test_rotation_keeps_the_log_short_and_the_state_whole(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path, rotate_bytes=2000) as data:
        number = 0
        while number < 5000 or data.stats().rotations < 3:  # a thread does them, which may be slow
            data[number % 10] = number
            number += 1
        data.rotate()
        expected = dict(data)
    with PersistentDict(path) as data:
        assert dict(data) == expected
        stats = data.stats()
        assert stats.generation > 2
        assert stats.restored == 10
    assert len(Stream.open(path).segments()) < 5


def test_an_event_that_cannot_be_written_changes_nothing(tmp_path):
    with PersistentDict(str(tmp_path / "state")) as data:
        data["a"] = 1
        with pytest.raises(BadEvent, match=r"\['a'\]: .*object is neither a type that msgspec knows"):
            data["a"] = object()
        assert data["a"] == 1


@pytest.mark.parametrize("key", [{"a": 1}, (1, {"a": 2}), bytearray(b"x"), [1, 2], (1, [2])])
def test_what_cant_be_a_key_is_refused_before_the_log_has_it(tmp_path, key):
    path = str(tmp_path / "state")
    with PersistentDict(path) as data:
        data["a"] = 1
        for put in (
            lambda: data.__setitem__(key, 1),
            lambda: data.setdefault(key, 1),
            lambda: data.update([(key, 1)]),
            lambda: data.__delitem__(key),
            lambda: data.pop(key, None),
        ):
            with pytest.raises(TypeError, match="unhashable"):
                put()
        assert data.stats().updates == 1
    assert restored(path) == {"a": 1}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Decimal("9.99"), "the value is a Decimal, which would come back as a str"),
        ((1, 2), "the value is a tuple, which would come back as a list"),
        ({"deep": [{1, 2}]}, r"the value\['deep'\]\[0\] is a set, which would come back as a list"),
        ({"when": date(2026, 11, 16)}, r"the value\['when'\] is a date, which would come back as a str"),
        (datetime(2026, 11, 16), "the value is a datetime, which would come back as a str"),  # noqa: DTZ001
        (UUID(int=7), "the value is a UUID, which would come back as a str"),
        (Point(1, 2), "the value is a Point, which would come back as a dict"),
    ],
)
def test_a_value_that_would_come_back_as_another_is_refused_unless_its_type_is_told(tmp_path, value, told):
    with PersistentDict(str(tmp_path / "plain")) as data:
        with pytest.raises(BadEvent, match=rf"\['a'\]: {told}: say what they are, with keys=TYPE or values=TYPE"):
            data["a"] = value
        assert "a" not in data
    kinds: dict[type, Any] = {dict: Any, tuple: tuple[int, int]}
    kind = kinds.get(type(value), type(value))
    if kind is not Any:
        with PersistentDict(str(tmp_path / "typed"), keys=str, values=kind) as data:
            data["a"], data["b"] = value, value
            del data["b"]
            data.rotate()
        with PersistentDict(str(tmp_path / "typed"), keys=str, values=kind) as data:
            assert dict(data) == {"a": value}
            assert type(data["a"]) is type(value)


def test_what_stays_equal_is_taken_as_it_is(tmp_path):
    given = {"nan": float("nan"), "big": 2**64 - 1, "when": datetime(2026, 11, 16, tzinfo=UTC), "none": [None, {}]}
    with PersistentDict(str(tmp_path / "state")) as data:
        data.update(given)
        data[("x", ("y", 1))] = True
    with PersistentDict(str(tmp_path / "state")) as data:
        assert math.isnan(data.pop("nan"))
        assert dict(data) == {key: value for key, value in given.items() if key != "nan"} | {("x", ("y", 1)): True}


def test_a_key_or_value_of_another_type_than_was_told_is_refused(tmp_path):
    with PersistentDict(str(tmp_path / "state"), keys=tuple[int, str], values=int) as data:
        data[1, "a"] = 7
        with pytest.raises(BadEvent, match="can't be kept: Expected `int`, got `str`"):
            data[1, "a"] = "seven"  # type: ignore[assignment]
        with pytest.raises(BadEvent, match="can't be kept: Expected `array`, got `str`"):
            data["a"] = 7  # type: ignore[index]
        assert dict(data) == {(1, "a"): 7}
    with PersistentDict(str(tmp_path / "state"), keys=tuple[int, str], values=int) as data:
        assert dict(data) == {(1, "a"): 7}


def test_an_event_that_would_end_the_next_start_is_refused(tmp_path):
    """Dataclasses don't look at what they are given: a field of the wrong type would be found out by a replay."""
    log = StateLog(str(tmp_path / "state"), replay=print, enumerate=print, types=[Point])
    with log:
        log.update(Point(1, 2))
        with pytest.raises(BadEvent, match=r"Point can't be kept: Expected `int`, got `str` - at `\$.x`"):
            log.update(Point("one", 2))  # type: ignore[arg-type]
        with pytest.raises(BadEvent, match=r"event.extra\[0\] is a Decimal, which would come back as a str"):
            log.update(Point(1, 2, [Decimal(1)]))
        log.update(("a tuple", (1, 2)))
        assert log.stats().updates == 2


def test_what_is_not_open_cannot_be_read(tmp_path):
    data = PersistentDict(str(tmp_path / "state"))
    for read in (len, list, dict, lambda some: some.get("a"), lambda some: "a" in some):
        with pytest.raises(AppenderClosed, match="has not been opened: use it in a `with`"):
            read(data)
    assert repr(data) == "PersistentDict(not open)"


def test_a_full_disk_refuses_the_change(tmp_path):
    disk = CrashDisk(capacity_bytes=20_000)
    with PersistentDict("state", files=disk, rotate_bytes=1 << 30) as data:
        with pytest.raises(WriteFailed):
            for number in range(10_000):
                data[number] = "x" * 100
        before = dict(data)
    assert restored("state", CrashDisk.of(disk.contents())) == before


def test_one_process_has_it_at_a_time(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path), pytest.raises(LockTimeout):
        PersistentDict(path).open()


def test_a_copy_that_couldnt_be_opened_can_be_when_it_is_let_go_of(tmp_path):
    disk = CrashDisk()
    with PersistentDict("log", files=disk) as data:
        data["a"] = 1
        target = DirectoryTarget("copy", data.log, synced=True, files=disk)
        target.connect()
        view = data.log.view()
        for block in view.stream.blocks(start=view.snapshot.begin):
            target.send(_chunk(block))
        target.commit(view.snapshot)
        target.close()
    copy = PersistentDict("copy", files=disk, promote=True)
    appender = Stream(whole_slot("copy", disk), format=FORMAT, files=disk).appender()
    with pytest.raises(LockTimeout):
        copy.open()
    appender.close()
    with copy:
        assert dict(copy) == {"a": 1}


# -- crashes


class Crashed:
    """A history of changes and rotations on a crash disk, with what was sure to survive at each moment."""

    def __init__(self, seed: int) -> None:
        self.disk = CrashDisk(sector_bytes=(64, 512)[seed % 2])
        self.history: list[tuple[int, int, dict]] = [(0, 0, {})]
        """From when a state may be found, from when on at least it must be, and the state."""
        rng = random.Random(seed)
        with PersistentDict("state", files=self.disk, sync="always", rotate_bytes=1 << 30) as data:
            self._is(data, len(self.disk.events))
            for _ in range(12):
                begun, dice = len(self.disk.events), rng.random()
                if dice < 0.25:
                    data.rotate()
                elif dice < 0.4 and data:
                    del data[rng.choice(sorted(data))]
                elif dice < 0.6:
                    with data.transaction():
                        for key in rng.sample(range(5), 3):
                            data.pop(key, None)
                            data.set(rng.randrange(5), "y" * 90, ttl=rng.choice([None, 10_000]))
                elif dice < 0.65:
                    data.clear()
                else:
                    data[rng.randrange(5)] = rng.choice([0, "x" * 200, [1, 2]])
                self._is(data, begun)

    def _is(self, data: PersistentDict, begun: int) -> None:
        self.history.append((begun, len(self.disk.events), dict(data)))

    def check(self, disk: CrashDisk, moment: int) -> None:
        found = restored("state", disk)
        sure = max(index for index, (_, durable, _) in enumerate(self.history) if durable <= moment)
        possible = [state for begun, _, state in self.history[sure:] if begun <= moment]
        assert found in possible, f"after event {moment}: {found} is none of {possible}"
        assert restored("state", disk) == found, "a second restore says the same"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_was_acknowledged_is_there_after_a_crash_anywhere(seed, crash_count):
    crashed = Crashed(seed)
    for state in crashed.disk.states_everywhere(limit=6, seed=seed):
        crash_count(state)
        crashed.check(state.disk, state.events)


# -- the log itself


class User(msgspec.Struct):
    id: int
    name: str


@dataclass
class Gone:
    id: int


class App:
    """An app of the document's kind: things, a lock, and a log."""

    def __init__(self, path: str, **options) -> None:
        self.users: dict[int, User] = {}
        self.lock = threading.Lock()
        self.log = StateLog(path, replay=self.replay, enumerate=self.enumerate, types=[User, Gone], **options)

    def replay(self, event: User | Gone) -> None:
        if isinstance(event, User):
            self.users[event.id] = event
        else:
            self.users.pop(event.id, None)

    def enumerate(self, log) -> None:
        with self.lock:
            for user in self.users.values():
                log.update(user)

    def put(self, user: User) -> None:
        with self.lock:
            self.log.update(user)
            self.users[user.id] = user

    def drop(self, number: int) -> None:
        with self.lock:
            self.log.update(Gone(number))
            del self.users[number]


def test_the_documents_app(tmp_path):
    app = App(str(tmp_path / "state"))
    with app.log:
        for number in range(10):
            app.put(User(number, f"user {number}"))
        app.drop(3)
        app.log.rotate()
        app.drop(4)
    again = App(str(tmp_path / "state"))
    with again.log:
        assert again.users == app.users
        assert again.log.stats().restored == 10, "nine users, and one that went"


def test_an_update_during_an_enumeration_is_in_its_place(tmp_path):
    """While the state is being enumerated other threads change it, each thing under its lock."""
    path = str(tmp_path / "state")
    with PersistentDict(path, rotate_bytes=1 << 30) as data:
        for number in range(2000):
            data[number] = 0
        stop = threading.Event()

        def change(name: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                data[name * 500 + number % 500] = number
                if number % 3 == 0:
                    data.pop(name * 500 + (number * 7) % 500, None)

        threads = [threading.Thread(target=change, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            data.rotate()
        stop.set()
        for thread in threads:
            thread.join()
        expected = dict(data)
    assert restored(path) == expected


def test_an_enumeration_pauses_for_those_who_update_and_only_without_a_lock(tmp_path, monkeypatch):
    app, pauses = App(str(tmp_path / "state")), []
    monkeypatch.setattr(enumeration, "TURN_SECONDS", 0)
    monkeypatch.setattr(enumeration, "PAUSES_MAX", 1e9)
    monkeypatch.setattr(enumeration, "QUIET_SECONDS", 1e9)
    monkeypatch.setattr(time, "sleep", lambda seconds: pauses.append(app.lock.locked()))

    def enumerate_all(log) -> None:
        for number in log.each(list(app.users)):
            if busy:
                app.log.update(app.users[number])
            with app.lock:
                log.update(app.users[number])

    with app.log:
        for number in range(10):
            app.put(User(number, "name"))
        app.log._enumerate = enumerate_all
        busy = False
        app.log.rotate()
        assert (app.log.stats().objects, pauses) == (10, [])
        busy = True
        app.log.rotate()
        assert (app.log.stats().objects, pauses) == (10, [False] * 10)


def test_an_enumeration_that_fails_is_told_and_tried_again(tmp_path):
    path, broken = str(tmp_path / "state"), [False]
    things = {}

    def enumerate_all(log) -> None:
        for key, value in things.items():
            if broken[0]:
                raise RuntimeError("not now")
            log.update([key, value])

    log = StateLog(
        path, replay=lambda event: things.__setitem__(*event), enumerate=enumerate_all, rotate_bytes=500
    )
    with log:
        broken[0] = True
        for number in range(40):
            log.update([number, number])
            things[number] = number
        while log.stats().error is None:
            time.sleep(0.001)
        assert "not now" in log.stats().error
        assert not log.stats().complete
        generation = log.stats().generation
        broken[0] = False
        log.rotate()
        assert (log.stats().complete, log.stats().generation, log.stats().error) == (True, generation, None)
    expected = dict(things)
    things.clear()
    with log:
        assert things == expected


def test_a_rotation_for_which_there_is_no_thread_is_told_and_fails_no_update(tmp_path, monkeypatch):
    path, start, refused = str(tmp_path / "state"), threading.Thread.start, [True]

    def start_or_not(thread: threading.Thread) -> None:
        if refused[0] and thread.name == "forelog-state":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    with PersistentDict(path, rotate_bytes=100) as data:
        for number in range(20):
            data[number] = number
        assert data.log.health().error == data.stats().error == "RuntimeError: can't start new thread"
        refused[0] = False
        rotating = threading.Thread(target=data.rotate, daemon=True)
        rotating.start()
        rotating.join(30)
        assert not rotating.is_alive()
        assert data.log.health().error is None
        refused[0] = True
        for number in range(20):
            data[number] = -number
        expected = dict(data)
    assert restored(path) == expected


def test_what_cannot_be_replayed_stops_it_with_its_position(tmp_path):
    path = str(tmp_path / "state")
    with App(path).log as log:
        log.update(User(1, "one"))
        position = log.update(User(2, "two"))
        log.update(User(3, "three"))
    few = StateLog(path, replay=print, enumerate=lambda log: None, types=[Gone])
    with pytest.raises(BadEvent, match="there is no type 'User' here") as caught:
        few.open()
    assert caught.value.position < position
    with Stream.open(path).appender() as raw:
        raw.append(b"\x01\x04User\xc1")
    with pytest.raises(BadEvent, match="are not a valid User"):
        App(path).log.open()


@pytest.mark.parametrize("row", [0, 1, 700, 1999])
@pytest.mark.parametrize("bad", [b"\x04User\xc1", b"\x04User\x81\xa2id\xa1x", b"\x04User\x01\x01", b""])
def test_events_before_one_that_is_wrong_are_replayed(tmp_path, row, bad):
    path = str(tmp_path / "state")
    with App(path).log:
        pass
    good = b"\x01" + EventCodec([User]).encode(User(1, "one"))
    with Stream.open(path).appender() as raw:
        positions = raw.append_many([b"\x01" + bad if i == row else good for i in range(2000)])
    seen: list[User] = []
    with pytest.raises(BadEvent) as caught:
        StateLog(path, replay=seen.append, enumerate=lambda log: None, types=[User]).open()
    assert caught.value.position == positions[row]
    assert len(seen) == row


def test_types_take_turns(tmp_path):
    path, seen, given = str(tmp_path / "state"), [], []
    pick = random.Random(3)
    for _ in range(2000):
        given += [pick.choice([User(1, "x"), Gone(2), {"plain": 1}, [1], 7])] * pick.choice([1, 1, 2, 50])
    with StateLog(path, replay=print, enumerate=lambda log: None, types=[User, Gone]) as log:
        for event in given:
            log.update(event)
    with StateLog(path, replay=seen.append, enumerate=lambda log: None, types=[User, Gone]):
        assert seen == given


def test_a_codec_that_decodes_in_its_own_way_is_asked(tmp_path):
    class Masked(EventCodec):
        def encode(self, event: Any) -> bytes:
            return super().encode(event)[::-1]

        def decode(self, data: bytes) -> Any:
            return super().decode(data[::-1])

    path, seen = str(tmp_path / "state"), []
    with StateLog(path, replay=seen.append, enumerate=lambda log: None, codec=Masked()) as log:
        for number in range(10):
            log.update([number])
    with StateLog(path, replay=seen.append, enumerate=lambda log: None, codec=Masked()):
        assert seen == [[number] for number in range(10)]


def test_a_typed_dict_with_keys_that_come_and_go(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path, values=Point) as data:
        for number in range(2000):
            data[number % 50] = Point(number, -number)
            if number % 3 == 0:
                del data[number % 50]
        expected = dict(data)
    assert restored(path, values=Point) == expected


def test_a_type_may_gain_fields(tmp_path):
    old = EventCodec([User])
    newer = msgspec.defstruct("User", [("id", int), ("name", str), ("mail", str, "?")])
    assert EventCodec([newer]).decode(old.encode(User(1, "one"))) == newer(1, "one", "?")


def test_a_codec_of_ones_own(tmp_path):
    class Text:
        def encode(self, event: str) -> bytes:
            return event.encode()

        def decode(self, data: bytes) -> str:
            return data.decode()

    path, seen = str(tmp_path / "state"), []
    with StateLog(path, replay=seen.append, enumerate=lambda log: None, codec=Text()) as log:
        log.update("ä")
    with StateLog(path, replay=seen.append, enumerate=lambda log: None, codec=Text()):
        assert seen == ["ä"]


def test_a_log_that_is_not_open_takes_nothing(tmp_path):
    log = App(str(tmp_path / "state")).log
    with pytest.raises(AppenderClosed, match="is not open"):
        log.update(User(1, "one"))
    with log, pytest.raises(ValueError, match="is open"):
        log.open()


EVENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(EVENTS)
def test_plain_events_come_back_as_they_were(event):
    codec = EventCodec()
    assert codec.decode(codec.encode(event)) == event


@given(st.binary(max_size=40))
@settings(max_examples=300)
def test_bytes_that_are_no_event_are_told(data):
    codec = EventCodec([User, Gone])
    try:
        codec.decode(data)
    except BadEvent:
        pass
