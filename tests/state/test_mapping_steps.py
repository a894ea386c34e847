"""A dict that many threads and tasks change in steps: atomic changes, transactions, iterating, expiry."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import pickle
import sys
import threading
from decimal import Decimal

import pytest

from forelog.errors import AppenderClosed, BadEvent, WriteFailed
from forelog.state import ABSENT, EventCodec, PersistentDict
from forelog.state.reader import events_of, open_source, span_of
from forelog.state.restoration import restore
from forelog.state.table import Table
from forelog.testing import CrashDisk
from tests.state.test_state_log import restored

SECOND = 10**9


class Clock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.ns = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.ns

    def step(self, seconds: float) -> None:
        self.ns += round(seconds * SECOND)


@contextlib.contextmanager
def threads(*functions):
    """Functions on threads of their own, to the end; the first error of one is raised."""
    errors: list[BaseException] = []

    def call(function) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    running = [threading.Thread(target=call, args=(function,)) for function in functions]
    try:
        for thread in running:
            thread.start()
        yield
    finally:
        for thread in running:
            thread.join()
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]


# -- one key


def test_four_threads_that_increment_lose_nothing(tmp_path):
    path = str(tmp_path / "state")

    def count() -> None:
        for _ in range(5000):
            data.increment("hits")

    with PersistentDict[str, int](path, rotate_bytes=100_000) as data:
        with threads(*[count] * 4):
            pass
        assert data["hits"] == 20_000
    assert restored(path) == {"hits": 20_000}


def test_what_a_function_makes_of_a_value_is_set(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path) as data:
        assert data.update_with("tags", lambda tags: [*tags, "new"], []) == ["new"]
        assert data.update_with("tags", lambda tags: [*tags, "newer"]) == ["new", "newer"]
        assert data.increment("sum", 2.5) == 2.5
        with pytest.raises(KeyError):
            data.update_with("nothing", str)
        with pytest.raises(ZeroDivisionError):
            data.update_with("sum", lambda number: number / 0)
        with pytest.raises(TypeError):
            data.increment("tags")
        assert data.stats().updates == 3
    assert restored(path) == {"tags": ["new", "newer"], "sum": 2.5}


def test_a_function_that_writes_to_the_dict_is_refused_and_doesnt_hang(tmp_path):
    with PersistentDict(str(tmp_path / "state")) as data:
        for write in (lambda _: data.increment("b"), lambda _: data.clear(), lambda _: data.update(b=1)):
            with pytest.raises(RuntimeError, match="must not write to the dict: use a transaction"):
                data.update_with("a", write, 0)
        assert not data
        assert data.increment("a") == 1, "the lock was let go of"


def test_compare_and_set(tmp_path):
    with PersistentDict(str(tmp_path / "state")) as data:
        assert data.compare_and_set("leader", ABSENT, "a")
        assert not data.compare_and_set("leader", ABSENT, "b")
        assert not data.compare_and_set("leader", "b", "c")
        assert data["leader"] == "a"
        assert data.compare_and_set("leader", "a", None)
        assert data.compare_and_set("leader", None, ABSENT)
        assert "leader" not in data
        assert data.compare_and_set("leader", ABSENT, ABSENT)


def test_one_of_many_threads_wins_a_comparison(tmp_path):
    won = []

    def take() -> None:
        for key in range(200):
            if data.compare_and_set(key, ABSENT, threading.get_ident()):
                won.append((key, threading.get_ident()))

    with PersistentDict(str(tmp_path / "state")) as data:
        with threads(*[take] * 3):
            pass
        assert sorted(won) == sorted(data.items())


# -- several keys


def test_a_transaction_is_one_record_and_all_or_nothing(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path) as data:
        data.update(a=1, b=2, c=3)
        updates = data.stats().updates
        with data.transaction():
            data["a"] -= 1
            data["b"] += 1
            del data["c"]
            assert (data["a"], data.get("c"), len(data), dict(data)) == (0, None, 2, {"a": 0, "b": 3})
            assert list(data.items()) == [("a", 0), ("b", 3)]
        assert data.stats().updates == updates + 3
        with pytest.raises(ZeroDivisionError), data.transaction():
            data["a"] = 1 / 0
        with pytest.raises(BadEvent, match="'bad'"), data.transaction():
            data["a"] = 100
            data["bad"] = object()
        with data.transaction():
            pass
        assert data.stats().updates == updates + 3
        assert data == {"a": 0, "b": 3}
    stream = open_source(path)
    events = list(events_of(stream, span_of(stream)))
    assert len({event.position for event in events[-3:]}) == 1
    assert sum(event.frame_bytes for event in events[-3:]) > sum(len(event.data) for event in events[-3:])
    assert restored(path) == {"a": 0, "b": 3}


def test_everything_that_changes_one_key_works_in_a_transaction(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path) as data:
        data.update(a=1, gone=2, popped=3)
        with data.transaction():
            assert data.increment("a") == 2
            assert data.setdefault("b", 5) == 5
            assert data.setdefault("b", 6) == 5
            assert data.pop("popped") == 3
            assert data.pop("popped", "no") == "no"
            assert data.update_with("a", lambda number: data.setdefault("seen", number)) == 2
            assert data.compare_and_set("gone", 2, ABSENT)
            assert not data.compare_and_set("gone", 2, 3)
            data.update(c=7)
            data |= {"d": 8}
            with pytest.raises(KeyError):
                del data["gone"]
            assert "gone" not in data
            with pytest.raises(RuntimeError, match="rotate after it"):
                data.rotate()
            with pytest.raises(RuntimeError, match="open here already"), data.transaction():
                pass
        expected = {"a": 2, "b": 5, "seen": 2, "c": 7, "d": 8}
        assert data.copy() == expected
        with data.transaction():
            data.clear()
            data["e"] = 9
            assert data == {"e": 9}
            assert data.popitem() == ("e", 9)
            data["f"] = 10
        assert data == {"f": 10}
    assert restored(path) == {"f": 10}


def test_others_see_nothing_of_a_transaction_before_its_end_and_wait_to_write(tmp_path):
    looked, may_look = threading.Event(), threading.Event()
    seen: list = []

    def look() -> None:
        may_look.wait()
        seen.append((data["a"], "b" in data, len(data), data.copy()))
        looked.set()
        data.increment("a", 10)
        seen.append(data.copy())

    with PersistentDict(str(tmp_path / "state")) as data:
        data["a"] = 1
        with threads(look), data.transaction():
            data["a"], data["b"] = 2, 2
            may_look.set()
            assert looked.wait(30)
        assert seen == [(1, False, 1, {"a": 1}), {"a": 12, "b": 2}]


def test_a_sum_over_transfers_is_the_same_for_every_reader(tmp_path):
    path, accounts, done = str(tmp_path / "state"), 8, threading.Event()

    def transfer() -> None:
        for number in range(400):
            with data.transaction():
                data[number % accounts] -= 1
                data[(number * 3 + 1) % accounts] += 1

    def read() -> None:
        while not done.is_set():
            assert sum(data.values()) == sum(data.copy().values()) == 800

    def rotate() -> None:
        for _ in range(10):
            data.rotate()

    with PersistentDict[int, int](path) as data:
        data.update(dict.fromkeys(range(accounts), 100))
        with threads(read):
            try:
                with threads(transfer, transfer, rotate):
                    pass
            finally:
                done.set()
        expected = data.copy()
    assert sum(expected.values()) == 800
    assert restored(path) == expected


def test_a_transaction_of_two_dicts_at_once_is_one_for_each(tmp_path):
    with PersistentDict(str(tmp_path / "a")) as one, PersistentDict(str(tmp_path / "b")) as other:
        with one.transaction(), other.transaction():
            one["x"], other["x"] = 1, 2
        assert (one.copy(), other.copy()) == ({"x": 1}, {"x": 2})


def test_a_transaction_that_doesnt_reach_the_log_changes_nothing():
    disk = CrashDisk(capacity_bytes=20_000)
    with PersistentDict("state", files=disk) as data:
        data["a"] = 1
        with pytest.raises(WriteFailed), data.transaction():
            data["a"], data["b"] = 2, "x" * 50_000
        assert data == {"a": 1}
        data["a"] = 3
    assert restored("state", CrashDisk.of(disk.contents())) == {"a": 3}


def test_a_restored_log_has_its_transactions(tmp_path):
    path, again = str(tmp_path / "state"), str(tmp_path / "again")
    with PersistentDict(path) as data:
        data["a"] = 1
        with data.transaction():
            data["b"], data["c"] = 2, 3
    assert restore(path, again).events == 3
    assert restored(again) == {"a": 1, "b": 2, "c": 3}


def test_a_clear_is_one_event(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path, keys=int, values=int) as data:
        data.update(dict.fromkeys(range(1000), 1))
        updates = data.stats().updates
        data.clear()
        data.clear()
        assert data.stats().updates == updates + 1
        data[5] = 5
    assert restored(path, keys=int, values=int) == {5: 5}


# -- iterating


def test_iterating_beside_writers_never_raises_and_sees_one_moment(tmp_path):
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            with data.transaction():
                data[number] = number
                data.pop(number - 50, None)
            number += 1

    def read() -> None:
        try:
            for _ in range(300):
                for view in (data, data.keys(), reversed(data)):
                    keys = list(view)
                    assert len(keys) <= 50
                    assert sorted(keys) == list(range(min(keys), min(keys) + len(keys))), "one moment"
                assert all(key == value for key, value in data.items())
                assert len(list(data.values())) <= 50
                assert "x" not in data.values()
                repr(data)
        finally:
            done.set()

    with PersistentDict(str(tmp_path / "state")) as data:
        data[-1] = -1
        with threads(write, read):
            pass


def test_a_loop_may_change_what_it_iterates_over(tmp_path):
    with PersistentDict(str(tmp_path / "state")) as data:
        data.update(dict.fromkeys(range(10), 0))
        for key in data:
            data[key + 100] = data.pop(key)
        assert list(data) == list(range(100, 110))
        for key, value in data.items():
            data[key] = value + 1
        assert set(data.values()) == {1}


def test_items_are_copied_only_for_a_change_that_comes_while_they_are_held():
    table: Table[int, int] = Table("table")
    table.open()
    first = id(table.now())
    for number in range(100):
        table.change([[number, number]])
        assert len(list(table.now())) == number + 1
    assert id(table.now()) == first, "whoever has ended doesn't count"
    held = iter(table.now().items())
    table.change([[0, "changed"]])
    second = id(table.now())
    table.change([[1, "changed"]])
    assert first != second == id(table.now()), "one copy for all changes"
    assert list(held)[:2] == [(0, 0), (1, 1)]


def test_copies_and_unions(tmp_path):
    with PersistentDict[str, int](str(tmp_path / "state")) as data:
        data.update(a=1, b=2)
        copy = data.copy()
        copy["a"] = 5
        assert type(copy) is dict
        assert data | {"b": 3} == {"a": 1, "b": 3}
        assert {"b": 3} | data == {"a": 1, "b": 2}
        assert data | data == data
        before = data
        data |= {"c": 3}
        data |= [("d", 4)]
        assert data is before
        assert data == {"a": 1, "b": 2, "c": 3, "d": 4}
        with pytest.raises(TypeError):
            data | [("e", 5)]  # type: ignore[operator]


def test_a_copy_is_plain_and_pickling_says_what_to_do_instead(tmp_path):
    with PersistentDict[str, int](str(tmp_path / "state")) as data:
        data.update(a=1, b=2)
        copied: object = copy.copy(data)
        assert type(copied) is dict
        assert copied == data
        for carry in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="can't be pickled: pass its path"):
                carry(data)


def test_a_task_that_awaits_in_a_transaction_hangs_no_other(tmp_path):
    async def main() -> dict[str, int]:
        async with PersistentDict[str, int](str(tmp_path / "state")) as data:
            data["a"] = 1
            with data.transaction():
                data["a"] = 2
                other = contextvars.Context().run(asyncio.ensure_future, add(data))
                with pytest.raises(RuntimeError, match=r"aio\.transact"):
                    await other
            return data.copy()

    async def add(data: PersistentDict[str, int]) -> None:
        data["b"] = 1

    assert asyncio.run(main()) == {"a": 2}


def test_a_transaction_of_a_generator_that_is_not_finished_is_dropped(tmp_path):
    def change():
        with data.transaction():
            data["a"] = 1
            yield

    with PersistentDict[str, int](str(tmp_path / "state")) as data:
        for end in (lambda generator: generator.close(), lambda generator: None):
            generator = change()
            next(generator)
            end(generator)
            del generator
            data["b"] = 2
            assert data == {"b": 2}


# -- time


def test_keys_expire(tmp_path):
    path, clock = str(tmp_path / "state"), Clock()
    with PersistentDict(path, clock=clock) as data:
        data.set("short", 1, ttl=10)
        data.set("long", 2, ttl=100)
        data["for ever"] = 3
        assert data.expires_ns("short") == clock.ns + 10 * SECOND
        assert data.expires_ns("for ever") is None
        clock.step(9.999)
        assert data.copy() == {"short": 1, "long": 2, "for ever": 3}
        clock.step(0.001)
        assert data.get("short") is None
        assert "short" not in data
        assert len(data) == len(list(data)) == len(data.items()) == 2
        assert data.setdefault("short", "again") == "again"
        with pytest.raises(KeyError):
            data.expires_ns("nothing")
        data.rotate()
        assert data.stats().objects == 3
    with PersistentDict(path, clock=clock) as data:
        assert data.copy() == {"long": 2, "for ever": 3, "short": "again"}
        clock.step(90)
        assert data.copy() == {"for ever": 3, "short": "again"}
    with PersistentDict(path, clock=clock) as data:
        assert "long" not in data
        data.rotate()
        assert data.stats().objects == 2, "what has expired isn't in a snapshot"


def test_a_key_keeps_its_time_unless_it_gets_another(tmp_path):
    path, clock = str(tmp_path / "state"), Clock()
    with PersistentDict(path, clock=clock, ttl=60) as data:
        usual = clock.ns + 60 * SECOND
        data["a"] = 1
        clock.step(10)
        assert data.increment("a") == 2
        assert data.update_with("a", lambda number: number + 1) == 3
        assert data.compare_and_set("a", 3, 4)
        assert data.setdefault("a", 5) == 4
        assert data.expires_ns("a") == usual
        data.increment("a", ttl=None)
        assert data.expires_ns("a") is None
        assert data.compare_and_set("a", 5, 6, ttl=1)
        assert data.expires_ns("a") == clock.ns + SECOND
        data["a"] = 7
        assert data.expires_ns("a") == usual + 10 * SECOND, "an assignment sets it anew"
        with data.transaction():
            data.set("b", 1, ttl=5)
            assert data.increment("b") == 2
            assert data.expires_ns("b") == clock.ns + 5 * SECOND
        clock.step(5)
        assert "b" not in data
        assert data.increment("b") == 1, "it is a new key"
    with PersistentDict(path, clock=clock, values=int) as data:
        assert data.copy() == {"a": 7, "b": 1}
        clock.step(60)
        assert not data


def test_a_clock_that_steps(tmp_path):
    """Forward, keys are gone early; back, they live for longer, but one that was gone stays so."""
    path, clock = str(tmp_path / "state"), Clock()
    with PersistentDict(path, clock=clock) as data:
        data.set("a", 1, ttl=10)
        data.set("b", 1, ttl=1000)
        clock.step(20)
        assert list(data) == ["b"]
        clock.step(-20)
        assert list(data) == ["b"]
        data.rotate()
    with PersistentDict(path, clock=clock) as data:
        assert list(data) == ["b"]


def test_times_that_are_replaced_over_and_over_take_no_memory():
    clock = Clock()
    table: Table[str, int] = Table("table", clock)
    table.open()
    for number in range(10_000):
        table.change([["a", number, clock.ns + SECOND]])
    assert len(table._queue) < 200
    clock.step(1)
    assert not table.now()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "1", 10**12])
def test_a_time_that_makes_no_sense_is_refused(tmp_path, ttl):
    with pytest.raises((ValueError, TypeError), match="ttl is"):
        PersistentDict(str(tmp_path / "state"), ttl=ttl)
    with PersistentDict(str(tmp_path / "state")) as data, pytest.raises((ValueError, TypeError), match="ttl is"):
        data.set("a", 1, ttl=ttl)


# -- types


def test_a_dict_has_the_types_in_its_brackets(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict[str, Decimal](path) as data:
        data["a"] = Decimal("1.50")
        with pytest.raises(BadEvent, match="Expected `str`"):
            data[1] = Decimal(1)
    with PersistentDict[str, Decimal](path) as data:
        assert data.copy() == {"a": Decimal("1.50")}


def test_a_dict_that_is_opened_again_has_what_the_log_has(tmp_path):
    path = str(tmp_path / "state")
    data = PersistentDict(path)
    with data:
        data.update(a=1, b=2)
    with PersistentDict(path) as other:
        del other["a"]
        other.rotate()
    with data:
        assert data == {"b": 2}


# -- tasks


def test_no_sync_runs_on_the_event_loops_thread():
    disk, calls = CrashDisk(), []

    def note(operation) -> bool:
        calls.append((operation.kind, threading.get_ident()))
        return False

    disk.fail(note)

    async def change(data: PersistentDict[str, int]) -> None:
        for number in range(5):
            await data.aio.set("a", number)
            await data.aio.increment("b")
            await data.aio.update_with("c", lambda seen: seen + 1, 0)
            await data.aio.setdefault("d", 0)
            await data.aio.compare_and_set("d", number, number + 1)
            await data.aio.pop("d", None)
            await data.aio.update({"e": 1}, f=2)
            await data.aio.transact(lambda: data.update(b=data.increment("b")))
            assert data["b"] > 0
            assert len(data) > 1

    async def main() -> dict[str, int]:
        async with PersistentDict[str, int]("state", files=disk, sync="always") as data:
            await asyncio.gather(*(change(data) for _ in range(8)))
            await data.aio.popitem()
            await data.aio.rotate()
            await data.aio.clear()
            await data.aio.set("g", 1)
            return data.copy()

    assert asyncio.run(main()) == {"g": 1}
    assert sum(kind == "sync" for kind, _ in calls) > 100
    assert {kind for kind, thread in calls if thread == threading.get_ident()} <= {"stat"}
    assert restored("state", disk) == {"g": 1}


def test_tasks_that_change_one_key_take_turns(tmp_path):
    async def main() -> int:
        async with PersistentDict[str, int](str(tmp_path / "state")) as data:
            await asyncio.gather(*(data.aio.increment("a") for _ in range(200)))
            return data["a"]

    assert asyncio.run(main()) == 200


def test_what_is_closed_takes_no_transaction(tmp_path):
    data = PersistentDict(str(tmp_path / "state"))
    with pytest.raises(AppenderClosed), data.transaction():
        data["a"] = 1
    with data:
        data["a"] = 1
    with pytest.raises(AppenderClosed):
        data["a"] = 2
    assert data["a"] == 1


def test_old_code_and_new_read_the_same_plain_events():
    """An item without a time, outside of a transaction, is in the log as it always was."""
    codec = EventCodec()
    assert codec.decode(b"\0\x92\xa1a\x01") == ["a", 1]
    assert codec.encode(["a", 1]) == b"\0\x92\xa1a\x01"
