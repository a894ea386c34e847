"""What the subcommands of `forelog pipeline` find: as lines, as JSON, and as a page with plots."""

from __future__ import annotations

import argparse
import base64
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forelog.cli import codes
from forelog.cli.log.dump import as_text
from forelog.cli.output import human_bytes, human_count, human_duration, plural, table
from forelog.errors import UnknownFormat
from forelog.log.position import Position
from forelog.spark.pipeline.input import JOB_COLUMNS, REPLAY_COLUMNS, STATS_COLUMNS, read_log
from forelog.spark.pipeline.report import ROWS_MAX, Report
from forelog.times import format_time, parse_duration, parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_SHOWN = 20
CELL_MAX = 40


@dataclass
class Result:
    """What a subcommand has found."""

    page: Report
    values: Iterable[Any] = ()
    """For --json, a line each."""
    lines: Iterable[str] = ()
    code: int = field(default=codes.FINE)


Subcommand = Callable[["SparkSession", argparse.Namespace], Result]


def results_of(name: str) -> Subcommand:
    from forelog.cli.pipeline.ingest import ingest

    found: dict[str, Subcommand] = {
        "verify": verify,
        "jobs": jobs,
        "replay": replay,
        "stats": stats,
        "clean": clean,
        "ingest": ingest,
    }
    return found[name]


# -- verify


def verify(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    from forelog.spark.pipeline.verify import verify as run

    fleet = run(spark, chosen.path, recursive=chosen.recursive)
    reports = fleet.reports
    rows: list[list[Any]] = [
        [name, len(report.segments), report.records, report.byte_count, len(report.problems())]
        for name, report in reports.items()
    ]
    page = Report(f"verify {chosen.path}", made())
    page.add_bars("bytes", {name: report.byte_count for name, report in reports.items()}, "B")
    page.add_table("logs", ["log", "segments", "records", "bytes", "problems"], rows)
    told = [[name, text] for name, report in reports.items() for text in report.problems()]
    page.add_table("problems", ["log", "problem"], told)
    value = {
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
            for name, report in reports.items()
        ],
        "defects": [plain(row.asDict()) for row in fleet.defects(spark).collect()],
    }
    counted = f"{plural(len(reports), 'log')}, {plural(sum(row[2] for row in rows), 'record')}"
    size = human_bytes(sum(row[3] for row in rows))
    lines = [f"{chosen.path}: {counted}, {size}: {plural(len(told), 'problem') if told else 'no damage'}"]
    shown = [row for row in rows if row[4]] or rows
    titles = ("log", ">segments", ">records", ">bytes", ">problems")
    lines += _table(titles, [[r[0], f"{r[1]:,}", f"{r[2]:,}", human_bytes(r[3]), f"{r[4]:,}"] for r in shown])
    lines += _limited([f"  damage: {name}: {text}" for name, text in told], chosen)
    return Result(page, [value], lines, codes.FINE if fleet.ok else codes.PROBLEMS)


# -- jobs


def jobs(spark: SparkSession, chosen: argparse.Namespace) -> Result:
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
        now_ns = _now(chosen)
        late = pipeline.stuck(lives, now_ns, patience=chosen.patience or pipeline.PATIENCE)
        sick = pipeline.poisoned(lives, attempts=chosen.attempts or pipeline.ATTEMPTS_POISONED)
        limit = ROWS_SHOWN if chosen.limit is None else chosen.limit
        trouble = late.withColumn("what", F.lit("stuck")).unionByName(sick.withColumn("what", F.lit("poisoned")))
        counts = {row["what"]: row["count"] for row in trouble.groupBy("what").count().collect()}
        ranked = trouble.withColumn("rank", F.row_number().over(Window.partitionBy("what").orderBy("due", "id")))
        found = _rows(ranked.where(F.col("rank") <= limit).orderBy("what", "rank").drop("rank"))
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
    return Result(_jobs_page(chosen, value), [value], _jobs_lines(chosen, value))


def _check_commands(commands: DataFrame, path: str) -> None:
    records = commands.count()
    if records:
        raise UnknownFormat(f"{path} has {plural(records, 'record')}, and none is a command of a job server")


_QUEUE = {
    "jobs": "jobs", "completed": "done", "failed": "failed", "waiting": "waiting", "leased": "leased",
    "deleted": "deleted", "expired": "expired", "timeouts": "timeouts",
}  # fmt: skip
_LATENCIES = {
    "waiting_ms_p50": "wait p50", "waiting_ms_p99": "p99", "running_ms_p50": "run p50", "running_ms_p99": "p99",
}  # fmt: skip


def _jobs_lines(chosen: argparse.Namespace, value: dict[str, Any]) -> list[str]:
    queues = value["queues"]
    lines = [f"{chosen.path}: {plural(value['jobs'], 'job')} in {plural(len(queues), 'queue')}"]
    titles = ["queue", *(f">{name}" for name in (*_QUEUE.values(), *_LATENCIES.values())), ">added/min"]
    rows = [
        [
            _queue_name(queue),
            *(f"{queue[name]:,}" for name in _QUEUE),
            *(_latency(queue[name]) for name in _LATENCIES),
            human_count(queue["added_per_minute"]),
        ]
        for queue in queues
    ]
    lines += _table(titles, rows)
    for what in ("stuck", "poisoned"):
        count = value[f"{what}_count"]
        if count:
            lines += ["", f"{what}: {plural(count, 'job')}"]
            found = [
                [job["id"], _queue_name(job), job["why"], f"{job['attempts']}", job["last_seen"]]
                for job in value[what]
            ]
            lines += _table(("job", "queue", "why", ">attempts", "last seen"), found)
            if len(found) < count:
                lines.append(f"  ... {count - len(found):,} more, --limit shows them")
    return lines


def _jobs_page(chosen: argparse.Namespace, value: dict[str, Any]) -> Report:
    page = Report(f"jobs {chosen.path}", f"{made()}; late and expired as of {value['now']}")
    for what in ("added", "finished"):
        series: dict[str, list[tuple[float, float]]] = {}
        for row in value["rates"]:
            line = series.setdefault(_queue_name(row), [])
            line.append((parse_time(row["start"]) / 1e9, float(row[what])))
        page.add_lines(f"jobs {what} per {chosen.window or '1m'}", series)
    for column, title in (("waiting_ms_p99", "waiting, p99"), ("running_ms_p99", "running, p99")):
        bars = {_queue_name(queue): queue[column] for queue in value["queues"] if queue[column] is not None}
        page.add_bars(title, bars, "ms")
    for what in ("queues", "stuck", "poisoned"):
        add_rows(page, what, value[what])
    return page


def _queue_name(row: dict[str, Any]) -> str:
    name = row["name"] or "(run)"
    return f"{row['log']}/{name}" if "log" in row else name


def _latency(ms: float | None) -> str:
    return "-" if ms is None else human_duration(ms / 1000)


# -- replay


def replay(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    from forelog.spark.pipeline import replay as pipeline

    if isinstance(chosen.as_of, Position) and chosen.recursive:
        raise codes.UsageError("--as-of a position is of one log: with --recursive give a time")
    if chosen.latest_key is not None or chosen.latest_until is not None:
        columns = ("segment", "offset", "time", "time_ns", "payload")
        found = pipeline.latest(
            _read(spark, chosen, columns), chosen.as_of, key=chosen.latest_key, until_byte=chosen.latest_until
        )
        layout: Callable[[dict[str, Any]], str] = _key_line
    else:
        commands = _read(spark, chosen, REPLAY_COLUMNS, codec="commands")
        found = pipeline.replay(commands, chosen.as_of, now=chosen.now, fails_are_final=chosen.fails_are_final)
        layout = _job_line
    order = [name for name in ("log", "segment", "offset") if name in found.columns]
    found = found.orderBy(*order)
    if chosen.limit is not None:
        found = found.limit(chosen.limit)
    # All of them here before Spark stops; one at a time would run the query's last stage as often as it has parts.
    rows = [row.asDict() for row in found.collect()]
    if not rows and layout is _job_line and commands.where("id is not null").isEmpty():
        _check_commands(commands, chosen.path)
    return Result(_replay_page(chosen, rows), map(plain, rows), map(layout, rows))


def _replay_page(chosen: argparse.Namespace, rows: list[dict[str, Any]]) -> Report:
    as_of = format_time(chosen.as_of) if isinstance(chosen.as_of, int) else chosen.as_of or "its end"
    page = Report(f"replay {chosen.path}", f"{made()}; as of {as_of}")
    if rows and "state" in rows[0]:
        page.add_bars("jobs by state", Counter(row["state"] for row in rows))
        page.add_bars("jobs by queue", Counter(_queue_name(row) for row in rows))
        add_rows(page, "jobs", [plain(row) for row in rows[:ROWS_MAX]])
    else:
        page.add_lines("keys by when they were last written", {"keys": _by_time([row["time_ns"] for row in rows])})
        add_rows(page, "the latest of each key", [plain(row) for row in rows[:ROWS_MAX]])
    if len(rows) > ROWS_MAX:
        page.add_table("left out", ["rows"], [[len(rows) - ROWS_MAX]])
    return page


def _by_time(times_ns: list[int], windows: int = 60) -> list[tuple[float, float]]:
    """How many of the times are in each of some windows of the same length."""
    if not times_ns:
        return []
    first = min(times_ns)
    width = (max(times_ns) - first) // windows + 1
    counts = Counter((time_ns - first) // width for time_ns in times_ns)
    return [((first + place * width) / 1e9, float(counts[place])) for place in range(max(counts) + 1)]


def _job_line(row: dict[str, Any]) -> str:
    result = "-" if row["result"] is None else as_text(bytes(row["result"]))
    tries = [plural(row["attempts"], "attempt"), plural(row["fails"], "fail")]
    cells = [row["id"], row["name"], row["state"], *tries, result]
    return "\t".join([row["log"], *cells] if "log" in row else cells)


def _key_line(row: dict[str, Any]) -> str:
    position = str(Position(row["segment"], row["offset"]))
    cells = [position, format_time(row["time_ns"], aligned=True), as_text(bytes(row["payload"]))]
    return "\t".join([row["log"], *cells] if "log" in row else cells)


# -- stats


def stats(spark: SparkSession, chosen: argparse.Namespace) -> Result:
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
    limit = ROWS_SHOWN if chosen.limit is None else chosen.limit
    value = {"path": chosen.path, "logs": logs, "windows": windows, "gaps": _rows(gaps.limit(limit))}
    if chosen.duplicates:
        value["duplicates"] = _rows(pipeline.duplicates(records).limit(limit))
    return Result(_stats_page(chosen, value), [value], _stats_lines(chosen, value))


def _stats_lines(chosen: argparse.Namespace, value: dict[str, Any]) -> list[str]:
    logs = value["logs"]
    records, size = sum(log["records"] for log in logs), sum(log["bytes"] for log in logs)
    lines = [
        f"{chosen.path}: {plural(len(logs), 'log')}, {plural(records, 'record')}, payloads {human_bytes(size)}"
    ]
    titles = (
        "log", ">segments", ">records", ">payloads", ">p50", ">p99", ">max", ">records/s", ">peak", "first",
        "last",
    )  # fmt: skip
    rows = [
        [
            log.get("log", chosen.path),
            f"{log['segments']:,}",
            f"{log['records']:,}",
            human_bytes(log["bytes"]),
            *(human_bytes(log[name]) for name in ("length_p50", "length_p99", "length_max")),
            human_count(log["records_per_second"]),
            human_count(log["peak_per_second"]),
            log["first_time"],
            log["last_time"],
        ]
        for log in logs
    ]
    lines += _table(titles, rows)
    if len(logs) > 1:
        lines.append(
            f"  skew: the largest log has {max(log['skew'] for log in logs):.2g} times a mean log's records"
        )
    for gap in value["gaps"]:
        where = f"{gap['log']}: " if "log" in gap else ""
        lines.append(f"  gap: {where}{human_duration(gap['seconds'])} from {gap['start']} to {gap['end']}")
    for row in value.get("duplicates", []):
        first = Position(row["first"]["segment"], row["first"]["offset"])
        where = f"{row['log']}: " if "log" in row else ""
        lines.append(f"  duplicate: {where}{row['copies']} times {human_bytes(row['length'])}, first at {first}")
    return lines


def _stats_page(chosen: argparse.Namespace, value: dict[str, Any]) -> Report:
    page = Report(f"stats {chosen.path}", made())
    for column, title in (("records", "records"), ("bytes", "bytes of payloads")):
        series: dict[str, list[tuple[float, float]]] = {}
        for row in value["windows"]:
            line = series.setdefault(row.get("log", chosen.path), [])
            line.append((parse_time(row["start"]) / 1e9, float(row[column])))
        page.add_lines(f"{title} per {chosen.window or '1m'}", series)
    page.add_bars("bytes of payloads", {log.get("log", chosen.path): log["bytes"] for log in value["logs"]}, "B")
    for what in ("logs", "gaps", "duplicates"):
        if what in value:
            add_rows(page, what, value[what])
    return page


# -- clean


def clean(spark: SparkSession, chosen: argparse.Namespace) -> Result:
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
    would = "" if chosen.apply else "would be "
    lines = []
    for log in done:
        report = log.report
        lines.append(
            f"{log.path}: {plural(report.records_dropped, 'record')} {would}dropped, "
            f"{human_bytes(report.bytes_dropped)} {would}freed"
        )
        kept = log.positions - report.records_dropped
        if kept:
            lines.append(f"  {plural(kept, 'record')} more when the last segment is finished")
    value = {
        "path": chosen.path,
        "rule": chosen.rule,
        "applied": chosen.apply,
        "logs": [
            {"log": log.log, "path": log.path, "positions": log.positions, **asdict(log.report)} for log in done
        ],
    }
    page = Report(f"clean {chosen.path}", f"{made()}; {'applied' if chosen.apply else 'not applied'}")
    page.add_bars("records dropped", {log.log: log.report.records_dropped for log in done})
    add_rows(page, "logs", value["logs"])
    if not chosen.apply:
        lines.append("nothing was changed: --apply does it")
    return Result(page, [value], lines)


# -- what they have in common


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


def _now(chosen: argparse.Namespace) -> int:
    import time

    return time.time_ns() if chosen.now is None else int(chosen.now)


def _interval(duration: str | None) -> str:
    """A duration as Spark wants it."""
    return f"{max(parse_duration(duration or '1m') // 1000, 1)} microseconds"


def made() -> str:
    return f"made {datetime.now(UTC).strftime('%Y-%m-%d %H:%M:%SZ')}"


def _rows(found: DataFrame) -> list[dict[str, Any]]:
    return [plain(row.asDict(recursive=True)) for row in found.collect()]


def plain(value: Any) -> Any:
    """A value as JSON can have it: times as RFC 3339, bytes as text, or in base64 where they are none."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return format_time(parse_time(value.astimezone(UTC)))  # Spark's are of the local zone
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value


def _table(titles: Sequence[str], rows: list[list[str]]) -> list[str]:
    short = [[cell if len(cell) <= CELL_MAX else f"{cell[: CELL_MAX - 1]}…" for cell in row] for row in rows]
    return [f"  {line}" for line in table([titles, *short])] if rows else []


def _limited(lines: list[str], chosen: argparse.Namespace) -> list[str]:
    limit = ROWS_SHOWN if chosen.limit is None else chosen.limit
    if len(lines) <= limit:
        return lines
    return [*lines[:limit], f"  ... {len(lines) - limit:,} more, --limit shows them"]


def add_rows(page: Report, title: str, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0]) if rows else []
    page.add_table(title, names, [list(row.values()) for row in rows])
