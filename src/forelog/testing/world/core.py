"""What all parts of a world share: the true time, randomness, what is due, and the trace of what happened."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol


class Stopped(BaseException):
    """Ends the code of a killed process. Code that catches it can't do anything any more."""


class Steps(Protocol):
    """Something that runs in a world, step by step."""

    alive: bool
    random: random.Random

    def due_ns(self) -> int | None:
        """The true time of its next step, never before now; None if it has nothing to do."""

    def step(self) -> None:
        """Do what is due."""

    def steady_ns(self) -> int:
        """The steady clock of the machine."""

    def wall_ns(self) -> int:
        """The time of day on the machine."""

    def spend(self, ns: int) -> None:
        """Make the current step take this much longer."""

    def run_aside(self, work: Callable[[], Any]) -> None:
        """Run a function in one piece, some time later, as a thread would."""

    def leave(self, *, tell: bool) -> None:
        """Note that it no longer runs."""

    def dispose(self) -> None:
        """Release what it still has, once the world is over."""


class Core:
    """The inside of a world."""

    def __init__(self, seed: int, *, lines_max: int) -> None:
        self.seed = seed
        self.now_ns = 0
        """The true time."""
        self.random = self.branch("world")
        self.counts: Counter[str] = Counter()
        """How often each kind of thing has happened."""
        self.lines: list[str] = []
        """The trace: its first lines, as many as are kept."""
        self.failures: list[tuple[str, str, BaseException | None]] = []
        """Exceptions that nobody caught: the process, asyncio's message, the exception."""
        self.processes: dict[Steps, None] = {}
        """What runs, in the order of its start."""
        self.graves: list[Steps] = []
        """What ran before. Kept, because Python would otherwise end its tasks in the middle."""
        self.current: Steps | None = None
        """The process whose step is running."""
        self.reached: Callable[[Any, str], None] = lambda owner, kind: None  # noqa: ARG005
        """Called with a process that is about to do something to its disk or the network."""
        self._lines_max = lines_max
        self._digest = hashlib.blake2b(digest_size=16)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def branch(self, name: str) -> random.Random:
        """A random generator for one part of the world. What other parts draw doesn't change what it gives."""
        return random.Random(f"{self.seed}/{name}")

    def step_out(self, process: Steps, kind: str) -> None:
        """A process is about to do something to its disk or the network. Raises Stopped if it has ended."""
        if process.alive:
            self.reached(process, kind)
        if not process.alive:
            raise Stopped

    # -- what is due

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Call a function after some time."""
        heapq.heappush(self._due, (self.now_ns + max(delay_ns, 0), next(self._number), action))

    def advance(self) -> bool:
        """Do whatever is due next. False if nothing is due, and nothing ever will be."""
        due: list[tuple[int, Callable[[], None]]] = []
        if self._due:
            due.append((self._due[0][0], self._act))
        for process in self.processes:
            when_ns = process.due_ns()
            if when_ns is not None:
                due.append((when_ns, process.step))
        if not due:
            return False
        first_ns = min(when_ns for when_ns, _ in due)
        first = [do for when_ns, do in due if when_ns == first_ns]
        self.now_ns = max(self.now_ns, first_ns)
        (first[0] if len(first) == 1 else self.random.choice(first))()
        return True

    def _act(self) -> None:
        heapq.heappop(self._due)[2]()

    # -- the trace

    def note(self, kind: str, what: str) -> None:
        """Add a line to the trace."""
        self.counts[kind] += 1
        line = f"{self.now_ns / 1e9:.6f} {kind} {what}"
        self._digest.update(f"{line}\n".encode())
        if len(self.lines) < self._lines_max:
            self.lines.append(line)

    def digest(self) -> str:
        """A checksum of the whole trace."""
        return self._digest.hexdigest()
