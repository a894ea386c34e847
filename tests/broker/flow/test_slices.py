"""Work that takes long, a little at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from forelog.broker.flow.slices import STEPS_EACH, Slices


class Loop:
    """An event loop that goes round when it is told to, and a clock by which each step of work takes a second."""

    def __init__(self) -> None:
        self.due: list = []
        self.now = 0.0
        self.log: list[str] = []

    def call_soon(self, work) -> None:
        self.due.append(work)

    def go_round(self) -> None:
        due, self.due = self.due, []
        for work in due:
            work()

    def work(self, name: str, steps: int) -> Iterator[None]:
        for _ in range(steps):
            self.now += 1
            self.log.append(name)
            yield


def slices_of(loop: Loop, seconds: float) -> Slices:
    return Slices(loop.call_soon, seconds=seconds, clock=lambda: loop.now)


def test_a_small_work_is_done_at_once():
    loop = Loop()
    slices = slices_of(loop, 10)
    assert slices.start("a", loop.work("a", 3)) is True
    assert loop.log == ["a"] * 3
    assert not slices.has("a")


def test_a_large_one_goes_on_when_the_loop_has_gone_round():
    loop = Loop()
    slices = slices_of(loop, 10)
    assert slices.start("a", loop.work("a", 35)) is False
    done = [len(loop.log)]
    while slices.has("a"):
        loop.go_round()
        done.append(len(loop.log))
    assert done[0] == 10
    assert all(after - before <= 11 for before, after in itertools.pairwise(done))
    assert done[-1] == 35


def test_many_small_ones_share_one_slice():
    """A client that asks for a thousand small things gets them like one that asks for a large one."""
    loop = Loop()
    slices = slices_of(loop, 10)
    for n in range(1000):
        slices.start(n, loop.work("a", 1))
    assert len(loop.log) <= 12
    while slices:
        before = len(loop.log)
        loop.go_round()
        assert len(loop.log) - before <= 12
    assert len(loop.log) == 1000


def test_clients_take_turns():
    loop = Loop()
    slices = slices_of(loop, 10**9)
    slices.add("a", loop.work("a", 10 * STEPS_EACH))
    slices.add("b", loop.work("b", 2))
    slices.add("c", loop.work("c", 2))
    loop.go_round()
    assert loop.log[STEPS_EACH : STEPS_EACH + 4] == ["b", "b", "c", "c"]
    assert loop.log.count("a") == 10 * STEPS_EACH


def test_the_works_of_one_client_keep_their_order():
    loop = Loop()
    slices = slices_of(loop, 5)
    slices.start("a", loop.work("first", 20))
    assert slices.start("a", loop.work("second", 1)) is False
    slices.add("a", loop.work("third", 1))
    slices.finish()
    assert loop.log == ["first"] * 20 + ["second", "third"]


def test_a_work_that_fails_is_over_and_the_next_is_done(caplog):
    loop = Loop()
    slices = slices_of(loop, 100)

    def failing() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    slices.add("a", failing())
    slices.add("a", loop.work("a", 1))
    slices.add("b", loop.work("b", 1))
    loop.go_round()
    assert sorted(loop.log) == ["a", "b"]
    assert "ZeroDivisionError" in caplog.text
    assert len(slices) == 0


def test_what_is_urgent_does_not_wait_behind_clients_however_many_there_are():
    loop = Loop()
    slices = slices_of(loop, 10)
    for n in range(100):
        slices.add(n, loop.work("client", 50))
    slices.start_urgent(loop.work("urgent", 35))
    while slices.is_urgent:
        loop.go_round()
    assert loop.log.count("client") <= 4 * 11, "one slice of theirs for each of it"
    slices.finish()
    assert len(loop.log) == 5035


def test_what_clients_leave_behind_holds_up_nobody_and_is_done_all_the_same():
    """A client that connected waited for 3 s until three thousand that had left were forgotten."""
    calls: list[Callable[[], None]] = []
    now = [0.0]
    slices = Slices(calls.append, seconds=1.0, clock=lambda: now[0])
    done: list[str] = []

    def work(name: str, steps: int) -> Iterator[None]:
        for _ in range(steps):
            now[0] += 0.1
            done.append(name)
            yield

    slices.start("first", work("first", 100))  # this round has no more time
    for number in range(100):
        slices.leave(number, work("gone", 10))
    for number in range(3):
        slices.add(f"new{number}", work("new", 3))
    slices.leave("new0", work("left", 1))
    while calls:
        calls.pop(0)()
        if done.count("new") == 9 and "at" not in done:
            done.append("at")
    assert done.index("at") < 120
    assert done.count("gone") == 1000, "it gets its turns"
    assert done.index("left") > max(at for at, name in enumerate(done[: done.index("at")]) if name == "new") - 9
    assert len(slices) == 0
