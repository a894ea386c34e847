"""A job server whose memory is a command log, and what speaks to it.

    from forelog.jobs import AsyncClient, Client, LocalServer, Worker

The log
    commands.py     the eight commands, from and to bytes
    encoding.py     their fields
    columns.py      commands as Arrow columns
    reading.py      a command log, command by command
    replay.py       from commands to jobs

The rules
    limits.py       what a job may be
    wheel.py        timers by the million
    queue.py        jobs, and the queues in which they wait
    machine.py      what becomes of jobs
    loading.py      a block of a log into the machine

The server
    words.py        the words of a command line
    replies.py      answers, as bytes
    inspecting.py   what a client can look at
    gate.py         what a connection sees of its server
    protocol.py     a connection: bytes in, bytes out
    door.py         those who haven't shown the token yet
    journal.py      the command log under the server
    cleaning.py     forgetting what no job needs
    turns.py        connections, and what is done with them at the end of a turn
    server.py       starting, stopping, timers, and what happens when the log can't be written
    local.py        LocalServer: the same on a thread, for tests

Those who speak to it
    requests.py     commands, as a client sends them
    answers.py      answers, as a client reads them
    exchange.py     what may be sent again when a connection breaks
    batch.py        many commands in one write
    client.py       Client, for threads
    aio.py          AsyncClient, for tasks
    worker.py       Worker: functions that do jobs, on threads
    worker_tasks.py the same as tasks

Modules with a .pxd file beside them are compiled, as they are, where there is a C compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forelog.jobs.client.aio import AsyncClient
    from forelog.jobs.client.answers import JobInfo, Leased, QueueInfo, Result, ServerInfo
    from forelog.jobs.client.client import Client
    from forelog.jobs.client.worker import Attempt, Worker
    from forelog.jobs.server.local import LocalServer

_HOME_OF = {
    "AsyncClient": "client.aio",
    "Attempt": "client.worker",
    "Client": "client.client",
    "JobInfo": "client.answers",
    "Leased": "client.answers",
    "LocalServer": "server.local",
    "QueueInfo": "client.answers",
    "Result": "client.answers",
    "ServerInfo": "client.answers",
    "Worker": "client.worker",
}

__all__ = [
    "AsyncClient",
    "Attempt",
    "Client",
    "JobInfo",
    "Leased",
    "LocalServer",
    "QueueInfo",
    "Result",
    "ServerInfo",
    "Worker",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'forelog.jobs' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"forelog.jobs.{_HOME_OF[name]}"), name)
    return value
