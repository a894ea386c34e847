"""What a client gets from a job server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Leased:
    """A job that was leased, to be completed or failed within `ttr_ms`."""

    id: UUID
    """The job's id."""
    name: str
    """The name of its queue."""
    ttr_ms: int
    """Time to run: how long this attempt may take."""
    payload: bytes
    """What the client that added the job has sent."""
    info: LeaseInfo | None = None
    """What else the server knows of it, if that was asked for."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """What the server knows of a leased job and its attempts."""

    attempt: int
    """The attempt's number, from 1."""
    max_attempts: int
    """How often it may be leased; 0 for no limit."""
    fails: int
    """How often it has failed."""
    max_fails: int
    """The fail that is the last one; 0 if the first one is."""
    created_ns: int
    """When it was added, in nanoseconds since 1970, to the second."""
    key: str | None = None
    """The key that it is unique by."""
    group: str | None = None
    """Whose job it is."""
    after: tuple[UUID, ...] = ()
    """The jobs that it waited for."""
    steps: int = 0
    """How many of its steps are recorded."""
    error: bytes | None = None
    """What the last attempt that failed has sent."""


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a job with a key."""

    id: UUID
    """The job's id; that of the first one, if there was one and it was kept."""
    what: str
    """`new`, `existing` (nothing was added) or `replaced` (an earlier one was deleted)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running job has reported."""

    number: int
    """Counts the job's reports, from 1."""
    percent: int
    """How much is done."""
    text: bytes
    """What the worker has sent."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job that is recorded."""

    name: str
    """The step's name."""
    result: bytes
    """The result of the step."""


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that is failed for good."""

    id: UUID
    """The job's id."""
    name: str
    """The name of its queue."""
    reason: str
    """`failed`, `timed-out`, `expired`, `cancelled` or `parent` (a job that it waited for has failed)."""
    died_ns: int
    """When, in nanoseconds since 1970."""
    created_ns: int
    """When it was added, in nanoseconds since 1970, to the second."""
    attempts: int
    """How often it was leased."""
    fails: int
    """How often it failed."""
    error: bytes
    """What its last attempt has sent."""
    payload: bytes | None
    """What the client that added it has sent; None in lists."""


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """A queue, with all that the server counts."""

    name: str
    """The queue's name."""
    ready: int
    """How many jobs can be leased."""
    scheduled: int
    """How many jobs are not due yet."""
    running: int
    """How many jobs are leased."""
    blocked: int
    """How many jobs wait for others to be completed."""
    dead: int
    """How many jobs are failed for good."""
    paused: bool
    """Whether no job of it is leased."""
    draining: bool
    """Whether it takes no more jobs."""
    oldest_ns: int | None
    """When the oldest job that can be leased was added, in nanoseconds since 1970."""
    values: Mapping[str, str]
    """Everything else, as the server has it: limits, and counters since the server's start."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule, as the server shows it."""

    name: str
    """The schedule's name."""
    queue: str
    """The queue that it adds jobs to."""
    cron: str | None
    """The cron expression of the schedule, if it has one."""
    every_ms: int | None
    """The interval of the schedule, if it has one."""
    zone: str
    """The zone of the cron expression."""
    missed: str
    """What becomes of times that passed while the server was away: `skip`, `once` or `all`."""
    next_ns: int | None
    """When it is due next, in nanoseconds since 1970."""
    runs: int
    """How many jobs it has added."""
    skipped: int
    """How many of its times were skipped."""
    last_ns: int | None
    """When it was due last, in nanoseconds since 1970; None before the first time."""
    last_id: UUID | None
    """The id of the last job."""
    payload: bytes
    """What its jobs have as payload."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a job."""

    id: UUID
    """The job's id."""
    success: bool
    """Whether the job completed; if not, it failed."""
    result: bytes
    """What the worker has sent."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job, as the server shows it."""

    id: UUID
    """The job's id."""
    name: str
    """The name of its queue."""
    ttr_ms: int
    """Time to run: how long an attempt may take."""
    ttl_ms: int
    """Time to live, from when it was added or due; 0 for a `run`."""
    payload: bytes
    """What the client that added the job has sent."""
    priority: int
    """Higher comes first."""
    state: str
    """`new`, `completed`, `failed`, `pending` (after an attempt, waiting for the next one) or `leased`."""
    attempts: int
    """How often it was leased."""
    max_attempts: int
    """How often it may be leased; 0 for no limit."""
    fails: int
    """How often it failed."""
    max_fails: int
    """The fail that is the last one; 0 if the first one is."""
    created_ns: int
    """When it was added, in nanoseconds since 1970, to the second."""
    scheduled_ns: int | None
    """When it is due, if it was scheduled; in nanoseconds since 1970, to the second."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue, as the server shows it."""

    name: str
    """The name of the queue."""
    ready: int
    """How many jobs can be leased."""
    scheduled: int
    """How many jobs are not due yet."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server, as it describes itself."""

    active_clients: int
    """How many clients are connected."""
    evicted_jobs: int
    """How many jobs expired before they were finished."""
    started_ns: int
    """When it started, in nanoseconds since 1970, to the second."""
