"""Where jobs are: in their queues, leased, among the dead letters; and who waits for them.

`Places` puts a job where it belongs in its state, and takes it out again. Every change of a job is one of
these: take it out (`_displace`), change it, put it in (`_settle`). The rules of the changes are in `machine.py`.
"""

from __future__ import annotations

from forelog.formats.commands.fields import EXPIRE, NOT_SCHEDULED, START_ATTEMPT
from forelog.jobs.machine.ledger import Ledger, memory_bytes
from forelog.jobs.machine.notebook import Notebook
from forelog.jobs.machine.queue import Job, Leaser, Queue, Waiter, new_job
from forelog.jobs.machine.registry import Registry
from forelog.jobs.machine.states import FAILED, LEASED, NEW, PENDING
from forelog.jobs.machine.wheel import NEVER, Timer, Wheel

_MS_NS = 1_000_000
_EXPIRE, _START = bytes((EXPIRE,)), bytes((START_ATTEMPT,))


class Places:
    """All jobs of a server, and where each of them is."""

    def __init__(self, now_ns: int, fails_are_final: bool = False) -> None:
        self.ledger = Ledger()
        """The changes that the log does not have yet, and where the log has each job."""
        self.jobs: dict[bytes, Job] = {}
        """Each job under its id."""
        self.registry = Registry(self.ledger)
        self.queues = self.registry.queues
        """Each queue under its name."""
        self.wheel = Wheel(now_ns)
        self.notebook: Notebook
        """What it knows beyond workq."""
        self.ended: list[Timer] = []
        """Leasers and waiters whose wait is over. Whoever sends the replies clears it."""
        self.evicted = 0
        """How many jobs expired before they were done."""
        self.expired = 0
        """How many jobs of the log were skipped because their ttl is over."""
        self.unknown = 0
        """How many commands of the log were about unknown jobs."""
        self.waits = 0
        """How many names all leasers wait for."""
        self.draining = 0
        """How many queues take no more jobs."""
        self._waiters: dict[bytes, dict[Waiter, None]] = {}
        self._order = 0
        self._fails_are_final = fails_are_final

    def queue(self, name: bytes) -> Queue:
        """The queue of this name, created if needed."""
        return self.registry.queue(name)

    def shared(self, name: bytes) -> bytes:
        """The same name as the one object that all jobs of a queue share."""
        queue = self.queues.get(name)
        return name if queue is None else queue.name

    def new_job(
        self,
        job_id: bytes,
        name: bytes,
        ttr_ms: int,
        ttl_ms: int,
        created_ns: int,
        payload: bytes,
        priority: int = 0,
        max_attempts: int = 0,
        max_fails: int = 0,
        scheduled_ns: int = NOT_SCHEDULED,
    ) -> Job:
        """Make a job, to be added."""
        name = self.shared(name)
        return new_job(
            job_id, name, ttr_ms, ttl_ms, created_ns, payload, priority, max_attempts, max_fails, scheduled_ns
        )

    # -- where a job is

    def _enter(self, job: Job) -> None:
        self._order += 1
        job.order = self._order
        self._enter_again(job)

    def _enter_again(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.ledger.memory_bytes += memory_bytes(job)
        queue = self.queue(job.name)
        queue.jobs += 1

    def _settle(self, job: Job, now_ns: int, offer: bool) -> None:
        """Put the job where it belongs in its state, and set its timer."""
        when_ns = job.expires_ns()
        if job.terms is not None:
            self.notebook.enter(job)
        if job.state == LEASED:
            queue = self.queues[job.name]
            queue.running += 1
            ends_ns = job.lease_ends_ns()
            if job.volatile or ends_ns < when_ns:
                when_ns = ends_ns
        elif job.state == FAILED:
            if not job.volatile:
                self.notebook.died(job)
        elif job.state == NEW or job.state == PENDING:
            queue = self.queues[job.name]
            if job.due_ns == NEVER:
                queue.blocked[job.id] = job
            elif job.due_ns > now_ns:
                queue.schedule(job)
                when_ns = min(job.due_ns, when_ns)
            else:
                queue.push(job)
                if offer and queue.leasers and not queue.held:
                    leaser = queue.next_leaser()
                    if leaser is not None:
                        self._hand(queue, leaser, now_ns)
                        if job.state == LEASED:
                            return
        self.wheel.set(job, when_ns)

    def _displace(self, job: Job) -> None:
        """Take the job out of where it is in its state: its queue, the leased ones, the dead letters."""
        if job.terms is not None:
            self.notebook.leave(job)
        if job.ready:
            queue = self.queues[job.name]
            queue.remove(job)
        elif job.state == LEASED:
            queue = self.queues[job.name]
            queue.running -= 1
        elif job.state == FAILED:
            if self.notebook.dead.get(job.id) is job:
                self.notebook.dead.remove(job.id)
        elif job.due_ns == NEVER:
            queue = self.queues[job.name]
            queue.blocked.pop(job.id, None)
        elif job.due_ns != NOT_SCHEDULED:
            queue = self.queues[job.name]
            queue.unschedule(job.id)

    def _hand(self, queue: Queue, leaser: Leaser, now_ns: int) -> None:
        job = queue.pop()
        if job is not None:
            self._start(job, now_ns, leaser.lease_ms)
            leaser.job = job
            self.leave(leaser)
            self.ended.append(leaser)

    def _start(self, job: Job, now_ns: int, lease_ms: int) -> None:
        """Begin an attempt at a job that was just taken from its queue."""
        self.ledger.note(job, True)
        self.ledger.log(_START + job.id)
        if job.terms is not None:
            self.notebook.leave(job)
            job.due_ns = job.scheduled_ns
        job.state, job.leased_ns = LEASED, now_ns
        job.ends_ns, job.lease_ms = 0, lease_ms
        job.beat_ns = now_ns + lease_ms * _MS_NS if lease_ms else NEVER
        job.attempts += 1
        queue = self.queues[job.name]
        queue.running += 1
        if job.terms is not None:
            self.notebook.enter(job)
        self._time(job)

    def _time(self, job: Job) -> None:
        """Set the timer of a leased job."""
        ends_ns, expires_ns = job.lease_ends_ns(), job.expires_ns()
        self.wheel.set(job, ends_ns if job.volatile or ends_ns < expires_ns else expires_ns)

    def _end(self, job: Job) -> None:
        """Remove a job whose time is over."""
        self.ledger.log(_EXPIRE + job.id)
        self._remove(job)

    def _remove(self, job: Job) -> None:
        self._displace(job)
        self.wheel.cancel(job)
        self.ledger.leaving.add(job.id)  # first: the cleaner's thread may ask
        del self.jobs[job.id]
        self.ledger.memory_bytes -= memory_bytes(job)
        queue = self.queues[job.name]
        queue.jobs -= 1
        if queue.jobs == 0:
            self.registry.rest(queue)

    # -- waiting

    def wait(self, client: object, job: Job, now_ns: int, wait_ms: int) -> Waiter:
        """Wait for a job's result."""
        waiter = Waiter(client, job, False)
        self._waiters.setdefault(job.id, {})[waiter] = None
        self.wheel.set(waiter, now_ns + wait_ms * _MS_NS)
        return waiter

    def leave(self, waiting: Timer) -> None:
        """End a wait. If its client waited for a `run`, the job goes too."""
        self.wheel.cancel(waiting)
        if isinstance(waiting, Leaser):
            if waiting.waiting:
                self.waits -= len(waiting.names)
            waiting.waiting = False
            for name in waiting.names:
                queue = self.queues.get(name)
                if queue is not None:
                    self.registry.rest(queue)
        elif isinstance(waiting, Waiter):
            self._forget(waiting)
            job = waiting.job
            if waiting.owner and self.jobs.get(job.id) is job:
                self.ledger.note(job, True)
                self._end(job)
                self._end_waits(job, True)

    def _end_waits(self, job: Job, gone: bool) -> None:
        """End all waits for the job's result: it is there, or never will be."""
        if self._waiters:
            for waiter in self._waiters.pop(job.id, ()):
                waiter.gone = gone
                waiter.read = job.result  # the job may be unloaded before the client gets its reply
                self.wheel.cancel(waiter)
                self.ended.append(waiter)

    def _forget(self, waiter: Waiter) -> None:
        waiters = self._waiters.get(waiter.job.id, {})
        waiters.pop(waiter, None)
        if not waiters:
            self._waiters.pop(waiter.job.id, None)
