"""From commands to jobs: what a job server knows after it has read its log.

    add, schedule ──▶ NEW ──start-attempt──▶ LEASED ──complete, fail──▶ COMPLETED, FAILED
                       ▲                     │    ▲
                       └─(the same as NEW)─ PENDING ◀─timeout-attempt, a fail that isn't the last

    delete, expire: gone, whatever the state

Commands are applied in the order in which they were written. Jobs that have expired by `now_ns` are skipped,
and so are commands about jobs that aren't there: those of skipped jobs, and of a `run`, which is never written
as an add. A command that contradicts what came before it (a second result, say) can't have been written by a
server that works; it is passed over, counted and told. workq refuses to start then.

Where a fail leads is a choice. By its document a job with `max_fails` fails for good with the last of them, and
goes back to its queue before; so it is here. workq itself takes every fail for the last: `fails_are_final` reads
a log as workq does.

>>> from chiplog.jobs.commands import Add, StartAttempt, parse_id
>>> job_id = parse_id("61000000-0001-4000-8000-000000000001")
>>> add = Add(job_id, "mail", ttr_ms=1000, ttl_ms=60_000, created_ns=0)
>>> jobs = replay([(add, 0), (StartAttempt(job_id), 5_000_000)], now_ns=10_000_000)
>>> jobs[job_id].state, jobs[job_id].attempts, jobs[job_id].lease_ends_ns
(<State.LEASED: 4>, 1, 1005000000)
>>> replay([(add, 0), (StartAttempt(job_id), 5_000_000)], now_ns=60_000_000_001)
{}
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from chiplog.jobs.commands import (
    Add,
    Command,
    Complete,
    Delete,
    Expire,
    Fail,
    Schedule,
    StartAttempt,
    format_id,
)
from chiplog.jobs.limits import ATTEMPTS_MAX, refuse_job, refuse_result
from chiplog.times import format_time

__all__ = ["Conflict", "Job", "Replay", "State", "replay"]

logger = logging.getLogger("chiplog")

CONFLICTS_MAX = 1000  # how many are remembered; all are counted
_MS_NS = 1_000_000


class State(IntEnum):
    """A job's state, numbered as the protocol shows it."""

    NEW = 0
    COMPLETED = 1
    FAILED = 2
    PENDING = 3
    """Like NEW, after an attempt."""
    LEASED = 4


@dataclass(slots=True)
class Job:
    """A job as the log leaves it."""

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
    state: State = State.NEW
    attempts: int = 0
    fails: int = 0
    result: bytes | None = None
    """Of a job that is completed or failed."""
    leased_ns: int | None = None
    """When its last attempt began."""

    @property
    def expires_ns(self) -> int:
        """When its ttl is over, which runs from its time or creation. (In workq it begins anew at each start.)"""
        return (self.created_ns if self.scheduled_ns is None else self.scheduled_ns) + self.ttl_ms * _MS_NS

    @property
    def lease_ends_ns(self) -> int | None:
        """When the ttr of a leased job is over, by the log's times."""
        if self.state != State.LEASED or self.leased_ns is None:
            return None
        return self.leased_ns + self.ttr_ms * _MS_NS

    @property
    def processed(self) -> bool:
        """Whether it is completed or failed."""
        return self.state in (State.COMPLETED, State.FAILED)

    @property
    def spent(self) -> bool:
        """Whether no further attempt is allowed."""
        return self.attempts >= (self.max_attempts or ATTEMPTS_MAX)

    def is_ready(self, now_ns: int) -> bool:
        """Whether it can be leased."""
        waits = self.scheduled_ns is not None and self.scheduled_ns > now_ns
        return self.state in (State.NEW, State.PENDING) and not waits


class Conflict(NamedTuple):
    """A command that contradicts what came before it, when it was written, and why, in workq's words."""

    command: Command
    time_ns: int
    reason: str

    def __str__(self) -> str:
        return f"{format_time(self.time_ns)} {self.command.word} {format_id(self.command.id)}: {self.reason}"


class Replay:
    """Jobs in the making."""

    def __init__(self, now_ns: int, *, fails_are_final: bool = False) -> None:
        self.jobs: dict[bytes, Job] = {}
        """In the order in which they were added."""
        self.conflicts: list[Conflict] = []
        """The first thousand."""
        self.conflict_count = 0
        self.expired_count = 0
        """Adds and schedules that were skipped."""
        self.unknown_count = 0
        """Commands about jobs that aren't there."""
        self._now_ns = now_ns
        self._fails_are_final = fails_are_final

    def apply(self, command: Command, time_ns: int) -> None:
        """The next command of the log, and its record's time."""
        if isinstance(command, Add | Schedule):
            reason = self._add(command)
        else:
            job = self.jobs.get(command.id)
            if job is None:
                self.unknown_count += 1
                return
            reason = self._change(job, command, time_ns)
        if reason is None:
            return
        self.conflict_count += 1
        if self.conflict_count <= CONFLICTS_MAX:
            conflict = Conflict(command, time_ns, reason)
            self.conflicts.append(conflict)
            logger.warning("passed over in the command log: %s", conflict)

    def _add(self, command: Add | Schedule) -> str | None:
        job = Job(
            command.id,
            command.name,
            command.ttr_ms,
            command.ttl_ms,
            command.created_ns,
            command.payload,
            command.priority,
            command.max_attempts,
            command.max_fails,
            command.time_ns,
        )
        if self._now_ns > job.expires_ns:
            self.expired_count += 1
            return None
        if refusal := refuse_job(command):
            return refusal
        if job.id in self.jobs:
            return "Duplicate job"
        self.jobs[job.id] = job
        return None

    def _change(self, job: Job, command: Command, time_ns: int) -> str | None:
        if isinstance(command, Delete | Expire):
            del self.jobs[job.id]
            return None
        if isinstance(command, Complete | Fail):
            return self._finish(job, command)
        if isinstance(command, StartAttempt):
            return _start(job, time_ns)
        _time_out(job)
        return None

    def _finish(self, job: Job, command: Complete | Fail) -> str | None:
        if job.processed:
            return "Duplicate result"
        if refusal := refuse_result(command.result):
            return refusal
        job.state, job.result = State.COMPLETED, command.result
        if isinstance(command, Fail):
            job.state = State.FAILED
            job.fails += 1
            if job.fails < job.max_fails and not job.spent and not self._fails_are_final:
                job.state, job.result = State.PENDING, None
        return None


def _start(job: Job, time_ns: int) -> str | None:
    if job.state == State.LEASED:
        return "Job already leased"
    if job.processed:
        return "Job already processed"
    if job.spent:
        job.state, job.result = State.FAILED, b""
        return "Max attempts reached"
    job.state, job.leased_ns = State.LEASED, time_ns
    job.attempts += 1
    return None


def _time_out(job: Job) -> None:
    """A lease that ended with a result just before it timed out has written both: that is no contradiction."""
    if job.processed:
        return
    if job.max_attempts and job.spent:
        job.state, job.result = State.FAILED, b""
    else:
        job.state = State.PENDING


def replay(
    commands: Iterable[tuple[Command, int]], now_ns: int, *, fails_are_final: bool = False
) -> dict[bytes, Job]:
    """The jobs that are left of these commands, each with its record's time, by id, in the order of their adds."""
    fold = Replay(now_ns, fails_are_final=fails_are_final)
    for command, time_ns in commands:
        fold.apply(command, time_ns)
    return fold.jobs
