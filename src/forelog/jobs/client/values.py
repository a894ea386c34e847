"""What a client gets from a job server."""

from __future__ import annotations

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
