"""`forelog backup`: copy a log, whole and checked, while it is in use."""

from __future__ import annotations

import argparse

from forelog.cli import codes, options
from forelog.cli.output import human_bytes, plural, print_json
from forelog.cli.progress import Progress


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "backup",
        "Copy a log as it is now to a new directory. The copy is synced and read back. Programs may append\n"
        "and read meanwhile; cleaners wait. Positions in the copy are those of the log.",
    )
    parser.add_argument("log", metavar="LOG", help="the log's directory")
    parser.add_argument("target", metavar="TARGET", help="the directory to create; it must not exist, or be empty")
    options.add_known_header(parser)
    options.add_mode(parser, "the copy's files")
    options.add_timeout(parser, "for a cleaner to finish")
    return parser


def run(chosen: argparse.Namespace) -> int:
    stream = options.open_log(chosen.log, chosen)
    with Progress(f"copying {chosen.log}") as progress:
        done = stream.backup(chosen.target, progress=progress, timeout=chosen.timeout, mode=chosen.mode)
    if chosen.json:
        print_json(
            {
                "path": done.path,
                "segments": done.segments,
                "records": done.records,
                "bytes": done.byte_count,
                "end": str(done.end),
            }
        )
    else:
        print(
            f"{chosen.target}: {plural(done.records, 'record')} in {plural(done.segments, 'segment')}, "
            f"{human_bytes(done.byte_count)}, up to {done.end}"
        )
    return codes.FINE
