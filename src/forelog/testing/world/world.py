"""World: machines, a network and clocks out of one seed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from forelog.bounds import check_whole
from forelog.errors import ForelogError
from forelog.testing.disk import CrashDisk
from forelog.testing.world.core import Core
from forelog.testing.world.machine import Machine
from forelog.testing.world.network import Network
from forelog.testing.world.outside import inside
from forelog.testing.world.process import Process

T = TypeVar("T")

_DIRECTOR = "director"


class WorldFailed(ForelogError):
    """A world came to a standstill, ran too long, or a program in it failed."""


class World:
    """Runs asyncio programs on simulated machines, in one thread, on simulated time.

    `run` gets the director: a coroutine function that makes machines, starts programs, breaks things and looks
    at the outcome. Everything that happens follows from the seed and the programs: equal ones give equal traces.

    Of the trace, the first `trace_lines_max` lines are kept. Its digest covers all lines.
    """

    def __init__(self, seed: int = 0, *, trace_lines_max: int = 100_000, seconds_max: float = 36_000.0) -> None:
        check_whole("trace_lines_max", trace_lines_max, least=0)
        self.seed = seed
        self._core = Core(seed, lines_max=trace_lines_max)
        self._seconds_max = seconds_max
        self.random = self._core.branch("director")
        """Randomness for the director."""
        self.network = Network(self._core)
        self.network.is_up = self._is_up
        self.machines: dict[str, Machine] = {}

    def _is_up(self, name: str) -> bool | None:
        found = self.machines.get(name)
        return None if found is None else found.is_up

    # -- for the director

    def machine(self, name: str, *, capacity_bytes: int | None = None, sync_seconds: float = 0.0005) -> Machine:
        """Make a machine with power, an empty disk and the right time. `sync_seconds` is how long a sync of its
        disk takes."""
        if name in self.machines:
            raise ValueError(f"there is a machine {name} already")
        disk = CrashDisk(capacity_bytes=capacity_bytes)
        machine = Machine(self._core, self.network, name, disk, round(sync_seconds * 1e9))
        self.machines[name] = machine
        return machine

    @property
    def now(self) -> float:
        """The true time, in seconds since the world began."""
        return self._core.now_ns / 1e9

    @property
    def failures(self) -> list[tuple[str, str, BaseException | None]]:
        """Exceptions that nobody caught: the process, asyncio's message, the exception."""
        return self._core.failures

    def note(self, kind: str, what: str) -> None:
        """Add a line to the trace."""
        self._core.note(kind, what)

    def on_step(self, look: Callable[[Process, str], None] | None) -> None:
        """Call `look` before each operation of a process on its disk or the network.

        It gets the process and the name of the operation: one of the files protocol, "connect" or "send". It may
        kill the process, or crash its machine, right there.
        """
        self._core.reached = look or (lambda process, kind: None)  # noqa: ARG005

    # -- running

    def run(self, director: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run until the director returns, and return its result. A world runs only once."""
        # On a thread, because code may treat the main one in its own way.
        with ThreadPoolExecutor(1, thread_name_prefix="forelog-world") as thread:
            return thread.submit(self._run, director).result()

    def _run(self, director: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        core = self._core
        home = Machine(core, self.network, _DIRECTOR, CrashDisk(), 0)
        self.machines[_DIRECTOR] = home
        with inside(core):
            process = home.start(_DIRECTOR, lambda _: director(self))
            try:
                while process.alive:
                    if not core.advance():
                        raise WorldFailed(f"seed {self.seed}: nothing is left to happen, and the director waits")
                    if self.now > self._seconds_max:
                        raise WorldFailed(f"seed {self.seed}: not over after {self._seconds_max:g} s of its time")
            finally:
                for left in list(core.processes):
                    left.leave(tell=False)
                for grave in core.graves:
                    grave.dispose()
        if process.error is not None:
            raise process.error
        assert process.main is not None
        found: T = process.main.result()
        return found

    # -- the trace

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of thing has happened."""
        return dict(self._core.counts)

    @property
    def trace(self) -> list[str]:
        """The first lines of what happened."""
        return self._core.lines

    def digest(self) -> str:
        """A checksum of the whole trace."""
        return self._core.digest()
