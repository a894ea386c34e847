"""What goes wrong in a world, and when: a plan that can be printed, repeated and shortened.

>>> plan = planned(7, ["a", "b"], seconds=60)
>>> plan == planned(7, ["a", "b"], seconds=60)
True
>>> Fault.parse(str(plan[0])) == plan[0]
True
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from forelog.testing.disk import Operation
from forelog.testing.world.machine import Machine
from forelog.testing.world.process import Process
from forelog.testing.world.world import World

KINDS = {
    "kill": "a process ends as by SIGKILL, before one of its next steps",
    "crash": "a machine loses power before one of its processes' next steps, and has it again later",
    "pause": "a process does nothing for a while",
    "cut": "nothing passes between two machines",
    "cut one way": "nothing passes from one machine to another",
    "slow": "what goes from one machine to another takes longer",
    "reset": "a connection breaks",
    "step": "a machine's time of day is set forwards or back",
    "drift": "a machine's clocks go too fast or too slow",
    "full": "a disk is full",
    "sync error": "a sync of a disk fails",
    "write error": "a write to a disk fails",
}
"""The kinds of faults, each with what it does."""

_STEPS_MAX = 60


class Fault(NamedTuple):
    """Something that goes wrong."""

    at: float
    """When, in seconds of true time."""
    kind: str
    """One of KINDS."""
    machine: str
    """Where."""
    other: str = "-"
    """The other machine, where there is one."""
    seconds: float = 0.0
    """How long it lasts, or by how much a clock is set."""
    steps: int = 0
    """If given: after how many steps of the machine's processes."""

    def __str__(self) -> str:
        kind = self.kind.replace(" ", "-")
        return f"{self.at} {kind} {self.machine} {self.other} {self.seconds} {self.steps}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The fault that str() wrote."""
        at, kind, machine, other, seconds, steps = text.split()
        return cls(float(at), kind.replace("-", " "), machine, other, float(seconds), int(steps))


def planned(
    seed: int,
    machines: Sequence[str],
    *,
    seconds: float,
    each_seconds: float = 2.0,
    kinds: Iterable[str] = KINDS,
) -> list[Fault]:
    """Draw faults for a time, one in `each_seconds` on average.

    Some seeds have more faults than others, and some have fewer kinds. The first machine is hit most often.
    """
    rng = random.Random(f"faults {seed}")
    chosen = [kind for kind in kinds if rng.random() < 0.6] or list(kinds)
    each_seconds *= rng.choice((0.25, 1.0, 1.0, 4.0))
    plan, at = [], rng.uniform(0, each_seconds)
    while at < seconds:
        machine = machines[0] if rng.random() < 0.7 else rng.choice(machines)
        other = rng.choice([name for name in machines if name != machine] or [machine])
        length = round(min(rng.expovariate(0.5), 30.0), 3)
        if chosen and (kind := rng.choice(chosen)) == "step":
            length = rng.choice((-3600.0, -5.0, -0.01, 0.01, 5.0, 3600.0))
        plan.append(Fault(round(at, 3), kind, machine, other, length, rng.randint(1, _STEPS_MAX)))
        at += rng.expovariate(1 / each_seconds)
    return plan


class Breaker:
    """Carries out a plan."""

    def __init__(self, world: World, plan: Sequence[Fault]) -> None:
        self.done: Counter[str] = Counter()
        """How many faults of each kind have happened."""
        self._world = world
        self._plan = plan
        self._armed: dict[str, tuple[Fault, int]] = {}
        """By machine: what will happen to one of its processes, and after how many steps."""
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Carry out all faults, and wait until the last one is over and mended."""
        world = self._world
        world.on_step(self._look)
        for fault in self._plan:
            await asyncio.sleep(max(0.0, fault.at - world.now))
            world.note("fault", str(fault))
            self._tasks.append(asyncio.create_task(self._break(fault)))
        for task in self._tasks:
            await task
        self._armed.clear()
        world.on_step(None)
        world.network.heal()
        for machine in world.machines.values():
            machine.clock.drift(round(world.now * 1e9), 0)

    def _look(self, process: Process, kind: str) -> None:
        armed = self._armed.get(process.machine_name)
        if armed is None:
            return
        fault, left = armed
        if left > 1:
            self._armed[process.machine_name] = fault, left - 1
            return
        del self._armed[process.machine_name]
        self.done[f"{fault.kind} before {kind}"] += 1
        if fault.kind == "kill":
            process.kill()
        else:
            self._world.machines[process.machine_name].crash()

    async def _break(self, fault: Fault) -> None:
        world, network = self._world, self._world.network
        machine = world.machines[fault.machine]
        self.done[fault.kind] += 1
        match fault.kind:
            case "kill":
                self._armed[machine.name] = fault, fault.steps
            case "crash":
                self._armed[machine.name] = fault, fault.steps
                await asyncio.sleep(1.0)
                machine.crash()  # if there were not so many steps
                await asyncio.sleep(fault.seconds)
                machine.boot()
            case "pause":
                for process in list(machine.processes.values()):
                    process.pause(fault.seconds)
            case "cut" | "cut one way":
                network.cut(fault.machine, fault.other, both=fault.kind == "cut")
                await asyncio.sleep(fault.seconds)
                network.heal()
            case "slow":
                network.slow_down(fault.machine, fault.other, fault.seconds / 10)
                await asyncio.sleep(fault.seconds)
                network.heal()
            case "reset":
                network.reset()
            case "step":
                machine.clock.step(fault.seconds)
            case "drift":
                machine.clock.drift(round(world.now * 1e9), round(fault.seconds * 100))
            case _:
                await self._break_disk(fault, machine)

    async def _break_disk(self, fault: Fault, machine: Machine) -> None:
        disk = machine.disk
        if fault.kind == "full":
            disk.capacity_bytes = sum(map(len, disk.contents().values()))
            await asyncio.sleep(fault.seconds)
            disk.capacity_bytes = None
            return
        failing = ("sync",) if fault.kind == "sync error" else ("write", "write_at")

        def when(operation: Operation) -> bool:
            return operation.kind in failing

        injected: Any = disk.fail(when, errno.EIO)
        await asyncio.sleep(min(fault.seconds, 1.0))
        injected.stop()
