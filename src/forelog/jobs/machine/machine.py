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
from forelog.jobs.machine.ledger import Changes, memory_bytes
from forelog.jobs.machine.limits import RESULT_BYTES_MAX, refuse
from forelog.jobs.machine.notebook import Notebook
from forelog.jobs.machine.places import Places
from forelog.jobs.machine.queue import Job, Leaser, Waiter
from forelog.jobs.machine.states import COMPLETED, FAILED, LEASED, PENDING
from forelog.jobs.machine.wheel import Bell

DONE, UNKNOWN, DUPLICATE = 0, 1, 2  # the outcomes of complete, fail and delete
FROZEN_NS = 1_000_000_000  # how long a job stays as it is while the log cannot be written
_MS_NS = 1_000_000
_encode = kernel.job_encode
_COMPLETE, _FAIL, _DELETE = bytes((COMPLETE,)), bytes((FAIL,)), bytes((DELETE,))
_TIMEOUT = bytes((fields.TIMEOUT_ATTEMPT,))


class Machine(Places):
    """All jobs of a server, and the rules by which they change."""

    def __init__(self, now_ns: int, fails_are_final: bool = False) -> None:
        super().__init__(now_ns, fails_are_final)
        self.notebook = Notebook(self)

    # -- what clients do

    def add(self, job: Job, now_ns: int) -> bool:
        """Add a job, to be done at once or when it is due. False if its id is taken."""
        if job.id in self.jobs:
            return False
        if job.terms is not None:
            self.notebook.added(job)
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
            if queue.ready and found is None and not queue.held:
                found = queue.pop()
        if found is not None:
            self._start(found, now_ns, leaser.lease_ms)
        elif wait_ms > 0:
            leaser.waiting = True
            self.waits += len(leaser.names)
            for name in leaser.names:
                self.queue(name).wait(leaser)
            self.wheel.set(leaser, now_ns + wait_ms * _MS_NS)
        return found

    def finish(
        self, job_id: bytes, result: bytes, success: bool, now_ns: int, retry_ms: int = -1, final: bool = False
    ) -> int:
        """Give a job its result. UNKNOWN if there is no such job, DUPLICATE if it has a result, else DONE.

        A fail is the last one if it is `final`. With a `retry_ms` that is not negative the job is tried again
        after so long, whatever its terms, if it may have another attempt.
        """
        job = self.jobs.get(job_id)
        if job is None:
            return UNKNOWN
        if job.is_processed():
            return DUPLICATE
        if retry_ms >= 0 or final:
            self.notebook.attach(job)  # before the note, which undoes what changes in the terms
        self.ledger.note(job, True)
        self._displace(job)
        leased = job.state == LEASED
        cancelled = not success and job.terms is not None and job.terms.cancelled
        if cancelled:
            final = True
        self._finish(job, result, success, final)
        job.done_ns = now_ns
        if retry_ms >= 0 and job.state == FAILED and not final and not job.is_spent():
            job.state, job.result = PENDING, None
        self.ledger.memory_bytes += 0 if job.result is None else len(result)
        if job.state == PENDING:
            self._go_back(job, leased, result, retry_ms, now_ns)
            return DONE
        if cancelled or (final and job.fails < job.max_fails and not job.is_spent()):
            self.notebook.doomed(job, b"cancelled" if cancelled else b"failed", now_ns)
        self.ledger.log((_COMPLETE if success else _FAIL) + job_id + kernel.varint(len(result)) + result)
        self._end_waits(job, False)
        if job.volatile:
            self._end(job)
        else:
            self._settle(job, now_ns, False)
        return DONE

    def _go_back(self, job: Job, leased: bool, error: bytes, retry_ms: int, now_ns: int) -> None:
        """Put a job that failed back into its queue, to be tried again."""
        if job.terms is not None:
            self.notebook.failed(job, error, retry_ms, now_ns)
        # workq takes every fail as the last one, but not a timeout. A timeout of a job that is not leased means
        # nothing to it. Here it means a fail, if there may be another (see replay_change).
        counted = job.fails < job.max_fails
        if leased or not counted:
            self.ledger.log(_TIMEOUT + job.id)
        if counted:
            self.ledger.log(_TIMEOUT + job.id)
        self._settle(job, now_ns, True)

    def heartbeat(self, job: Job, now_ns: int, lease_ms: int) -> None:
        """Let the lease of a leased job go on without another heartbeat for so long."""
        job.lease_ms = lease_ms
        job.beat_ns = now_ns + lease_ms * _MS_NS
        self._time(job)

    def extend(self, job: Job, until_ns: int) -> None:
        """Let the attempt at a leased job take until then, whatever its ttr."""
        self.notebook.extended(job, until_ns)
        job.ends_ns = until_ns
        self._time(job)

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
            elif isinstance(timer, Bell):
                timer.ring(now_ns)
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
            if job.state != COMPLETED:
                self.notebook.bury(job, now_ns)
            self._end(job)
            self._end_waits(job, True)
        elif job.state == LEASED and now_ns >= job.lease_ends_ns():
            if job.terms is not None and job.terms.cancelled:
                self.finish(job.id, b"cancelled", False, now_ns)
                return
            self.ledger.note(job, True)
            self.ledger.log(_TIMEOUT + job.id)
            self._displace(job)
            self._time_out(job)
            job.done_ns = now_ns
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
        for undo in reversed(changes[3]):
            undo()
        for job, alive, state, attempts, fails, result, leased_ns, _, terms in reversed(changes[1]):
            there = self.jobs.get(job.id) is job
            if there:
                self._displace(job)
                self.ledger.memory_bytes -= memory_bytes(job)
            job.state, job.attempts, job.fails = state, attempts, fails
            job.result, job.leased_ns = result, leased_ns
            if terms is not None and job.terms is not None:
                job.due_ns = job.terms.restored(terms)
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

    def adopt_notes(self, now_ns: int) -> None:
        """Take in the notes that the notebook remembers, which turned out to be in the log with such commands."""
        for job in self.notebook.found():
            self._displace(job)
            self.notebook.give(job)
            self._settle(job, now_ns, False)
        self.notebook.begin(now_ns)

    def offer(self, now_ns: int) -> None:
        """Hand jobs to waiting leasers again, now that the log can be written."""
        for name in list(self.queues):
            self.offer_of(name, now_ns)

    def offer_of(self, name: bytes, now_ns: int) -> None:
        """Hand the jobs of a queue to waiting leasers again."""
        queue = self.queues.get(name)
        while queue is not None and queue.ready and queue.leasers and not queue.held:
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
            if kind == FAIL and self.notebook.fates:
                final = final or (job.id, job.created_ns) in self.notebook.fates
            self._finish(job, result, kind == COMPLETE, final)
            job.done_ns = time_ns
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
                job.done_ns = time_ns
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
        job.due_ns = job.scheduled_ns
        job.attempts += 1
        return None

    def start(self, now_ns: int) -> None:
        """The replay is over: put every job where it belongs."""
        self.notebook.begin(now_ns)
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
            job.timed_out = False
            final = final or self._fails_are_final
            if job.fails < job.max_fails and not job.is_spent() and not final:
                job.state, job.result = PENDING, None

    def _time_out(self, job: Job) -> None:
        if job.is_spent():
            job.state, job.result, job.timed_out = FAILED, b"", True
        else:
            job.state = PENDING
