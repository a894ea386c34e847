"""The protocol: bytes of a client in, replies out, no sockets.

A command is a line of words, some with a payload of a stated size behind it; docs/jobs.md has them all. Commands
are answered in order. One that waits (`lease`, `run`, `result`) blocks those behind it, on its own connection
only.

If a command is refused, its payload is skipped, as long as its size could be read. A line that does not end with
CR LF ends the connection: the client speaks another protocol.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING

from forelog import kernel
from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.machine.limits import LEASE_NAMES_MAX, is_id
from forelog.jobs.machine.machine import DONE, UNKNOWN, Machine
from forelog.jobs.machine.queue import Job, Leaser, Waiter
from forelog.jobs.server.inspection import asked_for, inspect, takes_long
from forelog.jobs.server.outage import Outage
from forelog.jobs.server.replies import (
    ARGS,
    BAD_ID,
    BAD_RESULT_SIZE,
    BAD_SIZE,
    BAD_TIME,
    DUPLICATE_JOB,
    DUPLICATE_RESULT,
    FLAGS,
    LONG_LINE,
    NO_TOKEN,
    NOT_FOUND,
    OK,
    OUT_OF_MEMORY,
    READ_ONLY,
    TIMEOUT,
    UNKNOWN_COMMAND,
    lease_reply,
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
    refuse_run,
    refuse_wait,
    split_flags,
)

if TYPE_CHECKING:
    from forelog.jobs.server.archive import Archive
    from forelog.jobs.server.clients import Clients, Peer
    from forelog.jobs.server.inspection import Inspections

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
        inspections: Inspections,
        connection: Peer,
    ) -> None:
        self._machine = machine
        self._clients = clients
        self._outage = outage
        self._archive = archive
        self._inspections = inspections
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
            self._change(TIMEOUT if waiting.job is None else lease_reply(waiting.job))
        elif waiting is not None:
            if waiting.asked is not None:
                self._reply(inspect(self._machine, self._clients, *waiting.asked))
            elif waiting.refused:
                self._reply(NO_TOKEN)
                self.closed = True
            elif waiting.gone:
                self._change(NOT_FOUND)
            elif waiting.job.is_unloaded:
                self._reply(read_reply(waiting))
            else:
                self._change(TIMEOUT if waiting.job.result is None else result_reply(waiting.job))

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
        self._reply(LONG_LINE)
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
                self._reply(ARGS if sound else FLAGS)
                return after
            size = payload_size(args[count - 1])
            if size < 0:
                self._reply(bad_size if sound else FLAGS)
                return after
            end = after + size
            if len(data) <= end:
                return -end - 1
            if data[end] != _CR:
                self._reply(bad_size if sound else FLAGS)
                return end + 1
            if len(data) <= end + 1:
                return -end - 2
            if data[end + 1] != _LF:
                self._reply(bad_size if sound else FLAGS)
                return end + 2
            payload = data[after:end]
            after = end + 2
            self.out_bytes += size
        if not sound:
            self._reply(FLAGS)
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
            self._run(args, flags, payload, now_ns)
        elif name == b"result":
            self._result(args, flags, now_ns)
        elif name == b"delete":
            self._delete(args, flags)
        elif name == b"schedule":
            self._schedule(args, flags, payload, now_ns)
        elif name == b"inspect":
            self._inspect(args, flags)
        elif name == b"auth" and self._clients.token is not None:
            self._authorize(name, args, now_ns)
        else:
            self._reply(UNKNOWN_COMMAND)

    def _inspect(self, args: list[bytes], flags: dict[bytes, bytes] | None) -> None:
        job = asked_for(self._machine, args, flags)
        if job is not None and job.is_unloaded:
            self._fetch(job, True)
        elif takes_long(self._machine, args):
            self.waiting = self._inspections.wait(self, args, flags)
        else:
            self._reply(inspect(self._machine, self._clients, args, flags))

    def _fetch(self, job: Job, inspects: bool) -> None:
        """Wait for the job's payload or result to be read from the log."""
        waiter = Waiter(self, job, False)
        waiter.inspects = inspects
        self.waiting = waiter
        self._archive.fetch(waiter)

    def _reply(self, reply: bytes) -> None:
        """Reply to a command that changes nothing. The reply may show changes that are not written yet."""
        self.out.append(reply)
        self.out_bytes += len(reply)
        if self._machine.ledger.records:
            self.tentative += 1

    def _change(self, reply: bytes) -> None:
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
            self._reply(refusal or OK)
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
            self._reply(refusal)
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
            self._reply(refusal)
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
            self._reply(DUPLICATE_JOB)
            return
        if machine.ledger.memory_bytes + len(payload) > machine.ledger.memory_bytes_max:
            self._reply(OUT_OF_MEMORY)
            return
        if self._outage.read_only:
            self._reply(READ_ONLY)
            return
        priority = max_attempts = max_fails = 0
        if flags:
            priority = int(flags.get(b"-priority", b"0"))
            max_attempts = int(flags.get(b"-max-attempts", b"0"))
            max_fails = int(flags.get(b"-max-fails", b"0"))
        job = machine.new_job(
            job_id or b"", name, ttr_ms, ttl_ms, now_ns, payload, priority, max_attempts, max_fails, scheduled_ns
        )
        machine.add(job, now_ns)
        self._change(OK)

    def _run(self, args: list[bytes], flags: dict[bytes, bytes] | None, payload: bytes, now_ns: int) -> None:
        job_id, name, ttr_ms, wait_ms = parse_id(args[0]), args[1], number(args[2]), number(args[3])
        refusal = refuse_run(job_id, name, ttr_ms, wait_ms, flags)
        if refusal is None:
            if job_id in self._machine.jobs:
                refusal = DUPLICATE_JOB
            elif self._outage.read_only:
                refusal = READ_ONLY
            elif self._machine.ledger.memory_bytes + len(payload) > self._machine.ledger.memory_bytes_max:
                refusal = OUT_OF_MEMORY
        if refusal is not None:
            self._reply(refusal)
            return
        priority = int(flags.get(b"-priority", b"0")) if flags else 0
        job = self._machine.new_job(job_id or b"", name, ttr_ms, wait_ms, now_ns, payload, priority)
        self.waiting = self._machine.run(job, self, now_ns)
        if self._outage.trial:
            self.connection.try_writing()

    def _lease(self, args: list[bytes], flags: dict[bytes, bytes] | None, now_ns: int) -> None:
        if not 2 <= len(args) <= LEASE_NAMES_MAX + 1 or flags:
            self._reply(ARGS)
            return
        names, wait_ms = args[:-1], number(args[-1])
        refusal = refuse_wait(names, wait_ms) or (READ_ONLY if self._outage.read_only else None)
        if refusal is not None:
            self._reply(refusal)
            return
        leaser = Leaser(self, names)
        crowded = len(names) > _NAMES_FEW and self._machine.waits > _WAITS_MAX
        job = self._machine.lease(leaser, now_ns, 0 if crowded else wait_ms)
        if job is not None:
            self._change(lease_reply(job))
        elif crowded and wait_ms > 0:
            self._reply(OUT_OF_MEMORY)
        elif leaser.waiting:
            self.waiting = leaser
        else:
            self._reply(TIMEOUT)

    def _finish(
        self, args: list[bytes], flags: dict[bytes, bytes] | None, result: bytes, success: bool, now_ns: int
    ) -> None:
        job_id = parse_id(args[0])
        if flags:
            self._reply(ARGS)
        elif not is_id(job_id):
            self._reply(BAD_ID)
        elif self._outage.read_only:
            self._reply(READ_ONLY)
        else:
            outcome = self._machine.finish(job_id or b"", result, success, now_ns)
            if outcome == DONE:
                self._change(OK)
            else:
                self._reply(NOT_FOUND if outcome == UNKNOWN else DUPLICATE_RESULT)

    def _delete(self, args: list[bytes], flags: dict[bytes, bytes] | None) -> None:
        job_id = parse_id(args[0]) if args else None
        if len(args) != 1 or flags:
            self._reply(ARGS)
        elif job_id is None:
            self._reply(BAD_ID)
        elif not is_id(job_id):
            self._reply(OK)  # no such job can exist, so it is gone already
        elif self._outage.read_only:
            self._reply(READ_ONLY)
        elif self._machine.delete(job_id) == DONE:
            self._change(OK)
        else:
            self._reply(NOT_FOUND)

    def _result(self, args: list[bytes], flags: dict[bytes, bytes] | None, now_ns: int) -> None:
        if len(args) != 2 or flags:
            self._reply(ARGS)
            return
        job_id, wait_ms = parse_id(args[0]), number(args[1])
        refusal = refuse_wait([], wait_ms) if is_id(job_id) else BAD_ID
        if refusal is not None:
            self._reply(refusal)
            return
        job = self._machine.jobs.get(job_id or b"")
        if job is None:
            self._reply(NOT_FOUND)
        elif job.is_unloaded:
            self._fetch(job, False)
        elif job.result is not None:
            self._reply(result_reply(job))
        elif wait_ms == 0:
            self._reply(TIMEOUT)
        else:
            self.waiting = self._machine.wait(self, job, now_ns, wait_ms)
