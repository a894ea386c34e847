"""What happens to jobs: the rules of the job server, without sockets, files or clocks.

Every event is a call with its time. So the same rules serve a live server, a restart, and a replay of a log
(`forelog.jobs.log.replay`).

    NEW ──lease──> LEASED ──complete──> COMPLETED
                    ^  │ └──the last fail──> FAILED
              lease │  │ the ttr is over, or a fail that is not the last
                   PENDING

A job keeps its place, and its result if it has one, until its ttl is over. A change takes effect at once and is
noted in the ledger. If its command cannot be written to the log, `rollback` undoes it. The machine calls nobody
back: when a wait for a job or a result is over, it is found in `ended`.

No step looks at more than a few jobs: queues are always in order, and a wheel keeps the times.

>>> from forelog.jobs.machine.queue import Leaser
>>> from forelog.jobs.machine.states import LEASED
>>> machine = Machine(0)
>>> job = machine.new_job(bytes(16), b"mail", 1000, 60_000, 0, b"to: you")
>>> machine.add(job, 0)
True
>>> machine.lease(Leaser(None, [b"mail"]), 0, 0) is job, job.state == LEASED
(True, True)
>>> len(machine.ledger.records)
2
"""

from __future__ import annotations

from forelog import kernel
from forelog.formats.commands import fields
from forelog.formats.commands.fields import COMPLETE, DELETE, EXPIRE, FAIL, NOT_SCHEDULED, START_ATTEMPT
from forelog.jobs.machine.ledger import Changes, Ledger, memory_bytes
from forelog.jobs.machine.limits import RESULT_BYTES_MAX, refuse
from forelog.jobs.machine.queue import Job, Leaser, Queue, Waiter, new_job
from forelog.jobs.machine.registry import Registry
from forelog.jobs.machine.states import COMPLETED, FAILED, LEASED, NEW, PENDING
from forelog.jobs.machine.wheel import Timer, Wheel

DONE, UNKNOWN, DUPLICATE = 0, 1, 2  # the outcomes of complete, fail and delete
FROZEN_NS = 1_000_000_000  # how long a job stays as it is while the log cannot be written
_MS_NS = 1_000_000
_encode = kernel.job_encode
_COMPLETE, _FAIL, _DELETE = bytes((COMPLETE,)), bytes((FAIL,)), bytes((DELETE,))
_EXPIRE, _START, _TIMEOUT = bytes((EXPIRE,)), bytes((START_ATTEMPT,)), bytes((fields.TIMEOUT_ATTEMPT,))


class Machine:
    """All jobs of a server, and the rules by which they change."""

    def __init__(self, now_ns: int, fails_are_final: bool = False) -> None:
        self.ledger = Ledger()
        """The changes that the log does not have yet, and where the log has each job."""
        self.jobs: dict[bytes, Job] = {}
        """Each job under its id."""
        self.registry = Registry(self.ledger)
        self.queues = self.registry.queues
        """Each queue under its name."""
        self.wheel = Wheel(now_ns)
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

    # -- what clients do

    def add(self, job: Job, now_ns: int) -> bool:
        """Add a job, to be done at once or when it is due. False if its id is taken."""
        if job.id in self.jobs:
            return False
        self.ledger.note(job, False)
        due_ns = None if job.scheduled_ns == NOT_SCHEDULED else job.scheduled_ns
        self.ledger.log(_encode(job.id, self.ledger.head_of(job), job.payload, due_ns, job.created_ns))
        self._enter(job)
        self._settle(job, now_ns, True)
        return True

    def run(self, job: Job, client: object, now_ns: int) -> Waiter | None:
        """Add a job whose client waits for it. Its ttl is how long it waits for a lease. None if its id is
        taken."""
        if job.id in self.jobs:
            return None
        job.volatile = True
        self._enter(job)
        waiter = Waiter(client, job, True)
        self._waiters[job.id] = {waiter: None}
        self._settle(job, now_ns, True)
        return waiter

    def lease(self, leaser: Leaser, now_ns: int, wait_ms: int) -> Job | None:
        """Lease the next job of the first of these queues that has one. If none has, the leaser may wait."""
        found: Job | None = None
        for name in leaser.names:
            queue = self.queue(name)
            if queue.ready and found is None:
                found = queue.pop()
        if found is not None:
            self._start(found, now_ns)
        elif wait_ms > 0:
            leaser.waiting = True
            self.waits += len(leaser.names)
            for name in leaser.names:
                self.queue(name).wait(leaser)
            self.wheel.set(leaser, now_ns + wait_ms * _MS_NS)
        return found

    def finish(self, job_id: bytes, result: bytes, success: bool, now_ns: int) -> int:
        """Give a job its result. UNKNOWN if there is no such job, DUPLICATE if it has a result, else DONE."""
        job = self.jobs.get(job_id)
        if job is None:
            return UNKNOWN
        if job.is_processed():
            return DUPLICATE
        self.ledger.note(job, True)
        self._displace(job)
        leased = job.state == LEASED
        self._finish(job, result, success, False)
        self.ledger.memory_bytes += 0 if job.result is None else len(result)
        if job.state == PENDING:
            # workq takes every fail as the last one, but not a timeout. A timeout of a job that is not leased
            # means nothing to it. Here it means a fail (see replay_change).
            if leased:
                self.ledger.log(_TIMEOUT + job_id)
            self.ledger.log(_TIMEOUT + job_id)
            self._settle(job, now_ns, True)
            return DONE
        self.ledger.log((_COMPLETE if success else _FAIL) + job_id + kernel.varint(len(result)) + result)
        self._end_waits(job, False)
        if job.volatile:
            self._end(job)
        else:
            self.wheel.set(job, job.expires_ns())
        return DONE

    def delete(self, job_id: bytes) -> int:
        """Delete a job. DONE, or UNKNOWN if there is no such job."""
        job = self.jobs.get(job_id)
        if job is None:
            return UNKNOWN
        self.ledger.note(job, True)
        self.ledger.log(_DELETE + job_id)
        self._remove(job)
        self._end_waits(job, True)
        return DONE

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

    # -- what time does

    def tick(self, now_ns: int, limit: int, frozen: bool = False) -> None:
        """Ring the timers that are due, up to `limit`. While the log can't be written (`frozen`) most jobs
        stay."""
        for timer in self.wheel.advance(now_ns, limit):
            if isinstance(timer, Job):
                if not frozen:
                    self._ring(timer, now_ns)
                elif timer.volatile and timer.attempts == 0:
                    self._remove(timer)
                    self.ledger.leaving.discard(timer.id)  # the log does not know it
                    self._end_waits(timer, False)
                elif now_ns >= timer.expires_ns() and not timer.volatile:
                    self._pass_over(timer)
                else:
                    self.wheel.set(timer, now_ns + FROZEN_NS)
            else:
                self.leave(timer)
                self.ended.append(timer)

    def _ring(self, job: Job, now_ns: int) -> None:
        if job.volatile:
            self.ledger.note(job, True)
            self._end(job)
            self._end_waits(job, False)
        elif now_ns >= job.expires_ns():
            if not job.is_processed():
                self.evicted += 1
            self.ledger.note(job, True)
            self._end(job)
            self._end_waits(job, True)
        elif job.state == LEASED and now_ns >= job.lease_ends_ns():
            self.ledger.note(job, True)
            self.ledger.log(_TIMEOUT + job.id)
            self._time_out(job)
            if job.state == FAILED:
                self._end_waits(job, False)
            self._settle(job, now_ns, True)
        else:
            self._displace(job)
            self._settle(job, now_ns, True)

    def _pass_over(self, job: Job) -> None:
        """Remove a job whose ttl is over without logging that: a restart notices by itself, and room is needed."""
        if not job.is_processed():
            self.evicted += 1
        self._remove(job)
        self.ledger.leaving.discard(job.id)
        self.ledger.lose(job)
        self._end_waits(job, True)

    # -- what the log does

    def rollback(self, changes: Changes, now_ns: int) -> None:
        """Undo the last changes, which cannot be written."""
        for job, alive, state, attempts, fails, result, leased_ns, _ in reversed(changes[1]):
            there = self.jobs.get(job.id) is job
            if there:
                self._displace(job)
                self.ledger.memory_bytes -= memory_bytes(job)
            job.state, job.attempts, job.fails = state, attempts, fails
            job.result, job.leased_ns = result, leased_ns
            self.ledger.memory_bytes += memory_bytes(job) if there else 0
            if alive and not (job.volatile and job.id not in self._waiters):
                if not there:
                    other = self.jobs.get(job.id)
                    if other is not None:  # a `run` that took the id since
                        self._remove(other)
                        self._end_waits(other, True)
                    self._enter_again(job)
                self._settle(job, now_ns, False)
            elif there:
                self._remove(job)
        for change in changes[1]:  # once all are back: the cleaner's thread may ask
            self.ledger.leaving.discard(change[0].id)

    def adopt(self, job: Job, kind: int, result: bytes, time_ns: int, now_ns: int) -> None:
        """Take in a command that turned out to be in the log, although its outcome was unknown."""
        self._displace(job)
        self.wheel.cancel(job)
        self.replay_change(job, kind, result, time_ns)
        gone = self.jobs.get(job.id) is not job
        if not gone:
            self._settle(job, now_ns, False)
        if gone or job.is_processed():
            self._end_waits(job, gone)

    def adopt_job(self, job: Job, now_ns: int) -> None:
        """Take in such an add or schedule."""
        if self.replay_job(job, now_ns) is None and self.jobs.get(job.id) is job:
            self._settle(job, now_ns, False)

    def offer(self, now_ns: int) -> None:
        """Hand jobs to waiting leasers again, now that the log can be written."""
        for queue in list(self.queues.values()):
            while queue.ready and queue.leasers:
                leaser = queue.next_leaser()
                if leaser is not None:
                    self._hand(queue, leaser, now_ns)

    # -- replaying a log

    # `forelog.jobs.log.loader` replays blocks of records. `start` follows once all is replayed.

    def replay_job(self, job: Job, now_ns: int) -> str | None:
        """Replay an add or a schedule, unless its ttl is over. Returns why it is invalid, if it is."""
        reason = refuse(job.id, job.name, job.ttr_ms, job.ttl_ms, len(job.payload))
        if reason is not None:
            return reason
        if now_ns > job.expires_ns():
            self.expired += 1
            return None
        if self.jobs.setdefault(job.id, job) is not job:
            return "Duplicate job"
        self._enter(job)
        return None

    def replay_change(self, job: Job, kind: int, result: bytes, time_ns: int, final: bool = False) -> str | None:
        """Replay another command. Returns why, if it contradicts what came before. A fail that workq wrote is
        `final`: it knows no others. If not, a timeout of a job that is not leased is a fail that is not the last
        one."""
        if kind in (DELETE, EXPIRE):
            self.ledger.lose(job)
            self.ledger.memory_bytes -= memory_bytes(job)
            del self.jobs[job.id]
            queue = self.queues[job.name]
            queue.jobs -= 1
        elif kind in (COMPLETE, FAIL):
            if job.is_processed():
                return "Duplicate result"
            if len(result) > RESULT_BYTES_MAX:
                return "Invalid Result"
            self._finish(job, result, kind == COMPLETE, final)
            self.ledger.memory_bytes += 0 if job.result is None else len(result)
        elif kind == START_ATTEMPT:
            return self._replay_start(job, time_ns)
        elif not job.is_processed():
            # A lease that got its result just before it timed out has written both.
            final = final or self._fails_are_final
            if job.state != LEASED and job.fails + 1 < job.max_fails and not final:
                job.fails += 1
                job.state = PENDING
            else:
                self._time_out(job)
        return None

    def _replay_start(self, job: Job, time_ns: int) -> str | None:
        if job.state == LEASED:
            return "Job already leased"
        if job.is_processed():
            return "Job already processed"
        if job.is_spent():
            job.state, job.result = FAILED, b""
            return "Max attempts reached"
        job.state, job.leased_ns = LEASED, time_ns
        job.attempts += 1
        return None

    def start(self, now_ns: int) -> None:
        """The replay is over: put every job where it belongs."""
        for job in self.jobs.values():
            if job.leased_ns > now_ns:  # the clock was ahead: the lease must end nevertheless
                job.leased_ns = now_ns
            self._settle(job, now_ns, False)

    # -- changes of the job itself

    def _finish(self, job: Job, result: bytes, success: bool, final: bool) -> None:
        job.state, job.result = COMPLETED, result
        if not success:
            job.state = FAILED
            job.fails += 1
            final = final or self._fails_are_final
            if job.fails < job.max_fails and not job.is_spent() and not final:
                job.state, job.result = PENDING, None

    def _time_out(self, job: Job) -> None:
        if job.is_spent():
            job.state, job.result = FAILED, b""
        else:
            job.state = PENDING

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
        if job.state == LEASED:
            ends_ns = job.lease_ends_ns()
            if job.volatile or ends_ns < when_ns:
                when_ns = ends_ns
        elif job.state == NEW or job.state == PENDING:
            if job.scheduled_ns > now_ns:
                queue = self.queues[job.name]
                queue.schedule(job)
                when_ns = job.scheduled_ns
            else:
                queue = self.queues[job.name]
                queue.push(job)
                if offer and queue.leasers:
                    leaser = queue.next_leaser()
                    if leaser is not None:
                        self._hand(queue, leaser, now_ns)
                        if job.state == LEASED:
                            return
        self.wheel.set(job, when_ns)

    def _displace(self, job: Job) -> None:
        """Take the job out of its queue, if it is in it."""
        if job.ready:
            self.queues[job.name].remove(job)
        elif job.scheduled_ns != NOT_SCHEDULED:
            self.queues[job.name].unschedule(job.id)

    def _hand(self, queue: Queue, leaser: Leaser, now_ns: int) -> None:
        job = queue.pop()
        if job is not None:
            self._start(job, now_ns)
            leaser.job = job
            self.leave(leaser)
            self.ended.append(leaser)

    def _start(self, job: Job, now_ns: int) -> None:
        """Begin an attempt at a job that was just taken from its queue."""
        self.ledger.note(job, True)
        self.ledger.log(_START + job.id)
        job.state, job.leased_ns = LEASED, now_ns
        job.attempts += 1
        ends_ns = job.lease_ends_ns()
        expires_ns = job.expires_ns()
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

    # -- waiting for a result

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
