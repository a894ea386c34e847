"""What tests ask of the jobs that a command log has left."""

from __future__ import annotations

from collections.abc import Iterable

from forelog.formats.commands.commands import Add, Command, Schedule
from forelog.jobs.log.replay import LoggedJob, Replay
from forelog.jobs.machine.limits import ATTEMPTS_MAX, refuse
from forelog.jobs.machine.states import JobState

_MS_NS = 1_000_000


def replay(
    commands: Iterable[tuple[Command, int]], now_ns: int, *, fails_are_final: bool = False
) -> dict[bytes, LoggedJob]:
    """The jobs that are left after these commands, each with its record's time. By id, in the order of their
    adds."""
    fold = Replay(now_ns, fails_are_final=fails_are_final)
    for command, time_ns in commands:
        fold.apply(command, time_ns)
    return fold.jobs


def refuse_job(job: Add | Schedule) -> str | None:
    """Why the job is invalid, or None."""
    name = job.name.encode("utf-8", "surrogateescape")
    return refuse(job.id, name, job.ttr_ms, job.ttl_ms, len(job.payload))


def expires_ns(job: LoggedJob) -> int:
    """When its ttl is over. The ttl runs from the time it is due, or else from its creation."""
    return (job.created_ns if job.scheduled_ns is None else job.scheduled_ns) + job.ttl_ms * _MS_NS


def lease_ends_ns(job: LoggedJob) -> int | None:
    """When the ttr of a leased job is over."""
    if job.state != JobState.LEASED or job.leased_ns is None:
        return None
    return job.leased_ns + job.ttr_ms * _MS_NS


def is_processed(job: LoggedJob) -> bool:
    """Whether it is completed or failed."""
    return job.state in (JobState.COMPLETED, JobState.FAILED)


def is_spent(job: LoggedJob) -> bool:
    """Whether no further attempt is allowed."""
    return job.attempts >= (job.max_attempts or ATTEMPTS_MAX)


def is_ready(job: LoggedJob, now_ns: int) -> bool:
    """Whether it can be leased."""
    waits = job.scheduled_ns is not None and job.scheduled_ns > now_ns
    return job.state in (JobState.NEW, JobState.PENDING) and not waits
