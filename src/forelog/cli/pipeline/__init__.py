"""`forelog pipeline`: work on logs with Spark.

    parser.py    the options, and which subcommand takes which
    session.py   Spark: started, watched, and its errors in one line
    results.py   a result of each subcommand: values, lines and a page
    values.py    what a subcommand finds, as --json prints it
    text.py      the same as lines, for a terminal
    pages.py     the same as an HTML page with plots
    ingest.py    ingest: a log to a table, until it is done or stopped

Spark is imported when a subcommand runs, so help and errors of usage come at once.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from forelog.cli.output import print_json, say
from forelog.cli.pipeline.parser import check, parser
from forelog.cli.pipeline.session import Watch, one_line_errors, session_of
from forelog.errors import LogNotFound

__all__ = ["parser", "run"]


def run(chosen: argparse.Namespace) -> int:
    check(chosen)
    with one_line_errors():
        _look(chosen)
        spark, ours = session_of(chosen.master, chosen.verbose)
        try:
            from forelog.cli.pipeline.results import result_of

            # An ingest shows bytes, the others Spark's tasks.
            shown = chosen.subcommand != "ingest"
            with Watch(spark, f"{chosen.subcommand} {chosen.path}") if shown else nullcontext():
                result = result_of(spark, chosen)
                if chosen.report is not None:
                    _write(chosen.report, result.page.html())
            if chosen.json:
                for value in result.values:
                    print_json(value)
            else:
                for line in result.lines:
                    print(line)
        finally:
            if ours:
                spark.stop()
    if chosen.report is not None:
        say(f"the report is in {chosen.report}")
    return result.code


def _look(chosen: argparse.Namespace) -> None:
    """Refuse a wrong path, codec or column now, before Spark takes its time to start."""
    from forelog.spark.codecs import codec_of
    from forelog.spark.planning import check_codec, codec_for, find_logs

    logs = find_logs(chosen.path, recursive=chosen.recursive)
    codec = codec_for(logs) if chosen.codec == "auto" else chosen.codec or "records"
    codec_of(codec)
    if chosen.partition_by is not None:
        from forelog.spark.pipeline.ingest_plan import Plan, shape_of

        plan = Plan(codec, partition_by=chosen.partition_by, recursive=chosen.recursive)
        shape_of(plan)
    if not logs and not chosen.follow:
        raise LogNotFound(f"there is no log in {chosen.path}, at any depth")
    if chosen.subcommand in ("ingest", "jobs", "replay", "stats"):
        check_codec(logs, codec)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
