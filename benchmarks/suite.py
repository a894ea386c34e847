"""The figures by name, and running them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks import broker, jobs, peers, spark, workers
from benchmarks.appending import append, append_many
from benchmarks.committing import always
from benchmarks.decoding import m3_decode
from benchmarks.growth import growth
from benchmarks.machine import describe
from benchmarks.measure import Figure, NotInstalled, Settings
from benchmarks.opening import opening
from benchmarks.producing import write_behind, write_many, write_wait
from benchmarks.reading import arrow_scan, cursor, kernel_scan
from benchmarks.report import Report
from benchmarks.rotating import rotation
from benchmarks.starting import starting
from benchmarks.state import state_restore, state_updates
from benchmarks.steps import steps

GROUPS: dict[str, dict[str, Callable[[Settings], Figure]]] = {
    "engine": {
        "append": append,
        "append-many": append_many,
        "always": always,
        "write-behind": write_behind,
        "write-wait": write_wait,
        "write-many": write_many,
        "rotation": rotation,
        "kernel-scan": kernel_scan,
        "arrow-scan": arrow_scan,
        "cursor": cursor,
        "m3-decode": m3_decode,
        "open": opening,
        "steps": steps,
        "growth": growth,
        "start": starting,
    },
    "state": {"state-updates": state_updates, "state-restore": state_restore},
    "spark": {"spark-read": spark.reading, "spark-query": spark.querying, "spark-plan": spark.planning},
    "jobs": {
        "jobs-os": jobs.cycles_os,
        "jobs-always": jobs.cycles_always,
        "jobs-restart": jobs.restarts,
        "jobs-many": jobs.many,
    },
    "workers": {
        "tasks": workers.workers,
        "tasks-always": workers.workers_always,
        "tasks-latency": workers.workers_latency,
    },
    "broker": {
        "broker-publish": broker.publish,
        "broker-fan-out": broker.fan_out,
        "broker-latency": broker.latency,
        "broker-catch-up": broker.catch_up,
        "broker-always": broker.always,
    },
}
BENCHMARKS = {name: measure for figures in GROUPS.values() for name, measure in figures.items()}


def chosen(names: list[str]) -> list[str]:
    """Figures, given their names and those of groups; all of them if there are none."""
    wanted = {figure for name in names for figure in GROUPS.get(name, {name: None})}
    return [name for name in BENCHMARKS if name in wanted or not names]


def run(settings: Settings, names: list[str], found: Callable[[Report], None] = lambda _: None) -> Report:
    """Measure the figures of these names, telling the progress, and after each of them what there is."""
    machine = describe(settings.directory)
    report = Report(machine, settings.rounds, settings.scale)
    absent = peers.missing()
    if absent:
        report.notes.append(f"Not installed, so not measured: {', '.join(absent)}.")
    for number, name in enumerate(names, 1):

        def tell(line: str, head: str = f"[{number}/{len(names)}] {name}") -> None:
            settings.tell(f"{head}: {line}")

        start = time.monotonic()
        try:
            figure = BENCHMARKS[name](replace(settings, tell=tell))
        except NotInstalled as error:
            report.notes.append(f"{name} was not measured, {error}.")
            tell(f"{error}\n")
            continue
        report.figures.append(replace(figure, date=machine["date"]))
        tell(f"{time.monotonic() - start:.0f} s\n")
        found(report)
    return report
