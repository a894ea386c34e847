"""The rules of jobs, beside a model that is as plain as can be: a list of jobs, searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forelog.formats.commands.commands import Command, decode
from forelog.formats.commands.fields import COMPLETE, DELETE, NOT_SCHEDULED, START_ATTEMPT
from forelog.jobs.machine.machine import DONE, DUPLICATE, UNKNOWN, Machine
from forelog.jobs.machine.queue import Leaser
from forelog.jobs.machine.registry import QUEUES_IDLE_MAX
from forelog.jobs.machine.states import COMPLETED, FAILED, LEASED, NEW, PENDING
from tests.jobs.log.logged import replay

MS, SECOND = 10**6, 10**9
START = 10**18
TICK = 2**20
NAMES = [b"a", b"b"]
IDS = [bytes([0] * 6 + [0x40, 0, 0x80] + [0] * 6 + [n]) for n in range(6)]


@dataclass
class Model:
    """A job."""

    id: bytes
    name: bytes
    ttr_ns: int
    expires_ns: int
    priority: int
    max_attempts: int
    max_fails: int
    due_ns: int
    order: int
    state: int = NEW
    attempts: int = 0
    fails: int = 0
    ends_ns: int = 0
    result: bytes | None = None

    def spent(self) -> bool:
        return self.attempts >= (self.max_attempts or 255)


@dataclass
class Waiting:
    leaser: Leaser
    until_ns: int
    job: Model | None = None


@dataclass
class World:
    jobs: dict[bytes, Model] = field(default_factory=dict)
    leasers: list[Waiting] = field(default_factory=list)

    def next_ready(self, name: bytes, now_ns: int) -> Model | None:
        ready = [
            job
            for job in self.jobs.values()
            if job.name == name and job.state in (NEW, PENDING) and job.due_ns <= now_ns
        ]
        return min(ready, key=lambda job: (-job.priority, job.order), default=None)


class JobsMachine(RuleBasedStateMachine):
    """Time goes in steps of seconds, all that happens at fractions of them, so that ticks don't matter."""

    @initialize()
    def begin(self):
        self.now = START
        self.machine = Machine(self.now)
        self.world = World()
        self.order = 0
        self.log: list[tuple[Command, int]] = []
        self.told: list[Waiting] = []

    # -- what the model does

    def lease(self, job: Model) -> None:
        job.state, job.attempts, job.ends_ns = LEASED, job.attempts + 1, self.now + job.ttr_ns

    def hand_out(self) -> None:
        for waiting in list(self.world.leasers):
            for name in waiting.leaser.names:
                job = self.world.next_ready(name, self.now)
                if job is not None:
                    self.lease(job)
                    waiting.job = job
                    self.world.leasers.remove(waiting)
                    self.told.append(waiting)
                    break

    def check_answers(self) -> None:
        answered = self.machine.ended
        self.machine.ended = []
        assert {id(a) for a in answered} == {id(w.leaser) for w in self.told}
        for waiting in self.told:
            got = waiting.leaser.job
            assert (got.id if got else None) == (waiting.job.id if waiting.job else None)
        self.told = []

    def write(self) -> None:
        batch = self.machine.ledger.take()
        self.log += [(decode(record), self.now) for record in batch[0]]
        self.machine.ledger.landed(batch, 1)

    # -- steps

    @rule(
        number=st.sampled_from(IDS),
        name=st.sampled_from(NAMES),
        ttr=st.integers(1, 5),
        ttl=st.integers(1, 30),
        priority=st.integers(-1, 1),
        attempts=st.integers(0, 2),
        fails=st.integers(0, 3),
        delay=st.one_of(st.none(), st.integers(-2, 10)),
    )
    def add(self, number, name, ttr, ttl, priority, attempts, fails, delay):
        scheduled = NOT_SCHEDULED if delay is None else self.now + delay * SECOND
        expires = (self.now if delay is None else scheduled) + ttl * SECOND
        if expires <= self.now:
            return
        job = self.machine.new_job(
            number, name, ttr * 1000, ttl * 1000, self.now, b"p", priority, attempts, fails, scheduled
        )
        taken = number in self.world.jobs
        assert self.machine.add(job, self.now) != taken
        if not taken:
            self.order += 1
            due = self.now if delay is None else scheduled
            self.world.jobs[number] = Model(
                number, name, ttr * SECOND, expires, priority, attempts, fails, due, self.order
            )
            self.hand_out()
        self.check_answers()
        self.write()

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True), wait=st.integers(0, 5))
    def ask(self, names, wait):
        leaser = Leaser(None, names)
        got = self.machine.lease(leaser, self.now, wait * 1000)
        found = next((job for name in names if (job := self.world.next_ready(name, self.now))), None)
        assert (got.id if got else None) == (found.id if found else None)
        if found:
            self.lease(found)
        elif wait:
            self.world.leasers.append(Waiting(leaser, self.now + wait * SECOND))
        self.write()

    @precondition(lambda self: self.world.leasers)
    @rule(data=st.data())
    def give_up(self, data):
        waiting = data.draw(st.sampled_from(self.world.leasers))
        self.world.leasers.remove(waiting)
        self.machine.leave(waiting.leaser)

    @rule(number=st.sampled_from(IDS), success=st.booleans())
    def finish(self, number, success):
        outcome = self.machine.finish(number, b"r", success, self.now)
        job = self.world.jobs.get(number)
        if job is None:
            assert outcome == UNKNOWN
        elif job.state in (COMPLETED, FAILED):
            assert outcome == DUPLICATE
        else:
            assert outcome == DONE
            job.state, job.result = (COMPLETED if success else FAILED), b"r"
            if not success:
                job.fails += 1
                if job.fails < job.max_fails and not job.spent():
                    job.state, job.result = PENDING, None
                    self.hand_out()
        self.check_answers()
        self.write()

    @rule(number=st.sampled_from(IDS))
    def delete(self, number):
        assert self.machine.delete(number) == (DONE if self.world.jobs.pop(number, None) else UNKNOWN)
        self.write()

    @rule(seconds=st.integers(1, 8))
    def wait(self, seconds):
        for _ in range(seconds):
            self.now += SECOND
            ring = self.now + 2 * TICK
            while self.machine.wheel.pending(ring):
                self.machine.tick(ring, 3)
            for job in list(self.world.jobs.values()):
                if ring >= job.expires_ns:
                    del self.world.jobs[job.id]
                elif job.state == LEASED and ring >= job.ends_ns:
                    job.state = PENDING
                    if job.spent():
                        job.state, job.result = FAILED, b""
            for waiting in [w for w in self.world.leasers if ring >= w.until_ns and w.leaser.job is None]:
                self.world.leasers.remove(waiting)
                self.told.append(waiting)
            self.now = ring
            self.collect()
            self.now += SECOND // 10 - 2 * TICK

    def collect(self) -> None:
        """What became ready in this second was handed out in an order of its own: take the machine's."""
        for waiting in list(self.world.leasers):
            if waiting.leaser.job is not None:
                job = self.world.jobs[waiting.leaser.job.id]
                self.lease(job)
                job.ends_ns = waiting.leaser.job.leased_ns + job.ttr_ns
                waiting.job = job
                self.world.leasers.remove(waiting)
                self.told.append(waiting)
        self.check_answers()
        self.write()

    @rule(number=st.sampled_from(IDS), data=st.data())
    def try_in_vain(self, number, data):
        """Changes that can't be written leave everything as it was, those who waited aside."""
        if self.world.leasers:
            return
        before = self.seen()
        for _ in range(data.draw(st.integers(1, 4))):
            kind = data.draw(st.sampled_from(["add", "lease", "complete", "fail", "delete"]))
            if kind == "add":
                self.machine.add(self.machine.new_job(number, b"a", 1000, 9000, self.now, b""), self.now)
            elif kind == "lease":
                self.machine.lease(Leaser(None, NAMES), self.now, 0)
            elif kind == "delete":
                self.machine.delete(number)
            else:
                self.machine.finish(number, b"", kind == "complete", self.now)
        self.machine.rollback(self.machine.ledger.take(), self.now)
        assert self.seen() == before
        assert not self.machine.ledger.leaving

    def seen(self):
        ready = [[job.id for job in self.machine.queue(name).ready_jobs(0, 100)] for name in NAMES]
        scheduled = [sorted(self.machine.queue(name).scheduled) for name in NAMES]
        jobs = {
            job.id: (job.state, job.attempts, job.fails, job.result, job.when_ns, job.name)
            for job in self.machine.jobs.values()
        }
        counts = [(self.machine.queue(name).ready, self.machine.queue(name).jobs) for name in NAMES]
        return ready, scheduled, jobs, counts

    # -- always

    @invariant()
    def the_model_agrees(self):
        assert self.machine.jobs.keys() == self.world.jobs.keys()
        for job in self.machine.jobs.values():
            model = self.world.jobs[job.id]
            assert (job.state, job.attempts, job.fails, job.result) == (
                model.state,
                model.attempts,
                model.fails,
                model.result,
            )
        for name in NAMES:
            ready = [
                job
                for job in self.world.jobs.values()
                if job.name == name and job.state in (NEW, PENDING) and job.due_ns <= self.now - SECOND // 10
            ]
            ready.sort(key=lambda job: (-job.priority, job.order))
            found = [job.id for job in self.machine.queue(name).ready_jobs(0, 100)]
            assert [number for number in found if number in {job.id for job in ready}] == [job.id for job in ready]

    @invariant()
    def a_restart_knows_the_same(self):
        jobs = replay(self.log, self.now)
        alive = {number: job for number, job in self.world.jobs.items() if job.expires_ns >= self.now}
        assert jobs.keys() == alive.keys()
        for number, job in jobs.items():
            model = alive[number]
            assert (job.state, job.attempts, job.fails, job.result) == (
                model.state,
                model.attempts,
                model.fails,
                model.result,
            )

    @invariant()
    def nothing_is_left_over(self):
        jobs, leasers = len(self.machine.jobs), len(self.world.leasers)
        letters = int(self.machine.notebook.is_watching())
        assert self.machine.wheel.count == jobs + leasers + letters
        assert not self.machine.ledger.leaving


TestJobsMachine = JobsMachine.TestCase
TestJobsMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def machine_with(count: int, **fields) -> Machine:
    machine = Machine(START)
    for number in range(count):
        machine.add(machine.new_job(number.to_bytes(16, "big"), b"q", 1000, 60_000, START, b"", **fields), START)
    return machine


def test_a_run_that_nobody_takes_is_gone_when_its_client_has_waited():
    machine = Machine(START)
    waiter = machine.run(machine.new_job(IDS[0], b"a", 1000, 500, START, b""), "me", START)
    machine.tick(START + 499 * MS, 100)
    assert machine.ended == []
    machine.tick(START + 503 * MS, 100)
    assert machine.ended == [waiter]
    assert (waiter.job.result, waiter.gone, machine.jobs) == (None, False, {})


def test_a_run_ends_with_its_result_and_leaves_nothing():
    machine = Machine(START)
    waiter = machine.run(machine.new_job(IDS[0], b"a", 1000, 500, START, b""), "me", START)
    machine.lease(Leaser(None, [b"a"]), START, 0)
    machine.tick(START + 700 * MS, 100)
    assert machine.ended == [], "once it is leased, its ttr counts"
    assert machine.finish(IDS[0], b"done", True, START + 800 * MS) == DONE
    assert (machine.ended, waiter.job.result, machine.jobs) == ([waiter], b"done", {})
    assert [decode(record).word for record in machine.ledger.records] == ["start-attempt", "complete", "expire"]


def test_the_job_of_a_run_goes_with_its_client_but_not_with_others_who_wait():
    machine = Machine(START)
    owner = machine.run(machine.new_job(IDS[0], b"a", 1000, 60_000, START, b""), "me", START)
    other = machine.wait("other", machine.jobs[IDS[0]], START, 1000)
    machine.leave(other)
    assert IDS[0] in machine.jobs
    machine.leave(owner)
    assert machine.jobs == {}
    assert machine.wheel.count == 0


def test_who_waits_for_a_result_hears_when_there_will_be_none():
    machine = Machine(START)
    machine.add(machine.new_job(IDS[0], b"a", 1000, 1000, START, b""), START)
    waiter = machine.wait("me", machine.jobs[IDS[0]], START, 60_000)
    machine.delete(IDS[0])
    assert (machine.ended, waiter.gone) == ([waiter], True)


@pytest.mark.parametrize("count", [1, 1000])
def test_jobs_deleted_from_the_middle_of_a_queue_leave_no_trace(count):
    machine = machine_with(count + 10)
    for number in range(5, count + 5):
        machine.delete(number.to_bytes(16, "big"))
    queue = machine.queue(b"q")
    assert queue.ready == 10
    assert [job.id[-2:] for job in queue.ready_jobs(3, 3)] == [n.to_bytes(2, "big") for n in (3, 4, count + 5)]


def test_queues_that_nobody_uses_are_forgotten():
    machine = machine_with(1)
    for number in range(QUEUES_IDLE_MAX + 100):
        machine.lease(Leaser(None, [b"idle-%d" % number]), START, 0)
    assert len(machine.queues) <= QUEUES_IDLE_MAX + 1
    assert b"q" in machine.queues, "one with a job stays"


def test_leasers_who_went_away_leave_no_trace():
    machine = Machine(START)
    for _ in range(1000):
        leaser = Leaser(None, [b"q"])
        machine.lease(leaser, START, 1000)
        machine.leave(leaser)
    assert len(machine.queue(b"q").leasers) <= 64


def test_nothing_happens_to_jobs_while_the_log_cannot_be_written():
    machine = machine_with(3)
    leased = machine.lease(Leaser(None, [b"q"]), START, 0)
    machine.ledger.take()
    machine.tick(START + 50 * SECOND, 100, True)
    assert (machine.ledger.records, len(machine.jobs), leased.state) == ([], 3, LEASED)
    machine.tick(START + 52 * SECOND, 100, False)
    assert (len(machine.jobs), leased.state) == (3, PENDING)


def test_a_lease_that_was_written_with_a_clock_that_was_ahead_ends_all_the_same():
    machine = machine_with(1)
    (job,) = machine.jobs.values()
    machine.replay_change(job, START_ATTEMPT, b"", START + 86_400 * SECOND)
    machine.start(START)
    machine.tick(START + 2 * SECOND, 100)
    assert job.state == PENDING


def test_jobs_whose_ttl_is_over_go_all_the_same_while_the_log_cannot_be_written():
    machine = machine_with(3)
    leased = machine.lease(Leaser(None, [b"q"]), START, 0)
    waiter = machine.wait("me", leased, START, 100_000)
    machine.ledger.landed(machine.ledger.take(), 7)
    assert machine.ledger.live[7] > 3 * 50
    machine.tick(START + 70 * SECOND, 100, True)
    assert (machine.ledger.records, machine.jobs, machine.evicted) == ([], {}, 3)
    assert (machine.ended, waiter.gone) == ([waiter], True)
    assert machine.ledger.live == {}, "the cleaner knows where there is room now"
    assert not machine.ledger.leaving


def test_who_waits_for_a_result_gets_it_when_its_command_is_found_in_the_log_after_all():
    machine = machine_with(2)
    done, deleted = machine.jobs.values()
    waiters = [machine.wait("me", job, START, 1000) for job in (done, deleted)]
    machine.adopt(done, COMPLETE, b"result", START, START)
    machine.adopt(deleted, DELETE, b"", START, START)
    assert machine.ended == waiters
    assert [(waiter.job.result, waiter.gone) for waiter in waiters] == [(b"result", False), (None, True)]


def test_many_jobs_are_looked_at_in_their_order_some_at_a_time():
    machine = machine_with(50)
    for number in (3, 40, 7):  # these come back, and lie where they lay before as well
        machine.lease(Leaser(None, [b"q"]), START, 0)
        machine.queues[b"q"].remove(machine.jobs[number.to_bytes(16, "big")])
        machine.queues[b"q"].push(machine.jobs[number.to_bytes(16, "big")])
    queue = machine.queues[b"q"]
    machine.add(machine.new_job(IDS[0], b"q", 1000, 60_000, START, b"", 5), START)
    every = queue.ready_jobs(0, 100)
    assert [job.priority for job in every] == [5] + [0] * 47
    assert [job.order for job in every[1:]] == sorted(job.order for job in every[1:])
    assert len({job.id for job in every}) == queue.ready == 48
    for offset in range(0, 60, 7):
        assert queue.ready_jobs(offset, 7) == every[offset : offset + 7]
