"""What the subcommands of `forelog pipeline` find, as plain values: what `--json` prints."""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forelog.cli import codes
from forelog.cli.output import plural
from forelog.errors import UnknownFormat
from forelog.log.position import Position
from forelog.spark.pipeline.input import JOB_COLUMNS, REPLAY_COLUMNS, STATS_COLUMNS, read_log
from forelog.times import format_time, parse_duration, parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_SHOWN = 20


def verify(spark: SparkSession, chosen: argparse.Namespace) -> dict[str, Any]:
    """Every log with its size and problems, and every defect."""
    from forelog.spark.pipeline.verify import verify as run

    fleet = run(spark, chosen.path, recursive=chosen.recursive)
    return {
        "path": chosen.path,
        "ok": fleet.ok,
        "logs": [
            {
                "log": name,
                "path": report.path,
                "ok": report.ok,
                "segments": len(report.segments),
                "records": report.records,
                "bytes": report.byte_count,
                "live": report.live,
                "problems": report.problems(),
                "notes": report.notes(),
            }
            for name, report in fleet.reports.items()
        ],
        "defects": [plain(row.asDict()) for row in fleet.defects(spark).collect()],
    }


def jobs(spark: SparkSession, chosen: argparse.Namespace) -> dict[str, Any]:
    """Queues, rates over time, and jobs that are stuck or poisoned."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    from forelog.spark.pipeline import jobs as pipeline

    times = {"since_ns": chosen.since, "until_ns": chosen.until}
    commands = _read(spark, chosen, JOB_COLUMNS, codec="commands", **times)
    lives = pipeline.jobs(commands).cache()
    try:
        keys = [name for name in ("log", "name") if name in lives.columns]
        queues = _rows(pipeline.queue_stats(lives).orderBy(*keys))
        rates = _rows(pipeline.queue_rates(lives, _interval(chosen.window)).orderBy("start", *keys))
        now_ns = now_ns_of(chosen)
        late = pipeline.stuck(lives, now_ns, patience=chosen.patience or pipeline.PATIENCE)
        sick = pipeline.poisoned(lives, attempts=chosen.attempts or pipeline.ATTEMPTS_POISONED)
        trouble = late.withColumn("what", F.lit("stuck")).unionByName(sick.withColumn("what", F.lit("poisoned")))
        counts = {row["what"]: row["count"] for row in trouble.groupBy("what").count().collect()}
        ranked = trouble.withColumn("rank", F.row_number().over(Window.partitionBy("what").orderBy("due", "id")))
        found = _rows(ranked.where(F.col("rank") <= rows_shown(chosen)).orderBy("what", "rank").drop("rank"))
    finally:
        lives.unpersist()
    if not queues:
        _check_commands(commands, chosen.path)
    value = {
        "path": chosen.path,
        "now": format_time(now_ns),
        "jobs": sum(queue["jobs"] for queue in queues),
        "queues": queues,
        "rates": rates,
    }
    for what in ("stuck", "poisoned"):
        value[f"{what}_count"] = counts.get(what, 0)
        value[what] = [{k: v for k, v in job.items() if k != "what"} for job in found if job["what"] == what]
    return value


def _check_commands(commands: DataFrame, path: str) -> None:
    records = commands.count()
    if records:
        raise UnknownFormat(f"{path} has {plural(records, 'record')}, and none is a command of a job server")


def replay(spark: SparkSession, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """The jobs, or the latest record of each key, with bytes as they are: see `plain`."""
    from forelog.spark.pipeline import replay as pipeline

    if isinstance(chosen.as_of, Position) and chosen.recursive:
        raise codes.UsageError("--as-of a position is of one log: with --recursive give a time")
    if keyed(chosen):
        columns = ("segment", "offset", "time", "time_ns", "payload")
        found = pipeline.latest(
            _read(spark, chosen, columns), chosen.as_of, key=chosen.latest_key, until_byte=chosen.latest_until
        )
    else:
        commands = _read(spark, chosen, REPLAY_COLUMNS, codec="commands")
        found = pipeline.replay(commands, chosen.as_of, now=chosen.now, fails_are_final=chosen.fails_are_final)
    order = [name for name in ("log", "segment", "offset") if name in found.columns]
    found = found.orderBy(*order)
    if chosen.limit is not None:
        found = found.limit(chosen.limit)
    # All of them here before Spark stops; one at a time would run the query's last stage as often as it has parts.
    rows = [row.asDict() for row in found.collect()]
    if not rows and not keyed(chosen) and commands.where("id is not null").isEmpty():
        _check_commands(commands, chosen.path)
    return rows


def keyed(chosen: argparse.Namespace) -> bool:
    """Whether records have a key, and aren't commands of a job server."""
    return chosen.latest_key is not None or chosen.latest_until is not None


def stats(spark: SparkSession, chosen: argparse.Namespace) -> dict[str, Any]:
    """Each log's size and rates, windows of time, gaps, and duplicates if they were asked for."""
    from forelog.spark.pipeline import stats as pipeline

    columns = (*STATS_COLUMNS, "payload") if chosen.duplicates else STATS_COLUMNS
    records = _read(spark, chosen, columns, since_ns=chosen.since, until_ns=chosen.until)
    width = _interval(chosen.window)
    logs = _rows(pipeline.stats(records, window=width))
    lengths = {row.get("log"): row for row in _rows(pipeline.sizes(records))}
    logs = [{**row, **lengths.get(row.get("log"), {})} for row in logs]
    logs.sort(key=lambda row: row.get("log", ""))
    windows = _rows(pipeline.windows(records, width).orderBy("start"))
    gaps = pipeline.gaps(records, chosen.gaps or "1m")
    limit = rows_shown(chosen)
    value = {"path": chosen.path, "logs": logs, "windows": windows, "gaps": _rows(gaps.limit(limit))}
    if chosen.duplicates:
        value["duplicates"] = _rows(pipeline.duplicates(records).limit(limit))
    return value


def clean(spark: SparkSession, chosen: argparse.Namespace) -> dict[str, Any]:
    """What was dropped from each log, or would be."""
    from forelog.spark.pipeline import clean as pipeline

    rule: pipeline.CleanRule
    if chosen.rule == "superseded":
        rule = pipeline.SupersededKeys(key=chosen.latest_key, until=chosen.latest_until)
    elif chosen.rule == "finished-jobs":
        rule = pipeline.FinishedJobs(chosen.finished_for or "0s", now=chosen.now)
    else:
        rule = pipeline.ExpiredJobs(now=chosen.now)
    done = pipeline.clean(
        spark, chosen.path, rule, apply=chosen.apply, recursive=chosen.recursive, timeout=chosen.timeout
    )
    return {
        "path": chosen.path,
        "rule": chosen.rule,
        "applied": chosen.apply,
        "logs": [
            {"log": log.log, "path": log.path, "positions": log.positions, **asdict(log.report)} for log in done
        ],
    }


def rows_shown(chosen: argparse.Namespace) -> int:
    """How many rows of a table to show."""
    return ROWS_SHOWN if chosen.limit is None else int(chosen.limit)


def _read(
    spark: SparkSession, chosen: argparse.Namespace, columns: Sequence[str], codec: str = "records", **times: Any
) -> DataFrame:
    return read_log(
        spark,
        chosen.path,
        columns,
        codec=codec,
        recursive=chosen.recursive,
        on_corruption=chosen.on_corruption or "fail",
        **times,
    )


def now_ns_of(chosen: argparse.Namespace) -> int:
    """The time by which jobs expire or are late."""
    return time.time_ns() if chosen.now is None else int(chosen.now)


def _interval(duration: str | None) -> str:
    """A duration in Spark's words."""
    return f"{max(parse_duration(duration or '1m') // 1000, 1)} microseconds"


def _rows(found: DataFrame) -> list[dict[str, Any]]:
    return [plain(row.asDict(recursive=True)) for row in found.collect()]


def plain(value: Any) -> Any:
    """A value as JSON can hold it: times in RFC 3339, bytes as text, or in base64 where they aren't text."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return format_time(parse_time(value.astimezone(UTC)))  # Spark's are in the local zone
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value
