"""Jobs, and the queues in which they wait for a lease: highest priority first, then the oldest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.machine.ordered import Ordered
from forelog.jobs.machine.states import COMPLETED, FAILED, NEW
from forelog.jobs.machine.wheel import NEVER, UNSET, Timer

if TYPE_CHECKING:
    from forelog.jobs.machine.terms import Terms

_ATTEMPTS_MAX = 255  # the protocol's limit, also of a job that sets none
_MS_NS = 1_000_000
_STALE_MAX = 64  # stale entries that even a short queue may have before it is swept


class Job(Timer):
    """A job. Its timer rings when its ttl ends, when its lease ends, or when it is due, whichever comes next.

    It holds only bytes and numbers, so a million jobs cost the garbage collector nothing.
    """

    def __init__(self) -> None:
        self.when_ns = NEVER
        self.slot = UNSET
        self.place = 0
        self.id = b""
        self.name = b""
        """The name of its queue."""
        self.ttr_ms = 0
        self.ttl_ms = 0
        self.created_ns = 0
        self.payload = b""
        self.priority = 0
        self.max_attempts = 0
        self.max_fails = 0
        self.scheduled_ns = NOT_SCHEDULED
        """When it was to be due, or NOT_SCHEDULED."""
        self.due_ns = NOT_SCHEDULED
        """When it may be leased: at first as scheduled, after a fail by its backoff. NEVER while it waits for
        other jobs."""
        self.order = 0
        """The order in which jobs were added."""
        self.state = NEW
        self.ready = False
        """Whether it is in its queue and can be leased."""
        self.volatile = False
        """Whether it is a `run`: it lives while its client waits, and until it is leased its ttl is that wait."""
        self.attempts = 0
        self.fails = 0
        self.result: bytes | None = None
        self.leased_ns = 0
        """When the last attempt began."""
        self.ends_ns = 0
        """When a lease ends that was extended; 0 if its ttr counts."""
        self.beat_ns = NEVER
        """When a lease ends that needs heartbeats, unless there is one."""
        self.lease_ms = 0
        """How long such a lease lasts after a heartbeat."""
        self.done_ns = 0
        """When it was completed, or failed."""
        self.timed_out = False
        """Whether it failed because its last attempt timed out."""
        self.terms: Terms | None = None
        """What it has beyond workq; most jobs have nothing."""
        self.segment = 0
        """The log's segment with its add; 0 if the add is not known to be written."""
        self.offset = 0
        """Where the job's add begins in that segment."""
        self.add_bytes = 0
        """How many bytes the job's add takes in that segment."""
        self.result_segment = 0
        """Segment, offset and bytes of the record with the job's result."""
        self.result_offset = 0
        self.result_bytes = 0
        self.kept_bytes = 0
        """Bytes of a finished job's payload and result that are in memory; 0 if they are few."""
        self.is_unloaded = False
        """Whether payload and result are only in the log."""

    def is_processed(self) -> bool:
        """Whether it is completed or failed."""
        return self.state == COMPLETED or self.state == FAILED

    def is_in(self, segment: int, offset: int) -> bool:
        """Whether a record with this id, at this place in the log, is about this job and not about an earlier one
        with the same id. If the job's own place is unknown, the answer is yes."""
        return self.segment < segment or (self.segment == segment and self.offset <= offset)

    def is_like(self, other: Job) -> bool:
        """Whether both differ only in id, payload and times."""
        return (
            self.name == other.name
            and self.ttr_ms == other.ttr_ms
            and self.ttl_ms == other.ttl_ms
            and self.priority == other.priority
            and self.max_attempts == other.max_attempts
            and self.max_fails == other.max_fails
        )

    def is_spent(self) -> bool:
        """Whether no further attempt is allowed."""
        return self.attempts >= (self.max_attempts or _ATTEMPTS_MAX)

    def expires_ns(self) -> int:
        """When its ttl is over. The ttl runs from the time it is due, or else from its creation."""
        if self.scheduled_ns == NOT_SCHEDULED:
            return self.created_ns + self.ttl_ms * _MS_NS
        return self.scheduled_ns + self.ttl_ms * _MS_NS

    def lease_ends_ns(self) -> int:
        """When the lease of a leased job is over: its ttr, or a heartbeat that is missing."""
        ends_ns = self.ends_ns or self.leased_ns + self.ttr_ms * _MS_NS
        return min(ends_ns, self.beat_ns)


def new_job(
    job_id: bytes,
    name: bytes,
    ttr_ms: int,
    ttl_ms: int,
    created_ns: int,
    payload: bytes,
    priority: int,
    max_attempts: int,
    max_fails: int,
    scheduled_ns: int,
) -> Job:
    """Make a job. A function and not `__init__`: compiled, it takes C numbers and makes no objects of them."""
    job = Job()
    job.id = job_id
    job.name = name
    job.ttr_ms = ttr_ms
    job.ttl_ms = ttl_ms
    job.created_ns = created_ns
    job.payload = payload
    job.priority = priority
    job.max_attempts = max_attempts
    job.max_fails = max_fails
    job.scheduled_ns = job.due_ns = scheduled_ns
    return job


class Leaser(Timer):
    """A client that waits for a job of one of some queues."""

    def __init__(self, client: object, names: list[bytes]) -> None:
        self.when_ns = NEVER
        self.slot = UNSET
        self.place = 0
        self.client = client
        self.names = names
        self.job: Job | None = None
        """The job that it got, if any."""
        self.waiting = False
        self.lease_ms = 0
        """How long the lease lasts without a heartbeat; 0 if it needs none."""
        self.info = False
        """Whether the client gets more fields than workq sends."""


class Waiter(Timer):
    """A client that waits for a job's result."""

    def __init__(self, client: object, job: Job, owner: bool) -> None:
        self.when_ns = NEVER
        self.slot = UNSET
        self.place = 0
        self.client = client
        self.job = job
        self.owner = owner
        """Whether this client sent the `run`."""
        self.gone = False
        """Whether the job was deleted, or expired, during the wait."""
        self.inspects = False
        """Whether the client inspects the job, and does not ask for its result."""
        self.refused = False
        """Whether there is no job: the client sent a wrong token, and its refusal is delayed."""
        self.read: bytes | None = None
        """The payload or result, once it is there or was read from the log."""
        self.asked: tuple[list[bytes], dict[bytes, bytes] | None] | None = None
        """The arguments and flags of an `inspect` that waits for its turn."""
        self.then: Callable[[bytes], None] | None = None
        """What goes on with the payload that was read."""


class _Shelf:
    """The ready jobs of one priority. Some that are no longer ready may still be here."""

    def __init__(self) -> None:
        self.fresh: deque[Job] = deque()
        """Jobs in order."""
        self.returned: list[tuple[int, Job]] = []
        """A heap of jobs that came back, or became due, behind younger ones."""

    def tidy(self) -> None:
        """Put all jobs in order, each once: a job that came back may also still be at its old place."""
        jobs = [job for job in self.fresh if job.ready]
        jobs += [entry[1] for entry in self.returned if entry[1].ready]
        jobs.sort(key=_order)
        self.fresh = deque(dict.fromkeys(jobs))
        self.returned = []


class Queue:
    """The jobs of one name."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.jobs = 0
        """How many jobs the queue has, in any state."""
        self.ready = 0
        """How many can be leased."""
        self.scheduled: dict[bytes, Job] = {}
        """Jobs that are not due yet, by id."""
        self._agenda: Ordered[Job] | None = None
        """The same jobs in order: highest priority first, then the earliest."""
        self.leasers: deque[Leaser] | None = None
        """Leasers that wait here, and some that no longer do. Most queues never have any, and a deque is large."""
        self._leasers_max = _STALE_MAX
        self._shelves: dict[int, _Shelf] = {}
        self._priorities: list[int] = []
        """A heap of the shelves' priorities, negated."""
        self._entries = 0
        self.running = 0
        """How many are leased."""
        self.held = False
        """Whether none may be leased now."""
        self.blocked: dict[bytes, Job] = {}
        """Jobs that wait for other jobs, by id."""

    def is_idle(self) -> bool:
        """Whether the queue has neither jobs nor leasers."""
        leasers = self.leasers
        while leasers and not leasers[0].waiting:
            leasers.popleft()
        return self.jobs == 0 and not leasers and not self.held

    def push(self, job: Job) -> None:
        """Put in a job."""
        shelf = self._shelves.get(job.priority)
        if shelf is None:
            shelf = self._shelves[job.priority] = _Shelf()
            heappush(self._priorities, -job.priority)
        if not shelf.fresh or shelf.fresh[-1].order < job.order:
            shelf.fresh.append(job)
        else:
            heappush(shelf.returned, (job.order, job))
        job.ready = True
        self.ready += 1
        self._entries += 1

    def pop(self) -> Job | None:
        """Take out the next job."""
        while self._priorities:
            shelf = self._shelves[-self._priorities[0]]
            while shelf.fresh or shelf.returned:
                if not shelf.returned or (shelf.fresh and shelf.fresh[0].order < shelf.returned[0][0]):
                    job = shelf.fresh.popleft()
                else:
                    job = heappop(shelf.returned)[1]
                self._entries -= 1
                if job.ready:
                    job.ready = False
                    self.ready -= 1
                    return job
            del self._shelves[-heappop(self._priorities)]
        return None

    def remove(self, job: Job) -> None:
        """Take out a certain job. Its entry stays, stale, until it is met or too many are stale."""
        job.ready = False
        self.ready -= 1
        if self._entries > 2 * self.ready + _STALE_MAX:
            self._sweep()

    def _sweep(self) -> None:
        self._entries = 0
        for shelf in self._shelves.values():
            shelf.tidy()
            self._entries += len(shelf.fresh)

    def ready_jobs(self, offset: int, limit: int) -> list[Job]:
        """A slice of the jobs that can be leased, in order."""
        found: list[Job] = []
        if offset >= self.ready:
            return found
        for priority in sorted(self._shelves, reverse=True):
            shelf = self._shelves[priority]
            if shelf.returned:
                self._entries -= len(shelf.fresh) + len(shelf.returned)
                shelf.tidy()
                self._entries += len(shelf.fresh)
            for job in shelf.fresh:
                if not job.ready:
                    continue
                if offset > 0:
                    offset -= 1
                    continue
                found.append(job)
                if len(found) == limit:
                    return found
        return found

    def scheduled_jobs(self, offset: int, limit: int) -> list[Job]:
        """A slice of the jobs that are not due yet: highest priority first, then the earliest."""
        return [] if self._agenda is None else self._agenda.some(offset, limit)

    def schedule(self, job: Job) -> None:
        """Put in a job that is not due yet."""
        if self._agenda is None:
            self._agenda = Ordered(_schedule_order)
        self.scheduled[job.id] = job
        self._agenda.add(job)

    def unschedule(self, job_id: bytes) -> None:
        """Take out a job that is due, or gone, if it is here."""
        job = self.scheduled.pop(job_id, None)
        if job is not None:
            assert self._agenda is not None
            self._agenda.remove(job)

    def wait(self, leaser: Leaser) -> None:
        """Let a leaser wait here. Leasers that no longer wait are swept out now and then."""
        if self.leasers is None:
            self.leasers = deque()
        elif len(self.leasers) >= self._leasers_max:
            self.leasers = deque([other for other in self.leasers if other.waiting])
            self._leasers_max = max(_STALE_MAX, 2 * len(self.leasers))
        self.leasers.append(leaser)

    def next_leaser(self) -> Leaser | None:
        """The leaser that has waited longest, or None."""
        while self.leasers:
            leaser = self.leasers.popleft()
            if leaser.waiting:
                return leaser
        return None


def _order(job: Job) -> int:
    return job.order


def _schedule_order(job: Job) -> tuple[int, int, int]:
    return -job.priority, job.due_ns, job.order
