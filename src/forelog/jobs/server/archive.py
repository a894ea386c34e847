"""Payloads and results of finished jobs that are only in the log: read on threads, as a disk may be slow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from forelog.errors import ForelogError
from forelog.formats.commands.commands import Add, Complete, Fail, Schedule
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Waiter
from forelog.jobs.server.tasks import Tasks

logger = logging.getLogger("forelog")

READS_MAX = 4  # at a time


class Archive:
    """Reads for clients that wait. `resume` is called when a wait is over."""

    def __init__(self, log: CommandLog, machine: Machine, tasks: Tasks, resume: Callable[[], None]) -> None:
        self._log = log
        self._machine = machine
        self._tasks = tasks
        self._resume = resume
        self._places = asyncio.Semaphore(READS_MAX)

    def fetch(self, waiter: Waiter) -> None:
        """Begin to read what a client waits for."""
        self._tasks.begin(self._fetch(waiter))

    async def _fetch(self, waiter: Waiter) -> None:
        job = waiter.job
        place = (job.segment, job.offset) if waiter.inspects else (job.result_segment, job.result_offset)
        try:
            if place[0] == 0:
                waiter.read = b""  # it failed by a timeout, without a result
            else:
                async with self._places:
                    command = await asyncio.to_thread(self._log.read, *place, job.id)
                if isinstance(command, Add | Schedule):
                    waiter.read = command.payload
                elif isinstance(command, Complete | Fail):
                    waiter.read = command.result
        except (OSError, ForelogError) as error:
            logger.error("a finished job can't be read from the command log: %s", error)
        waiter.gone = self._machine.jobs.get(job.id) is not job
        self._machine.ended.append(waiter)
        self._resume()
