"""What the subcommands of `forelog pipeline` print in a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from forelog.cli.output import as_text, human_bytes, human_count, human_duration, plural, table
from forelog.cli.pipeline.values import keyed, rows_shown
from forelog.log.position import Position
from forelog.times import format_time

CELL_MAX = 40

_QUEUE = {
    "jobs": "jobs", "completed": "done", "failed": "failed", "waiting": "waiting", "leased": "leased",
    "deleted": "deleted", "expired": "expired", "timeouts": "timeouts",
}  # fmt: skip
_LATENCIES = {
    "waiting_ms_p50": "wait p50", "waiting_ms_p99": "p99", "running_ms_p50": "run p50", "running_ms_p99": "p99",
}  # fmt: skip


def verify_lines(chosen: argparse.Namespace, value: dict[str, Any]) -> list[str]:
    """Logs with problems, or all logs if none has any, and the problems."""
    logs = value["logs"]
    problems = [f"  damage: {log['log']}: {text}" for log in logs for text in log["problems"]]
    counted = f"{plural(len(logs), 'log')}, {plural(sum(log['records'] for log in logs), 'record')}"
    size = human_bytes(sum(log["bytes"] for log in logs))
    found = plural(len(problems), "problem") if problems else "no damage"
    shown = [log for log in logs if log["problems"]] or logs
    rows = [
        [
            log["log"],
            f"{log['segments']:,}",
            f"{log['records']:,}",
            human_bytes(log["bytes"]),
            f"{len(log['problems']):,}",
        ]
        for log in shown
    ]
    return [
        f"{chosen.path}: {counted}, {size}: {found}",
        *_table(("log", ">segments", ">records", ">bytes", ">problems"), rows),
        *_limited(problems, chosen),
    ]


def jobs_lines(chosen: argparse.Namespace, value: dict[str, Any]) -> list[str]:
    """Queues, and jobs that are stuck or poisoned."""
    queues = value["queues"]
    lines = [f"{chosen.path}: {plural(value['jobs'], 'job')} in {plural(len(queues), 'queue')}"]
    titles = ["queue", *(f">{name}" for name in (*_QUEUE.values(), *_LATENCIES.values())), ">added/min"]
    rows = [
        [
            queue_name(queue),
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
                [job["id"], queue_name(job), job["why"], f"{job['attempts']}", job["last_seen"]]
                for job in value[what]
            ]
            lines += _table(("job", "queue", "why", ">attempts", "last seen"), found)
            if len(found) < count:
                lines.append(f"  ... {count - len(found):,} more, --limit shows them")
    return lines


def queue_name(row: dict[str, Any]) -> str:
    """The name of a job's queue, after its log's where there are several; `run` has no queue."""
    name = row["name"] or "(run)"
    return f"{row['log']}/{name}" if "log" in row else name


def _latency(ms: float | None) -> str:
    return "-" if ms is None else human_duration(ms / 1000)


def replay_lines(chosen: argparse.Namespace, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each job or record, its cells separated by tabs."""
    return [_key_line(row) if keyed(chosen) else _job_line(row) for row in rows]


def _job_line(row: dict[str, Any]) -> str:
    result = "-" if row["result"] is None else as_text(bytes(row["result"]))
    tries = [plural(row["attempts"], "attempt"), plural(row["fails"], "fail")]
    cells = [row["id"], row["name"], row["state"], *tries, result]
    return "\t".join([row["log"], *cells] if "log" in row else cells)


def _key_line(row: dict[str, Any]) -> str:
    position = str(Position(row["segment"], row["offset"]))
    cells = [position, format_time(row["time_ns"], aligned=True), as_text(bytes(row["payload"]))]
    return "\t".join([row["log"], *cells] if "log" in row else cells)


def stats_lines(chosen: argparse.Namespace, value: dict[str, Any]) -> list[str]:
    """Logs, gaps and duplicates."""
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


def clean_lines(chosen: argparse.Namespace, value: dict[str, Any]) -> list[str]:
    """What each log loses, or would lose."""
    would = "" if chosen.apply else "would be "
    lines = []
    for log in value["logs"]:
        dropped = f"{plural(log['records_dropped'], 'record')} {would}dropped"
        lines.append(f"{log['path']}: {dropped}, {human_bytes(log['bytes_dropped'])} {would}freed")
        kept = log["positions"] - log["records_dropped"]
        if kept:
            lines.append(f"  {plural(kept, 'record')} more when the last segment is finished")
    if not chosen.apply:
        lines.append("nothing was changed: --apply does it")
    return lines


def _table(titles: Sequence[str], rows: list[list[str]]) -> list[str]:
    short = [[cell if len(cell) <= CELL_MAX else f"{cell[: CELL_MAX - 1]}…" for cell in row] for row in rows]
    return [f"  {line}" for line in table([titles, *short])] if rows else []


def _limited(lines: list[str], chosen: argparse.Namespace) -> list[str]:
    limit = rows_shown(chosen)
    if len(lines) <= limit:
        return lines
    return [*lines[:limit], f"  ... {len(lines) - limit:,} more, --limit shows them"]
