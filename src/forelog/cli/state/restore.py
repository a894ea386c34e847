"""`forelog state restore`: create a log with the state at a time."""

from __future__ import annotations

import argparse

from forelog.cli import codes, options
from forelog.cli.output import human_bytes, plural, print_json
from forelog.cli.progress import Progress
from forelog.errors import PlaceTaken
from forelog.state.restoration import restore
from forelog.times import format_time


def add_options(parser: options.CommandParser) -> None:
    """Add the options of `restore`."""
    parser.add("""
        source SOURCE  the log to read; it isn't changed
        target DIR     the log to create: a directory that doesn't exist, or is empty
        --as-of WHEN   the state at a time or position
    """)
    options.add_mode(parser)


def run(chosen: argparse.Namespace) -> int:
    """Create the new log."""
    target = chosen.target
    with Progress(f"restoring {chosen.source}") as progress:
        try:
            report = restore(
                chosen.source,
                target,
                chosen.as_of,
                progress=progress,
                timeout=chosen.timeout,
                mode=chosen.mode,
            )
        except PlaceTaken as error:
            raise codes.UsageError(str(error)) from None
    if chosen.json:
        print_json(
            {
                "target": target,
                "generation": report.span.generation,
                "whole": report.span.complete,
                "events": report.events,
                "segments": report.segments,
                "bytes": report.byte_count,
                "last_change": format_time(report.span.last_ns),
                "to": str(report.span.end),
            }
        )
    else:
        size = f"{plural(report.segments, 'segment')}, {human_bytes(report.byte_count)}"
        print(
            f"{target}: {plural(report.events, 'event')} in {size}, synced and read back; "
            f"the state as of {report.span.end}, {format_time(report.span.last_ns)}"
        )
    return codes.FINE
