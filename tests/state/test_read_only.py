"""A dict that another process writes, looked at."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest

from forelog.errors import AppenderClosed, CorruptRecord, LockTimeout, LogNotFound, ReadOnly
from forelog.state import PersistentDict
from forelog.testing import CrashDisk
from tests.state.keeping import converged, wait_until
from tests.state.test_mapping_steps import SECOND, Clock


def test_each_look_shows_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with PersistentDict[str, Decimal](path, sync="always") as data:
        data["a"] = Decimal("1.50")
        with PersistentDict[str, Decimal](path, read_only=True) as seen:
            assert seen == {"a": Decimal("1.50")}
            for number in range(100):
                data["a"] = Decimal(number)
                assert seen["a"] == number
            del data["a"]
            assert "a" not in seen
            data.update(b=Decimal(1), c=Decimal(2))
            with data.transaction():
                data["b"] += 1
                assert seen["b"] == 1
                data["c"] -= 1
            items = iter(seen.items())
            data.clear()
            assert list(items) == [("b", Decimal(2)), ("c", Decimal(1))], "one moment"
            assert len(seen) == 0
            data["d"] = Decimal(4)
        with pytest.raises(AppenderClosed):
            len(seen)
        with seen:
            assert seen.copy() == {"d": Decimal(4)}


def test_rotations_and_restarts_of_the_writer_hide_nothing(tmp_path: Path) -> None:
    path, dice = tmp_path / "state", random.Random(1)
    with PersistentDict(path) as data:
        data["first"] = 1
    with PersistentDict(path, read_only=True) as often, PersistentDict(path, read_only=True) as seldom:
        for turn in range(20):
            with PersistentDict(path, segment_bytes=500) as data:
                for number in range(dice.randrange(30)):
                    data[dice.randrange(20)] = number
                    data.pop(dice.randrange(20), None)
                    if dice.random() < 0.1:
                        data.rotate()
                    assert often == data
                if turn % 4 == 3:
                    assert seldom == data, "what it has not read is cleaned away"
            assert often.copy() == data.copy()


def test_a_look_keeps_no_writer_and_no_rotation_waiting(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with PersistentDict(path) as data, PersistentDict(path, read_only=True) as seen:
        data["a"] = 1
        assert seen["a"] == 1
        for _ in range(3):
            data.rotate()
        assert len([name for name in os.listdir(path) if name.endswith(".log")]) == 1
        with pytest.raises(LockTimeout):
            PersistentDict(path).open()
        assert seen == {"a": 1}


def test_nothing_can_be_changed_in_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with pytest.raises(LogNotFound):
        PersistentDict(path, read_only=True).open()
    assert not path.exists(), "looking makes nothing"
    with PersistentDict(path) as data:
        data["a"] = 1
    before = sorted(os.listdir(path))
    with PersistentDict(path, read_only=True) as seen:
        for change in (
            lambda: seen.set("a", 2),
            lambda: seen.pop("a"),
            lambda: seen.pop("b", None),
            lambda: seen.setdefault("a", 2),
            lambda: seen.increment("a"),
            lambda: seen.update_with("a", lambda value: 1 / 0),
            lambda: seen.compare_and_set("a", 1, 2),
            lambda: seen.update(a=2),
            seen.popitem,
            seen.clear,
            seen.rotate,
            lambda: seen.transaction().__enter__(),
        ):
            with pytest.raises(ReadOnly, match="read_only=True"):
                change()
        assert seen == {"a": 1}
    assert sorted(os.listdir(path)) == before
    with pytest.raises(ValueError, match="has no sync"):
        PersistentDict(path, read_only=True, sync="always")
    with pytest.raises(ValueError, match="has no ttl"):
        PersistentDict(path, read_only=True, ttl=5)


def test_keys_expire_there_too(tmp_path: Path) -> None:
    path, clock = tmp_path / "state", Clock()
    with PersistentDict(path, clock=clock) as data, PersistentDict(path, read_only=True, clock=clock) as seen:
        data.set("a", 1, ttl=10)
        assert seen.expires_ns("a") == clock.ns + 10 * SECOND
        clock.step(10)
        assert not seen
        data["a"] = 2
        assert seen == {"a": 2}


def test_a_log_that_is_replaced_or_damaged_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with PersistentDict(path) as data:
        data.update(a=1, b=2)
    with PersistentDict(path, read_only=True) as seen:
        assert seen == {"a": 1, "b": 2}
        shutil.rmtree(path)
        with pytest.raises(LogNotFound):
            len(seen)
        with PersistentDict(path) as data:
            data["c"] = 3
            assert seen == {"c": 3}
        segment = next(path.glob("*.log"))
        whole = segment.read_bytes()
        segment.write_bytes(whole[:40] + b"?" + whole[41:])
        with pytest.raises(CorruptRecord):
            PersistentDict(path, read_only=True).open()
        segment.write_bytes(whole)
        assert seen == {"c": 3}


def test_a_copy_is_looked_at_while_it_receives(tmp_path: Path) -> None:
    with PersistentDict(tmp_path / "state") as data:
        data["a"] = 1
        name = data.log.add_destination(tmp_path / "copy")
        wait_until(lambda: converged(data, name))
        with PersistentDict(tmp_path / "copy", read_only=True) as seen:
            assert seen == {"a": 1}
            data["b"] = 2
            wait_until(lambda: converged(data, name))
            assert seen == {"a": 1, "b": 2}


def test_threads_that_look_beside_transactions_see_whole_ones(tmp_path: Path) -> None:
    path, done, seen_sums = tmp_path / "state", threading.Event(), set()

    def look() -> None:
        with PersistentDict(path, read_only=True) as seen:
            while not done.is_set():
                seen_sums.add(sum(seen.values()))

    with PersistentDict[int, int](path, rotate_bytes=3000) as data:
        data.update(dict.fromkeys(range(5), 20))
        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(500):
                with data.transaction():
                    data[number % 5] -= 1
                    data[(number + 2) % 5] += 1
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert seen_sums == {100}


@pytest.mark.parametrize("sync", ["os", "always"])
def test_a_look_between_any_two_steps_of_the_writer_shows_one_moment(
    monkeypatch: pytest.MonkeyPatch, sync: Literal["os", "always"]
) -> None:
    disk, possible, looks = CrashDisk(), [{"a": 0}], 0
    with PersistentDict("state", files=disk, sync=sync) as data:
        data["a"] = 0
        cleaning, drop = [False], data.log._drop

        def drop_alone() -> None:  # whoever looks waits for the cleaner, which here would be its own thread
            cleaning[0] = True
            drop()
            cleaning[0] = False

        monkeypatch.setattr(data.log, "_drop", drop_alone)
        with PersistentDict("state", files=disk, read_only=True) as kept:

            def look(_: object) -> bool:
                nonlocal looks
                if not cleaning[0] and not looking[0]:
                    looking[0] = True
                    assert kept.copy() in possible
                    with PersistentDict("state", files=disk, read_only=True) as fresh:
                        assert fresh.copy() in possible
                    looking[0] = False
                    looks += 1
                return False

            looking = [False]
            fault = disk.fail(look)
            for number in range(1, 6):
                possible = [possible[-1], {"a": number, "b": number}]
                with data.transaction():
                    data["a"] = data["b"] = number
                possible = possible[-1:]
                assert kept.copy() == possible[0]
                if number % 2:
                    data.rotate()
                possible = [*possible, {"a": number}]
                del data["b"]
                possible = possible[-1:]
            fault.stop()
    assert looks > 50


WRITER = """
import sys
from forelog.state import PersistentDict
with PersistentDict(sys.argv[1], rotate_bytes=2000) as data:
    number = data.get("number", 0)
    while True:
        number += 1
        with data.transaction():
            data["number"] = number
            data["copy"] = number
        print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_what_it_has_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with PersistentDict(path) as data:
        data.update(number=0, copy=0)
    with PersistentDict(path, read_only=True) as seen:
        for _ in range(4):
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True
            ) as writer:
                assert writer.stdout is not None
                for _ in range(60):
                    told = int(writer.stdout.readline())
                    now = seen.copy()
                    assert now["number"] == now["copy"] >= told
                writer.kill()
                told = int(
                    [line for line in writer.stdout.read().splitlines(keepends=True) if line[-1] == "\n"][-1]
                )
            assert seen["number"] in (told, told + 1)
