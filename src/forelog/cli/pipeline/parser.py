"""The options of `forelog pipeline`, which of them each subcommand takes, and what doesn't go together."""

from __future__ import annotations

import argparse
import re
from typing import Any

from forelog.cli import codes, options

SUBCOMMANDS = {
    "verify": "check every checksum of a log, or of a folder of logs",
    "jobs": "the jobs of a command log: queues, waiting times, what is stuck or poisoned",
    "replay": "the state as of a position or a time: jobs, or the latest record of each key",
    "stats": "rates, sizes, gaps and duplicates",
    "clean": "drop records of finished jobs, or of superseded keys",
    "ingest": "write a log to a table, once or continuously",
}

# Which options are for which subcommands; those that aren't here are for all.
_FOR = {
    "as_of": ("replay",),
    "since": ("jobs", "stats"),
    "until": ("jobs", "stats"),
    "now": ("jobs", "replay", "clean"),
    "patience": ("jobs",),
    "attempts": ("jobs",),
    "window": ("jobs", "stats"),
    "gaps": ("stats",),
    "duplicates": ("stats",),
    "latest_key": ("replay", "clean"),
    "latest_until": ("replay", "clean"),
    "fails_are_final": ("replay",),
    "limit": ("verify", "jobs", "replay", "stats"),
    "rule": ("clean",),
    "finished_for": ("clean",),
    "apply": ("clean",),
    "timeout": ("clean",),
    "on_corruption": ("jobs", "replay", "stats", "ingest"),
    "target": ("ingest",),
    "codec": ("ingest",),
    "table": ("ingest",),
    "catalog": ("ingest",),
    "table_name": ("ingest",),
    "partition_by": ("ingest",),
    "follow": ("ingest",),
    "every": ("ingest",),
    "mode": ("ingest",),
}

_WHOSE = re.compile(rf"^(?:{'|'.join(SUBCOMMANDS)})(?:, (?:{'|'.join(SUBCOMMANDS)}))*: ")


class PipelineParser(options.CommandParser):
    """A parser that accepts options anywhere, and whose help shows a subcommand's own options alone."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        name = next((word for word in args or () if word in SUBCOMMANDS), None)
        if name is not None:
            self._narrow(name)
        return super().parse_args(args, namespace)

    def _narrow(self, name: str) -> None:
        """Leave out of the help what is for other subcommands. They are still parsed: `check` refuses them."""
        summary = SUBCOMMANDS[name]
        self.prog += f" {name}"
        self.description = summary[0].upper() + summary[1:] + "."
        self.epilog = None
        for action in self._actions:
            if action.dest == "subcommand" or name not in _FOR.get(action.dest, SUBCOMMANDS):
                action.help = argparse.SUPPRESS
            elif action.help:
                action.help = _WHOSE.sub("", action.help)


def parser() -> options.CommandParser:
    """The parser of all subcommands."""
    summaries = "\n".join(f"  {name:<7} {summary}" for name, summary in SUBCOMMANDS.items())
    parser = PipelineParser(
        prog="forelog pipeline",
        description="Work on logs with Spark: on this machine, or on a cluster with --master.\n\n" + summaries,
        epilog="examples:\n"
        "  forelog pipeline verify logs --recursive\n"
        "  forelog pipeline jobs cmdlog --report jobs.html\n"
        "  forelog pipeline replay cmdlog --as-of 2026-11-15T18:00:00Z\n"
        "  forelog pipeline clean cmdlog --rule expired-jobs --apply\n"
        "  forelog pipeline ingest orders.log orders.table --follow --every 10s\n\n"
        "forelog pipeline SUBCOMMAND --help shows the options of a subcommand.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_common(parser)
    parser.add_argument(
        "subcommand", metavar="SUBCOMMAND", type=options.subcommand_of(SUBCOMMANDS), help="one of those above"
    )
    parser.add_argument("path", metavar="PATH", help="the log's directory, or with --recursive a folder of logs")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="ingest: the table's folder")
    parser.add_argument("--recursive", action="store_true", help="every log in the folder, at any depth")
    parser.add_argument("--master", metavar="URL", help="where Spark runs (default: local[*,4], on this machine)")
    _add_times(parser)
    _add_choices(parser)
    _add_ingest(parser)
    parser.add_argument("--report", metavar="FILE", help="also write tables and plots, as one HTML file")
    return parser


def _add_times(parser: options.CommandParser) -> None:
    since = "jobs, stats: only records written"
    parser.add(f"""
        --since TIME    {since} at or after this time
        --until TIME    {since} before this time
        --as-of WHEN    replay: a time or a position (default: all)
        --now TIME      jobs, replay, clean: the time by which jobs expire or are late (default: now)
        --patience AGE  jobs: how late a job counts as stuck (default: 10m)
        --attempts N    jobs: failed attempts after which a job counts as poisoned (default: 3)
        --window AGE    jobs, stats: length of the windows of rates (default: 1m)
        --gaps AGE      stats: list silences of at least this length (default: 1m)
    """)
    parser.set_types(since=_time, until=_time, now=_time)


def _add_choices(parser: options.CommandParser) -> None:
    parser.add("""
        --duplicates                                  stats: look for payloads that occur more than once
        --latest-key START:STOP                       replay, clean: this part of a record's payload is its key
        --latest-until BYTE                           replay, clean: all before this byte is the key; with
                                                      --latest-key, within that part
        --fails-are-final                             replay: every fail is final, as in workq
        --limit N                                     how many rows of a table to show (default: 20; replay: all)
        --rule expired-jobs|finished-jobs|superseded  clean: what may be forgotten
        --finished-for AGE                            clean --rule finished-jobs: only jobs that finished at least
                                                      this long ago (default: 0s)
        --apply                                       clean: do it; without this, only show what would be dropped
    """)
    options.add_timeout(parser, "for readers to finish (clean)")
    parser.add("""
        --on-corruption fail|skip  at damage: stop with exit code 4 (default), or skip what can't be read
    """)


def _add_ingest(parser: options.CommandParser) -> None:
    parser.add("""
        --codec NAME                   ingest: what a row is: records (default), commands, datapoints, messages,
                                       state; or auto, for the one that fits the log
        --table parquet|delta|iceberg  ingest: format of the table (default: parquet)
        --catalog CATALOG              ingest --table iceberg: its address, or its name for pyiceberg (default:
                                       iceberg.db beside TARGET)
        --table-name NAME              ingest --table iceberg: NAMESPACE.NAME (default: the name of TARGET)
        --partition-by COLUMN          ingest: partition by date, or by a column
        --follow                       ingest: continue until interrupted
        --every SECONDS                ingest: with --follow, how often to look (default: 10)
        --mode MODE                    ingest: permissions of a new table: 640 lets the group read (default: 600)
    """)


def _time(text: str) -> int:
    from forelog.times import parse_time

    return options.parse_or_explain(parse_time, text)


def check(chosen: argparse.Namespace) -> None:
    """Refuse what doesn't go together, before Spark is started."""
    name = chosen.subcommand
    for option, names in _FOR.items():
        if getattr(chosen, option) not in (None, False) and name not in names:
            told = "a TARGET" if option == "target" else f"--{option.replace('_', '-')}"
            raise codes.UsageError(f"{told} is not for pipeline {name}, only for {', '.join(names)}")
    if name == "ingest" and chosen.target is None:
        raise codes.UsageError("pipeline ingest needs a TARGET: the table's folder")
    if chosen.every is not None and not chosen.follow:
        raise codes.UsageError("--every is how often to look with --follow: give both")
    named = chosen.catalog is not None or chosen.table_name is not None
    if named and chosen.table != "iceberg":
        raise codes.UsageError("--catalog and --table-name go with --table iceberg")
    keyed = chosen.latest_key is not None or chosen.latest_until is not None
    if name == "clean" and chosen.rule is None:
        raise codes.UsageError("clean takes a --rule: expired-jobs, finished-jobs or superseded")
    if name == "clean" and keyed != (chosen.rule == "superseded"):
        raise codes.UsageError(
            "--rule superseded goes with --latest-key or --latest-until, and no other rule does"
        )
    if chosen.finished_for is not None and chosen.rule != "finished-jobs":
        raise codes.UsageError("--finished-for goes with --rule finished-jobs")
    if keyed and chosen.fails_are_final:
        raise codes.UsageError(
            "--fails-are-final is for jobs, and --latest-key and --latest-until for keys: give one or the other"
        )
