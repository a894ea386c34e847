"""The commands and flags that workq doesn't know: docs/jobs-protocol.md has them all.

`Beyond` does them for the sessions of all clients. `options` read the flags of a command, so that what is
misspelt is refused and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from forelog import kernel
from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.machine.dead import Letter
from forelog.jobs.machine.limits import ATTEMPTS_MAX, TIME_NS_MAX, TTR_MS_MAX, is_id, is_name
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Job
from forelog.jobs.machine.rules import Rules
from forelog.jobs.machine.states import LEASED
from forelog.jobs.machine.terms import FLAGS, RETRIES_MAX, Terms, parse_terms, whole
from forelog.jobs.server.replies import (
    ARGS,
    BAD_ID,
    BAD_LIMIT,
    BAD_NAME,
    BAD_OFFSET,
    CANCELLED,
    DUPLICATE_JOB,
    DUPLICATE_RESULT,
    LOST_LEASE,
    NOT_FOUND,
    OK,
    OUT_OF_MEMORY,
    READ_ONLY,
    client_error,
    dead_reply,
)
from forelog.jobs.server.words import number, parse_id

if TYPE_CHECKING:
    from forelog.jobs.server.clients import Asker
    from forelog.jobs.server.outage import Outage

Flags = dict[bytes, bytes]


class Asked(NamedTuple):
    """A command of a client."""

    session: Asker
    args: list[bytes]
    flags: Flags
    payload: bytes
    now_ns: int


Do = Callable[[Asked], None]

LEASES_MAX = 100
"""Jobs of one lease."""
DEAD_AT_ONCE = 1000
HOLDS_MAX = 100_000
"""Keys that are taken for a time, whatever becomes of their jobs."""
RULES_MAX = 10_000
"""Queues with settings."""
_LATER = {b"-group", b"-after", b"-on-failure"}
"""Flags that don't work yet."""
_DELAY_MS_MAX = 10 * 365 * 24 * 3600 * 1000
_OFFSET_MAX = 2**32 - 1
_LIMIT_MAX = 100
_REPLY_BYTES_MAX = 2 << 20
_MS_NS = 1_000_000


def is_beyond(flags: Flags | None) -> bool:
    """Whether the flags of a job have some that workq doesn't know."""
    return flags is not None and not FLAGS.isdisjoint(flags)


class Added:
    """What the flags of an add beyond workq's ask for."""

    __slots__ = ("delay_ms", "max_fails", "on_duplicate", "replaces", "terms")

    def __init__(self) -> None:
        self.terms: Terms | None = None
        self.max_fails = -1
        """-1 if the flags don't say."""
        self.delay_ms = 0
        self.on_duplicate = b"refuse"
        self.replaces = False
        """Whether it takes the place of another one."""

    def reply(self, job_id: bytes) -> bytes:
        """The reply, once the job is added."""
        if self.terms is None or not self.terms.key:
            return OK
        return b"+OK 1\r\n%b %b\r\n" % (kernel.uuid_text(job_id), b"replaced" if self.replaces else b"new")


def added(flags: Flags, scheduled_ns: int, now_ns: int) -> Added | bytes:
    """What the flags of an add or schedule ask for, or the reply to invalid ones."""
    found = Added()
    if not flags.keys().isdisjoint(_LATER):
        return ARGS
    if b"-retries" in flags:
        retries = whole(flags[b"-retries"], RETRIES_MAX)
        if retries < 0 or b"-max-fails" in flags:
            return ARGS
        found.max_fails = retries + 1
    if b"-delay" in flags:
        found.delay_ms = whole(flags[b"-delay"], _DELAY_MS_MAX)
        if found.delay_ms < 0 or scheduled_ns != NOT_SCHEDULED:
            return ARGS
        if now_ns + found.delay_ms * _MS_NS > TIME_NS_MAX:
            return ARGS
    terms = parse_terms(flags, now_ns)
    if isinstance(terms, str):
        return client_error(terms)
    if terms.words:
        found.terms = terms
    found.on_duplicate = flags.get(b"-on-duplicate", b"refuse")
    return found


class LeaseOptions:
    """What the flags of a lease ask for."""

    __slots__ = ("count", "info", "lease_ms")

    def __init__(self) -> None:
        self.count = 1
        self.lease_ms = 0
        self.info = False


def lease_options(flags: Flags) -> LeaseOptions | None:
    """What the flags of a lease ask for; None if they are invalid."""
    found = LeaseOptions()
    for name, word in flags.items():
        if name == b"-count":
            found.count = whole(word, LEASES_MAX)
            if found.count < 1:
                return None
        elif name == b"-lease":
            found.lease_ms = whole(word, TTR_MS_MAX)
            if found.lease_ms < 1:
                return None
        elif name == b"-info" and word in (b"0", b"1"):
            found.info = word == b"1"
        else:
            return None
    return found


class Ending:
    """What the flags of a complete or fail ask for."""

    __slots__ = ("attempt", "final", "retry_ms")

    def __init__(self) -> None:
        self.attempt = 0
        """0 if any attempt may end."""
        self.retry_ms = -1
        self.final = False


def ending(flags: Flags, success: bool) -> Ending | None:
    """What the flags of a complete or fail ask for; None if they are invalid."""
    found = Ending()
    for name, word in flags.items():
        if name == b"-attempt":
            found.attempt = whole(word, ATTEMPTS_MAX)
            if found.attempt < 1:
                return None
        elif name == b"-retry-after" and not success:
            found.retry_ms = whole(word, _DELAY_MS_MAX)
            if found.retry_ms < 0:
                return None
        elif name == b"-final" and not success and word in (b"0", b"1"):
            found.final = word == b"1"
        else:
            return None
    return None if found.final and found.retry_ms >= 0 else found


def is_lost(job: Job, attempt: int) -> bool:
    """Whether an attempt, if one is named, isn't the one that the job is at."""
    return attempt > 0 and (job.state != LEASED or job.attempts != attempt)


class Beyond:
    """Does the commands that workq doesn't know."""

    def __init__(self, machine: Machine, outage: Outage) -> None:
        self._machine = machine
        self._outage = outage
        self._commands: dict[bytes, tuple[int, int, Do]] = {
            b"heartbeat": (1, 1, self._heartbeat),
            b"extend": (2, 2, self._extend),
            b"cancel": (1, 1, self._cancel),
            b"dead": (2, 4, self._dead),
            b"pause": (1, 1, self._pause),
            b"drain": (1, 1, self._drain),
            b"resume": (1, 1, self._resume),
        }
        """By name: the least and the most words, and what does it."""

    def do(
        self, session: Asker, name: bytes, args: list[bytes], flags: Flags | None, payload: bytes, now_ns: int
    ) -> bool:
        """Do a command. Returns whether there is one of this name."""
        found = self._commands.get(name)
        if found is None:
            return False
        least, most, do = found
        if least <= len(args) <= most:
            do(Asked(session, args, flags or {}, payload, now_ns))
        else:
            session.reply(ARGS)
        return True

    def _job(self, session: Asker, word: bytes, changes: bool) -> Job | None:
        """The job with this id. If there is none, or nothing can be changed now, that is the reply."""
        job_id = parse_id(word)
        if job_id is None or not is_id(job_id):
            session.reply(BAD_ID)
        elif changes and self._outage.read_only:
            session.reply(READ_ONLY)
        else:
            job = self._machine.jobs.get(job_id)
            if job is not None:
                return job
            session.reply(NOT_FOUND)
        return None

    # -- running jobs

    def _attempt(
        self, session: Asker, args: list[bytes], flags: Flags, also: bytes = b"", changes: bool = True
    ) -> Job | None:
        """The leased job with this id, at the attempt that the flags name. If it isn't, that is the reply."""
        attempt = whole(flags.get(b"-attempt", b"0"), ATTEMPTS_MAX)
        if attempt < 0 or not flags.keys() <= {b"-attempt", also}:
            session.reply(ARGS)
            return None
        job = self._job(session, args[0], changes)
        if job is None:
            return None
        if job.state != LEASED or is_lost(job, attempt):
            session.reply(LOST_LEASE)
            return None
        return job

    def _heartbeat(self, asked: Asked) -> None:
        session, args, flags, _, now_ns = asked
        lease_ms = whole(flags.get(b"-lease", b"0"), TTR_MS_MAX)
        if lease_ms < 0:
            session.reply(ARGS)
            return
        job = self._attempt(session, args, flags, b"-lease", changes=False)
        if job is None:
            return
        if job.terms is not None and job.terms.cancelled:
            session.reply(CANCELLED)
            return
        if lease_ms or job.lease_ms:
            self._machine.heartbeat(job, now_ns, lease_ms or job.lease_ms)
        session.reply(OK)

    def _extend(self, asked: Asked) -> None:
        session, args, flags, _, now_ns = asked
        more_ms = number(args[1])
        if not 0 < more_ms <= TTR_MS_MAX:
            session.reply(ARGS)
            return
        job = self._attempt(session, args, flags)
        if job is not None:
            self._machine.extend(job, now_ns + more_ms * _MS_NS)
            session.change(OK)

    def _cancel(self, asked: Asked) -> None:
        session = asked.session
        job = None if asked.flags else self._job(session, asked.args[0], True)
        if asked.flags:
            session.reply(ARGS)
        elif job is not None and job.is_processed():
            session.reply(DUPLICATE_RESULT)
        elif job is not None:
            if job.state == LEASED:
                self._machine.notebook.cancelled(job)
            else:
                self._machine.delete(job.id)
            session.change(OK)

    # -- unique jobs

    def holder(self, session: Asker, name: bytes, added: Added, now_ns: int) -> bool:
        """Look for the job that has the key of one that is about to be added. Returns whether that one may be
        added; if not, the reply is given."""
        machine, terms = self._machine, added.terms
        if terms is None or not terms.key:
            return True
        if terms.unique_until_ns and machine.notebook.keys.holds() >= HOLDS_MAX:
            machine.notebook.keys.forget(now_ns)
            if machine.notebook.keys.holds() >= HOLDS_MAX:
                session.reply(OUT_OF_MEMORY)
                return False
        found = machine.notebook.keys.holder(name, terms.key, now_ns)
        if found is None:
            return True
        if added.on_duplicate == b"existing":
            session.reply(b"+OK 1\r\n%b existing\r\n" % kernel.uuid_text(found))
            return False
        first = machine.jobs.get(found)
        runs = first is not None and first.state == LEASED
        if added.on_duplicate == b"refuse" or runs:
            session.reply(client_error("Duplicate key " + kernel.uuid_text(found).decode()))
            return False
        if first is not None and not first.is_processed():
            machine.delete(found)
        added.replaces = True
        return True

    # -- queues

    def is_draining(self, name: bytes) -> bool:
        """Whether a queue takes no more jobs."""
        rules = self._machine.notebook.rules.get(name)
        return rules is not None and rules.draining

    def _pause(self, asked: Asked) -> None:
        self._rule(asked, Rules(True, self.is_draining(asked.args[0])))

    def _drain(self, asked: Asked) -> None:
        rules = self._machine.notebook.rules.get(asked.args[0], Rules())
        self._rule(asked, Rules(rules.paused, True))

    def _resume(self, asked: Asked) -> None:
        self._rule(asked, Rules())
        self._machine.offer_of(asked.args[0], asked.now_ns)

    def _rule(self, asked: Asked, rules: Rules) -> None:
        session, name, notebook = asked.session, asked.args[0], self._machine.notebook
        if asked.flags:
            session.reply(ARGS)
        elif not is_name(name):
            session.reply(BAD_NAME)
        elif self._outage.read_only:
            session.reply(READ_ONLY)
        elif notebook.rules.get(name, Rules()) == rules:
            session.reply(OK)
        elif rules.words() and name not in notebook.rules and len(notebook.rules) >= RULES_MAX:
            session.reply(OUT_OF_MEMORY)
        else:
            notebook.set_rules(name, rules)
            session.change(OK)

    # -- dead letters

    def _dead(self, asked: Asked) -> None:
        session, args, flags, _, now_ns = asked
        what, counts = args[0], {b"list": 4, b"show": 2, b"retry": 2, b"drop": 2, b"retry-all": 2, b"drop-all": 2}
        if counts.get(what) != len(args) or flags:
            session.reply(ARGS)
        elif what == b"list":
            self._dead_list(session, args)
        elif what.endswith(b"-all"):
            self._dead_all(session, what == b"retry-all", args[1], now_ns)
        else:
            self._dead_one(session, what, args[1], now_ns)

    def _dead_list(self, session: Asker, args: list[bytes]) -> None:
        offset, limit = number(args[2]), number(args[3])
        if args[1] != b"*" and not is_name(args[1]):
            session.reply(BAD_NAME)
        elif not 0 <= offset <= _OFFSET_MAX:
            session.reply(BAD_OFFSET)
        elif not 0 < limit <= _LIMIT_MAX:
            session.reply(BAD_LIMIT)
        else:
            notebook = self._machine.notebook
            texts: list[bytes] = []
            size = 0
            for entry in notebook.dead.some(None if args[1] == b"*" else args[1], offset, limit):
                texts.append(dead_reply(entry, notebook.reason_of(entry), None))
                size += len(texts[-1])
                if size > _REPLY_BYTES_MAX:
                    break
            session.reply(b"+OK %d\r\n" % len(texts) + b"".join(texts))

    def _dead_one(self, session: Asker, what: bytes, word: bytes, now_ns: int) -> None:
        job_id = parse_id(word)
        notebook = self._machine.notebook
        entry = None if job_id is None else notebook.dead.get(job_id)
        if job_id is None:
            session.reply(BAD_ID)
        elif entry is None:
            session.reply(NOT_FOUND)
        elif isinstance(entry, Job) and entry.is_unloaded and what != b"drop":
            session.fetch(entry, True, lambda payload: self._do_dead(session, what, entry, payload, now_ns))
        else:
            self._do_dead(session, what, entry, entry.payload if isinstance(entry, Job) else b"", now_ns)

    def _do_dead(self, session: Asker, what: bytes, entry: Job | Letter, payload: bytes, now_ns: int) -> None:
        notebook = self._machine.notebook
        if what == b"show":
            shown = entry.job().payload if isinstance(entry, Letter) else payload
            session.reply(b"+OK 1\r\n" + dead_reply(entry, notebook.reason_of(entry), shown))
        elif self._outage.read_only:
            session.reply(READ_ONLY)
        elif notebook.dead.get(entry.id) is not entry:
            session.reply(NOT_FOUND)  # it went while its payload was read
        elif what == b"drop":
            notebook.drop(entry)
            session.change(OK)
        elif notebook.revive(entry, payload, now_ns):
            session.change(OK)
        else:
            session.reply(DUPLICATE_JOB)

    def _dead_all(self, session: Asker, retry: bool, name: bytes, now_ns: int) -> None:
        if name != b"*" and not is_name(name):
            session.reply(BAD_NAME)
            return
        if self._outage.read_only:
            session.reply(READ_ONLY)
            return
        notebook = self._machine.notebook
        done = 0
        for entry in notebook.dead.some(None if name == b"*" else name, 0, DEAD_AT_ONCE):
            if self._machine.ledger.is_full():
                break
            if not retry:
                notebook.drop(entry)
            elif isinstance(entry, Job) and entry.is_unloaded:
                continue  # its payload is only in the log: `dead retry` reads it
            elif not notebook.revive(entry, b"" if isinstance(entry, Letter) else entry.payload, now_ns):
                continue  # its id is taken by another job
            done += 1
        reply = b"+OK %d\r\n" % done
        if done:
            session.change(reply)
        else:
            session.reply(reply)
