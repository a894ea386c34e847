"""A job server whose memory is a command log, and what speaks to it.

    from forelog.jobs import AsyncClient, Client, LocalServer, Worker

    machine/    the rules: what happens to jobs, without sockets, files or clocks
    log/        the command log: written, replayed, cleaned, read command by command
    server/     the server: connections, the protocol, one write to the log for all clients of a turn
    client/     clients and workers

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

Modules with a .pxd file beside them are Python that is compiled as it is, with the types in that file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forelog.jobs.client.async_client import AsyncClient
    from forelog.jobs.client.client import Client
    from forelog.jobs.client.shift import Attempt, Counters
    from forelog.jobs.client.values import JobInfo, Leased, QueueInfo, Result, ServerInfo
    from forelog.jobs.client.worker import Worker
    from forelog.jobs.server.local import LocalServer

__all__ = [
    "AsyncClient",
    "Attempt",
    "Client",
    "Counters",
    "JobInfo",
    "Leased",
    "LocalServer",
    "QueueInfo",
    "Result",
    "ServerInfo",
    "Worker",
]

if not TYPE_CHECKING:  # a type checker would take any name for Any
    _HOMES = {
        "AsyncClient": "client.async_client",
        "Attempt": "client.shift",
        "Client": "client.client",
        "Counters": "client.shift",
        "JobInfo": "client.values",
        "Leased": "client.values",
        "LocalServer": "server.local",
        "QueueInfo": "client.values",
        "Result": "client.values",
        "ServerInfo": "client.values",
        "Worker": "client.worker",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'forelog.jobs' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"forelog.jobs.{_HOMES[name]}"), name)
        return value
