"""A run as text for the terminal, as Markdown for the documentation, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Goal, Row

BEGIN = "<!-- figures: written by python -m benchmarks -->"
END = "<!-- end of figures -->"
MACHINE = ("processor", "cores", "memory", "filesystem", "python")
"""What has to be the same for figures to be shown beside each other."""


@dataclass
class Report:
    """What a run found, and on which machine."""

    machine: dict[str, str]
    rounds: int
    scale: float
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        document = asdict(self)
        for figure, plain in zip(self.figures, document["figures"], strict=True):
            for goal, fields in zip(figure.goals, plain["goals"], strict=True):
                fields["reached"] = goal.reached if has_bound(goal) else None
        return json.dumps(document, indent=2) + "\n"

    def beside(self, older: Report, order: list[str]) -> Report:
        """With the figures of an older run that this one hasn't, in an order; none of another machine."""
        if any(self.machine.get(fact) != older.machine.get(fact) for fact in MACHINE):
            return self
        figures = {one.name: one for one in (*older.figures, *self.figures)}
        return replace(self, figures=[figures[name] for name in order if name in figures])

    @classmethod
    def from_json(cls, text: str) -> Report:
        document: dict[str, Any] = json.loads(text)
        figures = []
        for plain in document.pop("figures"):
            goals = [Goal(**{k: v for k, v in goal.items() if k != "reached"}) for goal in plain.pop("goals")]
            rows = [Row(**one) for one in plain.pop("rows")]
            figures.append(Figure(**plain, rows=rows, goals=goals))
        return cls(**document, figures=figures)


def number(value: float, unit: str) -> str:
    """A value with its unit, in three digits or so.

    >>> number(1_234_567, "records/s"), number(9.714, "GB/s"), number(0.6123, "x"), number(5 << 20, "bytes")
    ('1.23 M records/s', '9.71 GB/s', '0.612 x', '5.24 MB')
    """
    if unit == "bytes":
        text, prefix = _scaled(value)
        return f"{text} {prefix}B" if prefix else f"{text} B"
    if unit in ("segments", "files") or (unit.endswith("/s") and unit != "GB/s"):
        text, prefix = _scaled(value)
        return f"{text} {prefix + ' ' if prefix else ''}{unit}"
    if unit == "GB/s" and value < 0.1:
        return f"{_digits(value * 1000)} MB/s"
    return f"{_digits(value)} {unit}"


def _scaled(value: float) -> tuple[str, str]:
    for bound, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= bound:
            return _digits(value / bound), prefix
    return f"{value:.0f}" if value == int(value) else _digits(value), ""


def _digits(value: float) -> str:
    for bound, places in ((100, 0), (10, 1), (1, 2)):
        if abs(value) >= bound:
            return f"{value:.{places}f}"
    return f"{value:.3f}"


def has_bound(goal: Goal) -> bool:
    """Whether there is anything to reach, or it is only shown."""
    return goal.at_least is not None or goal.at_most is not None


def bound(goal: Goal) -> str:
    """What was to be reached."""
    if goal.at_least is not None and goal.at_most is not None:
        return f"{goal.at_least:g} to {number(goal.at_most, goal.unit)}"
    if goal.at_least is not None:
        return f">= {goal.at_least:g} {goal.unit}"
    if goal.at_most is not None:
        return "none" if goal.at_most == 0 else f"<= {number(goal.at_most, goal.unit)}"
    return "-"


def verdict(goal: Goal) -> str:
    """Whether it was."""
    if not has_bound(goal):
        return "-"
    if goal.reached:
        return "reached"
    return f"not reached: {goal.held_back}" if goal.held_back else "not reached"


def spread(item: Row | Goal) -> str:
    """The lowest and the highest round."""
    if item.low == item.high:
        return ""
    unit = " " + item.unit
    return f"{number(item.low, item.unit).removesuffix(unit)} .. {number(item.high, item.unit).removesuffix(unit)}"


def _columns(lines: list[tuple[str, ...]], indent: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip()
        for line in lines
    ]


def _row_line(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.sync,
        number(row.value, row.unit),
        spread(row),
        "" if row.role == "forelog" else row.role,
    )


def _goal_line(goal: Goal) -> tuple[str, ...]:
    return (goal.text, number(goal.value, goal.unit), spread(goal), bound(goal), verdict(goal))


def terminal(report: Report) -> str:
    """Everything, for a terminal."""
    lines = [", ".join(f"{name} {value}" for name, value in report.machine.items()), ""]
    for figure in report.figures:
        lines.append(f"{figure.title}  [{figure.name}]")
        lines += _columns([("", "sync", "median", "low .. high", ""), *map(_row_line, figure.rows)], "  ")
        lines.append("")
        lines += _columns([("", "ratio", "low .. high", "goal", ""), *map(_goal_line, figure.goals)], "  ")
        lines += [f"  {note}" for note in figure.notes]
        lines.append("")
    bounded = [goal for figure in report.figures for goal in figure.goals if has_bound(goal)]
    lines.append(f"{sum(goal.reached for goal in bounded)} of {len(bounded)} goals reached")
    return "\n".join(lines + report.notes) + "\n"


def _table(head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> list[str]:
    rule = tuple("---" for _ in head)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (head, rule, *lines)]


def markdown(report: Report) -> str:
    """Everything, for the documentation."""
    lines = [", ".join(f"{name} {value}" for name, value in report.machine.items()) + ".", ""]
    lines += [f"{report.rounds} rounds, after one to warm up; fewer where one takes long.", *report.notes]
    lines += ["", "### Goals", ""]
    goals = [goal for figure in report.figures for goal in figure.goals if has_bound(goal)]
    lines += _table(("what", "measured", "low .. high", "goal", "reached?"), [_goal_line(goal) for goal in goals])
    for figure in report.figures:
        lines += ["", f"### {figure.title}", "", f"`{figure.name}`, {figure.date}.", ""]
        lines += _table(("case", "sync", "median", "low .. high", "kind"), [_row_line(row) for row in figure.rows])
        shown = [goal for goal in figure.goals if not has_bound(goal)]
        if shown:
            lines += ["", "; ".join(f"{goal.text}: {number(goal.value, goal.unit)}" for goal in shown) + "."]
        for note in figure.notes:
            lines += ["", note]
    return "\n".join(lines) + "\n"


HEADLINES = (
    ("append", "append, one record at a time", ("forelog append", "os"),
     "SQLite, nothing synced", ("sqlite3, WAL, INSERT per commit", "OFF")),
    ("append-many", "append, 1,000 records at a time", ("forelog append_many", "os"),
     "LMDB, nothing synced", ("LMDB putmulti, appending", "off")),
    ("always", "append from 64 tasks, each record synced", ("forelog append_async, 64 tasks", "always"),
     "RocksDB, 64 threads", ("RocksDB put, WAL, 64 threads", "on")),
    ("cursor", "read, one record at a time", ("cursor loop, compiled kernel", "-"), "", ("", "")),
    ("arrow-scan", "read as Arrow batches, checksums checked", ("scan(), position, time, payload", "-"),
     "the checksums alone", ("CRC-32C pass, forelog's kernel", "-")),
    ("state-restore", "restore a million objects", ("StateLog.open", "os"),
     "Redis", ("Redis, loads its append-only file", "-")),
    ("jobs-os", "add, lease and complete jobs, 64 clients", ("forelog, 64 connections", "os"),
     "beanstalkd", ("beanstalkd, 64 connections", "-F")),
    ("broker-publish", "publish at QoS 1, 16 clients", ("forelog, QoS 1, 16 publishers, 100 under way each", "os"),
     "mosquitto, in memory", ("mosquitto, QoS 1, 16 publishers, 100 under way each", "memory")),
    ("broker-fan-out", "deliver to 100 subscribers", ("forelog, 100 subscribers", "os"),
     "mosquitto, in memory", ("mosquitto, 100 subscribers", "memory")),
    ("spark-read", "write a log to Parquet with Spark, 2 cores", ("ingest to Parquet", "always"),
     "Spark's own writer", ("Spark's own writer", "none")),
)  # fmt: skip
"""What a newcomer wants to know first: figure, text, its row and policy; a peer, its row and policy."""


def headlines(report: Report) -> list[tuple[str, str, str]]:
    """The rows of the README's table that the report has."""
    rows = {(figure.name, row.name, row.sync): row for figure in report.figures for row in figure.rows}
    lines = []
    for figure, text, key, peer_text, peer_key in HEADLINES:
        row, peer = rows.get((figure, *key)), rows.get((figure, *peer_key))
        if row is not None:
            beside = f"{peer_text}: {number(peer.value, peer.unit)}" if peer is not None else ""
            lines.append((text, number(row.value, row.unit), beside))
    return lines


def summary(report: Report) -> str:
    """The ten lines of the README."""
    machine = report.machine
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['filesystem']}, {machine['python']}."
    return "\n".join([*_table(("records of 100 bytes", "forelog", "others"), headlines(report)), "", where, ""])


def write_between_markers(path: Path, text: str) -> None:
    """Replace what is between the markers of a page; the rest of it is written by hand."""
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {BEGIN!r} and {END!r}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
