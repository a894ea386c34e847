"""The machine's books: which changes the log does not have yet, and where the log has each job.

Each change is noted twice, as the command to be written and as what undoes it. `take` hands out both. When the
commands are in the log, `landed` enters their places.

For each segment the ledger counts the bytes of adds and results that jobs still need. So the cleaner knows without
reading which segments are worth a rewrite. Payloads and results of finished jobs may leave the memory: the log has
them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forelog.formats.commands.fields import COMPLETE, DELETE, EXPIRE, FAIL, job_head
from forelog.jobs.machine.queue import Job

if TYPE_CHECKING:
    from forelog.log.position import Positions

RECORD_BYTES_MAX = 64 << 20  # commands not written yet: clients that send more have to wait
KEPT_BYTES_MAX = 64 << 20  # payloads and results of finished jobs in memory
MEMORY_BYTES_MAX = 2 << 30  # what all jobs may take in memory before no more are added
JOB_BYTES = 512  # memory of a job, besides its payload and result
_JOB_BYTES = JOB_BYTES
_ATTEMPT_BYTES = 74  # a start and its end in the log
_KEPT_BYTES_MIN = 1024  # unloading less than this is not worth it
_FRAME_BYTES = 19  # a record in a segment, besides its length and its payload

Change = tuple[Job, bool, int, int, int, bytes | None, int, int, tuple[Any, ...] | None]
Notes = list[tuple[int, bytes]]
Changes = tuple[list[bytes], list[Change], Notes, list[Callable[[], None]]]
"""The commands to be written and what undoes them, the notes to be written and what undoes these."""


class Ledger:
    """The books of a machine."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        """The commands to be written, in order."""
        self.notes: Notes = []
        """The notes to be written with them, each with the number of the command that it goes with."""
        self.record_bytes = 0
        """How many bytes both have."""
        self.record_bytes_max = RECORD_BYTES_MAX
        self.leaving: set[bytes] = set()
        """Ids of jobs that are gone, while their end is not written: they may come back."""
        self.live: dict[int, int] = {}
        """For each segment, the bytes of adds and results that jobs still need."""
        self.attempts_lost = 0
        """Bytes in the log of attempts at jobs that are gone. The cleaner resets it."""
        self.memory_bytes = 0
        """What all jobs and queues take in memory."""
        self.memory_bytes_max = MEMORY_BYTES_MAX
        self.kept: OrderedDict[bytes, Job] = OrderedDict()
        """Finished jobs whose payload and result are in memory, oldest first. Without the small ones."""
        self.kept_bytes = 0
        """The bytes of these payloads and results."""
        self.kept_bytes_max = KEPT_BYTES_MAX
        self._undo: list[Change] = []
        self._undo_notes: list[Callable[[], None]] = []
        self._alike: Job | None = None
        self._head = b""

    # -- changes

    def log(self, record: bytes) -> None:
        """Add a command to be written."""
        self.records.append(record)
        self.record_bytes += len(record)

    def note(self, job: Job, alive: bool) -> None:
        """Remember the job as it is before a change. The next record is the command of that change."""
        at = len(self.records)
        terms = None if job.terms is None else job.terms.saved(job.due_ns)
        change = job, alive, job.state, job.attempts, job.fails, job.result, job.leased_ns, at, terms
        self._undo.append(change)

    def write_down(self, note: bytes, undo: Callable[[], None] | None = None) -> None:
        """Add a note to be written, with the next command. If it can't be, `undo` takes its effect back."""
        self.notes.append((len(self.records), note))
        self.record_bytes += len(note)
        if undo is not None:
            self._undo_notes.append(undo)

    def head_of(self, job: Job) -> bytes:
        """The part of the job's record that it shares with similar jobs: most jobs are like the last one."""
        last = self._alike
        if last is None or not last.is_like(job):
            self._alike = job
            self._head = job_head(job.name, job.ttr_ms, job.ttl_ms, job.priority, job.max_attempts, job.max_fails)
        return self._head

    def is_full(self) -> bool:
        """Whether the commands have to be written before anything else may change."""
        return self.record_bytes > self.record_bytes_max

    def is_dirty(self) -> bool:
        """Whether anything is to be written."""
        return len(self.records) > 0 or len(self.notes) > 0

    def take(self) -> Changes:
        """Take the commands to be written, and what undoes them."""
        changes = self.records, self._undo, self.notes, self._undo_notes
        self.records, self._undo, self.record_bytes = [], [], 0
        self.notes, self._undo_notes = [], []
        return changes

    def landed(self, changes: Changes, where: int | Positions) -> None:
        """Enter changes that are written: to a segment, and at these positions if they are known."""
        records = changes[0]
        if isinstance(where, int):
            segment, base, offsets, first = where, 0, None, 0
        else:
            segment, (base, offsets, first) = where.segment, where.places()
        # A job may have gone since: that end is not written yet.
        later = {change[0].id for change in self._undo} if self.leaving else set()
        for change in changes[1]:
            job, index = change[0], change[7]
            record = records[index]
            kind = record[0]
            offset = 0 if offsets is None else base + offsets[first + index]
            if not change[1]:
                self.place(job, segment, offset, frame_bytes(len(record)))
                continue
            if kind in (COMPLETE, FAIL):
                if job.volatile:
                    self.lose(job)
                else:
                    self.place_result(job, segment, offset, frame_bytes(len(record)))
            elif kind in (DELETE, EXPIRE):
                self.lose(job)
            elif job.is_processed():  # failed by its last timeout
                self.keep(job)
            if self.leaving and job.id in self.leaving and job.id not in later:
                self.leaving.discard(job.id)

    # -- places in the log

    def place(self, job: Job, segment: int, offset: int, size: int) -> None:
        """Enter where the log has the job's add."""
        job.offset, job.add_bytes = offset, size
        job.segment = segment
        self.live[segment] = self.live.get(segment, 0) + size

    def place_result(self, job: Job, segment: int, offset: int, size: int) -> None:
        """Enter where the log has the job's result."""
        job.result_segment, job.result_offset, job.result_bytes = segment, offset, size
        self.live[segment] = self.live.get(segment, 0) + size
        self.keep(job)

    def keep(self, job: Job) -> None:
        """Note that a finished job and its result are in the log, so payload and result may leave the memory."""
        size = len(job.payload) + (0 if job.result is None else len(job.result))
        if size >= _KEPT_BYTES_MIN and not job.kept_bytes and not job.is_unloaded:
            job.kept_bytes = size
            self.kept[job.id] = job
            self.kept_bytes += size

    def unload(self) -> list[Job]:
        """Drop the oldest payloads and results from memory, down to the limit.

        Returns the jobs that no log has: they have to be deleted instead.
        """
        lost = []
        while self.kept_bytes > self.kept_bytes_max and self.kept:
            job = self.kept.popitem(last=False)[1]
            self.kept_bytes -= job.kept_bytes
            job.kept_bytes = 0
            if job.segment == 0:
                lost.append(job)
                continue
            self.memory_bytes -= memory_bytes(job)
            job.is_unloaded = True
            job.payload = job.result = b""
            self.memory_bytes += memory_bytes(job)
        return lost

    def lose(self, job: Job) -> None:
        """Note that the job is gone for good: nothing in the log about it is needed."""
        self._unneeded(job.segment, job.add_bytes)
        self._unneeded(job.result_segment, job.result_bytes)
        self.attempts_lost += job.attempts * _ATTEMPT_BYTES
        if job.kept_bytes:
            self.kept.pop(job.id, None)
            self.kept_bytes -= job.kept_bytes
            job.kept_bytes = 0

    def _unneeded(self, segment: int, size: int) -> None:
        left = self.live.get(segment, 0) - size
        if left > 0:
            self.live[segment] = left
        else:
            self.live.pop(segment, None)


def memory_bytes(job: Job) -> int:
    """About how many bytes a job takes in memory."""
    size = _JOB_BYTES + len(job.payload) + (0 if job.result is None else len(job.result))
    return size if job.terms is None else size + job.terms.memory_bytes()


def frame_bytes(size: int) -> int:
    """How many bytes a record with a payload of this size takes in a segment."""
    total = size + _FRAME_BYTES + 1
    while size >= 128:
        size >>= 7
        total += 1
    return total
