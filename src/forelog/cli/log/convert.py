"""`forelog convert`: write a log's content to a new log, in another format."""

from __future__ import annotations

import argparse
import os

from forelog.cli import codes, options
from forelog.cli.output import human_bytes, plural, print_json, say
from forelog.cli.progress import Progress
from forelog.formats import Captain, Format
from forelog.formats.captain import MAGIC, VERSION
from forelog.log.stream import Stream

SEGMENT_BYTES = 64 << 20


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "convert",
        "Write a log's content to a new log, in another format. The new log is synced and read back before it is\n"
        "put in its place; if anything fails, nothing is left.",
        "From m3, each datapoint becomes a record with a JSON object; to m3, such records become datapoints\n"
        "again. Other payloads become annotations of entries of one series, named by --series.\n\n"
        "examples:\n"
        "  forelog convert data metrics.log --to captain\n"
        "  forelog convert metrics.log data --to m3\n"
        "  forelog convert orders.log data --to m3 --series orders",
    )
    parser.add("""
        source SOURCE  the log to read
        target TARGET  the log to write: a directory that doesn't exist, or is empty
    """)
    parser.add_argument("--to", choices=["captain", "m3"], required=True, help="the format to write")
    options.add_header(
        parser,
        "the magic number of the new log, if it is captain (default: the source's, or cptn)",
        "the version of the new log's content, likewise (default: the source's, or 1)",
    )
    parser.add("""
        --series ID                 the series for payloads that aren't datapoints
        --namespace NAME            its namespace (default: default)
        --shard N                   its shard (default: 0)
        --segment-bytes SIZE        size at which the next segment begins (default: 64MiB)
        --on-corruption raise|skip  at damage in the source: fail with exit code 4 (default), or skip what can't
                                    be read
    """)
    parser.set_types(shard=options.u32)
    parser.set_defaults(namespace="default", shard=0, segment_bytes=SEGMENT_BYTES, on_corruption="raise")
    options.add_mode(parser)
    options.add_timeout(parser, "for a cleaner of the source to finish")
    return parser


def run(chosen: argparse.Namespace) -> int:
    from forelog.conversion import convert
    from forelog.formats.m3 import Series

    source = Stream.open(chosen.source)
    if source.format.name == "messages":
        raise codes.UsageError(
            f"{chosen.source} is a log of messages: its topics and properties have no place elsewhere"
        )
    if os.path.exists(chosen.target) and (not os.path.isdir(chosen.target) or os.listdir(chosen.target)):
        raise codes.UsageError(f"{chosen.target} is there already and not empty: a conversion makes a new log")
    if chosen.series is None and (chosen.namespace != "default" or chosen.shard):
        raise codes.UsageError("--namespace and --shard are of a series: name it by --series")
    series = None
    if chosen.series is not None:
        series = Series(chosen.series.encode(), chosen.namespace.encode(), chosen.shard)
    with Progress(f"converting {chosen.source}") as progress:
        report = convert(
            source,
            chosen.target,
            _format(chosen, source),
            series=series,
            segment_bytes=chosen.segment_bytes,
            on_corruption=chosen.on_corruption,
            progress=progress,
            timeout=chosen.timeout,
            mode=chosen.mode,
        )
    if report.torn:
        say(f"{chosen.source} ends in a torn tail, which was left out")
    if report.skipped:
        places = f"{plural(report.skipped, 'place')} in {chosen.source}"
        say(f"{places} that can't be read left out: see forelog verify")
    if chosen.json:
        print_json(report._asdict())
    else:
        what = "datapoint" if chosen.to == "m3" else "record"
        size = f"{plural(report.segments, 'segment')}, {human_bytes(report.byte_count)}"
        print(f"{chosen.target}: {plural(report.records, what)} in {size}, synced and read back")
    return codes.FINE


def _format(chosen: argparse.Namespace, source: Stream) -> Format:
    if chosen.to == "m3":
        if chosen.magic is not None or chosen.version_number is not None:
            raise codes.UsageError(
                "--magic and --version-number are for captain: logs in M3's format have neither"
            )
        from forelog.formats.m3 import M3

        return M3()
    magic, version = source.format.signature or (MAGIC, VERSION)
    return Captain(
        magic if chosen.magic is None else chosen.magic,
        version if chosen.version_number is None else chosen.version_number,
    )
