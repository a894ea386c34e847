"""A job server whose memory is a command log, and what speaks to it.

    from forelog.jobs import App, AsyncClient, Client, LocalServer, Worker

    machine/    the rules: what happens to jobs, without sockets, files or clocks
    log/        the command log: written, replayed, cleaned, read command by command
    server/     the server: connections, the protocol, one write to the log for all clients of a turn
    client/     clients and workers
    app/        tasks: functions that workers do, called as jobs

The bytes of the commands in the log are in `forelog.formats.commands`. This is the way of a job, in one turn of
the server's event loop::

    server/turns.py ──▶ connection.py ──▶ session.py ──▶ machine/machine.py ──▶ ledger.py
    reads all sockets   bytes of one      commands       the rules              the commands to be
                        client                                                  written, and an undo
    then, once for all clients of the turn:

    server/turns.py ──▶ log/commandlog.py ──▶ forelog.log Appender     one write, one sync
         │                                         │
         │◀──────────── where the commands are ────┘
         ├──▶ machine/ledger.py     notes the places
         └──▶ connection.py         sends the replies that were held back

If the write fails, `turns.py` has the machine undo the changes, sends errors in place of the replies, and
`outage.py` tries again later.

Modules with a .pxd file beside them are Python that is compiled as it is, with the types in that file. It
names the attributes of their classes, which therefore need no `__slots__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forelog.lazy import exports

if TYPE_CHECKING:  # a type checker reads these, and refuses any other name
    from forelog.jobs.app.app import App as App
    from forelog.jobs.app.handle import Job as Job
    from forelog.jobs.app.injection import Depends as Depends
    from forelog.jobs.app.middleware import Middleware as Middleware
    from forelog.jobs.app.steps import current_attempt as current_attempt
    from forelog.jobs.app.steps import step as step
    from forelog.jobs.app.task import Task as Task
    from forelog.jobs.app.workflows import chain as chain
    from forelog.jobs.app.workflows import group as group
    from forelog.jobs.client.async_client import AsyncClient as AsyncClient
    from forelog.jobs.client.attempt import Attempt as Attempt
    from forelog.jobs.client.backoff import Backoff as Backoff
    from forelog.jobs.client.backoff import exponential as exponential
    from forelog.jobs.client.backoff import fixed as fixed
    from forelog.jobs.client.backoff import linear as linear
    from forelog.jobs.client.client import Client as Client
    from forelog.jobs.client.shift import Counters as Counters
    from forelog.jobs.client.signals import Discard as Discard
    from forelog.jobs.client.signals import Retry as Retry
    from forelog.jobs.client.values import Added as Added
    from forelog.jobs.client.values import DeadJob as DeadJob
    from forelog.jobs.client.values import JobInfo as JobInfo
    from forelog.jobs.client.values import Leased as Leased
    from forelog.jobs.client.values import LeaseInfo as LeaseInfo
    from forelog.jobs.client.values import Progress as Progress
    from forelog.jobs.client.values import QueueDetails as QueueDetails
    from forelog.jobs.client.values import QueueInfo as QueueInfo
    from forelog.jobs.client.values import Result as Result
    from forelog.jobs.client.values import ScheduleInfo as ScheduleInfo
    from forelog.jobs.client.values import ServerInfo as ServerInfo
    from forelog.jobs.client.values import Step as Step
    from forelog.jobs.client.worker import Worker as Worker
    from forelog.jobs.server.local import LocalServer as LocalServer

__all__, _load = exports(
    __name__,
    {
        "forelog.jobs.app.app": "App",
        "forelog.jobs.app.handle": "Job",
        "forelog.jobs.app.injection": "Depends",
        "forelog.jobs.app.middleware": "Middleware",
        "forelog.jobs.app.steps": "current_attempt step",
        "forelog.jobs.app.task": "Task",
        "forelog.jobs.app.workflows": "chain group",
        "forelog.jobs.client.async_client": "AsyncClient",
        "forelog.jobs.client.backoff": "Backoff exponential fixed linear",
        "forelog.jobs.client.client": "Client",
        "forelog.jobs.client.attempt": "Attempt",
        "forelog.jobs.client.shift": "Counters",
        "forelog.jobs.client.signals": "Discard Retry",
        "forelog.jobs.client.values": "Added DeadJob JobInfo Leased LeaseInfo Progress QueueDetails "
        "QueueInfo Result ScheduleInfo ServerInfo Step",
        "forelog.jobs.client.worker": "Worker",
        "forelog.jobs.server.local": "LocalServer",
    },
)

if not TYPE_CHECKING:
    __getattr__ = _load
