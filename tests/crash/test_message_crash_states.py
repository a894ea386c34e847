"""The same of a log of messages, whose segments come and go by the times of their messages."""

from __future__ import annotations

import itertools
import random

import pytest

from forelog import Stream
from forelog.formats.messages import Messages
from forelog.testing import CrashDisk, CrashState
from tests.crash.history import Kind, check, run
from tests.crash.test_crash_states import SHORT, different, random_actions

# A roll that is followed by an append at once waits, with a spare, for the sealing that these hold back.
HELD = ("swap", "swap, sync, swap")
NAMES = [name for name in SHORT if name not in HELD]


class OfMessages(Kind):
    """Messages, by a clock that goes on: after a crash it is later than before."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1_700_000_000_000_000_000, 1000)

    def stream(self, disk: CrashDisk) -> Stream:
        return Stream("log", format="messages", files=disk, clock=lambda: next(self._ticks))

    def item(self, payload: bytes):
        return Messages().item("t", payload, {"n": 1})


@pytest.mark.parametrize("sector_bytes", [512, 64])
@pytest.mark.parametrize("name", NAMES)
def test_no_crash_loses_or_changes_an_acknowledged_message(name, sector_bytes, crash_count):
    history = run(SHORT[name], sector_bytes=sector_bytes, kind=OfMessages())
    for state in different(history, history.disk.states_everywhere(limit=40)):
        check(history, state)
        crash_count(state)


@pytest.mark.parametrize("name", NAMES)
def test_no_kill_of_the_process_loses_a_message_that_append_returned_for(name):
    history = run(SHORT[name], kind=OfMessages())
    for one in history.written:
        one.durable = one.returned
    for moment in range(len(history.disk.events) + 1):
        check(history, CrashState(history.disk.killed(moment), moment))


@pytest.mark.parametrize("seed", range(8))
def test_no_crash_of_a_long_history_loses_or_changes_an_acknowledged_message(seed, crash_count):
    actions = [(word, number % 2 if word == "open" else number) for word, number in random_actions(seed, 40)]
    history = run(actions, sector_bytes=(64, 512)[seed % 2], kind=OfMessages())
    moments = sorted(random.Random(seed).sample(range(len(history.disk.events) + 1), 30))
    states = (state for moment in moments for state in history.disk.states(moment, limit=10, seed=seed))
    for state in different(history, states):
        check(history, state)
        crash_count(state)
