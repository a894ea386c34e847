"""Background tasks of the broker, and work that other threads hand to its event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

logger = logging.getLogger("forelog")


class Tasks:
    """Tasks that run beside everything else, until `cancel`. A failure is logged."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._running):
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("broker: a task has failed", exc_info=error)


class LoopWork:
    """Calls functions on an event loop, from other threads: `run(work)` returns when it is done.

    Before `start` and after `stop` there is no loop to protect, and the calling thread does the work.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop from now on."""
        self._loop = loop

    def stop(self) -> None:
        """Use no loop any more."""
        self._loop = None

    def run(self, work: Callable[[], None]) -> None:
        """Call a function on the loop, and wait for it."""
        if self._loop is None:
            work()
            return

        async def call() -> None:
            work()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()
