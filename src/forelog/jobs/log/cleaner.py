"""Drops from a command log what no job needs, while the server writes it.

The server knows its jobs, and where in the log each one's add is. A record is needed if it is about one of these
jobs, and not about an earlier job with the same id.

There is one exception. The delete or expire of a job that is gone stays as long as an earlier segment has the
job's add: else the job would come back at the next start. All other commands of that job stay with it: else the
rest would contradict itself, and workq would not start. Segments are looked at oldest first, so all of this goes
once the earlier segments are clean.

Two rules decide what is rewritten:

- a segment of which at least half is useless;
- in a *thorough* run, every segment with anything useless. A run is thorough if the finished segments take more
  than twice the bytes that are needed in them, plus SLACK_BYTES.

The current segment is finished early if it has at least ROLL_BYTES, and at least half of it is useless. So after a
run the log takes at most

    2 x (bytes of the records that jobs need) + SLACK_BYTES + ROLL_BYTES

and each rewrite frees as many bytes as it writes. The needed bytes are known without reading: the ledger counts
adds and results for each segment (`jobs.machine.ledger`). Attempts, which are small, are counted when a segment
is read.
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

logger = logging.getLogger("forelog")

SLACK_BYTES = 1 << 20
"""Useless bytes that the finished segments may have, beyond half of their size."""
ROLL_BYTES = 1 << 20
"""The size from which the current segment is finished early, so that it can be cleaned."""
LOOK_AGAIN_NS = 3600 * 10**9
_ROWS = 4096  # looked at in one go, while the server's thread has to wait
_IF_SETTLED = bytes((0, 1, 0)) + bytes(253)  # drops rows marked 2, which jobs of earlier segments left
_UNLESS_SETTLED = bytes((0, 1, 1)) + bytes(253)


class _Stopped(Exception):
    """The server stops."""


class ForgetDone:
    """The rule for the cleaner of `forelog.log`."""

    needs_last = False
    oldest_first = True

    def __init__(self, machine: Machine, stream: Stream, now_ns: int) -> None:
        self._machine = machine
        self._ledger = machine.ledger
        self._stream = stream
        self._now_ns = now_ns
        self._numbers: list[int] = []
        self._look_ns: dict[int, int] = {}
        """For each segment, when to look at it again in any case."""
        self._sizes: dict[int, int] = {}
        """The sizes of the segments."""
        self._small: dict[int, int] = {}
        """For each segment, the bytes that attempts needed at the last look."""
        self._run = 0
        """The number of runs so far."""
        self._sealed: dict[int, int] = {}
        """For each segment, the run that first found it finished: by then the ends in it had happened."""
        self._cleaned: dict[int, int] = {}
        """For each segment, the run that dropped everything useless."""
        self._live: dict[int, int] = {}
        """For each segment, the bytes that jobs needed before that run. If they need as many now, nothing has
        become useless since."""
        self._doing = 0
        """The segment to be rewritten; 0 if there is none."""
        self._mask = bytearray()
        """Which of its rows to keep; those that are decided are taken off its end."""
        self._certain = True
        """Whether all changes of the jobs in the current segment are written."""
        self._all_certain = True
        """The same, for all segments that this run has read."""
        self._thorough = False
        self._vain = 0
        """Useless bytes that the last thorough run could not drop, such as damaged ones."""
        self.cramped = False
        """Whether the disk may be full: then only segments that are wholly useless go."""
        self.stopped = threading.Event()

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:
        self._numbers = numbers
        self._now_ns = now_ns
        self._run += 1
        self._look_ns.pop(self._doing, None)  # its rewrite failed
        self._doing, self._all_certain = 0, True
        for known in (self._look_ns, self._sealed, self._cleaned, self._small, self._live):
            for number in known.keys() - set(numbers):
                del known[number]
        for number in numbers[:-1]:
            self._sealed.setdefault(number, self._run)
        self._measure(directory)
        self._thorough = self._excess() > 0
        if self._thorough:
            self._ledger.attempts_lost = 0  # before the first look: jobs that go meanwhile count again

    def _measure(self, directory: Directory) -> None:
        sizes = {number: directory.segment_bytes(number) for number in self._numbers[:-1]}
        self._sizes = {number: size for number, size in sizes.items() if size is not None}

    def _excess(self) -> int:
        """How many bytes the finished segments have too many."""
        needed_bytes = sum(self._ledger.live.get(number, 0) for number in self._sizes)
        needed_bytes += max(sum(self._small.values()) - self._ledger.attempts_lost, 0)
        return sum(self._sizes.values()) - self._vain - 2 * needed_bytes - SLACK_BYTES

    def finish(self, directory: Directory) -> None:
        """The run is over."""
        self.done()
        self._measure(directory)
        if not self._thorough:
            return
        self._vain = 0
        if self._all_certain:
            self._vain = max(self._excess(), 0)

    @property
    def segments(self) -> int:
        """The number of finished segments after the last run."""
        return len(self._sizes)

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        self.done()
        if not (self._thorough or self._is_worth_while(number)):
            return True
        useful = others = total = 0
        self._certain = True
        live = self._ledger.live.get(number, 0)  # before the first look
        mask, fresh = bytearray(), set[bytes]()
        for block in self._blocks(number):
            found, kept_bytes, other_bytes, all_bytes = self._needed(block, fresh)
            mask += found
            useful += kept_bytes
            others += other_bytes
            total += all_bytes
        self._note_look(number, useful, live)
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

    def _note_look(self, number: int, useful: int, live: int) -> None:
        """Note what a segment is needed for. Amid changes that is unknown: the next run looks again."""
        self._live[number] = live
        if self._certain:
            self._look_ns[number] = self._now_ns + LOOK_AGAIN_NS
            self._small[number] = max(useful - live, 0)
        else:
            self._look_ns[number] = self._now_ns
            self._small.pop(number, None)
            self._all_certain = False

    def _note_cleaned(self, number: int) -> None:
        if self._certain:
            self._cleaned[number] = self._run

    def _is_worth_while(self, number: int) -> bool:
        """Whether to read a segment: half of it seems useless, or it was not read for long."""
        size = self._sizes.get(number, 0)
        known = self._ledger.live.get(number, 0) + self._small.get(number, 0)
        look_ns = self._look_ns.get(number, self._now_ns + LOOK_AGAIN_NS)
        return 2 * known <= size or not self._now_ns < look_ns <= self._now_ns + LOOK_AGAIN_NS

    def keep(self, block: Block) -> bytearray:
        """Which rows of a block to keep, as decided before. The blocks of a segment come last to first."""
        rows = len(block.scan.offsets)
        mask = self._mask[len(self._mask) - rows :]
        del self._mask[len(self._mask) - rows :]
        return mask

    def done(self) -> None:
        """The last segment is done with."""
        if self._doing and not self._mask:
            self._note_cleaned(self._doing)
        self._doing = 0

    def _needed(self, block: Block, fresh: set[bytes]) -> tuple[bytearray, int, int, int]:
        """Marks rows that are needed (1), or needed while earlier segments have their jobs' adds (2). Returns
        the marks, and the bytes of the first, of the second, and of all rows."""
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
        """Whether no earlier segment has adds of jobs that are gone. Judged by the order of runs and not by
        times, as a clock may be wrong."""
        sealed, live = self._sealed[number], self._ledger.live
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
    """Cleans the log of a server, on a thread."""

    def __init__(self, stream: Stream, machine: Machine) -> None:
        self._stream = stream
        self._machine = machine
        self._rule = ForgetDone(machine, stream, 0)
        self._running = threading.Lock()

    @property
    def segments(self) -> int:
        """The number of finished segments after the last run."""
        return self._rule.segments

    def wants_next_segment(self, end: Position) -> bool:
        """Whether to finish the current segment, which ends here, so that it can be cleaned."""
        return end.offset >= ROLL_BYTES and 2 * self._machine.ledger.live.get(end.segment, 0) <= end.offset

    async def run(self, *, cramped: bool = False) -> CleanReport | None:
        """Clean once, on a thread. Returns None if the log is being read, or can't be cleaned; that is logged.

        If the disk may be full (`cramped`), segments go as a whole or not at all.
        """
        return await asyncio.to_thread(self.clean, cramped=cramped)

    def clean(self, *, cramped: bool = False) -> CleanReport | None:
        """Clean once, on this thread. As `run`."""
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
        """End a run soon, if one is under way."""
        self._rule.stopped.set()

    def wait(self) -> None:
        """Wait for a run that is under way."""
        with self._running:
            pass
