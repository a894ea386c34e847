"""Forgetting what no job needs: the cleaning of a command log beside the server that writes it.

The server knows which jobs there are and where in the log each one's add is, so that a record is needed if, and
only if, it is about a job that is still there, and not about an earlier one with the same id. With one exception:
the delete or expire of a job that is gone must stay as long as an earlier segment has the job's add, or it would
come back at the next start; and so must whatever else was done with it, or what is left would contradict itself,
and workq wouldn't start. Segments are looked at oldest first, so that all of this goes once the earlier segments
have been cleaned since.

Two rules decide what is rewritten:

- a segment of which at least half is of no use;
- all of them that have anything of no use, in a *thorough* run, if the finished segments together take more than
  twice the bytes that are needed in them, and SLACK_BYTES.

The segment that is being written is finished early if it has ROLL_BYTES or more of which at least half is of no
use. So after a run the log takes at most

    2 x (bytes of the records that jobs need) + SLACK_BYTES + ROLL_BYTES

and each rewrite is paid for by as many bytes of no use. How much is needed is known without reading: the machine
counts the adds and results of its jobs, segment by segment (`jobs.machine.ledger`). Attempts, which are small,
are counted when a segment is read.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from forelog import kernel
from forelog.errors import ForelogError, LockTimeout
from forelog.formats import Block
from forelog.jobs.log.loader import needed
from forelog.jobs.machine.machine import Machine
from forelog.log.cleaner import CleanReport
from forelog.log.directory.directory import Directory
from forelog.log.directory.index import SegmentIndex
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import Walk

__all__ = ["CommandCleaner"]

logger = logging.getLogger("forelog")

SLACK_BYTES = 1 << 20
"""Of no use, which all finished segments together may have beside half of their bytes."""
ROLL_BYTES = 1 << 20
"""From which size on a segment that is being written is finished so that it can be cleaned."""
LOOK_AGAIN_NS = 3600 * 10**9
_ROWS = 4096  # to be looked at in one go, while the server has to wait
_IF_SETTLED = bytes((0, 1, 0)) + bytes(253)  # what jobs from before left, which is marked 2, goes
_UNLESS_SETTLED = bytes((0, 1, 1)) + bytes(253)


class _Stopped(Exception):
    """The server is being stopped."""


class ForgetDone:
    """The rule for the engine's cleaner."""

    needs_last = False
    oldest_first = True

    def __init__(self, machine: Machine, stream: Stream, now_ns: int) -> None:
        self._machine = machine
        self._stream = stream
        self._now_ns = now_ns
        self._numbers: list[int] = []
        self._look_ns: dict[int, int] = {}
        """When to look at a segment again, whatever is known of it."""
        self._sizes: dict[int, int] = {}
        """Of the segments, in bytes."""
        self._small: dict[int, int] = {}
        """How many bytes of a segment were needed for attempts, when it was last looked at."""
        self._run = 0
        """How many runs there have been."""
        self._sealed: dict[int, int] = {}
        """The run that first found a segment finished: its jobs' ends had happened by then."""
        self._cleaned: dict[int, int] = {}
        """The run that dropped everything of a segment that wasn't needed."""
        self._live: dict[int, int] = {}
        """How many bytes of a segment jobs needed before that: if it is as many now, nothing of it has gone
        since."""
        self._doing = 0
        """The segment that is being rewritten."""
        self._mask = bytearray()
        """Which of its rows are needed, as far as they are still to be decided about."""
        self._certain = True
        """Whether all that is known of the jobs in the segment that is looked at is written."""
        self._thorough = False
        self._vain = 0
        """Bytes that the last thorough run couldn't take out, damaged ones for example: another one couldn't
        either."""
        self.cramped = False
        """Whether there may be no room to rewrite a segment: only those go that have nothing of use."""
        self.stopped = threading.Event()

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:
        self._numbers = numbers
        self._now_ns = now_ns
        self._run += 1
        self._look_ns.pop(self._doing, None)  # it couldn't be rewritten
        self._doing = 0
        for known in (self._look_ns, self._sealed, self._cleaned, self._small, self._live):
            for number in known.keys() - set(numbers):
                del known[number]
        for number in numbers[:-1]:
            self._sealed.setdefault(number, self._run)
        self._measure(directory)
        self._thorough = self._excess() > 0
        if self._thorough:
            self._machine.attempts_lost = 0  # before anything is looked at: those that go meanwhile count again

    def _measure(self, directory: Directory) -> None:
        self._sizes = {}
        for number in self._numbers[:-1]:
            found = directory.files.stat(directory.segment_path(number))
            if found is not None:
                self._sizes[number] = found[0]

    def _excess(self) -> int:
        """By how many bytes the finished segments are larger than they should be."""
        needed_bytes = sum(self._machine.live.get(number, 0) for number in self._sizes)
        needed_bytes += max(sum(self._small.values()) - self._machine.attempts_lost, 0)
        return sum(self._sizes.values()) - self._vain - 2 * needed_bytes - SLACK_BYTES

    def finish(self, directory: Directory) -> None:
        """All segments have been looked at."""
        self.done()
        self._measure(directory)
        if not self._thorough:
            return
        self._vain = 0
        self._vain = max(self._excess(), 0)

    @property
    def segments(self) -> int:
        """How many finished segments the last run has left."""
        return len(self._sizes)

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        self.done()
        if not (self._thorough or self._is_worth_while(number)):
            return True
        useful = others = total = 0
        self._certain = True
        live = self._machine.live.get(number, 0)  # before anything is looked at
        mask, fresh = bytearray(), set[bytes]()
        for block in self._blocks(number):
            found, kept_bytes, other_bytes, all_bytes = self._needed(block, fresh)
            mask += found
            useful += kept_bytes
            others += other_bytes
            total += all_bytes
        self._look_ns[number] = self._now_ns + LOOK_AGAIN_NS
        self._small[number] = max(useful - live, 0)
        self._live[number] = live
        settled = self._is_settled(number)
        useful += 0 if settled else others
        useless = total - useful
        if useless == 0:
            self._note_cleaned(number)
        elif (self._thorough or useless >= useful) and not (self.cramped and useful):
            self._doing = number
            self._mask = mask.translate(_IF_SETTLED if settled else _UNLESS_SETTLED)
            return None
        return True

    def _note_cleaned(self, number: int) -> None:
        if self._certain:
            self._cleaned[number] = self._run

    def _is_worth_while(self, number: int) -> bool:
        """Whether to read a segment: half of it seems to be of no use, or it was never read, or long ago."""
        size = self._sizes.get(number, 0)
        known = self._machine.live.get(number, 0) + self._small.get(number, 0)
        look_ns = self._look_ns.get(number, self._now_ns + LOOK_AGAIN_NS)
        return 2 * known <= size or not self._now_ns < look_ns <= self._now_ns + LOOK_AGAIN_NS

    def keep(self, block: Block) -> bytearray:
        """What was decided when the segment was read: its blocks come in reverse. What has gone since stays."""
        rows = len(block.scan.offsets)
        mask = self._mask[len(self._mask) - rows :]
        del self._mask[len(self._mask) - rows :]
        return mask

    def done(self) -> None:
        """The last segment is rewritten, if it was to be."""
        if self._doing and not self._mask:
            self._note_cleaned(self._doing)
        self._doing = 0

    def _needed(self, block: Block, fresh: set[bytes]) -> tuple[bytearray, int, int, int]:
        """Rows that are needed (1), or as long as earlier segments have their jobs' adds (2); the bytes of the
        first, of the second, and of all."""
        scan, mask, kept, others = block.scan, bytearray(), 0, 0
        stop = block.base + scan.end
        for first in range(block.first, block.last, _ROWS):
            if self.stopped.is_set():
                raise _Stopped
            last = min(first + _ROWS, block.last)
            commands = kernel.commands_decode(block.buffer, scan.starts, scan.ends, first, last)
            found, certain, kept_bytes, other_bytes = needed(
                self._machine, commands, block.segment, block.offsets, scan.offsets, stop, first, fresh
            )
            mask += found
            kept += kept_bytes
            others += other_bytes
            self._certain = self._certain and certain
            time.sleep(0)
        total = stop - scan.offsets[block.first] if block.last > block.first else 0
        return mask, kept, others, total

    def _is_settled(self, number: int) -> bool:
        """Whether the adds of all jobs that are gone are gone from every earlier segment. By the order of things,
        and not by their times: a clock may be wrong."""
        sealed, live = self._sealed[number], self._machine.live
        return all(
            self._cleaned.get(earlier, 0) >= sealed
            or (earlier in self._cleaned and live.get(earlier, 0) == self._live[earlier])
            for earlier in self._numbers
            if earlier < number
        )

    def _blocks(self, number: int) -> Walk:
        return Walk(
            self._stream.directory,
            start=Position(number, 0),
            stop=Position(number + 1, 0),
            metrics=self._stream.metrics,
            numbers=self._numbers,
        )


class CommandCleaner:
    """Cleans a server's log now and then, on a thread."""

    def __init__(self, stream: Stream, machine: Machine) -> None:
        self._stream = stream
        self._machine = machine
        self._rule = ForgetDone(machine, stream, 0)
        self._running = threading.Lock()

    @property
    def segments(self) -> int:
        """How many finished segments there were after the last run."""
        return self._rule.segments

    def wants_next_segment(self, end: Position) -> bool:
        """Whether the segment that is being written, up to here, should be finished so that it can be cleaned."""
        return end.offset >= ROLL_BYTES and 2 * self._machine.live.get(end.segment, 0) <= end.offset

    async def run(self, *, cramped: bool = False) -> CleanReport | None:
        """Clean once. None if someone reads the log, or it can't be cleaned; that is logged.

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
                    self._rule.finish(self._stream.directory)
            except LockTimeout:
                logger.info("the command log is being read: it will be cleaned later")
            except _Stopped:
                pass
            except (OSError, ForelogError) as error:
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
