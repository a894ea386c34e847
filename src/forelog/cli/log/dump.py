"""`forelog dump`: records, one a line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from itertools import islice
from typing import Any

from forelog.cli import codes, options
from forelog.cli.output import as_text, in_json
from forelog.log.cursor import Cursor
from forelog.log.position import Position, Record
from forelog.log.stream import Stream
from forelog.times import format_time

_SHOWN_BY = {"m3": "datapoints", "messages": "messages"}
"""Modules with `rows` and `layout` for logs of other formats."""


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "dump",
        "Show records, one a line: position, time and payload, separated by tabs. For a log in M3's format, show\n"
        "datapoints: position, time of creation, namespace, id, tags, timestamp, value, unit and annotation. For\n"
        "a log of messages, show position, time, topic, payload, and properties as JSON if there are any.",
        "Times are RFC 3339 as in 2026-11-15T18:00:00Z, or -15m for a time ago; positions are as printed,\n"
        "000000007:1048576.\n\n"
        "examples:\n"
        "  forelog dump orders.log --since -15m --follow\n"
        "  forelog dump orders.log --reverse --limit 10\n"
        "  forelog dump orders.log --json | jq .payload",
    )
    parser.add_argument("log", metavar="LOG", help="the log's directory")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--hex", action="store_true", help="show payloads as hexadecimal digits")
    how.add_argument(
        "--raw", action="store_true", help="print payloads only, unchanged, each followed by a newline"
    )
    parser.add("""
        --since WHEN  start at this time or position
        --until WHEN  end before this time or position
    """)
    parser.add_argument(
        "--from", dest="start", type=options.position, metavar="POSITION", help="start at this position"
    )
    parser.add("""
        --limit N                        show at most N records
        --reverse                        show the last record first
        --follow                         wait for new records until interrupted
        --on-corruption raise|stop|skip  at damage: fail with exit code 4 (default), stop there, or skip it
    """)
    parser.set_defaults(on_corruption="raise")
    options.add_known_header(parser)
    options.add_timeout(parser, "for a cleaner to finish")
    return parser


def run(chosen: argparse.Namespace) -> int:
    if chosen.reverse and chosen.follow:
        raise codes.UsageError("--reverse and --follow don't go together: one starts at the end, one stays there")
    if chosen.json and (chosen.hex or chosen.raw):
        raise codes.UsageError("--json, --hex and --raw exclude each other: choose one")
    stream = options.open_log(chosen.log, chosen)
    start, since_ns = chosen.start, None
    if isinstance(chosen.since, Position):
        start = max(chosen.since, start or chosen.since)
    else:
        since_ns = chosen.since
    shown = import_module(f"forelog.cli.log.{_SHOWN_BY.get(stream.format.name, 'dump')}")
    # Bytes: payloads are printed unchanged, whatever the terminal's encoding.
    sys.stdout.flush()
    out = sys.stdout.buffer
    try:
        with closing(shown.rows(stream, chosen, start, since_ns)) as rows:
            for line in map(shown.layout(chosen), islice(rows, chosen.limit)):
                out.write(line)
                if chosen.follow:
                    out.flush()
    finally:
        out.flush()
    return codes.FINE


def rows(
    stream: Stream, chosen: Any, start: Position | None, since_ns: int | None, *, frames: bool = False
) -> Cursor:
    """The records to show. With `frames` a payload is the whole encoded record."""
    bounds = stream.bounds(until=chosen.until)
    return Cursor(
        stream.directory,
        stream.metrics,
        start=start,
        until=bounds.stop,
        since_ns=since_ns,
        until_ns=bounds.until_ns,
        reverse=chosen.reverse,
        follow=chosen.follow,
        on_corruption=chosen.on_corruption,
        timeout=chosen.timeout,
        frames=frames,
    )


def layout(chosen: argparse.Namespace) -> Callable[[Record], bytes]:
    """How a record is shown."""
    if chosen.json:
        return as_json
    if chosen.raw:
        return lambda record: record.payload + b"\n"
    if chosen.hex:
        return lambda record: _line(record, record.payload.hex())
    return lambda record: _line(record, as_text(record.payload))


def _line(record: Record, payload: str) -> bytes:
    return f"{record.position}\t{format_time(record.time_ns, aligned=True)}\t{payload}\n".encode()


def as_json(record: Record) -> bytes:
    """A record as a line of JSON."""
    fields: dict[str, object] = {
        "position": str(record.position),
        "segment": record.position.segment,
        "offset": record.position.offset,
        "time": format_time(record.time_ns),
        "time_ns": record.time_ns,
    }
    return json.dumps(fields | in_json("payload", record.payload), ensure_ascii=False).encode() + b"\n"
