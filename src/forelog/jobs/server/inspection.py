"""The command `inspect`: jobs, queues, the server itself. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from forelog.jobs.machine.limits import is_name
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Job, Waiter
from forelog.jobs.server.replies import (
    ARGS,
    BAD_ID,
    BAD_LIMIT,
    BAD_NAME,
    BAD_OFFSET,
    NOT_FOUND,
    UNKNOWN_COMMAND,
    inspected,
    queue_lines,
)
from forelog.jobs.server.words import number, parse_id

if TYPE_CHECKING:
    from forelog.jobs.server.clients import Clients

REPLY_BYTES_MAX = 2 << 20
"""Bytes of payloads in one reply: with more, it has fewer jobs than were asked for."""
_OFFSET_MAX = 2**32 - 1
_LIMIT_MAX = 100
_QUICK_JOBS_MAX = 1000
"""Ready jobs of a queue that are looked at without waiting for a turn."""


class Inspections:
    """Inspections that take long: one in each round of the event loop. `resume` is called when a wait is over."""

    def __init__(self, machine: Machine, resume: Callable[[], None]) -> None:
        self._machine = machine
        self._resume = resume
        self._waiters: deque[Waiter] = deque()

    def wait(self, client: object, args: list[bytes], flags: dict[bytes, bytes] | None) -> Waiter:
        """Let a client wait to inspect until others have had their turn."""
        waiter = Waiter(client, Job(), False)
        waiter.asked = args, flags
        self._waiters.append(waiter)
        if len(self._waiters) == 1:
            asyncio.get_running_loop().call_soon(self._next)
        return waiter

    def _next(self) -> None:
        self._machine.ended.append(self._waiters.popleft())
        self._resume()
        if self._waiters:
            asyncio.get_running_loop().call_soon(self._next)


def takes_long(machine: Machine, args: list[bytes]) -> bool:
    """Whether an inspection has to look at many jobs: ready jobs may be anywhere in their queue."""
    queue = machine.queues.get(args[1]) if len(args) == 4 and args[0] == b"jobs" else None
    return queue is not None and queue.ready > _QUICK_JOBS_MAX


def inspect(machine: Machine, clients: Clients, args: list[bytes], flags: dict[bytes, bytes] | None) -> bytes:
    """The reply to `inspect`."""
    what = args[0] if args else b""
    count = {b"job": 2, b"jobs": 4, b"scheduled-jobs": 4, b"queue": 2, b"queues": 3, b"server": 1}.get(what)
    if not args or (count is not None and (len(args) != count or flags)):
        return ARGS
    if what == b"server":
        return _inspect_server(machine, clients)
    if what == b"job":
        return _inspect_job(machine, args[1])
    if what == b"queue":
        return _inspect_queue(machine, args[1])
    if what == b"queues":
        return _inspect_queues(machine, args[1], args[2])
    if count is not None:
        return _inspect_jobs(machine, what, args[1], args[2], args[3])
    return UNKNOWN_COMMAND


def asked_for(machine: Machine, args: list[bytes], flags: dict[bytes, bytes] | None) -> Job | None:
    """The job of an `inspect job`, if there is one."""
    if len(args) != 2 or args[0] != b"job" or flags:
        return None
    job_id = parse_id(args[1])
    return None if job_id is None else machine.jobs.get(job_id)


def _inspect_server(machine: Machine, clients: Clients) -> bytes:
    return b"+OK 1\r\nserver 3\r\nactive-clients %d\r\nevicted-jobs %d\r\nstarted %b\r\n" % (
        len(clients),
        machine.evicted,
        clients.started,
    )


def _inspect_job(machine: Machine, text: bytes) -> bytes:
    job_id = parse_id(text)
    if job_id is None:
        return BAD_ID
    job = machine.jobs.get(job_id)
    return NOT_FOUND if job is None else b"+OK 1\r\n" + inspected(job)


def _inspect_queue(machine: Machine, name: bytes) -> bytes:
    if not is_name(name):
        return BAD_NAME
    queue = machine.queues.get(name)
    return NOT_FOUND if queue is None else b"+OK 1\r\n" + queue_lines(queue)


def _inspect_queues(machine: Machine, offset_word: bytes, limit_word: bytes) -> bytes:
    offset, limit = number(offset_word), number(limit_word)
    if not 0 <= offset <= _OFFSET_MAX:
        return BAD_OFFSET
    if not 0 < limit <= _LIMIT_MAX:
        return BAD_LIMIT
    queues = machine.queues
    names = machine.registry.names.some(offset, limit)
    return b"+OK %d\r\n" % len(names) + b"".join([queue_lines(queues[name]) for name in names])


def _inspect_jobs(machine: Machine, what: bytes, name: bytes, offset_word: bytes, limit_word: bytes) -> bytes:
    offset, limit = number(offset_word), number(limit_word)
    if not is_name(name):
        return BAD_NAME
    if not 0 <= offset <= _OFFSET_MAX:
        return BAD_OFFSET
    if not 0 < limit <= _LIMIT_MAX:
        return BAD_LIMIT
    queue = machine.queues.get(name)
    if queue is None:
        return NOT_FOUND
    jobs = queue.ready_jobs(offset, limit) if what == b"jobs" else queue.scheduled_jobs(offset, limit)
    texts: list[bytes] = []
    size = 0
    for job in jobs:
        size += len(job.payload)
        if texts and size > REPLY_BYTES_MAX:
            break
        texts.append(inspected(job))
    return b"+OK %d\r\n" % len(texts) + b"".join(texts)
