"""Readers beside every step of a writer.

A writer runs once and is recorded, moment by moment (timeline.py). Then readers run on what was recorded, each by
a schedule that says at which moment it begins, and before which of its steps the writer goes on (schedule.py).
Readers change nothing, so they find what they would have found beside the writer itself. What they see is compared
with what was acknowledged, before or after (judge.py).

>>> from forelog.testing import Explorer
>>> def history(writer):
...     with writer.appender(writer.stream(), sync="always") as log:
...         writer.append(log)
...         writer.append_many(log, 2)
>>> report = Explorer(history, readers=["cursor", "reversed cursor"], limit=50).explore()
>>> report.violations
[]
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from forelog.testing.catalogue import all_readers
from forelog.testing.judge import Judge, Problem
from forelog.testing.registry import Reader
from forelog.testing.schedule import Chance, Choices, EveryStep, Plan, Schedule, Step
from forelog.testing.sight import Sight, Stuck
from forelog.testing.writer import History, Recording, record

LIMIT = 1000
_EXAMPLES_MAX = 5
_STEPS_MAX = 1000  # in which a further switch is looked for: a reader that spins has no end of them


class Violation(NamedTuple):
    """Something that a reader saw that isn't in the log, or did that it must not do."""

    kind: str
    """One of the kinds in judge.py."""
    history: str
    """The name of the history."""
    reader: str
    """The name of the kind of reader."""
    schedule: str
    """The argument for `Explorer.replay`."""
    text: str
    """What is wrong."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.history}, {self.reader} at {self.schedule!r}: {self.text}"


@dataclass
class Report:
    """What an exploration found."""

    interleavings: int = 0
    """The readers that were run, each by a different schedule."""
    distinct: int = 0
    """The number of different results among them."""
    moments: int = 0
    """The moments of the writer."""
    disks: int = 0
    """The number of different disks among them."""
    blocked: int = 0
    """Readers that a lock of the writer turned away."""
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Violations by history, reader and kind."""
    violations: list[Violation] = field(default_factory=list)
    """The first few of each."""

    def add(self, other: Report) -> None:
        """Add the results of another exploration."""
        for name in ("interleavings", "distinct", "moments", "disks", "blocked"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts += other.counts
        self.violations += other.violations

    def __str__(self) -> str:
        return (
            f"{self.interleavings} interleavings, {self.distinct} of them distinct, over {self.moments} moments "
            f"and {self.disks} different disks: {self.counts.total()} violations"
        )


class _Run(NamedTuple):
    """A reader that was run."""

    schedule: Schedule
    steps: list[Step]
    problems: list[Problem]
    outcome: int
    """A digest of what it saw."""
    blocked: bool
    sight: Sight


class Explorer:
    """Runs every kind of reader beside every step of a history.

    A history is a function that gets a `Writer`; `readers` are names of kinds, all by default, or functions that
    get a `Sight`. `switches` is how many times at most the turn passes from the writer to a reader: with 1 each
    reader begins at each moment, and the writer rests until it is done; with 2 the writer goes on once in
    between. If a kind of reader has more than `limit` schedules with so many switches, a sample of them is tried,
    the same for the same `seed`.
    """

    def __init__(
        self,
        history: History,
        *,
        readers: Iterable[str | Reader] | None = None,
        switches: int = 2,
        limit: int = LIMIT,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        self.name = name or getattr(history, "__name__", "history").replace("_", " ")
        self._history = history
        self._readers = _named(readers)
        self._switches = switches
        self._limit = limit
        self._seed = seed
        self._recording: Recording | None = None
        self._judge: Judge | None = None
        self._report = Report()
        self._outcomes: set[tuple[str, int]] = set()
        self._examples: Counter[tuple[str, str, str]] = Counter()
        self._known: dict[tuple[str, str, int], Choices] = {}

    @property
    def recording(self) -> Recording:
        """The history, run once."""
        if self._recording is None:
            with _silence():
                self._recording = record(self._history)
            self._judge = Judge(self._recording.ledger)
            timeline = self._recording.timeline
            self._report.moments = len(timeline.moments)
            self._report.disks = len(timeline.digests())
            for text in self._recording.errors:
                self._violate(Violation("wrong", self.name, "cursor", str(timeline.last), text))
        return self._recording

    # -- exploring

    def explore(self) -> Report:
        """Run each kind of reader at each moment, with the writer advancing between any two of its steps."""
        recording = self.recording
        with _silence():
            for name in self._readers:
                # The first depth is the moments: they are few, and every one that matters is tried.
                runs: list[_Run] = []
                for start in range(len(recording.timeline.moments)):
                    if not runs or self._differs(runs[-1], start):
                        runs.append(self._run(name, Plan(Schedule(start))))
                self._run(name, EveryStep())
                for depth in range(1, self._switches):
                    rng = random.Random(f"{self._seed} {self.name} {name} {depth}")
                    schedules = self._deeper(runs, rng)
                    runs = [self._run(name, Plan(schedule)) for schedule in schedules]
        return self._told()

    def _differs(self, run: _Run, start: int) -> bool:
        """Whether a reader that begins at this moment could find, or must find, something else than an earlier
        one."""
        begun = run.schedule.start
        if self.recording.ledger.expectation(begun) != self.recording.ledger.expectation(start):
            return True
        first = itertools.takewhile(lambda step: step.kind != "pause", run.steps)
        for path in {step.path for step in first}:
            following = self.recording.timeline.next_change(path, begun)
            if following is not None and following <= start:
                return True
        return False

    def _deeper(self, runs: Sequence[_Run], rng: random.Random) -> list[Schedule]:
        """Schedules with one more switch than those that were run, placed after their last one.

        If there are too many, a sample: as many at pauses as at other steps and inside of steps.
        """
        groups: dict[str, list[tuple[Schedule, int, Choices]]] = {"pause": [], "plain": [], "timed": []}
        for run in runs:
            after = run.schedule.switches[-1].at if run.schedule.switches else -1
            for step in run.steps[after + 1 : after + 1 + _STEPS_MAX]:
                choices = self._choices(step)
                if choices.plain:
                    groups["pause" if step.kind == "pause" else "plain"].append(
                        (run.schedule, step.number, choices)
                    )
                if choices.timed:
                    groups["timed"].append((run.schedule, step.number, choices))
        found: list[Schedule] = []
        ends = {
            name: list(itertools.accumulate(_count(choices, name) for _, _, choices in group))
            for name, group in groups.items()
        }
        left = len(groups)
        for name in sorted(groups, key=lambda name: ends[name][-1:] or [0]):
            total = ends[name][-1] if ends[name] else 0
            share, left = (self._limit - len(found)) // left, left - 1
            for place in range(total) if total <= share else sorted(rng.sample(range(total), share)):
                index = bisect_right(ends[name], place)
                schedule, at, choices = groups[name][index]
                place -= ends[name][index - 1] if index else 0
                switch = choices.switch(at, place, timed=name == "timed")
                found.append(Schedule(schedule.start, (*schedule.switches, switch)))
        return found

    def _choices(self, step: Step) -> Choices:
        key = step.kind, step.path, step.moment
        if key not in self._known:
            self._known[key] = Choices(*key, self.recording.timeline)
        return self._known[key]

    def sample(self, count: int, *, seed: int | None = None, seconds: float | None = None) -> Report:
        """Run `count` readers, or as many as fit into `seconds`, by random schedules with many switches."""
        last = self.recording.timeline.last
        end = None if seconds is None else time.monotonic() + seconds
        names = list(self._readers)
        with _silence():
            for number in range(count):
                if end is not None and time.monotonic() >= end:
                    break
                rng = random.Random(f"{self._seed if seed is None else seed} {number}")
                name = names[number % len(names)]
                self._run(name, Chance(rng.choice((0, rng.randrange(last + 1))), rng))
        return self._told()

    def replay(self, schedule: str | Violation, reader: str | None = None) -> list[str]:
        """Run one reader again by the schedule of a violation. Returns its steps in words, and what is wrong."""
        if isinstance(schedule, Violation):
            reader, schedule = schedule.reader, schedule.schedule
        name = reader or next(iter(self._readers))
        assert self.recording is not None
        with _silence():
            run = self._run(name, Plan(Schedule.parse(schedule)))
        seen = [
            f"look from {look.begin} to {look.end}: {[(str(one.position), one.payload) for one in look.records]}"
            for look in run.sight.looks
        ]
        return [*run.sight.describe(), *seen, *(f"{kind}: {text}" for kind, text in run.problems)]

    # -- one reader

    def _run(self, name: str, plan: Plan) -> _Run:
        recording = self.recording
        assert self._judge is not None
        sight = Sight(recording, plan)
        error: Exception | None = None
        try:
            self._readers[name](sight)
            sight.finish()
        except Stuck as stuck:
            sight.problem(stuck.kind, str(stuck))
        except Exception as failure:
            error = failure
            sight.looks[-1].end = sight.moment
        problems = self._judge.problems(sight, error)
        schedule = Schedule(plan.start, tuple(sight.disk.switches))
        outcome = hash(
            (
                type(error),
                tuple(problems),
                tuple((tuple((one.position, one.payload) for one in look.records)) for look in sight.looks),
            )
        )
        blocked = error is not None and type(error).__name__ == "LockTimeout"
        self._note(name, schedule, problems, outcome, blocked)
        return _Run(schedule, sight.disk.steps, problems, outcome, blocked, sight)

    def _note(self, name: str, schedule: Schedule, problems: list[Problem], outcome: int, blocked: bool) -> None:
        self._report.interleavings += 1
        self._report.blocked += blocked
        self._outcomes.add((name, outcome))
        for kind, text in problems:
            self._violate(Violation(kind, self.name, name, str(schedule), text))

    def _violate(self, violation: Violation) -> None:
        self._report.counts[violation.history, violation.reader, violation.kind] += 1
        error = violation.text.partition(":")[0] if violation.kind == "raised" else ""
        key = violation.reader, violation.kind, error
        self._examples[key] += 1
        if self._examples[key] <= _EXAMPLES_MAX:
            self._report.violations.append(violation)

    def _told(self) -> Report:
        self._report.distinct = len(self._outcomes)
        return self._report


def _named(readers: Iterable[str | Reader] | None) -> dict[str, Reader]:
    if readers is None:
        return all_readers()
    found: dict[str, Reader] = {}
    for one in readers:
        if callable(one):
            found[one.__name__.replace("_", " ")] = one
        elif (known := all_readers().get(one)) is not None:
            found[one] = known
        else:
            raise ValueError(f"there is no reader {one!r}: expected a function, or {', '.join(all_readers())}")
    return found


def _count(choices: Choices, group: str) -> int:
    return choices.timed if group == "timed" else choices.plain


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the log lines about logs that are torn on purpose."""
    logger = logging.getLogger("forelog")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
