"""A machine of a world: a disk, clocks, and the processes that run on it."""

from __future__ import annotations

from forelog.testing.disk import CrashDisk
from forelog.testing.world.clocks import Clock
from forelog.testing.world.core import Core, Stopped
from forelog.testing.world.network import Network
from forelog.testing.world.process import Main, Process

_AGAIN_NS = (50_000_000, 1_000_000_000)
"""How long it takes until a program that is kept starts again, at least and at most."""


class Machine:
    """Made by `World.machine`."""

    def __init__(self, core: Core, network: Network, name: str, disk: CrashDisk, sync_ns: int) -> None:
        self._core = core
        self._network = network
        self._sync_ns = sync_ns
        self._random = core.branch(f"disk of {name}")
        self.name = name
        """How others reach it: `asyncio.open_connection(machine.name, port)`."""
        self.disk = disk
        self.clock = Clock(boot_ns=core.now_ns)
        self.processes: dict[str, Process] = {}
        self.is_up = True
        self._kept: dict[str, Main] = {}

    def start(self, name: str, main: Main) -> Process:
        """Run a program. Its name is free again once it has ended."""
        if not self.is_up:
            raise RuntimeError(f"{self.name} has no power")
        if name in self.processes:
            raise RuntimeError(f"{name} runs on {self.name} already")
        self._core.note("start", f"{self.name}/{name}")
        process = self.processes[name] = Process(
            self._core, self._network, self.name, name, self.clock, self.disk, self._sync_ns, self._gone
        )
        self._core.processes[process] = None
        process.begin(main)
        return process

    def keep(self, name: str, main: Main) -> None:
        """Run a program, and start it again whenever it ends, as a service manager does."""
        self._kept[name] = main
        if self.is_up:
            self.start(name, main)

    def _start_again(self, name: str) -> None:
        if self.is_up and name in self._kept and name not in self.processes:
            self.start(name, self._kept[name])

    def _gone(self, process: Process) -> None:
        self.processes.pop(process.name, None)
        self._core.processes.pop(process, None)
        self._core.graves.append(process)
        if process.name in self._kept:
            self._core.after(self._random.randint(*_AGAIN_NS), lambda: self._start_again(process.name))

    def crash(self) -> None:
        """Lose power. The processes are gone, and the disk is in a state in which a real one could be found."""
        if not self.is_up:
            return
        self.disk = self.disk.crashed(self._random)
        self._core.note("crash", f"{self.name} {self.disk.origin}")
        self.is_up = False
        here = self._core.current in self.processes.values()
        for process in list(self.processes.values()):
            process.leave(tell=False)
        if here:
            raise Stopped

    def boot(self) -> None:
        """Get power back. The steady clock begins anew, the time of day is right, and kept programs start."""
        if self.is_up:
            return
        self._core.note("boot", self.name)
        self.is_up = True
        self.clock = Clock(boot_ns=self._core.now_ns)
        for name in self._kept:
            self._start_again(name)
