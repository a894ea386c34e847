"""When a reader looks, and how far the writer gets between its steps.

A schedule is the moment at which a reader begins, and the places at which the writer goes on::

    12 37>45 61>80/3

The reader begins at the writer's moment 12. Just before the reader's step 37 the writer advances to moment 45.
Step 61 takes time: it begins at that moment and ends at moment 80; 3 says which of the changes in between it has
seen. In a listing, each bit stands for a name that came, went or was replaced; in a read, for an eighth of the
bytes.

>>> Schedule.parse("12 37>45 61>80/3").switches[1]
Switch(at=61, to=80, seen=3)
"""

from __future__ import annotations

import random
from typing import NamedTuple, Self

from forelog.testing.timeline import Timeline

PARTS = 8
"""A read that takes time sees the file in this many parts, each early or late."""
_SUBSETS_MAX = 4  # all subsets of up to so many names; of more, only those with one name more or less
_TIMED_READS = (0b11110000, 0b00001111, 0b00110000)


class Switch(NamedTuple):
    """The writer advances while a reader is between two steps, or inside of one."""

    at: int
    """The number of the reader's step."""
    to: int
    """The moment to which the writer advances."""
    seen: int | None = None
    """For a step that takes time: the bits of the changes that it sees. None if all changes come before the
    step."""

    def __str__(self) -> str:
        return f"{self.at}>{self.to}" + ("" if self.seen is None else f"/{self.seen}")


class Schedule(NamedTuple):
    """A moment to begin at, and the switches in order."""

    start: int
    switches: tuple[Switch, ...] = ()

    def __str__(self) -> str:
        return " ".join([str(self.start), *map(str, self.switches)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The schedule that str() wrote."""
        start, *rest = text.split()
        switches = []
        for word in rest:
            at, _, there = word.partition(">")
            to, _, seen = there.partition("/")
            switches.append(Switch(int(at), int(to), int(seen) if seen else None))
        return cls(int(start), tuple(switches))


class Step(NamedTuple):
    """A step of a reader: an operation of the disk, or a pause."""

    number: int
    kind: str
    path: str
    moment: int


class Plan:
    """Follows a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.start = schedule.start
        self._left = list(schedule.switches)

    def switch(self, step: Step, timeline: Timeline) -> Switch | None:  # noqa: ARG002
        """The switch at this step, if any. At a pause after the last switch the writer advances to the end."""
        while self._left and self._left[0].at < step.number:
            self._left.pop(0)
        if self._left and self._left[0].at == step.number:
            return self._left.pop(0)
        return None

    @property
    def over(self) -> bool:
        """Whether nothing more is planned."""
        return not self._left


class EveryStep(Plan):
    """The reader looks at each moment, from the first on."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(Schedule(start))

    def switch(self, step: Step, timeline: Timeline) -> Switch | None:  # noqa: ARG002
        return Switch(step.number, step.moment + 1) if step.kind == "pause" else None


class Chance(Plan):
    """The writer advances at random."""

    def __init__(self, start: int, rng: random.Random) -> None:
        super().__init__(Schedule(start))
        self._rng = rng
        self._rate = rng.choice((0.02, 0.05, 0.2, 0.5))
        self._stride = rng.choice((1, 2, 5, 20))

    def switch(self, step: Step, timeline: Timeline) -> Switch | None:
        rng = self._rng
        if step.kind != "pause" and rng.random() > self._rate:
            return None
        to = step.moment + 1 + int(rng.expovariate(1 / self._stride))
        following = timeline.next_change(step.path, step.moment)
        if following is not None and rng.random() < 0.3:
            to = following  # the change that this step could miss
        takes_time = step.kind in ("list_dir", "read") and rng.random() < 0.6
        return Switch(step.number, min(to, timeline.last), rng.getrandbits(PARTS) if takes_time else None)


class Choices:
    """The possible switches at a kind of step: counted, and made on demand.

    A switch is left out if the step finds the same before and after it: it equals a switch before the next step.
    """

    def __init__(self, kind: str, path: str, moment: int, timeline: Timeline) -> None:
        following = moment + 1 if kind == "pause" else timeline.next_change(path, moment)
        self._first = timeline.last + 1 if following is None else following
        self.plain = timeline.last + 1 - self._first
        """The number of switches before the step."""
        self._timed: list[tuple[int, int]] = []
        if self.plain and kind == "read":
            self._timed = [(self._first, seen) for seen in _TIMED_READS]
        elif self.plain and kind == "list_dir":
            for to in _ends_of_listings(path, moment, timeline):
                count = len(timeline.changed_names(path, moment, to))
                self._timed += [(to, seen) for seen in subsets(count)]
        self.timed = len(self._timed)
        """The number of switches inside of a step that takes time."""

    def switch(self, at: int, place: int, *, timed: bool) -> Switch:
        """The switch with a number."""
        return Switch(at, *self._timed[place]) if timed else Switch(at, self._first + place)


def _ends_of_listings(path: str, moment: int, timeline: Timeline) -> list[int]:
    """The moments at which a listing that begins now may end: at a change of an entry, and a little later."""
    changes = timeline.entry_changes(path, moment)
    ends = {to for change in changes for to in (change, change + 2, change + 8)} | {timeline.last}
    return [to for to in sorted(ends) if to <= timeline.last]


def subsets(count: int) -> list[int]:
    """Which of `count` changed names a listing sees, as bits.

    For a few names all choices; for more: all, none, all but one, and one alone.
    """
    everything = (1 << count) - 1
    if count <= _SUBSETS_MAX:
        return list(range(everything + 1))
    singles = [1 << bit for bit in range(count)]
    return [0, everything, *singles, *(everything ^ single for single in singles)]
