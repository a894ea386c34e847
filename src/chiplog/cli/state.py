"""`chiplog state`: what a state log has, without the program that wrote it.

state_inspect.py  inspect: generations, events, and of a PersistentDict what is in it
state_restore.py  restore: a new log with the state at a time
state_diff.py     diff: what differs between two states
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from chiplog.cli import options

SUBCOMMANDS = {
    "inspect": "generations and events of a state log, and what a restore would replay",
    "restore": "make a new log with the state that another one has, or had at a time",
    "diff": "what differs between two states: of one log at two times, or of two logs",
}


class _StateParser(options.CommandParser):
    """Parses the rest of the line with the parser of the subcommand."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        outer = super().parse_args(args, namespace)
        chosen = subparser(outer.subcommand).parse_args(outer.arguments)
        chosen.json, chosen.verbose = chosen.json or outer.json, chosen.verbose or outer.verbose
        chosen.subcommand = outer.subcommand
        return chosen


def parser() -> argparse.ArgumentParser:
    summaries = "\n".join(f"  {name:<9} {summary}" for name, summary in SUBCOMMANDS.items())
    parser = _StateParser(
        prog="chiplog state",
        description=f"What a state log has, without the program that wrote it.\n\n{summaries}",
        epilog="examples:\n"
        "  chiplog state inspect bank\n"
        "  chiplog state inspect bank --events --limit 10\n"
        "  chiplog state restore bank yesterday --as-of -24h\n"
        "  chiplog state diff prices --as-of -1h --and -1m\n\n"
        "chiplog state SUBCOMMAND --help shows the options of a subcommand.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_common(parser)
    parser.add_argument("subcommand", metavar="SUBCOMMAND", type=_subcommand, help="one of those above")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="what it takes")
    return parser


def subparser(name: str) -> argparse.ArgumentParser:
    """The parser of a subcommand."""
    summary = SUBCOMMANDS[name]
    parser = options.command_parser(
        f"state {name}",
        summary[0].upper() + summary[1:] + ".",
        "Times are RFC 3339 as in 2026-11-15T18:00:00Z, or -15m for a time ago, with what was written at them;\n"
        "positions are as printed, 000000007:1048576, with what comes before them.",
    )
    _module(name).add_options(parser)
    options.add_timeout(parser, "for a cleaner to finish")
    return parser


def _module(name: str) -> Any:
    return import_module(f"chiplog.cli.state_{name}")


def _subcommand(text: str) -> str:
    if text not in SUBCOMMANDS:
        raise argparse.ArgumentTypeError(f"there is no {text!r}: choose from {', '.join(SUBCOMMANDS)}")
    return text


def run(chosen: argparse.Namespace) -> int:
    code: int = _module(chosen.subcommand).run(chosen)
    return code
