"""Forgetting what no job needs: the cleaning of a command log beside the server that writes it.

The server knows which jobs there are, so that a record is needed if, and only if, its job is still there. With one
exception: the delete or expire of a job that is gone must stay as long as an earlier segment has the job's add,
or it would come back at the next start. It goes once all earlier segments have been cleaned since. So does what
was done with a job that has no such end, because its ttl was over at a start: the clock may have been wrong.

A segment is rewritten when half of its bytes or more are of no use, and then has nothing but what is needed, be
it a single job that lives for a month. So sealed segments take less than twice the bytes of the records that are
needed in them, and half as much again at worst for ends that have to stay: three times in all, and the segment
that is being written comes on top. How useful a segment is can be told only by reading it. That is done again when
half of the jobs that it adds have gone, or the average of their ttl is over, by which half should have; and every
hour, because other records can be large.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from chiplog import kernel
from chiplog.errors import ChiplogError, LockTimeout
from chiplog.jobs.loading import mean_expiry, needed
from chiplog.jobs.machine import Machine
from chiplog.log.cleaner import CleanReport
from chiplog.log.index import SegmentIndex
from chiplog.log.position import Position
from chiplog.log.segments import Directory
from chiplog.log.stream import Stream
from chiplog.log.walk import Block, Walk

__all__ = ["CommandCleaner"]

logger = logging.getLogger("chiplog")

LOOK_AGAIN_NS = 3600 * 10**9
_ROWS = 4096  # to be looked at in one go, while the server has to wait


class _Stopped(Exception):
    """The server is being stopped."""


class ForgetDone:
    """The rule for the engine's cleaner."""

    needs_last = False

    def __init__(self, machine: Machine, stream: Stream, now_ns: int) -> None:
        self._machine = machine
        self._stream = stream
        self._now_ns = now_ns
        self._numbers: list[int] = []
        self._look_ns: dict[int, int] = {}
        """When to look at a segment again."""
        self._jobs: dict[int, int] = {}
        """How many jobs that it adds there were, when it was last looked at."""
        self._run = 0
        """How many runs there have been."""
        self._sealed: dict[int, int] = {}
        """The run that first found a segment finished: its jobs' ends had happened by then."""
        self._cleaned: dict[int, int] = {}
        """The run that dropped everything of a segment that wasn't needed."""
        self._doing = 0
        """The segment that is being rewritten."""
        self._rows = 0
        """How many of its rows are still to be decided about."""
        self.cramped = False
        """Whether there may be no room to rewrite a segment: only those go that have nothing of use."""
        self.stopped = threading.Event()

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:  # noqa: ARG002
        self._numbers = numbers
        self._now_ns = now_ns
        self._run += 1
        self._look_ns.pop(self._doing, None)  # it couldn't be rewritten
        self._doing = 0
        for known in (self._look_ns, self._sealed, self._cleaned, self._jobs):
            for number in known.keys() - set(numbers):
                del known[number]
        for number in numbers[:-1]:
            self._sealed.setdefault(number, self._run)

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        self.done()
        lost, look_ns = self._machine.lost.get(number, 0), self._look_ns.get(number, 0)
        if self._now_ns < look_ns <= self._now_ns + LOOK_AGAIN_NS and 2 * lost < self._jobs.get(number, 0):
            return True
        self._machine.lost.pop(number, None)  # before anything is looked at: those who go meanwhile count again
        useful = useless = jobs = rows = 0
        expiries: list[int] = []
        for block in self._blocks(number):
            mask, count, expiry = self._needed(block)
            expiries += [expiry] if expiry else []
            jobs += count
            rows += len(mask)
            for row, keep in enumerate(mask):
                if keep:
                    useful += block.frame_bytes(row)
                else:
                    useless += block.frame_bytes(row)
        middle = sum(expiries) // len(expiries) if expiries else self._now_ns
        self._look_ns[number] = min(max(middle, self._now_ns), self._now_ns + LOOK_AGAIN_NS)
        self._jobs[number] = jobs
        if useless == 0:
            self._cleaned[number] = self._run
        elif useless >= useful and not (self.cramped and useful):
            self._doing, self._rows = number, rows
            return None
        return True

    def keep(self, block: Block) -> bytearray:
        mask = self._needed(block)[0]
        self._rows -= len(mask)
        return mask

    def done(self) -> None:
        """The last segment is rewritten, if it was to be."""
        if self._doing and self._rows == 0:
            self._cleaned[self._doing] = self._run
        self._doing = 0

    def _needed(self, block: Block) -> tuple[bytearray, int, int]:
        """Which rows are needed, how many of them add jobs, and when those expire on average, or 0."""
        scan, mask, total, jobs = block.scan, bytearray(), 0, 0
        settled = self._is_settled(block.segment)
        for first in range(block.first, block.last, _ROWS):
            if self.stopped.is_set():
                raise _Stopped
            last = min(first + _ROWS, block.last)
            commands = kernel.active.commands_decode(block.buffer, scan.starts, scan.ends, first, last)
            mask += needed(self._machine, commands, settled)
            count, expiry = mean_expiry(self._machine, commands)
            total += count * expiry
            jobs += count
            time.sleep(0)
        return mask, jobs, total // jobs if jobs else 0

    def _is_settled(self, number: int) -> bool:
        """Whether the ends in this segment are of jobs whose adds are gone from every earlier one. By the order
        of things, and not by their times: a clock may be wrong."""
        sealed = self._sealed[number]
        return all(self._cleaned.get(earlier, 0) >= sealed for earlier in self._numbers if earlier < number)

    def _blocks(self, number: int) -> Walk:
        return Walk(
            self._stream._directory,
            start=Position(number, 0),
            stop=Position(number + 1, 0),
            metrics=self._stream.metrics,
            numbers=self._numbers,
        )


class CommandCleaner:
    """Cleans a server's log now and then, on a thread."""

    def __init__(self, stream: Stream, machine: Machine) -> None:
        self._stream = stream
        self._rule = ForgetDone(machine, stream, 0)
        self._running = threading.Lock()

    async def run(self, *, cramped: bool = False) -> CleanReport | None:
        """Clean once. None if someone reads the log, or it can't be cleaned; that is told.

        Where the disk may be full (`cramped`), segments go as a whole or not at all.
        """
        return await asyncio.to_thread(self.clean, cramped=cramped)

    def clean(self, *, cramped: bool = False) -> CleanReport | None:
        """The same, and waiting for it."""
        with self._running:
            self._rule.cramped = cramped
            try:
                with self._stream.cleaner(timeout=0) as cleaner:
                    report = cleaner.clean(self._rule, on_corruption="skip")
                    self._rule.done()
            except LockTimeout:
                logger.info("the command log is being read: it will be cleaned later")
            except _Stopped:
                pass
            except (OSError, ChiplogError) as error:
                logger.error("the command log couldn't be cleaned: %s", error)
            else:
                if report.records_dropped:
                    logger.info(
                        "cleaned the command log: %d records and %d bytes dropped",
                        report.records_dropped,
                        report.bytes_dropped,
                    )
                return report
        return None

    def stop(self) -> None:
        """Don't begin anything that takes long."""
        self._rule.stopped.set()

    def wait(self) -> None:
        """Until a run that is under way has ended."""
        with self._running:
            pass
