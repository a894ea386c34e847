"""From commands to jobs: what a job server knows after it has replayed its log.

    add, schedule ──▶ NEW ──start-attempt──▶ LEASED ──complete, fail──▶ COMPLETED, FAILED
                       ▲                     │    ▲
                       └─(the same as NEW)─ PENDING ◀─timeout-attempt, a fail that is not the last

    delete, expire: gone, in any state

Commands are applied in order. Jobs that have expired by `now_ns` are skipped. So are commands about unknown
jobs: those that were skipped, and a `run`, whose add is never written. A command that contradicts an earlier
one, such as a second result, is skipped, counted and logged: no working server writes it. workq refuses to start
then.

What a fail does depends on who wrote it. A job with `max_fails` goes back to its queue until the last of them:
so says workq's document, and so it is here. workq itself takes every fail as final. So the fails that workq
wrote are final in blocks of a log (`apply_block`). With `fails_are_final` all are.

workq also refuses a log in which a job goes on after a fail. So a fail that is not the last is written as
commands that have the same effect there: a timeout-attempt if the job is leased, and one more. In workq the
latter does nothing to a job that is not leased. Here it is a fail. The result of such a fail is not kept, as no
client can ask for it.

>>> from forelog.formats.commands.commands import Add, StartAttempt, parse_id
>>> job_id = parse_id("61000000-0001-4000-8000-000000000001")
>>> add = Add(job_id, "mail", ttr_ms=1000, ttl_ms=60_000, created_ns=0)
>>> replay = Replay(now_ns=10_000_000)
>>> replay.apply(add, 0)
>>> replay.apply(StartAttempt(job_id), 5_000_000)
>>> job = replay.jobs[job_id]
>>> job.state, job.attempts, job.leased_ns
(<JobState.LEASED: 4>, 1, 5000000)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from forelog import kernel
from forelog.errors import BadCommand
from forelog.formats import Block
from forelog.formats.commands.commands import Add, Command, Complete, Fail, Schedule, decode, format_id
from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.log.loader import load, pieces_of
from forelog.jobs.machine.limits import TIME_NS_MAX
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Job
from forelog.jobs.machine.states import JobState
from forelog.log.position import Position
from forelog.times import format_time

logger = logging.getLogger("forelog")

CONFLICTS_MAX = 1000  # how many are remembered; all are counted
_TTL_MS_MAX = 2**40


@dataclass(slots=True)
class LoggedJob:
    """A job, as a log leaves it."""

    id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    created_ns: int
    payload: bytes
    priority: int
    max_attempts: int
    max_fails: int
    scheduled_ns: int | None = None
    """When it is due, if it was scheduled."""
    state: JobState = JobState.NEW
    attempts: int = 0
    fails: int = 0
    result: bytes | None = None
    """The result of a completed or failed job."""
    leased_ns: int | None = None
    """When its last attempt began."""


class Conflict(NamedTuple):
    """A command that contradicts earlier ones, its time, and the contradiction in workq's words."""

    command: Command
    time_ns: int
    reason: str

    def __str__(self) -> str:
        return f"{format_time(self.time_ns)} {self.command.word} {format_id(self.command.id)}: {self.reason}"


class Replay:
    """Replays the commands of a log into a machine."""

    def __init__(self, now_ns: int, *, fails_are_final: bool = False, machine: Machine | None = None) -> None:
        self.machine = Machine(now_ns, fails_are_final) if machine is None else machine
        self.conflicts: list[Conflict] = []
        """The first thousand conflicts."""
        self.conflict_count = 0
        self.bad_count = 0
        """Records in blocks that aren't commands."""
        self._now_ns = now_ns

    @property
    def jobs(self) -> dict[bytes, LoggedJob]:
        """The jobs by id, in the order in which they were added."""
        return {job.id: _logged(job) for job in self.machine.jobs.values()}

    @property
    def expired_count(self) -> int:
        """Jobs that were skipped because their ttl is over."""
        return self.machine.expired

    def apply(self, command: Command, time_ns: int) -> None:
        """Apply the next command of the log, which has its record's time."""
        machine = self.machine
        reason: str | None
        if isinstance(command, Add | Schedule):
            reason = machine.replay_job(self.new_job(command), self._now_ns)
        elif (job := machine.jobs.get(command.id)) is None:
            machine.unknown += 1
            return
        else:
            result = command.result if isinstance(command, Complete | Fail) else b""
            reason = machine.replay_change(job, command.type, result, time_ns)
        if reason is not None:
            self._note_conflict(command, time_ns, reason)

    def apply_block(self, block: Block) -> None:
        """Apply the next block of the log."""
        scan, first = block.scan, block.first
        columns = kernel.commands_decode(block.buffer, scan.starts, scan.ends, first, block.last)
        row, rows, data = 0, len(columns.types), bytes(block.buffer)
        pieces = pieces_of(columns, data)
        while row < rows:
            row, reason = load(
                self.machine,
                columns,
                pieces,
                block.segment,
                data,
                scan.times,
                scan.offsets,
                block.offsets,
                scan.ends,
                block.base,
                first,
                row,
                self._now_ns,
            )
            if row == rows:
                return
            place = first + row
            try:
                command = decode(block.buffer[scan.starts[place] : scan.ends[place]])
            except BadCommand as error:
                self.bad_count += 1
                if self.bad_count <= CONFLICTS_MAX:
                    position = Position(block.segment, block.offsets[place])
                    logger.warning("skipped in the command log, at %s: %s", position, error)
            else:
                if reason:
                    self._note_conflict(command, scan.times[place], reason)
                else:
                    self.apply(command, scan.times[place])
                    job = self.machine.jobs.get(command.id)
                    if job is not None and not job.segment and isinstance(command, Add | Schedule):
                        size = block.frame_bytes(place)
                        self.machine.ledger.place(job, block.segment, block.offsets[place], size)
            row += 1

    def new_job(self, command: Add | Schedule) -> Job:
        """Make the job of an add or a schedule."""
        time_ns = command.time_ns
        return self.machine.new_job(
            command.id,
            command.name.encode("utf-8", "surrogateescape"),
            command.ttr_ms,
            min(command.ttl_ms, _TTL_MS_MAX),
            _within(command.created_ns),
            command.payload,
            command.priority,
            command.max_attempts,
            command.max_fails,
            NOT_SCHEDULED if time_ns is None else _within(time_ns),
        )

    def _note_conflict(self, command: Command, time_ns: int, reason: str) -> None:
        self.conflict_count += 1
        if self.conflict_count <= CONFLICTS_MAX:
            self.conflicts.append(Conflict(command, time_ns, reason))

    def report_conflicts(self) -> int:
        """Log the conflicts that matter, and return their number.

        Those of a job that is gone in the end do not: a cleaning may have left some of its commands, which then
        contradict each other.
        """
        jobs = self.machine.jobs
        found = [
            one for one in self.conflicts if isinstance(one.command, Add | Schedule) or one.command.id in jobs
        ]
        for conflict in found:
            logger.warning("skipped in the command log: %s", conflict)
        return len(found) + self.conflict_count - len(self.conflicts)


def _within(time_ns: int) -> int:
    """A time that is small enough for the machine to add to."""
    return min(max(time_ns, -TIME_NS_MAX), TIME_NS_MAX)


def _logged(job: Job) -> LoggedJob:
    leased = job.attempts > 0
    return LoggedJob(
        job.id,
        job.name.decode("utf-8", "surrogateescape"),
        job.ttr_ms,
        job.ttl_ms,
        job.created_ns,
        job.payload,
        job.priority,
        job.max_attempts,
        job.max_fails,
        None if job.scheduled_ns == NOT_SCHEDULED else job.scheduled_ns,
        JobState(job.state),
        job.attempts,
        job.fails,
        job.result,
        job.leased_ns if leased else None,
    )
