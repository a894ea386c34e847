"""`forelog state`: read a state log without the program that wrote it.

inspect.py  inspect: generations, events, and the content of a PersistentDict
restore.py  restore: a new log with the state at a time
diff.py     diff: compare two states
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from forelog.cli import options

SUBCOMMANDS = {
    "inspect": "show generations and events of a state log, and what a restore would replay",
    "restore": "create a new log with the state of another one, now or at a time",
    "diff": "compare two states: of one log at two times, or of two logs",
}


def parser() -> options.CommandParser:
    return options.SubcommandParser(
        "state",
        "Read a state log without the program that wrote it.",
        "examples:\n"
        "  forelog state inspect bank\n"
        "  forelog state inspect bank --events --limit 10\n"
        "  forelog state restore bank yesterday --as-of -24h\n"
        "  forelog state diff prices --as-of -1h --and -1m\n\n"
        "forelog state SUBCOMMAND --help shows the options of a subcommand.",
        SUBCOMMANDS,
        subparser,
    )


def subparser(name: str) -> options.CommandParser:
    """The parser of a subcommand."""
    parser = options.subcommand_parser(
        "state",
        name,
        SUBCOMMANDS,
        "A time is RFC 3339 (2026-11-15T18:00:00Z), or -15m for a time ago: the state includes what was written\n"
        "then. A position is as printed, 000000007:1048576: the state includes what comes before it.",
    )
    _module(name).add_options(parser)
    options.add_timeout(parser, "for a cleaner to finish")
    return parser


def _module(name: str) -> Any:
    return import_module(f"forelog.cli.state.{name}")


def run(chosen: argparse.Namespace) -> int:
    code: int = _module(chosen.subcommand).run(chosen)
    return code
