"""Rounds, rates, ratios and goals.

Machines are noisy, and shared ones drift while a benchmark runs. So nothing here is compared with a number
from another time: the cases of a figure take turns, round by round, each round starting with another one
of them, and a ratio is formed within each round. The first round warms up and is thrown away.

>>> fast = Series(Case("fast", "os", "forelog", lambda: 0.0), [10.0, 30.0, 20.0])
>>> slow = Series(Case("slow", "os", "peer", lambda: 0.0), [5.0, 10.0, 5.0])
>>> goal = ratio_goal("fast to slow", fast, slow, at_least=2.5)
>>> goal.value, goal.low, goal.high, goal.reached
(3.0, 2.0, 4.0, True)
"""

from __future__ import annotations

import asyncio
import gc
import math
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Role = Literal["forelog", "peer", "limit"]

PAYLOAD_BYTES = 100
STUCK_SECONDS = 20.0  # nothing that is measured takes as long to begin


class NotInstalled(Exception):
    """A peer that a figure can't do without."""


def require(*programs: str) -> None:
    """The programs that a figure is about are there, or it can't be measured."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise NotInstalled(f"{', '.join(missing)} not installed: on Debian, apt-get install {' '.join(missing)}")


def free_port() -> int:
    """A port of this machine that nobody has, for a server that is about to be started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def payload() -> bytes:
    """A payload that looks like one: a hundred bytes of text."""
    return (b'{"order": 1234567, "item": "chips", "note": "' + b"crisp and salted, " * 8)[:PAYLOAD_BYTES]


@dataclass(frozen=True)
class Settings:
    """How much to measure, and where."""

    directory: Path
    """Where logs and databases are written."""
    rounds: int = 11
    scale: float = 1.0
    """Multiplies the amount of work; 1.0 for figures that are worth quoting."""
    tell: Callable[[str], None] = lambda _: None
    """Takes a line of progress."""

    def count(self, full: int, least: int = 1) -> int:
        """An amount of work at this scale."""
        return max(least, round(full * self.scale))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new directory, gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Case:
    """Something to time. `run` sets up, does one round and returns its rate per second."""

    name: str
    sync: str
    """The sync policy, in the words of whoever it belongs to."""
    role: Role
    run: Callable[[], float]


@dataclass
class Series:
    """A case's rates, one for each round."""

    case: Case
    rates: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A line of a figure's table: a median with the lowest and the highest round."""

    name: str
    sync: str
    role: Role
    unit: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Goal:
    """A number that says how good something is, and the bound it should keep."""

    text: str
    value: float
    low: float
    high: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"
    held_back: str = ""
    """What held it back if it wasn't reached, such as "bound by CPU"; empty if that isn't known."""

    @property
    def reached(self) -> bool:
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)


@dataclass
class Figure:
    """What one benchmark found."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    date: str = ""


def interleave(settings: Settings, cases: list[Case], rounds: int | None = None) -> list[Series]:
    """Run the cases in turns, after a round that isn't counted."""
    series = [Series(case) for case in cases]
    rounds = settings.rounds if rounds is None else rounds
    for number in range(rounds + 1):
        for turn in range(len(cases)):
            one = series[(turn + number) % len(cases)]
            step = "warming up" if number == 0 else f"round {number} of {rounds}"
            settings.tell(f"{step}: {one.case.name} ({one.case.sync})")
            gc.collect()
            rate = one.case.run()
            if number:
                one.rates.append(rate)
    return series


async def growth(count: Callable[[], int], seconds: float) -> float:
    """How fast a number grows, over a while; longer if it takes longer to grow at all."""
    before, began = count(), time.perf_counter()
    await asyncio.sleep(seconds)
    while count() == before and time.perf_counter() - began < STUCK_SECONDS:
        await asyncio.sleep(0.01)
    return (count() - before) / (time.perf_counter() - began)


def row(series: Series, unit: str) -> Row:
    """A series as a line of a table."""
    return row_of(series.case.name, unit, series.rates, series.case.sync, series.case.role)


def row_of(name: str, unit: str, values: Sequence[float], sync: str = "-", role: Role = "forelog") -> Row:
    """Values, one for each round, as a line of a table."""
    return Row(name, sync, role, unit, statistics.median(values), min(values), max(values))


def plain_row(name: str, unit: str, value: float, sync: str = "-") -> Row:
    """A line for something that is counted, not timed."""
    return Row(name, sync, "forelog", unit, value, value, value)


def ratio_goal(
    text: str, series: Series, to: Series, *, at_least: float | None = None, at_most: float | None = None
) -> Goal:
    """A goal for the ratio of two series: the median of the rounds' own ratios."""
    return goal_of(text, series.rates, to.rates, at_least=at_least, at_most=at_most)


def goal_of(
    text: str,
    values: Sequence[float],
    to: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Goal:
    """The same for values, one for each round."""
    ratios = [a / b if b else math.inf for a, b in zip(values, to, strict=True)]
    return Goal(text, statistics.median(ratios), min(ratios), max(ratios), at_least, at_most)


def count_goal(text: str, value: float, unit: str, *, at_most: float | None = None) -> Goal:
    """A goal for something that is counted."""
    return Goal(text, value, value, value, at_most=at_most, unit=unit)


def percentile(values: Sequence[float], share: float) -> float:
    """Of values in any order, the one that this share of them isn't above."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def fastest(series: list[Series], name: str) -> Series:
    """Of the cases whose names start so, the one with the highest median: that is the limit."""
    named = [one for one in series if one.case.name.startswith(name)]
    return max(named, key=lambda one: statistics.median(one.rates))
