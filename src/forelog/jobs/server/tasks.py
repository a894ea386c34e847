"""The tasks of a server that run beside its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Tasks:
    """Runs coroutines in the background, until they end or all are cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine, unless all were cancelled."""
        if self._cancelled:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all that run, and take no more."""
        self._cancelled = True
        for task in list(self._tasks):
            task.cancel()
