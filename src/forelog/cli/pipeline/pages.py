"""What the subcommands of `forelog pipeline` write to an HTML page with `--report`."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from forelog.cli.pipeline.text import queue_name
from forelog.cli.pipeline.values import plain
from forelog.spark.pipeline.report import ROWS_MAX, Report
from forelog.times import format_time, parse_time


def verify_page(chosen: argparse.Namespace, value: dict[str, Any]) -> Report:
    """Logs by size, and their problems."""
    logs = value["logs"]
    page = Report(f"verify {chosen.path}", made())
    page.add_bars("bytes", {log["log"]: log["bytes"] for log in logs}, "B")
    rows = [[log["log"], log["segments"], log["records"], log["bytes"], len(log["problems"])] for log in logs]
    page.add_table("logs", ["log", "segments", "records", "bytes", "problems"], rows)
    problems = [[log["log"], text] for log in logs for text in log["problems"]]
    page.add_table("problems", ["log", "problem"], problems)
    return page


def jobs_page(chosen: argparse.Namespace, value: dict[str, Any]) -> Report:
    """Rates and latencies of queues, and jobs that are stuck or poisoned."""
    page = Report(f"jobs {chosen.path}", f"{made()}; late and expired as of {value['now']}")
    for what in ("added", "finished"):
        series: dict[str, list[tuple[float, float]]] = {}
        for row in value["rates"]:
            line = series.setdefault(queue_name(row), [])
            line.append((parse_time(row["start"]) / 1e9, float(row[what])))
        page.add_lines(f"jobs {what} per {chosen.window or '1m'}", series)
    for column, title in (("waiting_ms_p99", "waiting, p99"), ("running_ms_p99", "running, p99")):
        bars = {queue_name(queue): queue[column] for queue in value["queues"] if queue[column] is not None}
        page.add_bars(title, bars, "ms")
    for what in ("queues", "stuck", "poisoned"):
        add_rows(page, what, value[what])
    return page


def replay_page(chosen: argparse.Namespace, rows: list[dict[str, Any]]) -> Report:
    """Jobs by state and queue, or keys by when they were last written."""
    as_of = format_time(chosen.as_of) if isinstance(chosen.as_of, int) else chosen.as_of or "its end"
    page = Report(f"replay {chosen.path}", f"{made()}; as of {as_of}")
    if rows and "state" in rows[0]:
        page.add_bars("jobs by state", Counter(row["state"] for row in rows))
        page.add_bars("jobs by queue", Counter(queue_name(row) for row in rows))
        add_rows(page, "jobs", [plain(row) for row in rows[:ROWS_MAX]])
    else:
        page.add_lines("keys by when they were last written", {"keys": _by_time([row["time_ns"] for row in rows])})
        add_rows(page, "the latest of each key", [plain(row) for row in rows[:ROWS_MAX]])
    if len(rows) > ROWS_MAX:
        page.add_table("left out", ["rows"], [[len(rows) - ROWS_MAX]])
    return page


def _by_time(times_ns: list[int], windows: int = 60) -> list[tuple[float, float]]:
    """How many of the times are in each window; all windows have the same length."""
    if not times_ns:
        return []
    first = min(times_ns)
    width = (max(times_ns) - first) // windows + 1
    counts = Counter((time_ns - first) // width for time_ns in times_ns)
    return [((first + place * width) / 1e9, float(counts[place])) for place in range(max(counts) + 1)]


def stats_page(chosen: argparse.Namespace, value: dict[str, Any]) -> Report:
    """Records and bytes over time, gaps and duplicates."""
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


def clean_page(chosen: argparse.Namespace, value: dict[str, Any]) -> Report:
    """What each log loses, or would lose."""
    page = Report(f"clean {chosen.path}", f"{made()}; {'applied' if chosen.apply else 'not applied'}")
    page.add_bars("records dropped", {log["log"]: log["records_dropped"] for log in value["logs"]})
    add_rows(page, "logs", value["logs"])
    return page


def made() -> str:
    """A line that says when a page was made."""
    return f"made {datetime.now(UTC).strftime('%Y-%m-%d %H:%M:%SZ')}"


def add_rows(page: Report, title: str, rows: list[dict[str, Any]]) -> None:
    """Add a table of rows that have the same names."""
    names = list(rows[0]) if rows else []
    page.add_table(title, names, [list(row.values()) for row in rows])
