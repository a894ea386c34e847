"""What programs ask the real world for, answered by the simulated one: time and random bytes.

While a world runs, the functions of `time`, and those that give random bytes, answer for the process whose step
is running. A program that copied such a function at import gets past this: it should look the function up at
each call. The spare segment of a log has a thread of its own; here its work is done beside the event loop.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from forelog.log import active
from forelog.testing.spare import DrivenSpare
from forelog.testing.world.core import Core, Steps


@contextlib.contextmanager
def inside(core: Core) -> Iterator[None]:
    """Answer from a world's clocks and randomness until the block ends."""

    def asked(inner: Callable[[Steps], Any], outer: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any) -> Any:
            return outer(*args) if core.current is None else inner(core.current, *args)

        return answer

    class Aside(DrivenSpare):
        """A spare whose work is done some time later, or when somebody waits for it."""

        def _start(self) -> None:
            """Start nothing: a world has no threads."""

        def begin(self, work: Callable[[], None]) -> None:
            super().begin(work)
            assert core.current is not None
            core.current.run_aside(self.drive)

    def steady(process: Steps) -> float:
        return process.steady_ns() / 1e9

    answers: dict[tuple[Any, str], Callable[..., Any]] = {
        (time, "time"): lambda process: process.wall_ns() / 1e9,
        (time, "time_ns"): lambda process: process.wall_ns(),
        (time, "monotonic"): steady,
        (time, "monotonic_ns"): lambda process: process.steady_ns(),
        (time, "perf_counter"): steady,
        (time, "perf_counter_ns"): lambda process: process.steady_ns(),
        (time, "sleep"): lambda process, seconds: process.spend(round(seconds * 1e9)),
        (os, "urandom"): lambda process, count: process.random.randbytes(count),
        (random, "_urandom"): lambda process, count: process.random.randbytes(count),
        (random, "random"): lambda process: process.random.random(),
        (random, "uniform"): lambda process, low, high: process.random.uniform(low, high),
        (random, "randrange"): lambda process, *limits: process.random.randrange(*limits),
    }
    with contextlib.ExitStack() as stack:
        for (module, name), inner in answers.items():
            stack.enter_context(mock.patch.object(module, name, asked(inner, getattr(module, name))))
        stack.enter_context(mock.patch.object(active, "Spare", Aside))
        gc.collect()
        gc.disable()  # what it ends, and when, depends on more than the seed
        stack.callback(gc.enable)
        yield
