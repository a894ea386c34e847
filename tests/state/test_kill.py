"""A real process whose threads change state during rotations, and kill -9."""

from __future__ import annotations

import random
import subprocess
import sys

from .changer import THREADS, App, DictApp, Things, apply, change

ROUNDS = 20


def rounds_wanted(config) -> int:
    """As many as were asked for by --kill-rounds; fewer than its default when nobody asked."""
    asked = any(word.startswith("--kill-rounds") for word in config.invocation_params.args)
    return config.getoption("--kill-rounds") if asked else ROUNDS


class Expected:
    """What the four threads have made so far, as far as they could tell."""

    def __init__(self) -> None:
        self.things: list[Things] = [{} for _ in range(THREADS)]
        self.next = [0] * THREADS
        self.acknowledged = 0

    def hear(self, lines: list[str]) -> None:
        for line in lines:
            if line.endswith("\n"):  # the last one may be cut
                thread, number = map(int, line.split())
                assert number == self.next[thread], "each change is told once, in order"
                self._do(thread)
                self.acknowledged += 1

    def _do(self, thread: int) -> None:
        things = self.things[thread]
        apply(change(thread, self.next[thread], things), things)
        self.next[thread] += 1

    def compare(self, found: list[Things]) -> None:
        """Each thread's things are exactly as it told, or with the one change more that it couldn't tell."""
        for thread in range(THREADS):
            told = dict(self.things[thread])
            if found[thread] != told:
                self._do(thread)
                assert found[thread] == self.things[thread], f"thread {thread} had told of {told}"


def killed(rng: random.Random, number: int, *arguments: str, first: list[int]) -> list[str]:
    """What the changer told in a round, until it was ended at some moment."""
    policy = "always" if number % 4 == 3 else "os"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.state.changer", *arguments, policy, *map(str, first)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        moment = rng.randrange(1, 300 if policy == "always" else 3000)
        lines = [process.stdout.readline() for _ in range(moment)]
        process.kill()
        lines.extend(process.stdout.read().splitlines(keepends=True))
    process.wait()
    assert lines[0] == "open\n"
    return lines[1:]


def test_transactions_are_whole_or_not_there_after_kill_9_during_rotations(tmp_path, request):
    path, rng, told = str(tmp_path / "state"), random.Random(1), [0] * THREADS
    rounds = rounds_wanted(request.config)
    for number in range(rounds):
        for line in killed(rng, number, "--dict", path, first=told):
            if line.endswith("\n"):  # the last one may be cut
                thread, change_number = map(int, line.split())
                assert change_number == told[thread], "each change is told once, in order"
                told[thread] += 1
        app = DictApp(path)
        with app.data:
            found = [app.number_of(thread) for thread in range(THREADS)]
            generation = app.data.stats().generation
        assert all(many - one in (0, 1) for one, many in zip(told, found, strict=True)), (told, found)
        told = found
    assert sum(told) > rounds * 20
    assert generation > rounds / 4, "it was killed while it rotated again and again"


def test_nothing_is_lost_and_nothing_comes_back_after_kill_9_during_rotations(tmp_path, request):
    path, rng, expected = str(tmp_path / "state"), random.Random(0), Expected()
    rounds = rounds_wanted(request.config)
    for number in range(rounds):
        expected.hear(killed(rng, number, path, first=expected.next))
        app = App(path)
        with app.log:
            expected.compare(app.things)
            generation = app.log.stats().generation
    assert expected.acknowledged > rounds * 20
    assert generation > rounds / 4, "it was killed while it rotated again and again"
