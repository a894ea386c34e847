"""`forelog dump`: records, one a line."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Callable
from itertools import islice

from forelog.cli import codes, options
from forelog.cli.output import as_text
from forelog.log.cursor import Cursor
from forelog.log.position import Position, Record
from forelog.times import format_time


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "dump",
        "Show records, one a line: position, time and payload, separated by tabs. Of a log in M3's format show\n"
        "datapoints: position, time of creation, namespace, id, tags, timestamp, value, unit and annotation. Of\n"
        "a log of messages show position, time, topic, payload, and properties as JSON if there are any.",
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
    if stream.format.holds_entries:
        from forelog.cli.log import datapoints

        return datapoints.dump(stream, chosen)
    if stream.format.name == "messages":
        from forelog.cli.log import messages

        return messages.dump(stream, chosen)
    start: Position | None = chosen.start
    since_ns: int | None = None
    if isinstance(chosen.since, Position):
        start = max(chosen.since, start or chosen.since)
    else:
        since_ns = chosen.since
    with stream.cursor(
        start=start,
        since=since_ns,
        until=chosen.until,
        reverse=chosen.reverse,
        follow=chosen.follow,
        on_corruption=chosen.on_corruption,
        timeout=chosen.timeout,
    ) as cursor:
        _print(cursor, _layout(chosen), chosen.limit, flush=chosen.follow)
    return codes.FINE


def _print(cursor: Cursor, layout: Callable[[Record], bytes], limit: int | None, *, flush: bool) -> None:
    # Bytes: payloads are printed unchanged, whatever the terminal's encoding.
    sys.stdout.flush()
    out = sys.stdout.buffer
    if limit == 0:
        return
    try:
        for record in cursor if limit is None else islice(cursor, limit):
            out.write(layout(record))
            if flush:
                out.flush()
    finally:
        out.flush()


def _layout(chosen: argparse.Namespace) -> Callable[[Record], bytes]:
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
    try:
        fields["payload"] = record.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(record.payload).decode()
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
