"""Every state that a crash can leave of short histories, and samples of long ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from forelog.testing import CrashDisk, CrashState
from tests.crash.history import Action, History, check, expectation, run, stream_on

OS, ALWAYS, OS_SPARE, ALWAYS_SPARE, OS_JOURNAL, ALWAYS_JOURNAL, ALL = 0, 1, 2, 3, 4, 5, 7

SHORT: dict[str, list[Action]] = {
    "open": [("open", OS)],
    "append": [("open", OS), ("append", 10), ("append", 20), ("append", 0)],
    "append always": [("open", ALWAYS), ("append", 10), ("append", 20), ("append", 0)],
    "append then sync": [("open", OS), ("append", 10), ("append", 20), ("sync", 0), ("append", 30)],
    "batches": [("open", ALWAYS), ("many", 10), ("many", 40)],
    "roll": [("open", OS), ("append", 10), ("roll", 0), ("append", 20), ("roll", 0), ("append", 5)],
    "roll by size": [("open", ALWAYS), ("append", 100), ("append", 100), ("append", 100), ("append", 10)],
    "close and reopen": [("open", OS), ("append", 10), ("close", 0), ("open", ALWAYS), ("append", 20)],
    "reopen without close": [
        ("open", OS),
        ("append", 10),
        ("append", 10),
        ("close", 0),
        ("open", OS),
        ("append", 3),
    ],
    "clean some": [("open", ALWAYS), ("many", 5), ("many", 9), ("roll", 0), ("clean", 2), ("append", 4)],
    "clean all": [("open", ALWAYS), ("many", 5), ("roll", 0), ("append", 4), ("clean", 0), ("append", 7)],
    "clean twice": [
        ("open", OS),
        ("many", 5),
        ("many", 5),
        ("roll", 0),
        ("clean", 2),
        ("clean", 4),
        ("append", 4),
    ],
    "large records": [("open", ALWAYS), ("append", 700), ("append", 1500), ("append", 10)],
    "many small": [("open", OS), *[("append", n) for n in (1, 2, 3, 4, 5, 6)], ("sync", 0), ("append", 7)],
    "sealed by reopening": [
        ("open", OS),
        ("append", 180),
        ("close", 0),
        ("open", OS),
        ("append", 5),
        ("append", 9),
    ],
    "clean while open": [("open", OS), ("many", 30), ("roll", 0), ("append", 9), ("clean", 3), ("append", 70)],
    "swap": [("open", OS_SPARE), ("append", 10), ("roll", 0), ("append", 20), ("append", 5), ("seal", 0)],
    "append after a swap": [("open", OS_SPARE), ("append", 10), ("roll", 0), ("seal", 0), ("append", 20)],
    "swap, sync, swap": [
        ("open", OS_SPARE),
        ("append", 10),
        ("roll", 0),
        ("append", 20),
        ("sync", 0),
        ("append", 5),
        ("roll", 0),
        ("append", 6),
        ("close", 0),
    ],
    "swap by size": [("open", OS_SPARE), ("append", 200), ("append", 200), ("append", 200), ("append", 10)],
    "swap always": [
        ("open", ALWAYS_SPARE),
        ("append", 9),
        ("roll", 0),
        ("append", 200),
        ("append", 4),
        ("many", 5),
    ],
    "a spare left behind": [("open", OS_SPARE), ("append", 9), ("close", 0), ("open", OS), ("append", 4)],
    "large batch unsynced": [("open", OS), ("append", 10), ("many", 400), ("append", 10)],
    "journal": [("open", ALWAYS_JOURNAL), ("append", 10), ("append", 20), ("append", 5)],
    "a full journal": [("open", ALWAYS_JOURNAL), *[("append", n) for n in (30, 40, 20, 30, 10, 20)]],
    "too large for the journal": [("open", ALWAYS_JOURNAL), ("append", 10), ("append", 400), ("append", 10)],
    "journal, sync now and then": [
        ("open", OS_JOURNAL),
        ("append", 10),
        ("sync", 0),
        ("append", 20),
        ("append", 7),
        ("sync", 0),
        ("append", 5),
    ],
    "journal and roll": [("open", ALWAYS_JOURNAL), ("append", 9), ("roll", 0), ("append", 7), ("append", 6)],
    "journal and close": [
        ("open", ALWAYS_JOURNAL),
        ("append", 9),
        ("append", 3),
        ("close", 0),
        ("open", ALWAYS),
        ("append", 7),
    ],
    "journal and clean": [("open", ALWAYS_JOURNAL), ("many", 9), ("roll", 0), ("clean", 2), ("append", 5)],
    "journal and swap": [
        ("open", ALL),
        ("append", 9),
        ("roll", 0),
        ("append", 20),
        ("append", 200),
        ("append", 4),
    ],
}


@pytest.mark.parametrize("sector_bytes", [512, 4096, 64])
@pytest.mark.parametrize("name", SHORT)
def test_no_crash_of_a_short_history_loses_or_changes_an_acknowledged_record(
    name, sector_bytes, crash_count, request
):
    if sector_bytes == 4096 and not request.config.getoption("--long"):
        pytest.skip("sectors that hold all of a short history are for --long")
    history = run(SHORT[name], sector_bytes=sector_bytes)
    limit = 300 if request.config.getoption("--long") else 80
    for state in different(history, history.disk.states_everywhere(limit=limit)):
        check(history, state)
        crash_count(state)


@pytest.mark.parametrize("name", SHORT)
def test_no_kill_of_the_process_loses_anything_that_append_returned_for(name):
    history = run(SHORT[name])
    for one in history.written:
        one.durable = one.returned  # the operating system lives on
    for moment in range(len(history.disk.events) + 1):
        check(history, CrashState(history.disk.killed(moment), moment))


@pytest.mark.parametrize("seed", range(20))
def test_no_crash_of_a_long_history_loses_or_changes_an_acknowledged_record(seed, crash_count, request):
    if seed >= 10 and not request.config.getoption("--long"):
        pytest.skip("the other half of the histories is for --long")
    history = run(random_actions(seed, 40), sector_bytes=(64, 512)[seed % 2])
    rng = random.Random(seed)
    moments = sorted(rng.sample(range(len(history.disk.events) + 1), 40))
    states = (state for moment in moments for state in history.disk.states(moment, limit=25, seed=seed))
    for state in different(history, states):
        check(history, state)
        crash_count(state)


@pytest.mark.parametrize("name", ["append always", "large records", "clean some", "roll", "swap", "journal"])
def test_a_crash_during_the_recovery_from_a_crash_loses_nothing_either(name, crash_count):
    history = run(SHORT[name], sector_bytes=64)
    rng = random.Random(1)
    for moment in range(3, len(history.disk.events) + 1, 3):
        for first in history.disk.states(moment, limit=6, seed=rng.randrange(100)):
            with stream_on(first.disk).appender():
                pass
            for second in first.disk.states_everywhere(limit=6):
                check(history, second._replace(events=moment))
                crash_count(second)


def different(history: History, states: Iterable[CrashState]) -> Iterator[CrashState]:
    """Leave out states that hold the same as one before and are expected to."""
    seen = set()
    for state in states:
        key = (state.disk.origin, expectation(history, state.events))
        if key not in seen:
            seen.add(key)
            yield state


def random_actions(seed: int, count: int) -> list[Action]:
    """A history of any actions in any order, as far as they make sense."""
    rng = random.Random(seed)
    actions: list[Action] = [("open", rng.randrange(8))]
    is_open = True
    for _ in range(count):
        word = rng.choice(["append"] * 6 + ["many"] * 2 + ["roll", "sync", "clean", "reopen"])
        if word == "reopen":
            if is_open:
                actions.append(("close", 0))
            actions.append(("open", rng.randrange(8)))
            is_open = True
        elif word == "clean":
            actions.append(("clean", rng.choice([0, 2, 3])))
        else:
            actions.append((word, rng.choice([0, 1, 10, 60, 600])))
    return actions


def test_the_model_itself_loses_what_was_not_synced():
    """The tests above would prove nothing on a disk that keeps everything."""
    disk = CrashDisk()
    file = disk.open_append("d/f")
    file.write(b"one")
    disk.sync_dir("d")
    contents = {state.disk.contents().get("d/f") for state in disk.states(limit=100)}
    assert {b"", b"one", b"\0\0\0"} <= contents
    file.sync()
    assert {state.disk.contents()["d/f"] for state in disk.states(limit=100)} == {b"one"}
