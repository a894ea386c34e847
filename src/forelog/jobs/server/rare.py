"""Commands of workq that are rarer than the others: run, result, delete, inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forelog.jobs.machine.limits import is_id
from forelog.jobs.machine.machine import DONE, Machine
from forelog.jobs.server.inspection import Inspections, asked_for, inspect, takes_long
from forelog.jobs.server.replies import (
    ARGS,
    BAD_ID,
    DUPLICATE_JOB,
    NOT_FOUND,
    OK,
    OUT_OF_MEMORY,
    READ_ONLY,
    TIMEOUT,
    result_reply,
)
from forelog.jobs.server.words import number, parse_id, refuse_run, refuse_wait

if TYPE_CHECKING:
    from forelog.jobs.server.clients import Asker, Clients
    from forelog.jobs.server.outage import Outage


class Rare:
    """Does these commands for the sessions of all clients."""

    def __init__(self, machine: Machine, clients: Clients, outage: Outage, inspections: Inspections) -> None:
        self._machine = machine
        self._clients = clients
        self._outage = outage
        self._inspections = inspections

    def run(
        self, session: Asker, args: list[bytes], flags: dict[bytes, bytes] | None, payload: bytes, now_ns: int
    ) -> None:
        """Add a job whose client waits for its result."""
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
            session.reply(refusal)
            return
        priority = int(flags.get(b"-priority", b"0")) if flags else 0
        job = self._machine.new_job(job_id or b"", name, ttr_ms, wait_ms, now_ns, payload, priority)
        session.waiting = self._machine.run(job, session, now_ns)
        if self._outage.trial:
            session.connection.try_writing()

    def result(self, session: Asker, args: list[bytes], flags: dict[bytes, bytes] | None, now_ns: int) -> None:
        """Wait for the result of a job."""
        if len(args) != 2 or flags:
            session.reply(ARGS)
            return
        job_id, wait_ms = parse_id(args[0]), number(args[1])
        refusal = refuse_wait([], wait_ms) if is_id(job_id) else BAD_ID
        if refusal is not None:
            session.reply(refusal)
            return
        job = self._machine.jobs.get(job_id or b"")
        if job is None:
            session.reply(NOT_FOUND)
        elif job.is_unloaded:
            session.fetch(job, False)
        elif job.result is not None:
            session.reply(result_reply(job))
        elif wait_ms == 0:
            session.reply(TIMEOUT)
        else:
            session.waiting = self._machine.wait(session, job, now_ns, wait_ms)

    def delete(self, session: Asker, args: list[bytes], flags: dict[bytes, bytes] | None) -> None:
        """Delete a job."""
        job_id = parse_id(args[0]) if args else None
        if len(args) != 1 or flags:
            session.reply(ARGS)
        elif job_id is None:
            session.reply(BAD_ID)
        elif not is_id(job_id):
            session.reply(OK)  # no such job can exist, so it is gone already
        elif self._outage.read_only:
            session.reply(READ_ONLY)
        elif self._machine.delete(job_id) == DONE:
            session.change(OK)
        else:
            session.reply(NOT_FOUND)

    def inspect(self, session: Asker, args: list[bytes], flags: dict[bytes, bytes] | None) -> None:
        """Look at jobs, at queues, or at the server."""
        job = asked_for(self._machine, args, flags)
        if job is not None and job.is_unloaded:
            session.fetch(job, True)
        elif takes_long(self._machine, args):
            session.waiting = self._inspections.wait(session, args, flags)
        else:
            session.reply(inspect(self._machine, self._clients, args, flags))
