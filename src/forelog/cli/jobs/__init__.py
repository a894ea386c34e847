"""`forelog jobs`: a job server, and its clients.

    serve.py     serve: the server, also `workq-server`
    commands.py  add, run, schedule, lease, complete, fail, delete, result
    inspect.py   inspect: jobs, queues and the server
    top.py       top: watch queues

Each subcommand has a parser of its own, created when it is needed.
"""

from __future__ import annotations

import argparse
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
    "top": "watch queues: jobs, rates, latencies",
}
SERVER = "127.0.0.1:9922"
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
        "  forelog jobs top\n\n"
        "forelog jobs SUBCOMMAND --help shows the options of a subcommand.\n\n" + _ENVIRONMENT,
        SUBCOMMANDS,
        subparser,
    )


def subparser(name: str) -> options.CommandParser:
    """The parser of a subcommand."""
    summary = SUBCOMMANDS[name]
    parser = options.command_parser(f"jobs {name}", summary[0].upper() + summary[1:] + ".", epilog=_epilog(name))
    if name == "serve":
        from forelog.cli.jobs import serve as jobs_serve

        jobs_serve.add_flags(parser)
    else:
        _module(name).add_options(name, parser)
        _add_connection(parser)
    return parser


def _epilog(name: str) -> str:
    if name == "serve":
        return "Each flag may have one dash or two. See docs/jobs.md."
    return _ENVIRONMENT


def _module(name: str) -> Any:
    return import_module(f"forelog.cli.jobs.{name if name in ('inspect', 'top') else 'commands'}")


def _add_connection(parser: options.CommandParser) -> None:
    parser.add_argument("--server", metavar="HOST:PORT", help=f"the server's address (default: {SERVER})")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the server's token")
    options.add_client_tls(parser)
    parser.add("""
        --timeout SECONDS  how long to wait for a reply, beyond what the command itself waits (default: 30)
    """)
    parser.set_defaults(timeout=30.0)


def run(chosen: argparse.Namespace) -> int:
    if chosen.subcommand == "serve":
        from forelog.cli.jobs import serve as jobs_serve

        return jobs_serve.run(chosen)
    with _client(chosen) as client:
        code: int = _module(chosen.subcommand).run(chosen, client)
        return code


def _client(chosen: argparse.Namespace) -> Client:
    from forelog.errors import JobRefused
    from forelog.jobs.client.client import Client

    server = chosen.server or os.environ.get("WORKQ_SERVER") or SERVER
    try:
        return Client(
            server, token=_token(chosen.token_file), tls=_tls(chosen), timeout=chosen.timeout, retry_seconds=0
        )
    except JobRefused as error:
        raise codes.UsageError(str(error)) from None


def _token(path: str | None) -> str | bytes | None:
    if path is None:
        return os.environ.get("WORKQ_TOKEN") or None
    with open(path, "rb") as file:
        return file.read(4096).strip()


def _tls(chosen: argparse.Namespace) -> Any:
    if chosen.tls_ca is None and chosen.tls_cert is None and chosen.tls_key is None:
        return chosen.tls
    from forelog.cli import serving  # asyncio comes along

    return serving.client_tls(chosen.tls_ca, chosen.tls_cert, chosen.tls_key)
