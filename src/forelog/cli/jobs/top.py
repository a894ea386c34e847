"""`forelog jobs top`: watch queues, and how long the server takes to reply.

The protocol reports how many jobs wait, not how many came and went, so a rate is how much a queue grew or shrank.
Latencies are those of this command's own requests; with --probe also those of changes, measured on a job that is
added for next year and deleted again.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from forelog.cli import codes, options
from forelog.cli.output import human_count, human_duration, print_json, table
from forelog.errors import JobError
from forelog.jobs.client.client import Client
from forelog.jobs.client.values import QueueInfo, ServerInfo
from forelog.times import format_time

PROBES = 10
PROBE_QUEUE = "forelog.top"
_QUEUES_MAX = 10_000
_PAGE = 100
_KEPT = 200
_MINUTE_NS = 60 * 10**9


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `top`."""
    parser.add("""
        --interval SECONDS  how often to refresh (default: 1)
        --once              show the values once, and end
        --limit N           the most queues to show, the fullest first (default: 20)
        --probe             also measure changes: add a job far in the future, and delete it
    """)
    parser.set_defaults(interval=1.0, limit=20)


@dataclass(slots=True)
class View:
    """The last values of the server, and how they have changed."""

    server: ServerInfo | None = None
    queues: list[QueueInfo] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    """How many jobs a second each queue has grown by."""
    answers: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    changes: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    trouble: str = ""
    _seen: dict[str, int] = field(default_factory=dict)
    _at: float = 0.0

    def look(self, client: Client, probe: bool) -> None:
        """Get new values from the server."""
        self.server = self._timed(self.answers, client.inspect_server)
        queues: list[QueueInfo] = []
        while len(queues) < _QUEUES_MAX:
            page = self._timed(self.answers, partial(client.inspect_queues, len(queues), _PAGE))
            queues += page
            if len(page) < _PAGE:
                break
        for _ in range(PROBES):
            self._timed(self.answers, client.inspect_server)
        if probe:
            due = time.time_ns() + _MINUTE_NS  # should this be ended before it is deleted
            job_id = self._timed(self.changes, lambda: client.schedule(PROBE_QUEUE, b"", due, ttl_ms=1000))
            self._timed(self.changes, lambda: client.delete(job_id))
        self._compare([queue for queue in queues if queue.name != PROBE_QUEUE], time.monotonic())
        self.trouble = ""

    def _timed(self, kept: deque[float], call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = call()
        kept.append(time.perf_counter() - start)
        return value

    def _compare(self, queues: list[QueueInfo], now: float) -> None:
        sizes = {queue.name: queue.ready + queue.scheduled for queue in queues}
        if self._at:
            seconds = max(now - self._at, 1e-6)
            self.rates = {name: (size - self._seen.get(name, 0)) / seconds for name, size in sizes.items()}
        self._seen, self._at = sizes, now
        self.queues = sorted(queues, key=lambda queue: (-queue.ready, -queue.scheduled, queue.name))


def run(chosen: argparse.Namespace, client: Client) -> int:
    """Watch until interrupted."""
    view = View()
    view.look(client, chosen.probe)  # a server that isn't there at all is an error
    live = sys.stdout.isatty() and not chosen.once and not chosen.json
    with contextlib.suppress(KeyboardInterrupt), screen(live) as show:
        while True:
            if chosen.json:
                print_json(in_json(view, chosen.limit))
            else:
                show(lines_of(view, chosen.limit))
            sys.stdout.flush()
            if chosen.once:
                break
            time.sleep(chosen.interval)
            try:
                view.look(client, chosen.probe)
            except JobError as error:
                view.trouble = str(error)
    return codes.FINE


def in_json(view: View, limit: int) -> dict[str, Any]:
    """The view as JSON."""
    server = view.server
    assert server is not None
    return {
        "time": format_time(time.time_ns()),
        "trouble": view.trouble or None,
        "active_clients": server.active_clients,
        "evicted_jobs": server.evicted_jobs,
        "started": format_time(server.started_ns),
        "answer_seconds": _quantiles(view.answers),
        "change_seconds": _quantiles(view.changes),
        "queues": [
            {
                "name": queue.name,
                "ready": queue.ready,
                "scheduled": queue.scheduled,
                "growth_per_second": view.rates.get(queue.name),
            }
            for queue in view.queues[:limit]
        ],
    }


def lines_of(view: View, limit: int) -> list[str]:
    """The view as lines of text."""
    server = view.server
    assert server is not None
    now_ns = time.time_ns()
    ready = sum(queue.ready for queue in view.queues)
    scheduled = sum(queue.scheduled for queue in view.queues)
    up = human_duration(max(0, now_ns - server.started_ns) / 1e9)
    lines = [
        f"{format_time(now_ns // 10**9 * 10**9)}  up {up}  clients {human_count(server.active_clients)}  "
        f"queues {human_count(len(view.queues))}  ready {human_count(ready)}  scheduled {human_count(scheduled)}  "
        f"evicted {human_count(server.evicted_jobs)}",
        "  ".join(filter(None, (_told("replies", view.answers), _told("changes", view.changes)))),
    ]
    if view.trouble:
        lines.append(view.trouble)
    rows = [
        (queue.name, human_count(queue.ready), human_count(queue.scheduled), _rate(view.rates.get(queue.name)))
        for queue in view.queues[:limit]
    ]
    lines += table([("queue", ">ready", ">scheduled", ">growth/s"), *rows])
    if len(view.queues) > limit:
        lines.append(f"and {human_count(len(view.queues) - limit)} more")
    return lines


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{'-' if rate < 0 else '+' if rate else ''}{human_count(abs(rate))}"


def _quantiles(seconds: deque[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]}


def _told(name: str, seconds: deque[float]) -> str:
    found = _quantiles(seconds)
    if found is None:
        return ""
    return f"{name}: p50 {human_duration(found['p50'])}, p99 {human_duration(found['p99'])}"


@contextlib.contextmanager
def screen(live: bool) -> Iterator[Callable[[list[str]], None]]:
    """How lines are shown: one screen after the other in a terminal, one below the other elsewhere."""
    if not live:
        yield lambda lines: print("\n".join(lines), end="\n\n")
        return
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        yield lambda lines: print("\033[H\033[2J" + "\n".join(lines))
        return
    with Live(auto_refresh=False, screen=True) as screen:
        yield lambda lines: screen.update(_styled(lines, Text), refresh=True)


def _styled(lines: list[str], text: Any) -> Any:
    shown = text()
    for line in lines:
        style = "bold" if line.startswith("queue ") else "red" if line.startswith(("the ", "no ")) else ""
        shown.append(line + "\n", style=style)
    return shown
