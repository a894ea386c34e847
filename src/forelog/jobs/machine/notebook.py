"""What a machine knows beyond workq, and the notes by which the annex gets to know it.

The machine calls `enter` when a job with terms has come to rest in a state, and `leave` before it changes. So the
tables here follow the jobs by themselves, also when a change is undone.

A note belongs to the turn of the commands that it goes with. `remember` takes notes at a restart, before the
commands are replayed, and `begin` gives jobs their terms after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from forelog import kernel
from forelog.formats.commands import notes
from forelog.formats.commands.commands import Add, Schedule
from forelog.formats.commands.fields import NOT_SCHEDULED, job_head
from forelog.jobs.machine.dead import Dead, Entry, Letter, letter_of
from forelog.jobs.machine.keys import Keys
from forelog.jobs.machine.ledger import Ledger, memory_bytes
from forelog.jobs.machine.queue import Job, Queue
from forelog.jobs.machine.rules import Rules
from forelog.jobs.machine.states import FAILED
from forelog.jobs.machine.terms import ERROR_BYTES_MAX, Terms, terms_of
from forelog.jobs.machine.wheel import UNSET, Bell, Wheel

FORGET_MS = 60_000
"""Between two looks at letters that were kept long enough."""
_MS_NS = 1_000_000
_LETTERS_AT_ONCE = 1000


class Machine(Protocol):
    """What the notebook asks of a machine."""

    ledger: Ledger
    jobs: dict[bytes, Job]
    wheel: Wheel
    draining: int

    def queue(self, name: bytes) -> Queue:
        """The queue of this name, created if needed."""

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
    ) -> Job:
        """Make a job, to be added."""

    def add(self, job: Job, now_ns: int) -> bool:
        """Add a job. False if its id is taken."""

    def delete(self, job_id: bytes) -> int:
        """Delete a job."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the annex has to say for sure, while changes since may yet be undone."""

    letters: dict[bytes, int]
    """The ids of letters, and when these died."""
    rules: dict[bytes, bytes]
    """The settings of queues."""
    now_ns: int
    """When that was."""


class Notebook:
    """The terms of jobs, dead letters, and what else is noted."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ledger = machine.ledger
        self.dead = Dead()
        self.keys = Keys()
        self.rules: dict[bytes, Rules] = {}
        """The settings of queues, by name."""
        self.fates: dict[tuple[bytes, int], bytes] = {}
        """Jobs whose next fail in the log is final, and why. Only while a log is replayed."""
        self._found: dict[tuple[bytes, int], Terms] = {}
        self._bell = Bell(self._forget)

    # -- notes of jobs

    def added(self, job: Job) -> None:
        """Note the terms of a job that is being added."""
        terms = job.terms
        assert terms is not None
        undo: Callable[[], None] | None = None
        if terms.key and terms.unique_until_ns:
            before = self.keys.hold(job.name, terms.key, terms.unique_until_ns, job.id)

            def undo() -> None:
                self.keys.put_back(job.name, terms.key, before)

        self._ledger.write_down(notes.encode(notes.Terms(job.id, job.created_ns, job.name, terms.words)), undo)

    def attach(self, job: Job) -> Terms:
        """Give a job terms, if it has none."""
        if job.terms is None:
            job.terms = Terms()
            self._ledger.memory_bytes += job.terms.memory_bytes()
        return job.terms

    def failed(self, job: Job, error: bytes, retry_ms: int, now_ns: int) -> None:
        """A job failed, and will be tried again after `retry_ms`, or if that is negative by its backoff."""
        terms = job.terms
        assert terms is not None
        if retry_ms < 0:
            retry_ms = 0 if terms.backoff is None else terms.backoff.wait_ms(job.fails, job.id)
        self._ledger.memory_bytes -= terms.memory_bytes()
        terms.attempts_before = terms.attempts
        terms.attempts, terms.fails = job.attempts, job.fails
        terms.due_ns = now_ns + retry_ms * _MS_NS if retry_ms else 0
        terms.error = error[:ERROR_BYTES_MAX]
        self._ledger.memory_bytes += terms.memory_bytes()
        job.due_ns = terms.due_ns or job.scheduled_ns
        note = notes.Retry(job.id, job.created_ns, terms.attempts, terms.fails, terms.due_ns, terms.error)
        self._ledger.write_down(notes.encode(note))

    def extended(self, job: Job, until_ns: int) -> None:
        """The attempt that a job is at may take until then."""
        terms = self.attach(job)
        before = terms.extended, terms.until_ns

        def undo() -> None:
            terms.extended, terms.until_ns = before

        terms.extended, terms.until_ns = job.attempts, until_ns
        note = notes.Extend(job.id, job.created_ns, job.attempts, until_ns)
        self._ledger.write_down(notes.encode(note), undo)

    def doomed(self, job: Job, reason: bytes, now_ns: int) -> None:
        """A job fails for good, although its terms or its fails would allow another attempt."""
        self.attach(job).reason = reason
        self._ledger.write_down(notes.encode(notes.Fate(job.id, job.created_ns, reason, now_ns)))

    def cancelled(self, job: Job) -> None:
        """A job that is leased is to be stopped."""
        terms = self.attach(job)
        if terms.cancelled:
            return

        def undo() -> None:
            terms.cancelled = False

        terms.cancelled = True
        self._ledger.write_down(notes.encode(notes.Cancel(job.id, job.created_ns)), undo)

    # -- queues

    def set_rules(self, name: bytes, rules: Rules) -> None:
        """Give a queue other settings."""
        before = self.rules.get(name)

        def undo() -> None:
            self._rule(name, before)

        self._rule(name, rules)
        self._ledger.write_down(notes.encode(notes.QueueRules(name, rules.words())), undo)

    def _rule(self, name: bytes, rules: Rules | None) -> None:
        if rules is None or not rules.words():
            self.rules.pop(name, None)
        else:
            self.rules[name] = rules
        self._machine.queue(name).held = rules is not None and rules.paused
        self._machine.draining = sum(rules.draining for rules in self.rules.values())

    # -- tables

    def enter(self, job: Job) -> None:
        """A job with terms is in the state that it has now."""
        self.keys.enter(job)

    def leave(self, job: Job) -> None:
        """A job with terms is about to leave the state that it is in."""
        self.keys.leave(job)

    # -- dead letters

    def reason(self, job: Job) -> bytes:
        """Why a job failed for good."""
        if job.terms is not None and job.terms.reason:
            return job.terms.reason
        return b"timed-out" if job.timed_out else b"failed"

    def reason_of(self, entry: Entry) -> bytes:
        """Why a job failed for good, or is a letter."""
        return entry.reason if isinstance(entry, Letter) else self.reason(entry)

    def drop(self, entry: Entry) -> None:
        """Forget a job that failed for good, or a letter."""
        if isinstance(entry, Letter):
            self.burn(entry)
        else:
            self._machine.delete(entry.id)

    def revive(self, entry: Entry, payload: bytes, now_ns: int) -> bool:
        """Let a job that failed for good, or a letter, wait again as if it had just been added. False if its id or
        its key is taken by another job."""
        machine = self._machine
        of: Job | Add | Schedule
        words = b""
        if isinstance(entry, Letter):
            words = entry.words
        elif entry.terms is not None:
            words = entry.terms.words
        words = b" ".join(word for word in words.split(b" ") if not word.startswith((b"-after=", b"-on-failure=")))
        terms = terms_of(notes.Terms(entry.id, now_ns, entry.name, words)) if words else None
        if terms is not None and terms.key:
            holder = self.keys.holder(entry.name, terms.key, now_ns)
            if holder is not None and holder != entry.id:
                return False
        if isinstance(entry, Letter):
            if entry.id in machine.jobs:
                return False
            self.burn(entry)
            of = entry.job()
            payload = of.payload
        else:
            # A power loss may keep the delete and lose the add: then there is a letter.
            letter = self._letter(entry, payload, now_ns)
            self._put(letter)
            self.dead.remove(entry.id)
            machine.delete(entry.id)
            self.burn(letter)
            of = entry
        job = machine.new_job(
            entry.id, entry.name, of.ttr_ms, of.ttl_ms, now_ns, payload, of.priority, of.max_attempts, of.max_fails
        )
        job.terms = terms
        return machine.add(job, now_ns)

    def bury(self, job: Job, now_ns: int) -> None:
        """Make a letter of a job whose ttl is over, if it was not completed."""
        if not self.dead.keep_ns or job.is_unloaded:
            return
        letter = self._letter(job, job.payload, now_ns)
        if letter.memory_bytes() <= self.dead.bytes_max:
            self._put(letter)
            self.watch(now_ns)

    def _letter(self, job: Job, payload: bytes, now_ns: int) -> Letter:
        died_ns, reason = (job.done_ns, self.reason(job)) if job.is_processed() else (now_ns, b"expired")
        error = job.result or b""
        if job.terms is not None and not error:
            error = job.terms.error
        words = b"" if job.terms is None else job.terms.words
        return Letter(
            job.id, job.name, died_ns, reason, error[:ERROR_BYTES_MAX], job.attempts, job.fails, words,
            add_of(job, payload),
        )  # fmt: skip

    def _put(self, letter: Letter) -> None:
        before = self.dead.letters.get(letter.id)
        self.dead.add(letter)
        self._ledger.write_down(letter.note(), self._undo_letter(letter, before))

    def _undo_letter(self, letter: Letter, before: Letter | None) -> Callable[[], None]:
        def undo() -> None:
            if self.dead.get(letter.id) is letter:
                self.dead.remove(letter.id)
            if before is not None and self.dead.get(letter.id) is None:
                self.dead.add(before)

        return undo

    def died(self, job: Job) -> None:
        """A job has failed for good. It takes the place of a letter with its id."""
        letter = self.dead.letters.get(job.id)
        if letter is not None:
            self.burn(letter)
        self.dead.add(job)

    def burn(self, letter: Letter) -> None:
        """Drop a letter."""
        self.dead.remove(letter.id)

        def undo() -> None:
            if self.dead.get(letter.id) is None:
                self.dead.add(letter)

        self._ledger.write_down(notes.encode(notes.Burnt(letter.id, letter.died_ns)), undo)

    def watch(self, now_ns: int) -> None:
        """Look later for letters that were kept long enough."""
        if (self.dead.letters or self.keys.holds()) and not self.is_watching():
            self._machine.wheel.set(self._bell, now_ns + FORGET_MS * _MS_NS)

    def is_watching(self) -> bool:
        """Whether a timer is set for that."""
        return self._bell.slot != UNSET

    def _forget(self, now_ns: int) -> None:
        self.dead.forget(now_ns, _LETTERS_AT_ONCE)
        self.keys.forget(now_ns)
        self.watch(now_ns)

    # -- a restart

    def remember(self, note: notes.Note) -> None:
        """Take in the next note of the annex."""
        if isinstance(note, notes.Letter):
            self.dead.add(letter_of(note))
        elif isinstance(note, notes.Burnt):
            letter = self.dead.letters.get(note.id)
            if letter is not None and letter.died_ns == note.died_ns:
                self.dead.remove(note.id)
        elif isinstance(note, notes.Terms):
            terms = self._found[note.id, note.created_ns] = terms_of(note)
            if terms.key and terms.unique_until_ns:
                self.keys.hold(note.name, terms.key, terms.unique_until_ns, note.id)
        elif isinstance(note, notes.QueueRules):
            self._rule(note.name, Rules.of(note.words))
        elif isinstance(note, notes.Cancel):
            self._terms(note).cancelled = True
        elif isinstance(note, notes.Retry):
            terms = self._terms(note)
            terms.attempts, terms.fails, terms.due_ns, terms.error = note[2:]
        elif isinstance(note, notes.Extend):
            terms = self._terms(note)
            terms.extended, terms.until_ns = note.attempts, note.until_ns
        elif isinstance(note, notes.Fate):
            self._terms(note).reason = note.reason
            self.fates[note.id, note.created_ns] = note.reason

    # -- cleaning

    def standing(self, now_ns: int) -> Standing:
        """What is needed now, when nothing is being written."""
        letters = {letter.id: letter.died_ns for letter in self.dead.letters.values()}
        return Standing(letters, {name: rules.words() for name, rules in self.rules.items()}, now_ns)

    def needs(self, note: notes.Note, standing: Standing) -> bool:
        """Whether a restart needs a note that was written before `standing`. May be called on another thread."""
        if isinstance(note, notes.Letter):
            return standing.letters.get(note.id) == note.died_ns
        if isinstance(note, notes.QueueRules):
            return standing.rules.get(note.name) == note.words
        if isinstance(note, notes.Terms) and b"-unique-for=" in note.words:
            key = terms_of(note).key
            if self.keys.is_held_by(note.name, key, note.id, standing.now_ns):
                return True
        if isinstance(note, notes.OfJob):
            if note.id in self._ledger.leaving:
                return True
            job = self._machine.jobs.get(note.id)
            if job is None or job.created_ns != note.created_ns:
                return note.id in self._ledger.leaving  # it may just have gone
            terms = job.terms
            if isinstance(note, notes.Retry):
                return terms is None or note.attempts in (terms.attempts, terms.attempts_before)
            return not isinstance(note, notes.Extend) or note.attempts >= job.attempts - 1
        return False

    def _terms(self, note: notes.OfJob) -> Terms:
        job = self._machine.jobs.get(note.id)
        known = None if job is None or job.created_ns != note.created_ns else job.terms
        return self._found.setdefault((note.id, note.created_ns), known or Terms())

    def begin(self, now_ns: int) -> None:
        """The commands of the log are replayed: give their jobs the terms that the annex had."""
        for job in self.found():
            self.give(job)
        self._found.clear()
        self.fates.clear()
        self.dead.forget(now_ns, len(self.dead.letters))
        self.watch(now_ns)

    def found(self) -> list[Job]:
        """The jobs for which there are terms that they don't have yet."""
        jobs = self._machine.jobs
        return [job for key in self._found if (job := jobs.get(key[0])) is not None and job.created_ns == key[1]]

    def give(self, job: Job) -> None:
        """Give a job its terms."""
        terms = self._found.pop((job.id, job.created_ns), None)
        if terms is None:
            return
        self._ledger.memory_bytes -= memory_bytes(job)
        job.terms = terms
        # Not every fail is counted by the command log, but each that is not the last has a note.
        died = job.state == FAILED and not job.timed_out
        job.fails = max(job.fails, terms.fails + died)
        if terms.attempts == job.attempts and terms.due_ns and not job.is_processed():
            job.due_ns = terms.due_ns
        if terms.extended == job.attempts:
            job.ends_ns = terms.until_ns
        self._ledger.memory_bytes += memory_bytes(job)


def add_of(job: Job, payload: bytes) -> bytes:
    """The add or schedule of a job, as the command log has it."""
    head = job_head(job.name, job.ttr_ms, job.ttl_ms, job.priority, job.max_attempts, job.max_fails)
    due_ns = None if job.scheduled_ns == NOT_SCHEDULED else job.scheduled_ns
    return kernel.job_encode(job.id, head, payload, due_ns, job.created_ns)
