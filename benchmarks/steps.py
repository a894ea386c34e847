"""Opening, rolling and closing a small log, beside making one file durable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import Case, Figure, Role, Settings, interleave, payload, ratio_goal, row
from forelog import Stream

RECORDS = 10


def _file_ms(path: Path, count: int) -> float:
    """Create, sync and close a file, `count` times: milliseconds of one."""
    start = time.perf_counter()
    for number in range(count):
        descriptor = os.open(path / f"file {number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(descriptor, b"forelog!")
        os.fsync(descriptor)
        os.close(descriptor)
    return (time.perf_counter() - start) / count * 1000


def _log_with_records(path: Path) -> Stream:
    stream = Stream(path / "log")
    with stream.appender() as log:
        log.append_many([payload()] * RECORDS)
    return stream


def _reopen_ms(path: Path, count: int) -> float:
    stream = _log_with_records(path)
    start = time.perf_counter()
    for _ in range(count):
        stream.appender().close()
    return (time.perf_counter() - start) / count * 1000


def _create_ms(path: Path, count: int) -> float:
    start = time.perf_counter()
    for number in range(count):
        Stream(path / f"log {number}").appender().close()
    return (time.perf_counter() - start) / count * 1000


def _roll_ms(path: Path, count: int) -> float:
    """Rolls that a writer waits for, after a record that is synced."""
    taken = 0.0
    with Stream(path / "log").appender(sync="always") as log:
        for _ in range(count):
            log.append(payload())
            start = time.perf_counter()
            log.roll()
            taken += time.perf_counter() - start
    return taken / count * 1000


def _in_scratch(settings: Settings, run: Callable[[Path, int], float], count: int) -> float:
    with settings.scratch() as path:
        return run(path, count)


def steps(settings: Settings) -> Figure:
    """What a small log costs beside its records."""
    count = settings.count(50, least=2)
    ways: dict[str, tuple[Role, Callable[[Path, int], float]]] = {
        "creating, syncing and closing one file": ("limit", _file_ms),
        "opening and closing a log of 10 records": ("forelog", _reopen_ms),
        "creating and closing a log": ("forelog", _create_ms),
        "a roll that a writer waits for": ("forelog", _roll_ms),
    }
    cases = [
        Case(name, "-", role, partial(_in_scratch, settings, run, count)) for name, (role, run) in ways.items()
    ]
    file, reopen, create, roll = interleave(settings, cases)
    figure = Figure("steps", "Opening, rolling and closing a small log")
    figure.rows = [row(one, "ms") for one in (file, reopen, create, roll)]
    figure.goals = [
        ratio_goal("opening and closing a small log, to one file", reopen, file, at_most=3.0),
        ratio_goal("creating and closing a log, to one file", create, file),
        ratio_goal("a roll that a writer waits for, to one file", roll, file, at_most=1.5),
    ]
    figure.notes.append(
        "Creating a log takes three syncs. A roll comes after a record that is synced, and takes two. What each "
        "step syncs, and why, is in [durability](durability.md#which-syncs-each-step-needs)."
    )
    return figure
