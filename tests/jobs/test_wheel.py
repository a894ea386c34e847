"""Timers: none rings early, none is forgotten, whatever is set, moved and cancelled meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forelog.jobs.machine.wheel import NEVER, UNSET, Timer, Wheel

TICK_NS = 2**20
DELAYS = st.one_of(
    st.integers(-(10**9), 10**7), st.integers(0, 10**10), st.integers(0, 10**13), st.integers(0, 10**17)
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 9), DELAYS),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("advance"), st.integers(1, 5), DELAYS),
    ),
    max_size=60,
)


@given(st.integers(0, 2**60), STEPS)
def test_every_timer_rings_once_soon_after_its_time(start_ns, steps):
    wheel, timers, expected, now_ns = Wheel(start_ns), [Timer() for _ in range(10)], {}, start_ns
    for step, number, amount in steps:
        if step == "set":
            wheel.set(timers[number], now_ns + amount)
            expected[number] = now_ns + amount
        elif step == "cancel":
            wheel.cancel(timers[number])
            expected.pop(number, None)
        else:
            now_ns += max(amount, 0)
            while True:
                for timer in wheel.advance(now_ns, number):
                    assert expected.pop(timers.index(timer)) <= now_ns
                    assert timer.slot == UNSET
                if not wheel.pending(now_ns):
                    break
            assert all(when > now_ns - 2 * TICK_NS for when in expected.values())
            assert wheel.next_ns() > now_ns - TICK_NS
        assert wheel.count == len(expected)
    assert (wheel.next_ns() == NEVER) or expected or steps


def test_as_much_is_looked_at_as_was_asked_for():
    wheel, timers = Wheel(0), [Timer() for _ in range(100_000)]
    for timer in timers:
        wheel.set(timer, 10**9)
    now_ns, rung, turns = 2 * 10**9, 0, 0
    while wheel.pending(now_ns):
        due = wheel.advance(now_ns, 500)
        assert len(due) <= 500
        rung, turns = rung + len(due), turns + 1
    assert rung == len(timers)
    assert turns <= 8 * len(timers) / 500, "each is dealt out at most once per level"


def test_a_timer_that_is_never_to_ring_does_not():
    wheel, timer = Wheel(10**18), Timer()
    wheel.set(timer, NEVER)
    assert wheel.advance(2 * 10**18, 100) == []
    assert wheel.count == 1
