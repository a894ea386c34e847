"""`forelog pipeline`: what is done with logs on Spark.

The parser and the session are here, what each subcommand does in pipeline_results.py. Spark is imported when a
subcommand runs, and not before: help and errors of usage come at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from forelog.cli import codes, options
from forelog.cli.output import print_json, say
from forelog.cli.progress import Progress
from forelog.errors import ForelogError, LogNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBCOMMANDS = {
    "verify": "check every checksum of a log, or of a folder of logs",
    "jobs": "the life of the jobs of a command log: queues, waiting, what is stuck or poisoned",
    "replay": "the state as of a position or a time: jobs, or the latest record of each key",
    "stats": "rates, sizes, gaps and duplicates",
    "clean": "forget jobs that are gone, or superseded keys",
    "ingest": "a log to a table, once or for ever",
}

POLL_SECONDS = 0.2

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


def parser() -> argparse.ArgumentParser:
    summaries = "\n".join(f"  {name:<7} {summary}" for name, summary in SUBCOMMANDS.items())
    parser = options.command_parser(
        "pipeline",
        f"What is done with logs on Spark: on this machine, or on a cluster with --master.\n\n{summaries}",
        "examples:\n"
        "  forelog pipeline verify logs --recursive\n"
        "  forelog pipeline jobs cmdlog --report jobs.html\n"
        "  forelog pipeline replay cmdlog --as-of 2026-11-15T18:00:00Z\n"
        "  forelog pipeline clean cmdlog --rule expired-jobs --apply\n"
        "  forelog pipeline ingest orders.log orders.table --follow --every 10s",
    )
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


def _add_times(parser: argparse.ArgumentParser) -> None:
    since = "jobs, stats: only records written"
    parser.add_argument("--since", type=_time, metavar="TIME", help=f"{since} at or after this time")
    parser.add_argument("--until", type=_time, metavar="TIME", help=f"{since} before this time")
    parser.add_argument(
        "--as-of",
        type=options.time_or_position,
        metavar="WHEN",
        help="replay: a time or a position (default: all)",
    )
    parser.add_argument(
        "--now", type=_time, metavar="TIME", help="jobs, replay, clean: by when jobs have expired or are late"
    )
    parser.add_argument(
        "--patience", type=options.duration_text, metavar="AGE", help="jobs: how late is stuck (default: 10m)"
    )
    parser.add_argument(
        "--attempts", type=options.count, metavar="N", help="jobs: how many in vain are poisoned (default: 3)"
    )
    parser.add_argument(
        "--window", type=options.duration_text, metavar="AGE", help="jobs, stats: of rates (default: 1m)"
    )
    parser.add_argument(
        "--gaps", type=options.duration_text, metavar="AGE", help="stats: silences at least so long (default: 1m)"
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--duplicates", action="store_true", help="stats: look for payloads that come again")
    parser.add_argument(
        "--latest-key",
        type=options.key_slice,
        metavar="START:STOP",
        help="replay, clean: records have a key, which is this part of the payload",
    )
    parser.add_argument(
        "--latest-until",
        type=options.one_byte,
        metavar="BYTE",
        help="the same, with all before this byte as the key; both together: within that part",
    )
    parser.add_argument(
        "--fails-are-final", action="store_true", help="replay: every fail is the last, as workq takes it"
    )
    parser.add_argument(
        "--limit",
        type=options.count,
        metavar="N",
        help="how many rows of a table to show (default: 20; replay: all)",
    )
    parser.add_argument(
        "--rule",
        choices=["expired-jobs", "finished-jobs", "superseded"],
        help="clean: what may be forgotten",
    )
    parser.add_argument(
        "--finished-for", type=options.duration_text, metavar="AGE", help="finished-jobs: since when (default: 0s)"
    )
    parser.add_argument("--apply", action="store_true", help="clean: do it; else only say what would be dropped")
    options.add_timeout(parser, "for readers to finish, of clean")
    parser.add_argument(
        "--on-corruption",
        choices=["fail", "skip"],
        help="at damage: stop with exit code 4 (default), or leave out what can't be read",
    )


def _add_ingest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--codec", metavar="NAME", help="ingest: records (default), commands, datapoints, messages"
    )
    parser.add_argument(
        "--table", choices=["parquet", "delta", "iceberg"], help="ingest: what to write (default: parquet)"
    )
    parser.add_argument(
        "--catalog",
        metavar="CATALOG",
        help="ingest --table iceberg: an address, or a name of pyiceberg's (default: iceberg.db beside TARGET)",
    )
    parser.add_argument(
        "--table-name", metavar="NAME", help="ingest --table iceberg: NAMESPACE.NAME (default: that of TARGET)"
    )
    parser.add_argument("--partition-by", metavar="COLUMN", help="ingest: date, or a column")
    parser.add_argument("--follow", action="store_true", help="ingest: go on until interrupted")
    parser.add_argument(
        "--every",
        type=options.some_seconds,
        metavar="SECONDS",
        help="ingest: how fresh with --follow (default: 10)",
    )
    parser.add_argument(
        "--mode",
        type=options.file_mode,
        metavar="MODE",
        help="ingest: of a new table's directories, as of their files: 640 lets the group read (default: 600)",
    )


def _time(text: str) -> int:
    from forelog.times import parse_time

    return options.parse_or_explain(parse_time, text)


def run(chosen: argparse.Namespace) -> int:
    check(chosen)
    with _told():
        _look(chosen)
        spark, ours = _session(chosen.master, chosen.verbose)
        try:
            from forelog.cli.pipeline import results as pipeline_results

            # An ingest shows bytes, the others Spark's tasks.
            shown = chosen.subcommand != "ingest"
            with Watch(spark, f"{chosen.subcommand} {chosen.path}") if shown else nullcontext():
                result = pipeline_results.results_of(chosen.subcommand)(spark, chosen)
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
        raise codes.UsageError("--fails-are-final is about jobs, and --latest-key and --latest-until about keys")


def _look(chosen: argparse.Namespace) -> None:
    """Tell of a path, a codec or a column that is wrong at once: Spark takes its time to start."""
    from forelog.spark.codecs import codec_of
    from forelog.spark.planning import check_codec, find_logs

    codec_of(chosen.codec or "records")
    if chosen.partition_by is not None:
        from forelog.spark.pipeline.ingest_plan import Plan, shape_of

        plan = Plan(chosen.codec or "records", partition_by=chosen.partition_by, recursive=chosen.recursive)
        shape_of(plan)
    logs = find_logs(chosen.path, recursive=chosen.recursive)
    if not logs and not chosen.follow:
        raise LogNotFound(f"there is no log in {chosen.path}, at any depth")
    if chosen.subcommand in ("ingest", "jobs", "replay", "stats"):
        check_codec(logs, chosen.codec or "records")


def _session(master: str | None, verbose: bool) -> tuple[SparkSession, bool]:
    """A session, and whether it is ours to stop."""
    from forelog.spark import session

    start = partial(session) if master is None else partial(session, master)
    try:
        from pyspark.sql import SparkSession

        if SparkSession.getActiveSession() is not None:
            return start(), False
    except ImportError:
        pass  # session() tells what to install
    if verbose:
        return start(), True
    if sys.stderr.isatty():
        say("starting Spark")
    with tempfile.TemporaryFile() as said:
        try:
            with _stderr_to(said.fileno()):
                spark = start()
        except ForelogError:
            raise
        except Exception as error:
            said.seek(0)
            raise _not_started(said.read().decode(errors="replace"), error) from error
    # What is wrong is told in one line here, and not at length there.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return spark, True


@contextmanager
def _stderr_to(target: int) -> Iterator[None]:
    """Send what is written to stderr elsewhere; what is started meanwhile goes on writing there."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _not_started(said: str, error: Exception) -> Exception:
    """Why there is no Spark, from what Java had to say about it."""
    from forelog.errors import SparkFailure
    from forelog.spark.pipeline.failures import find_failure

    reasons = re.findall(r"^(?:Exception in thread \S+ |Error: |Caused by: )(.+)$", said, re.MULTILINE)
    if not reasons:
        return find_failure(error)
    told = re.sub(r"^[\w.$]+(?:Exception|Error): ", "", reasons[0])
    return SparkFailure(f"Spark doesn't start: {told}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def _told() -> Iterator[None]:
    """Tell the error that is behind one of Spark's: a line, and not a page of Java."""
    try:
        yield
    except Exception as error:
        from forelog.errors import BadOption

        found: Exception = error
        if _is_sparks(error):
            from forelog.spark.pipeline.failures import find_failure

            found = find_failure(error)
        if isinstance(found, BadOption):
            raise codes.UsageError(str(found)) from error
        if isinstance(found, ForelogError) and found is not error:
            raise found from error
        raise


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


class Watch:
    """Shows how far Spark is, in a terminal: tasks done of those in the stages that run."""

    def __init__(self, spark: SparkSession, label: str) -> None:
        self._tracker: Any = spark.sparkContext.statusTracker() if sys.stderr.isatty() else None
        self._label = label
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        if self._tracker is not None:
            self._thread = threading.Thread(target=self._poll, name="forelog-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _poll(self) -> None:
        with Progress(self._label, unit="tasks") as progress:
            while not self._stop.wait(POLL_SECONDS):
                try:
                    done, total = tasks_of(self._tracker)
                except Exception:  # Spark has stopped; whoever waits for a result is told
                    return
                if total:
                    progress(done, total)


def tasks_of(tracker: Any) -> tuple[int, int]:
    """How many tasks of the stages that run are done, and how many there are."""
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)
