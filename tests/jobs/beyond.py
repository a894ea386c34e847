"""Random use of what the job server has beyond workq, on a machine and its logs, and what a restart must know of
it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from forelog.errors import ForelogError
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.log.notecleaner import NoteCleaner
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Job, Leaser
from forelog.jobs.machine.rules import Rules
from forelog.jobs.machine.states import LEASED, NEW, PENDING
from forelog.jobs.machine.terms import Terms, parse_terms

START = 1_700_000_000_000_000_000
MS = 1_000_000
SECOND = 1000 * MS
NAMES = [b"a", b"b"]
KEYS = [b"k", b"l"]
BACKOFFS = [b"fixed:2000:2000:0", b"exponential:1000:8000:10", b"linear:500:4000:50"]


def image(machine: Machine, now_ns: int) -> dict[str, Any]:
    """All that a restart must know."""
    notebook = machine.notebook
    return {
        "jobs": {
            job.id: (
                job.name, job.payload, job.state, job.attempts, job.fails, job.result, job.scheduled_ns,
                job.due_ns if job.state in (NEW, PENDING) else 0,
                job.leased_ns, job.ends_ns if job.state == LEASED else 0, job.timed_out, terms_of(job),
            )
            for job in machine.jobs.values()
            if not job.volatile
        },
        "dead": [(entry.id, notebook.reason_of(entry)) for entry in notebook.dead.some(None, 0, 1000)],
        "letters": {
            letter.id: (letter.died_ns, letter.error, letter.add) for letter in notebook.dead.letters.values()
        },
        "keys": {
            key: job_id
            for key in [(name, key) for name in NAMES for key in KEYS]
            if (job_id := notebook.keys.holder(*key, now_ns)) is not None
        },
        "rules": {name: rules.words() for name, rules in notebook.rules.items()},
        "queues": {
            queue.name: (queue.jobs, queue.ready + len(queue.scheduled), queue.running, len(queue.blocked))
            for queue in machine.queues.values()
            if queue.jobs
        },
    }  # fmt: skip


def terms_of(job: Job) -> tuple[Any, ...]:
    terms = job.terms or Terms()
    return terms.words, terms.attempts, terms.fails, terms.due_ns, terms.error, terms.reason, terms.cancelled


class Use:
    """A machine and its logs, used at random."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.options = options
        self.ids = [self.random.randbytes(6) + b"\x4a\x00\x8b" + self.random.randbytes(7) for _ in range(8)]
        self.open()

    def open(self) -> None:
        self.log = CommandLog("log", clock=lambda: self.now, **self.options)
        self.machine = self.log.open(self.now).machine
        assert self.log.annex is not None
        self.note_cleaner = NoteCleaner(self.log.annex, self.machine.notebook)

    def write(self) -> bool:
        """End a turn. Returns whether it could be written; if not, it is undone."""
        changes = self.machine.ledger.take()
        if changes[0] or changes[2]:
            try:
                where = self.log.write(changes[0], changes[2])
            except (OSError, ForelogError):
                self.machine.rollback(changes, self.now)
                self.machine.ended = []
                return False
            self.machine.ledger.landed(changes, where)
        self.machine.ended = []
        return True

    def reopen(self) -> None:
        """Open the log again after a failed sync, as a server does."""
        self.log.adopt(self.log.reopen(), self.machine, self.now)
        self.machine.ended = []

    def turn(self, steps: int = 0) -> None:
        """Do something, without writing it."""
        self.now += self.random.choice([0, MS, SECOND, 3 * SECOND])
        self.tick()
        choices: list[Callable[[], None]] = [self.add, self.add, self.lease, self.lease, self.finish, self.finish]
        choices += [self.fail, self.fail, self.extend, self.delete, self.dead, self.cancel, self.pause]
        for _ in range(steps or self.random.choice([1, 1, 2, 4])):
            self.random.choice(choices)()

    def tick(self) -> None:
        self.now += 5 * MS  # a timer may ring two milliseconds late
        while self.machine.wheel.pending(self.now):
            self.machine.tick(self.now, 100)

    def add(self) -> None:
        pick = self.random
        flags = {}
        if pick.random() < 0.6:
            flags[b"-backoff"] = pick.choice(BACKOFFS)
        if pick.random() < 0.4:
            flags[b"-key"] = pick.choice(KEYS)
            flags[b"-unique"] = pick.choice([b"waiting", b"unfinished"])
            if pick.random() < 0.5:
                flags[b"-unique-for"] = b"6000"
        job = self.machine.new_job(
            pick.choice(self.ids), pick.choice(NAMES), 4000, pick.choice([3000, 20_000]), self.now,
            bytes(pick.choice([0, 3, 300])), pick.choice([0, 1]), pick.choice([0, 2, 4]), pick.choice([0, 0, 3]),
            *([self.now + 2 * SECOND] if pick.random() < 0.2 else []),
        )  # fmt: skip
        terms = parse_terms(flags, self.now)
        assert not isinstance(terms, str)
        job.terms = terms if terms.words else None
        keys = self.machine.notebook.keys
        if not terms.key or keys.holder(job.name, terms.key, self.now) is None:
            self.machine.add(job, self.now)

    def lease(self) -> None:
        leaser = Leaser(None, self.random.sample(NAMES, 2))
        leaser.lease_ms = self.random.choice([0, 0, 1500])
        self.machine.lease(leaser, self.now, 0)

    def some_job(self) -> Job | None:
        jobs = [job for job in self.machine.jobs.values() if job.state == LEASED or self.random.random() < 0.1]
        return self.random.choice(jobs) if jobs else None

    def finish(self) -> None:
        if (job := self.some_job()) is not None:
            self.machine.finish(job.id, b"done", True, self.now)

    def fail(self) -> None:
        if (job := self.some_job()) is not None:
            retry_ms, final = self.random.choice([(-1, False), (-1, False), (2500, False), (0, False), (-1, True)])
            self.machine.finish(
                job.id, self.random.choice([b"", b"no", b"e" * 90]), False, self.now, retry_ms, final
            )

    def extend(self) -> None:
        job = self.some_job()
        if job is not None and job.state == LEASED:
            self.machine.extend(job, self.now + 9 * SECOND)

    def cancel(self) -> None:
        job = self.some_job()
        if job is not None and job.state == LEASED:
            self.machine.notebook.cancelled(job)

    def pause(self) -> None:
        name = self.random.choice(NAMES)
        paused, draining = self.random.choice([(False, False), (False, False), (True, False), (False, True)])
        self.machine.notebook.set_rules(name, Rules(paused, draining))

    def delete(self) -> None:
        self.machine.delete(self.random.choice(self.ids))

    def dead(self) -> None:
        entries = self.machine.notebook.dead.some(None, 0, 100)
        if entries:
            entry = self.random.choice(entries)
            if self.random.random() < 0.5:
                self.machine.notebook.drop(entry)
            else:
                self.machine.notebook.revive(entry, entry.payload if isinstance(entry, Job) else b"", self.now)
