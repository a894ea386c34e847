"""Interrupts of a dict's changes, as by Ctrl-C: nobody hangs, changes are whole, memory is what the log has."""

from __future__ import annotations

import faulthandler
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from forelog.log.commit import GroupCommit
from forelog.log.position import Position
from forelog.state import PersistentDict
from forelog.state.table import Table
from forelog.testing import CrashDisk
from tests.state.test_state_log import restored


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def interrupted(number: int, change: Callable[[], object]) -> bool:
    """Make a change, and interrupt it where Python looks for signals for the nth time in code of ours: when a
    function begins, or has returned. Returns whether there was such a place."""
    times = itertools.count()

    def look(frame: FrameType, event: str, _: Any) -> None:
        ours = "/forelog/" in frame.f_code.co_filename and frame.f_code.co_name != "__del__"
        if ours and event in ("call", "c_return") and next(times) == number:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        change()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return next(times) > number


def logged(data: PersistentDict[str, int]) -> dict[str, int]:
    """What the log has."""
    table: Table[str, int] = Table("again")
    data.log.replay_since(Position(0, 0), table.replay)
    table.open()
    return table.now()


def transfer(data: PersistentDict[str, int]) -> None:
    with data.transaction():
        data["a"] -= 1
        data["b"] += 1
        data.pop("c", None)


def clear(data: PersistentDict[str, int]) -> None:
    with data.transaction():
        data.clear()
        data.update(a=10, b=0)


CHANGES: dict[str, Callable[[PersistentDict[str, int]], object]] = {
    "increment": lambda data: data.increment("hits"),
    "update with a function": lambda data: data.update_with("hits", lambda hits: hits + 1, 0, ttl=1000),
    "transaction": transfer,
    "clear": clear,
    "several keys": lambda data: data.update(a=9, b=1),
}


@pytest.mark.parametrize("company", [False, True], ids=["alone", "in company"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_interrupt_between_any_two_steps_of_a_change_leaves_all_of_it_or_nothing(
    change: Callable[[PersistentDict[str, int]], object], company: bool
) -> None:
    disk = CrashDisk()
    with PersistentDict[str, int]("state", files=disk, sync="always") as data:
        for number in itertools.count():
            data.update(a=10, b=0, c=5)
            if company:
                data.log._appender._commit.queue.crowd = 2
            was = interrupted(number, lambda: change(data))
            assert data["a"] + data["b"] == 10, number
            other = threading.Thread(target=transfer, args=(data,), daemon=True)
            other.start()
            other.join(30)
            assert not other.is_alive(), f"the locks were not let go of: {number}"
            data.increment("hits")
            assert data["a"] + data["b"] == 10, number
            assert data.copy() == logged(data), number
            if not was:
                break
        memory = data.copy()
    assert restored("state", disk) == memory
    assert number > 20


def test_a_change_that_is_half_made_is_finished_before_anyone_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table: Table[str, int] = Table("table")
    table.open()
    table.change([["a", 10], ["b", 0]])
    replay, calls = table.replay, itertools.count()

    def once(event: Any) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        replay(event)

    monkeypatch.setattr(table, "replay", once)
    with pytest.raises(KeyboardInterrupt):
        table.change([["a", 9], ["b", 1]])
    assert dict(table.now()) == {"a": 9, "b": 1}


def test_what_an_interrupt_has_left_in_the_queue_counts_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread is interrupted while it waits for a round that others will lead."""
    disk = CrashDisk()
    with PersistentDict[str, int]("state", files=disk, sync="always") as data:
        data.update(a=10, b=0)
        data.log._appender._commit.queue.crowd = 2

        def wait(*_: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(GroupCommit, "_wait", wait)
        with pytest.raises(KeyboardInterrupt):
            transfer(data)
        data["a"] -= 5
        assert (data["a"], data["b"]) in ((4, 1), (5, 1)), "as read before the first change was known, or after"
        assert data["b"] == 1
        memory = data.copy()
    assert restored("state", disk) == memory


STORM = """
import faulthandler, random, signal, sys, threading, time
from forelog.state import ABSENT, PersistentDict

path, sync, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
faulthandler.dump_traceback_later(250, exit=True)
rng, accounts = random.Random(1), [f"account {i}" for i in range(8)]
interrupts, armed, done = 0, False, False
options = {"journal_bytes": 65536, "sync": "always"} if sync == "journal" else {"sync": sync}
data = PersistentDict(path, keys=str, values=int, rotate_bytes=3000, **options)

def interrupt(*_):
    global interrupts, armed
    signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.0003 + 0.00001)
    if armed:
        armed = False
        interrupts += 1
        raise KeyboardInterrupt

def transfer(dice=rng):
    with data.transaction():
        data[dice.choice(accounts)] -= 1
        data[dice.choice(accounts)] += 1

def company():
    dice = random.Random(2)
    while not done:
        transfer(dice)
        data.increment("company")
        time.sleep(0.0005)

def look():
    assert sum(value for key, value in data.items() if key in accounts) == 800

def set_and_pop():
    data["x"] = 1
    data.pop("x", None)

changes = [
    transfer,
    transfer,
    look,
    set_and_pop,
    lambda: data.increment("hits"),
    lambda: data.compare_and_set("y", data.get("y", ABSENT), rng.randrange(1000)),
    lambda: data.update(p=1, q=2),
    lambda: data.set("t", 1, ttl=0.0001),
]
data.open()
data.update(dict.fromkeys(accounts, 100))
thread = threading.Thread(target=company, daemon=True)
thread.start()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0001)
made = 0
while interrupts < wanted:
    change = rng.choice(changes)
    try:
        armed = True
        change()
        armed = False
        made += 1
    except KeyboardInterrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
done = True
thread.join()
look()
memory = data.copy()
rotations = data.stats().rotations
data.close()
with PersistentDict(path, keys=str, values=int) as data:
    assert data.copy() == memory
print("interrupts", interrupts, made > 100, rotations > 1)
"""


@pytest.mark.parametrize("sync", ["os", "always", "journal"])
def test_a_storm_of_12000_interrupts_tears_no_transaction_and_hangs_nobody(tmp_path: Path, sync: str) -> None:
    run = [sys.executable, "-c", STORM, str(tmp_path / "state"), sync, "4000"]
    result = subprocess.run(run, capture_output=True, text=True, timeout=280)
    assert result.stdout == "interrupts 4000 True True\n", result.stderr[-3000:]
