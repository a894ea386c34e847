"""The bounded queue and the gates of both kernels: the same steps, the same results; and no step is half done."""

from __future__ import annotations

import signal
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog import kernel
from tests.kernel import oracle


@dataclass(eq=False)
class Entry:
    items: list = field(default_factory=list)
    byte_count: int = 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 5), st.integers(0, 40)),
        st.tuples(st.just("take"), st.integers(1, 4), st.integers(0, 60)),
        st.tuples(st.just("remove"), st.integers(0, 30), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_both_do_the_same(steps):
    queues: list[Any] = [oracle.BoundedQueue(8, 100), kernel.BoundedQueue(8, 100)]
    entries: list[Entry] = []
    for word, first, second in steps:
        if word == "push":
            entries.append(Entry([0] * first, second))
            results = [queue.push(entries[-1]) for queue in queues]
        elif word == "take":
            results = [queue.take(first, second) for queue in queues]
        else:
            results = [queue.remove(entries[first % len(entries)]) if entries else None for queue in queues]
        assert results[0] == results[1]
        assert len({(q.writes, q.bytes, len(q), q.first()) for q in queues}) == 1
        assert queues[0].writes <= 8 or len(queues[0]) == 1 or any(not e.items for e in entries)


@pytest.mark.parametrize("module", [oracle, kernel], ids=["oracle", "kernel"])
def test_counts_are_right_after_many_threads(module):
    queue = module.BoundedQueue(50, 10_000)
    taken: list[Entry] = []
    done = threading.Event()

    def produce() -> None:
        for _ in range(3000):
            entry = Entry([1], 7)
            while not queue.push(entry):
                pass

    def consume() -> None:
        while not done.is_set() or len(queue):
            taken.extend(queue.take(10, 1000))

    consumer = threading.Thread(target=consume)
    producers = [threading.Thread(target=produce) for _ in range(4)]
    for thread in [consumer, *producers]:
        thread.start()
    for thread in producers:
        thread.join()
    done.set()
    consumer.join()
    assert len(taken) == len({id(entry) for entry in taken}) == 12_000
    assert (queue.writes, queue.bytes, len(queue)) == (0, 0, 0)


@pytest.mark.parametrize("module", [oracle, kernel], ids=["oracle", "kernel"])
def test_threads_that_wait_in_a_line_let_each_other_through(module):
    gates = [module.Gate() for _ in range(50)]
    line = deque(gates)
    came_through: list[int] = []

    def wait(number: int) -> None:
        gates[number].wait(deque())
        came_through.append(number)
        module.open_first(line)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    module.open_first(line)
    for thread in threads:
        thread.join(20)
    assert came_through == list(range(50))
    module.open_first(line)  # nobody is left: nothing happens


@pytest.mark.parametrize("module", [oracle, kernel], ids=["oracle", "kernel"])
def test_who_waits_opens_the_first_in_line_and_one_that_is_open_holds_nobody_up(module):
    own, first, second = module.Gate(), module.Gate(), module.Gate()
    line = deque([first, second])
    own.open()
    own.wait(line)
    assert list(line) == [second]
    first.wait(line)
    second.wait(line)
    assert not line


@pytest.mark.parametrize("module", [oracle, kernel], ids=["oracle", "kernel"])
def test_a_signal_ends_the_wait_of_the_main_thread_once_the_next_is_through(module):
    own, first = module.Gate(), module.Gate()
    line = deque([first])

    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            own.wait(line)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not line
    first.wait(line)
