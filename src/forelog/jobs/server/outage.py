"""What happens while the command log cannot be written.

The server is read-only: commands that change nothing are still answered. After a while one change at a time is let
through, as a trial, until one is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from forelog.errors import ForelogError
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.wheel import Clock
from forelog.jobs.server.tasks import Tasks

if TYPE_CHECKING:
    from forelog.jobs.log.commandlog import CommandLog

logger = logging.getLogger("forelog")

RETRY_SECONDS = (0.1, 5.0)  # until the next trial, at first and at most


class Outage:
    """Whether the log can be written. `resume` is called when there may be something to write again."""

    def __init__(
        self, log: CommandLog, machine: Machine, clock: Clock, tasks: Tasks, resume: Callable[[], None]
    ) -> None:
        self.read_only = False
        """Whether nothing can be changed now."""
        self.trial = False
        """Whether each change is written by itself, to find out whether it can be."""
        self._log = log
        self._machine = machine
        self._clock = clock
        self._tasks = tasks
        self._resume = resume
        self._retry_seconds = RETRY_SECONDS[0]

    def begin(self, error: BaseException) -> None:
        """A write has failed."""
        if not self.trial:
            logger.error(
                "the command log can't be written, so nothing can be changed until it can: %s",
                error,
                exc_info=_unexpected(error),
            )
        self.read_only, self.trial = True, False
        self._try_later()

    def end(self) -> None:
        """A write has succeeded again."""
        self.trial = False
        self._retry_seconds = RETRY_SECONDS[0]
        logger.warning("the command log can be written again")
        self._machine.offer(self._clock.now())
        self._resume()

    def _try_later(self) -> None:
        self._tasks.begin(self._try_again(self._retry_seconds))
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS[1])

    async def _try_again(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._log.failed:
            try:
                found = await asyncio.to_thread(self._log.reopen)
            except Exception as error:  # whatever it is: without another try the server would stay read-only
                logger.error("the command log can't be opened again: %s", error, exc_info=_unexpected(error))
                self._try_later()
                return
            self._log.adopt(found, self._machine, self._clock.now())
            if found[0]:
                logger.warning(
                    "%d commands are in the log although their write had failed: they count", len(found[0])
                )
        self.read_only, self.trial = False, True
        self._resume()


def _unexpected(error: BaseException) -> BaseException | None:
    """The error if its traceback should be logged, else None."""
    return None if isinstance(error, OSError | ForelogError) else error
