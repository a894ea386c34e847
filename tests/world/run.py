"""One world: a program, a plan of faults, a verdict."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from forelog.testing.world import Breaker, Fault, World, planned
from tests.world.jobs import KINDS_OF_FAULTS, Jobs

__all__ = ["Verdict", "run"]


@dataclass
class Verdict:
    """How a world ended."""

    seed: int
    plan: Sequence[Fault]
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    digest: str = ""
    trace: list[str] = field(default_factory=list)
    handled: int = 0


def run(seed: int, *, seconds: float = 60.0, plan: Sequence[Fault] | None = None, trace: bool = False) -> Verdict:
    """Run the job server's world of a seed."""
    world = World(seed, trace_lines_max=10_000_000 if trace else 0)
    jobs = Jobs(world)
    if plan is None:
        plan = planned(seed, ["a", "b", "c"], seconds=seconds, kinds=KINDS_OF_FAULTS)
    verdict = Verdict(seed, plan)
    breaker = Breaker(world, plan)

    async def director(_: World) -> None:
        jobs.begin()
        await breaker.run()
        await asyncio.sleep(max(0.0, seconds - world.now))
        await jobs.finish()

    try:
        world.run(director)
    except Exception as error:
        verdict.violations.append(f"{type(error).__name__}: {error}")
    verdict.violations += jobs.violations
    verdict.violations += [
        f"{who}: {what}: {error!r}" for who, what, error in world.failures if not _is_expected(error)
    ]
    verdict.faults, verdict.seconds, verdict.handled = breaker.done, world.now, jobs.handled
    verdict.digest, verdict.trace = world.digest(), world.trace
    return verdict


def _is_expected(error: BaseException | None) -> bool:
    """Whether a program may end so: its disk failed. It is started again."""
    return isinstance(error, OSError)
