"""What a machine has changed and the log doesn't have yet: the commands to be written, and what undoes them."""

from __future__ import annotations

from chiplog.jobs.encoding import job_head
from chiplog.jobs.queue import Job

__all__ = ["Batch", "Ledger"]

BATCH_BYTES_MAX = 64 << 20  # of commands that aren't written yet: whoever sends more has to wait

Change = tuple[Job, bool, int, int, int, bytes | None, int]
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
        self.lost: dict[int, int] = {}
        """How many of the jobs that each segment of the log adds are gone. For the cleaner, which resets it."""
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

    def landed(self, batch: Batch, segment: int) -> None:
        """A batch that was taken is written, to this segment of the log."""
        # A job of the batch may have gone since: that isn't written yet.
        later = {change[0].id for change in self._undo} if self.leaving else set()
        for change in batch[1]:
            job = change[0]
            if not change[1]:
                job.segment = segment
            elif self.leaving and job.id in self.leaving and job.id not in later:
                self.leaving.discard(job.id)
                self.lost[job.segment] = self.lost.get(job.segment, 0) + 1

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
        """Remember how the job was before it changes."""
        self._undo.append((job, alive, job.state, job.attempts, job.fails, job.result, job.leased_ns))
