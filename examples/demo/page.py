"""report.html: one file, with everything in it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from examples.demo.clients import Subscriber
from examples.demo.ledger import JOBS, MESSAGES, POINTS, STATE, Ledger
from examples.demo.proof import Held
from forelog.spark.pipeline.report import Report

Rows = list[dict[str, Any]]
Lines = dict[str, list[tuple[float, float]]]
POISONED_SHOWN = 10


def page(tables: dict[str, Any], ledger: Ledger, held: list[Held], subscriber: Subscriber) -> str:
    rows: dict[str, Rows] = {name: table.to_pylist() for name, table in tables.items()}
    killed = ledger.killed_ns / 1e9
    began = min(seconds(row["start"]) for row in rows["activity"])
    marks = {"kill -9": killed}
    told = datetime.fromtimestamp(began, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    report = Report(
        "A factory, killed and back", f"forelog demo, {told}. Times are seconds since then.", start_s=began
    )
    add_promise(report, ledger, held)
    report.add_lines(
        "Written in each second",
        with_zeros(by_name(rows["activity"], "kind", "start", "count")),
        note="All four processes were killed at the mark, and started again on their logs.",
        marks=marks,
    )
    add_jobs(report, rows, marks)
    add_messages(report, rows, subscriber, marks)
    add_stock(report, rows, marks)
    report.add_lines(
        "Power of each machine, kW",
        by_name(rows["power"], "machine", "start", "mean"),
        note=f"{sum(row['points'] for row in rows['power']):,} datapoints, as means of half a second.",
        marks=marks,
    )
    return report.html()


def add_promise(report: Report, ledger: Ledger, held: list[Held]) -> None:
    lost = sum(one.lost for one in held)
    kinds = {"messages": MESSAGES, "jobs": JOBS, "stock changes": STATE, "datapoints": POINTS}
    figures = {name: f"{ledger.count(kind):,}" for name, kind in kinds.items()}
    report.add_figures({**figures, "acknowledged and lost": f"{lost:,}"})
    columns = ["what", "looked for in", "before the kill", "acknowledged", "found", "lost"]
    report.add_table("Is it all there?", columns, [(*one, one.lost) for one in held])


def add_jobs(report: Report, rows: dict[str, Rows], marks: dict[str, float]) -> None:
    finished = [row for row in rows["jobs"] if row["total_ms"] is not None]
    report.add_dots(
        "How long each job took, from being added to its result, ms",
        by_name(finished, "name", "added", "total_ms"),
        note="A job that was added before the kill and done after it is a high one to its left, if there was one.",
        marks=marks,
        decades=True,
    )
    columns = {
        "name": "queue", "jobs": "jobs", "completed": "completed", "failed": "failed", "attempts": "attempts",
        "waiting_ms_p50": "waiting p50, ms", "waiting_ms_p90": "p90", "waiting_ms_p99": "p99",
        "running_ms_p50": "running p50, ms", "running_ms_p90": "p90", "running_ms_p99": "p99",
    }  # fmt: skip
    cells = [[_rounded(row[name]) for name in columns] for row in rows["queues"]]
    report.add_table("Queues", list(columns.values()), cells)
    poisoned = [[row["name"], row["id"], row["attempts"], row["fails"], row["why"]] for row in rows["poisoned"]]
    shown = poisoned[:POISONED_SHOWN]
    title = f"Jobs that workers choke on: {len(shown)} of {len(poisoned)}"
    report.add_table(title, ["queue", "job", "attempts", "fails", "why"], shown)


def add_messages(report: Report, rows: dict[str, Rows], subscriber: Subscriber, marks: dict[str, float]) -> None:
    report.add_lines(
        "Messages of each topic, in each second",
        with_zeros(by_name(rows["messages_per_topic"], "topic", "start", "count")),
        note="What the machines couldn't send meanwhile they sent when the broker was back.",
        marks=marks,
    )
    report.add_dots(
        "How long after it was sent the subscriber got each message, seconds",
        {"factory/#": [(came, max(delay, 0.0001)) for came, delay in subscriber.delays]},
        note="It was away for a while, also when the kill came. What it missed came when it was back.",
        marks={**marks, **dict(zip(("goes away", "is back"), subscriber.away, strict=False))},
        decades=True,
    )


def add_stock(report: Report, rows: dict[str, Rows], marks: dict[str, float]) -> None:
    report.add_lines("In store", by_name(rows["stock_changes"], "item", "time", "count"), marks=marks)
    cells = [
        [row["item"], row["count"], row["number"], f"{row['time']:%H:%M:%S.%f}"]
        for row in rows["stock_at_the_kill"]
    ]
    report.add_table("In store when the kill came", ["item", "count", "change", "at"], cells)


def with_zeros(lines: Lines) -> Lines:
    """The same, with zeros for seconds in which nothing was written."""
    times = [time for line in lines.values() for time, _ in line]
    every = [min(times) + number for number in range(int(max(times) - min(times)) + 1)] if times else []
    found = {name: dict(line) for name, line in lines.items()}
    return {name: [(time, line.get(time, 0.0)) for time in every] for name, line in found.items()}


def by_name(rows: Iterable[dict[str, Any]], name: str, time: str, value: str) -> Lines:
    lines: Lines = {}
    for row in rows:
        lines.setdefault(row[name], []).append((seconds(row[time]), float(row[value])))
    return dict(sorted(lines.items()))


def seconds(time: datetime) -> float:
    return time.timestamp()


def _rounded(value: Any) -> Any:
    return round(value, 1) if isinstance(value, float) else value
