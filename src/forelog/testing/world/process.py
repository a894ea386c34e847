"""A program on a machine of a world: its loop, its open files and connections, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from forelog.testing.disk import CrashDisk
from forelog.testing.world.clocks import Clock
from forelog.testing.world.core import Core, Stopped
from forelog.testing.world.loop import ProcessLoop
from forelog.testing.world.mount import Mount
from forelog.testing.world.network import Listener, Network
from forelog.testing.world.transport import Transport

Main = Callable[["Process"], Coroutine[Any, Any, Any]]
"""A program: a coroutine function that receives its process."""

_ASIDE_NS = (20_000, 400_000)
"""How long it takes until a thread begins, at least and at most."""
_STEP_NS = (2_000, 30_000)
"""How long a step takes, besides what it does to the disk, at least and at most."""


class Process:
    """A running program. Made by `Machine.start`."""

    def __init__(
        self,
        core: Core,
        network: Network,
        machine_name: str,
        name: str,
        clock: Clock,
        disk: CrashDisk,
        sync_ns: int,
        left: Callable[[Process], None],
    ) -> None:
        self._core = core
        self._network = network
        self._left = left
        self.machine_name = machine_name
        self.name = name
        self.clock = clock
        self.random = core.branch(f"{machine_name}/{name}/{core.now_ns}")
        """The randomness that the program gets."""
        self.files = Mount(core, self, disk, sync_ns)
        """The machine's disk, for `files=`."""
        self.alive = True
        self.error: BaseException | None = None
        """What its main function raised."""
        self.ahead_ns = 0
        self.paused_until_ns = 0
        """The true time up to which it does nothing."""
        self._busy_until_ns = 0
        self.transports: dict[Transport, None] = {}
        self.listeners: dict[int, Listener] = {}
        self.loop = ProcessLoop(self)
        self.main: asyncio.Task[Any] | None = None

    def begin(self, main: Main) -> None:
        """Run its main function."""
        self.main = self.loop.create_task(main(self), name=self.name)
        self.main.add_done_callback(self._ended)

    @property
    def label(self) -> str:
        """The machine's name and the process's."""
        return f"{self.machine_name}/{self.name}"

    # -- time

    def steady_ns(self) -> int:
        """The steady clock of the machine."""
        return self.clock.steady_ns(self._core.now_ns + self.ahead_ns)

    def wall_ns(self) -> int:
        """The time of day on the machine."""
        return self.clock.wall_ns(self._core.now_ns + self.ahead_ns)

    def spend(self, ns: int) -> None:
        """Make the current step take this much longer."""
        self.ahead_ns += ns

    def pause(self, seconds: float) -> None:
        """Do nothing for some time, as after SIGSTOP or during a long garbage collection. The clocks go on."""
        self._core.note("pause", f"{self.label} {seconds:g} s")
        self.paused_until_ns = max(self.paused_until_ns, self._core.now_ns + round(seconds * 1e9))

    # -- for the world

    def due_ns(self) -> int | None:
        """The true time of its next step, never before now; None if it has nothing to do."""
        steady_ns = self.loop.next_ns()
        if steady_ns is None:
            return None
        when_ns = self.clock.true_ns(steady_ns) if steady_ns else 0
        return max(when_ns, self.paused_until_ns, self._busy_until_ns, self._core.now_ns)

    def step(self) -> None:
        """Run its loop once."""
        self._execute(self.loop.step)
        self.spend(self._core.random.randint(*_STEP_NS))
        self._busy_until_ns = self._core.now_ns + self.ahead_ns
        self.ahead_ns = 0

    def _execute(self, work: Callable[[], None]) -> None:
        before, self._core.current = self._core.current, self
        try:
            work()
        except Stopped:
            pass
        finally:
            self._core.current = before

    # -- for its loop

    def failed(self, message: str, error: BaseException | None) -> None:
        """Note an exception that nobody caught."""
        if self.alive and not isinstance(error, Stopped):
            self._core.note("failure", f"{self.label} {message}: {error!r}")
            self._core.failures.append((self.label, message, error))

    def listen(self, make: Callable[[], asyncio.BaseProtocol], port: int) -> Listener:
        """Accept connections."""
        return self._network.listen(self, make, port)

    def connect(
        self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> Coroutine[Any, Any, tuple[Transport, asyncio.BaseProtocol]]:
        """Make a connection."""
        return self._network.connect(self, make, host, port)

    def run_aside(self, work: Callable[[], Any], future: asyncio.Future[Any] | None = None) -> None:
        """Run a function in one piece some time later, as a thread would, then set the future."""
        self._core.after(self.ahead_ns + self._core.random.randint(*_ASIDE_NS), lambda: self._aside(work, future))

    def _aside(self, work: Callable[[], Any], future: asyncio.Future[Any] | None) -> None:
        core = self._core
        if not self.alive:
            return
        if self.paused_until_ns > core.now_ns:
            core.after(self.paused_until_ns - core.now_ns, lambda: self._aside(work, future))
            return
        outcome: list[tuple[Any, Exception | None]] = []

        def run() -> None:
            try:
                outcome.append((work(), None))
            except Exception as error:
                outcome.append((None, error))

        before, self.ahead_ns = self.ahead_ns, 0
        self._execute(run)
        took_ns, self.ahead_ns = self.ahead_ns, before

        def settle() -> None:
            result, error = outcome[0]
            if future is None:
                if error is not None:
                    self.failed("what runs aside raised", error)
            elif not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        if outcome:
            core.after(took_ns, lambda: self.call(settle))

    # -- for the network

    def call(self, callback: Callable[[], None]) -> None:
        """Call a function in the next step."""
        if self.alive:
            self.loop.call_soon(callback)

    def future(self) -> asyncio.Future[Any]:
        """A future of its event loop."""
        return self.loop.create_future()

    # -- its end

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not self.alive:
            return
        self.error = None if task.cancelled() else task.exception()
        self._core.note("end", f"{self.label} {self.error!r}")
        if self.error is not None:
            self._core.failures.append((self.label, "its main function raised", self.error))
        self.leave(tell=True)

    def kill(self) -> None:
        """End at once, as by SIGKILL. What was written stays in the machine's page cache."""
        if self.alive:
            self._core.note("kill", self.label)
            self.leave(tell=True)

    def leave(self, *, tell: bool) -> None:
        """Stop running. With `tell` the machine closes its connections."""
        self.alive = False
        self.loop.cut_off()
        self.files.die()
        for listener in list(self.listeners.values()):
            listener.close()
        for transport in list(self.transports):
            transport.orphan(tell=tell)
        self._left(self)

    def dispose(self) -> None:
        """Release tasks that never end, once the world is over."""
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        self.loop.close()
