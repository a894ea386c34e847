"""The protocol: bytes of a client in, replies out, no sockets.

A command is a line of words, some with a payload of a stated size behind it; docs/jobs.md has them all. Commands
are answered in order. One that waits (`lease`, `run`, `result`) blocks those behind it, on its own connection
only.

If a command is refused, its payload is skipped, as long as its size could be read. A line that does not end with
CR LF ends the connection: the client speaks another protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import TYPE_CHECKING

from forelog import kernel
from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.machine.limits import LEASE_NAMES_MAX, is_id
from forelog.jobs.machine.machine import DONE, UNKNOWN, Machine
from forelog.jobs.machine.queue import Job, Leaser, Waiter
from forelog.jobs.server.beyond import (
    Beyond,
    LeaseOptions,
    added,
    ending,
    is_beyond,
    is_lost,
    lease_options,
)
from forelog.jobs.server.inspection import inspect
from forelog.jobs.server.outage import Outage
from forelog.jobs.server.rare import Rare
from forelog.jobs.server.replies import (
    ARGS,
    BAD_ID,
    BAD_RESULT_SIZE,
    BAD_SIZE,
    BAD_TIME,
    DRAINING,
    DUPLICATE_JOB,
    DUPLICATE_RESULT,
    FLAGS,
    LONG_LINE,
    LOST_LEASE,
    NO_TOKEN,
    NOT_FOUND,
    OK,
    OUT_OF_MEMORY,
    READ_ONLY,
    TIMEOUT,
    UNKNOWN_COMMAND,
    UNREADABLE,
    lease_reply,
    leased_line,
    read_reply,
    result_reply,
)
from forelog.jobs.server.words import (
    moment,
    number,
    parse_id,
    payload_size,
    refuse_flags,
    refuse_job,
    refuse_wait,
    split_flags,
)

if TYPE_CHECKING:
    from forelog.jobs.machine.terms import Terms
    from forelog.jobs.server.archive import Archive
    from forelog.jobs.server.clients import Clients, Peer

_LINE_BYTES_MAX = 16 << 10
_STRANGE_BYTES_MAX = 4 << 10
"""The longest line that a client may send before it has shown the token."""
_OUT_BYTES_MAX = 1 << 20
"""The most bytes of replies not sent and payloads not written. Beyond it, the next commands wait."""
_WAITS_MAX, _NAMES_FEW = 250_000, 16
"""Names that all leasers together wait for. Past it, no leaser waits for more than a few."""
_MS_NS = 1_000_000
_CR, _LF = 13, 10
_next_line = kernel.next_line

# Commands with a payload: how many words follow the name, the last of which is its size; the reply to a bad size.
_SIZED = {
    b"add": (5, BAD_SIZE),
    b"run": (5, BAD_SIZE),
    b"schedule": (6, BAD_SIZE),
    b"complete": (2, BAD_SIZE),
    b"fail": (2, BAD_RESULT_SIZE),
}


Replies = tuple[list[bytes], int]
"""Replies, and how many of the last of them report changes that are not written yet."""


class Session:
    """The protocol's state of one connection."""

    def __init__(
        self,
        machine: Machine,
        clients: Clients,
        outage: Outage,
        archive: Archive,
        rare: Rare,
        beyond: Beyond,
        connection: Peer,
    ) -> None:
        self._machine = machine
        self._clients = clients
        self._outage = outage
        self._archive = archive
        self._rare = rare
        self._beyond = beyond
        self.connection = connection
        self._buffer = bytearray()
        """Bytes of a command that is not complete, or behind one that waits."""
        self._need = 0
        """How many bytes the buffer must have before the next look."""
        self.known = clients.token is None
        """Whether the client has shown the token, or none is needed."""
        self.out: list[bytes] = []
        """Replies, not to be sent before the changes that they report are written."""
        self.out_bytes = 0
        self.tentative = 0
        """How many of the last replies report changes that are not written yet."""
        self.waiting: Leaser | Waiter | None = None
        """The client's wait, if it is in one."""
        self.in_line = False
        """Whether the next commands wait for their turn, because this turn has used up its time."""
        self.closed = False
        """Whether the rest of what the client sends is ignored."""

    def buffered(self) -> int:
        """How many bytes are in the buffer."""
        return len(self._buffer)

    def is_held(self) -> bool:
        """Whether the next commands have to wait: for the one before them, for their turn, for replies to be sent,
        or for the changes of all clients to be written."""
        if self.waiting is not None or self.in_line:
            return True
        return self.out_bytes > _OUT_BYTES_MAX or self._machine.ledger.is_full()

    def is_in_line(self) -> bool:
        """Whether the client only waits for its turn."""
        return self.in_line or (isinstance(self.waiting, Waiter) and self.waiting.asked is not None)

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take bytes from the client."""
        if self._buffer or self.is_held():
            self._buffer += data
            if len(self._buffer) < self._need or self.is_held():
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        self._commands(data, now_ns)

    def resume(self, now_ns: int) -> None:
        """Do commands that had to wait."""
        if len(self._buffer) >= max(self._need, 1) and not self.is_held() and not self.closed:
            data = bytes(self._buffer)
            self._buffer.clear()
            self._commands(data, now_ns)

    def go_on(self, now_ns: int) -> None:
        """Do the client's next commands: it is its turn."""
        self.in_line = False
        self.resume(now_ns)

    def take(self) -> Replies:
        """Take the replies so far."""
        replies = self.out, self.tentative
        self.out, self.out_bytes, self.tentative = [], 0, 0
        return replies

    def refuse(self, refusal: bytes) -> None:
        """Refuse the client."""
        self.out.append(refusal)
        self.closed = True

    def leave(self) -> None:
        """The client has gone."""
        self.closed = True
        self._buffer, self.out = bytearray(), []  # now, and not when the garbage collector finds them
        if self.waiting is not None:
            self._machine.leave(self.waiting)
            self.waiting = None

    def end_wait(self) -> None:
        """Reply, because the client's wait is over."""
        waiting, self.waiting = self.waiting, None
        if isinstance(waiting, Leaser):
            if waiting.job is None:
                self.change(TIMEOUT)
            elif waiting.info:
                self.change(b"+OK 1\r\n" + leased_line(waiting.job, True))
            else:
                self.change(lease_reply(waiting.job))
        elif waiting is not None:
            if waiting.asked is not None:
                self.reply(inspect(self._machine, self._clients, *waiting.asked))
            elif waiting.refused:
                self.reply(NO_TOKEN)
                self.closed = True
            elif waiting.gone:
                self.change(NOT_FOUND)
            elif waiting.then is not None:
                if waiting.read is None:
                    self.reply(UNREADABLE)
                else:
                    waiting.then(waiting.read)
            elif waiting.job.is_unloaded:
                self.reply(read_reply(waiting))
            else:
                self.change(TIMEOUT if waiting.job.result is None else result_reply(waiting.job))

    # -- commands

    def _commands(self, data: bytes, now_ns: int) -> None:
        at, end = 0, len(data)
        while at < end and not self.closed and not self.is_held():
            most = _LINE_BYTES_MAX if self.known else _STRANGE_BYTES_MAX
            stop, words, flagged = _next_line(data, at, most)
            if stop < 0:
                if end - at >= most:
                    self._refuse_line()
                    return
                self._keep(data, at, end - at + 1)
                return
            if words is None:
                self._clients.complain(self.connection, "line without CR LF")
                self.closed = True
                return
            after = self._command(data, words, flagged, stop + 1, now_ns)
            if after < 0:
                self._keep(data, at, -after - at)
                return
            at = after
            if at < end and not self.connection.has_time():
                self.in_line = True
        if at < end and not self.closed:
            self._keep(data, at, 0)

    def _refuse_line(self) -> None:
        self._clients.complain(self.connection, "line too long")
        self.reply(LONG_LINE)
        self.closed = True

    def _keep(self, data: bytes, at: int, need: int) -> None:
        self._buffer += data[at:]
        self._need = need

    def _command(self, data: bytes, args: list[bytes], flagged: bool, after: int, now_ns: int) -> int:
        """Do a command, whose line ends before `after`. Returns where the next one begins. If the payload is not
        complete, returns where it ends, negated."""
        name = args.pop(0)
        flags: dict[bytes, bytes] | None = None
        sound = True
        if flagged:
            args, flags, sound = split_flags(args)
        payload = b""
        if not self.known:
            self._authorize(name, args, now_ns)
            return after
        sized = _SIZED.get(name)
        if sized is not None:
            count, bad_size = sized
            if len(args) != count:
                self.reply(ARGS if sound else FLAGS)
                return after
            size = payload_size(args[count - 1])
            if size < 0:
                self.reply(bad_size if sound else FLAGS)
                return after
            end = after + size
            if len(data) <= end:
                return -end - 1
            if data[end] != _CR:
                self.reply(bad_size if sound else FLAGS)
                return end + 1
            if len(data) <= end + 1:
                return -end - 2
            if data[end + 1] != _LF:
                self.reply(bad_size if sound else FLAGS)
                return end + 2
            payload = data[after:end]
            after = end + 2
            self.out_bytes += size
        if not sound:
            self.reply(FLAGS)
        else:
            self._dispatch(name, args, flags, payload, now_ns)
        return after

    def _dispatch(
        self, name: bytes, args: list[bytes], flags: dict[bytes, bytes] | None, payload: bytes, now_ns: int
    ) -> None:
        if name == b"add":
            self._add(args, flags, payload, now_ns)
        elif name == b"lease":
            self._lease(args, flags, now_ns)
        elif name == b"complete":
            self._finish(args, flags, payload, True, now_ns)
        elif name == b"fail":
            self._finish(args, flags, payload, False, now_ns)
        elif name == b"run":
            self._rare.run(self, args, flags, payload, now_ns)
        elif name == b"result":
            self._rare.result(self, args, flags, now_ns)
        elif name == b"delete":
            self._rare.delete(self, args, flags)
        elif name == b"schedule":
            self._schedule(args, flags, payload, now_ns)
        elif name == b"inspect":
            self._rare.inspect(self, args, flags)
        elif name == b"auth" and self._clients.token is not None:
            self._authorize(name, args, now_ns)
        elif not self._beyond.do(self, name, args, flags, payload, now_ns):
            self.reply(UNKNOWN_COMMAND)

    def fetch(self, job: Job, inspects: bool, then: Callable[[bytes], None] | None = None) -> None:
        """Wait for the job's payload or result to be read from the log. It is the reply, or what `then` gets."""
        waiter = Waiter(self, job, False)
        waiter.inspects = inspects
        waiter.then = then
        self.waiting = waiter
        self._archive.fetch(waiter)

    def reply(self, reply: bytes) -> None:
        """Reply to a command that changes nothing. The reply may show changes that are not written yet."""
        self.out.append(reply)
        self.out_bytes += len(reply)
        if self._machine.ledger.is_dirty():
            self.tentative += 1

    def change(self, reply: bytes) -> None:
        """Reply to a command that has changed something."""
        self.out.append(reply)
        self.out_bytes += len(reply)
        self.tentative += 1
        if self._outage.trial:
            self.connection.try_writing()

    def _authorize(self, name: bytes, args: list[bytes], now_ns: int) -> None:
        token = self._clients.token or b""
        if name == b"auth" and len(args) == 1 and compare_digest(args[0], token):
            refusal = None if self.known else self._clients.admit(self.connection)
            self.known = refusal is None
            self.reply(refusal or OK)
            self.closed = not self.known
        else:
            waiter = Waiter(self, Job(), False)
            waiter.refused = True
            self.waiting = waiter
            delay = self._clients.refuse(self.connection, name == b"auth")
            self._machine.wheel.set(waiter, now_ns + int(delay * 1e9))

    def _add(self, args: list[bytes], flags: dict[bytes, bytes] | None, payload: bytes, now_ns: int) -> None:
        job_id, name, ttr_ms, ttl_ms = parse_id(args[0]), args[1], number(args[2]), number(args[3])
        refusal = refuse_job(job_id, name, ttr_ms, ttl_ms, flags)
        if refusal is not None:
            self.reply(refusal)
            return
        self._enter(job_id, name, ttr_ms, ttl_ms, payload, flags, NOT_SCHEDULED, now_ns)

    def _schedule(self, args: list[bytes], flags: dict[bytes, bytes] | None, payload: bytes, now_ns: int) -> None:
        job_id, name, ttr_ms, ttl_ms = parse_id(args[0]), args[1], number(args[2]), number(args[3])
        refusal = refuse_job(job_id, name, ttr_ms, ttl_ms, None)
        if refusal is None:
            time_ns = moment(args[4])
            late = time_ns is None or time_ns + ttl_ms * _MS_NS <= now_ns
            refusal = BAD_TIME if late else refuse_flags(flags)
        if refusal is not None:
            self.reply(refusal)
            return
        self._enter(job_id, name, ttr_ms, ttl_ms, payload, flags, time_ns or 0, now_ns)

    def _enter(
        self,
        job_id: bytes | None,
        name: bytes,
        ttr_ms: int,
        ttl_ms: int,
        payload: bytes,
        flags: dict[bytes, bytes] | None,
        scheduled_ns: int,
        now_ns: int,
    ) -> None:
        machine = self._machine
        if job_id in machine.jobs:
            self.reply(DUPLICATE_JOB)
            return
        if machine.ledger.memory_bytes + len(payload) > machine.ledger.memory_bytes_max:
            self.reply(OUT_OF_MEMORY)
            return
        if self._outage.read_only:
            self.reply(READ_ONLY)
            return
        if machine.draining and self._beyond.is_draining(name):
            self.reply(DRAINING)
            return
        priority = max_attempts = max_fails = 0
        terms: Terms | None = None
        reply = OK
        if flags:
            if is_beyond(flags):
                asked = added(flags, scheduled_ns, now_ns)
                if isinstance(asked, bytes):
                    self.reply(asked)
                    return
                if not self._beyond.holder(self, name, asked, now_ns):
                    return
                terms, max_fails, reply = asked.terms, max(asked.max_fails, 0), asked.reply(job_id or b"")
                if asked.delay_ms:
                    scheduled_ns = now_ns + asked.delay_ms * _MS_NS
            priority = int(flags.get(b"-priority", b"0"))
            max_attempts = int(flags.get(b"-max-attempts", b"0"))
            max_fails = int(flags.get(b"-max-fails", max_fails))
        job = machine.new_job(
            job_id or b"", name, ttr_ms, ttl_ms, now_ns, payload, priority, max_attempts, max_fails, scheduled_ns
        )
        job.terms = terms
        machine.add(job, now_ns)
        self.change(reply)

    def _lease(self, args: list[bytes], flags: dict[bytes, bytes] | None, now_ns: int) -> None:
        options = lease_options(flags) if flags else None
        if not 2 <= len(args) <= LEASE_NAMES_MAX + 1 or (flags and options is None):
            self.reply(ARGS)
            return
        names, wait_ms = args[:-1], number(args[-1])
        refusal = refuse_wait(names, wait_ms) or (READ_ONLY if self._outage.read_only else None)
        if refusal is not None:
            self.reply(refusal)
            return
        leaser = Leaser(self, names)
        if options is not None:
            leaser.lease_ms, leaser.info = options.lease_ms, options.info
        crowded = len(names) > _NAMES_FEW and self._machine.waits > _WAITS_MAX
        job = self._machine.lease(leaser, now_ns, 0 if crowded else wait_ms)
        if job is not None and options is not None:
            self._lease_more(leaser, job, options, now_ns)
        elif job is not None:
            self.change(lease_reply(job))
        elif crowded and wait_ms > 0:
            self.reply(OUT_OF_MEMORY)
        elif leaser.waiting:
            self.waiting = leaser
        else:
            self.reply(TIMEOUT)

    def _lease_more(self, leaser: Leaser, job: Job | None, options: LeaseOptions, now_ns: int) -> None:
        """Reply with a job that was leased, and as many more as the client asks for."""
        lines: list[bytes] = []
        size = 0
        while job is not None:
            lines.append(leased_line(job, options.info))
            size += len(lines[-1])
            if len(lines) == options.count or size > _OUT_BYTES_MAX:
                break
            job = self._machine.lease(leaser, now_ns, 0)
        self.change(b"+OK %d\r\n" % len(lines) + b"".join(lines))

    def _finish(
        self, args: list[bytes], flags: dict[bytes, bytes] | None, result: bytes, success: bool, now_ns: int
    ) -> None:
        job_id = parse_id(args[0])
        retry_ms, final = -1, False
        if flags:
            asked = ending(flags, success)
            if asked is None:
                self.reply(ARGS)
                return
            retry_ms, final = asked.retry_ms, asked.final
            job = self._machine.jobs.get(job_id or b"")
            if job is not None and not job.is_processed() and is_lost(job, asked.attempt):
                self.reply(LOST_LEASE)
                return
        if not is_id(job_id):
            self.reply(BAD_ID)
        elif self._outage.read_only:
            self.reply(READ_ONLY)
        else:
            outcome = self._machine.finish(job_id or b"", result, success, now_ns, retry_ms, final)
            if outcome == DONE:
                self.change(OK)
            else:
                self.reply(NOT_FOUND if outcome == UNKNOWN else DUPLICATE_RESULT)
