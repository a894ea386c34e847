"""What a machine has changed and the log doesn't have yet: the commands to be written, and what undoes them.

And what the log has that is needed: where each job's add and result are, and how many bytes of each segment these
take together. So the cleaner knows, without reading anything, which segments are worth while; and payloads and
results of jobs that are done need not be in memory, where there may only be so many bytes of them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from forelog.formats.commands.fields import COMPLETE, DELETE, EXPIRE, FAIL, job_head
from forelog.jobs.machine.queue import Job

if TYPE_CHECKING:
    from forelog.log.position import Positions

__all__ = ["Batch", "Ledger"]

BATCH_BYTES_MAX = 64 << 20  # of commands that aren't written yet: whoever sends more has to wait
_ATTEMPT_BYTES = 74  # that a start and its end take in the log
KEPT_BYTES_MAX = 64 << 20  # of payloads and results of jobs that are done, in memory
MEMORY_BYTES_MAX = 2 << 30  # that all jobs may take before no more are added
JOB_BYTES = 512  # that a job takes in memory, beside its payload and result
_KEPT_BYTES_MIN = 1024  # in less it doesn't matter
_JOB_BYTES = JOB_BYTES
_FRAME_BYTES = 19  # of a record, beside its length and its payload

Change = tuple[Job, bool, int, int, int, bytes | None, int, int]
Batch = tuple[list[bytes], list[Change]]


class Ledger:
    """The part of a machine that its log is about."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        """The commands to be written, in order."""
        self.record_bytes = 0
        """How large they are together."""
        self.batch_bytes_max = BATCH_BYTES_MAX
        self.leaving: set[bytes] = set()
        """The ids of jobs that are gone, but may come back: that they are gone isn't written yet."""
        self.live: dict[int, int] = {}
        """How many bytes of each segment are adds and results of jobs that are there."""
        self.attempts_lost = 0
        """How many bytes attempts take, wherever in the log, of jobs that are gone. The cleaner resets it."""
        self.held_bytes = 0
        """That all jobs take in memory."""
        self.memory_bytes_max = MEMORY_BYTES_MAX
        self.kept: OrderedDict[bytes, Job] = OrderedDict()
        """Jobs that are done and whose payloads and results are in memory, oldest first. Not the small ones."""
        self.kept_bytes = 0
        """How many bytes these are."""
        self.kept_bytes_max = KEPT_BYTES_MAX
        self._undo: list[Change] = []
        self._alike: Job | None = None
        self._head = b""

    def take(self) -> Batch:
        """The commands to be written, and what undoes them."""
        batch = self.records, self._undo
        self.records, self._undo, self.record_bytes = [], [], 0
        return batch

    def is_full(self) -> bool:
        """Whether so much is to be written that nothing more should be changed before it is."""
        return self.record_bytes > self.batch_bytes_max

    def landed(self, batch: Batch, where: int | Positions) -> None:
        """A batch that was taken is written: to a segment, at these positions if they are known."""
        records = batch[0]
        if isinstance(where, int):
            segment, base, offsets, first = where, 0, None, 0
        else:
            segment, (base, offsets, first) = where.segment, where.places()
        # A job of the batch may have gone since: that isn't written yet.
        later = {change[0].id for change in self._undo} if self.leaving else set()
        for change in batch[1]:
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
            elif job.is_processed():  # by its last timeout
                self.keep(job)
            if self.leaving and job.id in self.leaving and job.id not in later:
                self.leaving.discard(job.id)

    def place(self, job: Job, segment: int, offset: int, size: int) -> None:
        """The job's add is here in the log."""
        job.offset, job.add_bytes = offset, size
        job.segment = segment
        self.live[segment] = self.live.get(segment, 0) + size

    def place_result(self, job: Job, segment: int, offset: int, size: int) -> None:
        """So is the record with its result."""
        job.result_segment, job.result_offset, job.result_bytes = segment, offset, size
        self.live[segment] = self.live.get(segment, 0) + size
        self.keep(job)

    def keep(self, job: Job) -> None:
        """The job is done, which is written: what is said of it may leave the memory."""
        size = len(job.payload) + (0 if job.result is None else len(job.result))
        if size >= _KEPT_BYTES_MIN and not job.kept_bytes and not job.is_unloaded:
            job.kept_bytes = size
            self.kept[job.id] = job
            self.kept_bytes += size

    def unload(self) -> list[Job]:
        """Let go of the oldest payloads and results that are too many. Returns the jobs that no log has."""
        lost = []
        while self.kept_bytes > self.kept_bytes_max and self.kept:
            job = self.kept.popitem(last=False)[1]
            self.kept_bytes -= job.kept_bytes
            job.kept_bytes = 0
            if job.segment == 0:
                lost.append(job)
                continue
            self.held_bytes -= held_bytes(job)
            job.is_unloaded = True
            job.payload = job.result = b""
            self.held_bytes += held_bytes(job)
        return lost

    def lose(self, job: Job) -> None:
        """The job is gone for good: nothing that the log has of it is needed."""
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

    def _head_of(self, job: Job) -> bytes:
        """The part of the job's record that it has in common with others. Most often those before it."""
        last = self._alike
        if last is None or not last.is_like(job):
            self._alike = job
            self._head = job_head(job.name, job.ttr_ms, job.ttl_ms, job.priority, job.max_attempts, job.max_fails)
        return self._head

    def _log(self, record: bytes) -> None:
        """A command that is to be written."""
        self.records.append(record)
        self.record_bytes += len(record)

    def _note(self, job: Job, alive: bool) -> None:
        """Remember how the job was before it changes. The next record is the one that says how."""
        change = job, alive, job.state, job.attempts, job.fails, job.result, job.leased_ns, len(self.records)
        self._undo.append(change)


def held_bytes(job: Job) -> int:
    """How many bytes a job takes in memory, about."""
    return _JOB_BYTES + len(job.payload) + (0 if job.result is None else len(job.result))


def frame_bytes(size: int) -> int:
    """How many bytes a record with a payload of this size takes in a segment."""
    total = size + _FRAME_BYTES + 1
    while size >= 128:
        size >>= 7
        total += 1
    return total
