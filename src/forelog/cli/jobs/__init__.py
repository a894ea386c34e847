"""`forelog jobs`: a job server, and its clients.

    serve.py     serve: the server, also `workq-server`
    commands.py  add, run, schedule, lease, complete, fail, delete, result
    inspect.py   inspect: jobs, queues and the server
    dead.py      dead: jobs that failed for good
    worker.py    worker: do the jobs of an app's tasks
    top.py       top: watch queues

Each subcommand has a parser of its own, created when it is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forelog.cli import codes, options

if TYPE_CHECKING:
    from forelog.jobs.client.client import Client

SUBCOMMANDS = {
    "serve": "run a job server, with a command log as its memory",
    "add": "add a job, or one for each line of a file",
    "run": "add a job, wait for its result, and print it",
    "schedule": "add a job that is due at a time",
    "lease": "lease a job",
    "complete": "complete a job with a result",
    "fail": "fail a job with a reason",
    "delete": "forget jobs",
    "result": "print a job's result",
    "inspect": "show jobs, queues, and the server",
    "dead": "jobs that failed for good: list, show, retry, drop",
    "worker": "do the jobs of an app's tasks",
    "top": "watch queues: jobs, rates, latencies",
}
SERVER = "127.0.0.1:9922"
_MODULES = ("serve", "inspect", "dead", "top", "worker")
_ENVIRONMENT = """\
environment:
  WORKQ_SERVER  the server's address, unless --server is given
  WORKQ_TOKEN   the token, unless --token-file is given"""


def parser() -> options.CommandParser:
    return options.SubcommandParser(
        "jobs",
        "A job server, and its clients.",
        "examples:\n"
        "  forelog jobs serve -cmdlog-path cmdlog\n"
        "  forelog jobs add mail 'to: you'\n"
        "  forelog jobs lease mail --wait 10s\n"
        "  forelog jobs worker shop.tasks:app --processes 4\n"
        "  forelog jobs top\n\n"
        "forelog jobs SUBCOMMAND --help shows the options of a subcommand.\n\n" + _ENVIRONMENT,
        SUBCOMMANDS,
        subparser,
    )


def subparser(name: str) -> options.CommandParser:
    """The parser of a subcommand."""
    epilog = _ENVIRONMENT if name != "serve" else "Each flag may have one dash or two. See docs/jobs.md."
    parser = options.subcommand_parser("jobs", name, SUBCOMMANDS, epilog)
    _module(name).add_options(name, parser)
    if name != "serve":
        parser.add(f"""
            --server HOST:PORT  the server's address (default: {SERVER})
            --token-file FILE   a file with the server's token
        """)
        options.add_client(parser, ", beyond what the command itself waits")
    return parser


def _module(name: str) -> Any:
    return import_module(f"forelog.cli.jobs.{name if name in _MODULES else 'commands'}")


def run(chosen: argparse.Namespace) -> int:
    module = _module(chosen.subcommand)
    if chosen.subcommand == "worker":
        own: int = module.run(chosen, options.client_tls(chosen), _token(chosen.token_file))
        return own
    with contextlib.nullcontext() if chosen.subcommand == "serve" else _client(chosen) as client:
        code: int = module.run(chosen, client)
        return code


def _client(chosen: argparse.Namespace) -> Client:
    from forelog.errors import JobRefused
    from forelog.jobs.client.client import Client

    server = chosen.server or os.environ.get("WORKQ_SERVER") or SERVER
    try:
        tls, token = options.client_tls(chosen), _token(chosen.token_file)
        return Client(server, token=token, tls=tls or False, timeout=chosen.timeout, retry_seconds=0)
    except JobRefused as error:
        raise codes.UsageError(str(error)) from None


def _token(path: str | None) -> str | bytes | None:
    if path is None:
        return os.environ.get("WORKQ_TOKEN") or None
    with open(path, "rb") as file:
        return file.read(4096).strip()
