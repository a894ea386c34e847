"""`forelog broker top`: watch a broker by its $SYS topics, which mosquitto has too."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from forelog.cli import codes, options
from forelog.cli.broker.mqtt_client import BrokerClient
from forelog.cli.jobs.top import screen
from forelog.cli.output import human_bytes, human_count, human_duration, plural, print_json, table
from forelog.times import format_time

ROOT = "$SYS/broker/"
_RATES = {
    "messages received": "messages/received",
    "messages sent": "messages/sent",
    "bytes received": "bytes/received",
    "bytes sent": "bytes/sent",
}
_SETTLED_SECONDS = 0.2
"""Values come together: after so long without one, all of them are there."""


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `top`."""
    parser.add("""
        --once          show the values once, and end
        --wait SECONDS  how long to wait for values (default: 30; brokers send them about every 10 s)
    """)
    parser.set_defaults(wait=30.0)


@dataclass(slots=True)
class View:
    """The last values of a broker, and by how much its counts grow in a second."""

    values: dict[str, str] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)
    _at: float = 0.0

    def take(self, values: dict[str, str], now: float) -> None:
        """Take new values."""
        self.values |= values
        counts = {topic: number(self.values.get(topic)) for topic in _RATES.values()}
        if self._at:
            passed = max(now - self._at, 1e-6)
            self.rates = {topic: (count - self._before[topic]) / passed for topic, count in counts.items()}
        self._before, self._at = counts, now


def number(text: str | None) -> float:
    """The number that a value starts with; 0 if there is none."""
    with contextlib.suppress(ValueError, IndexError):
        return float((text or "").split()[0])
    return 0.0


def run(chosen: argparse.Namespace, client: BrokerClient) -> int:
    """Watch until interrupted."""
    client.subscribe([f"{ROOT}#"], qos=0)
    view = View()
    live = sys.stdout.isatty() and not chosen.once and not chosen.json
    with contextlib.suppress(KeyboardInterrupt), screen(live) as show:
        while values := _values(client, chosen.wait):
            view.take(values, time.monotonic())
            if chosen.json:
                print_json({"time": format_time(time.time_ns()), "values": view.values, "per_second": view.rates})
            else:
                show(lines_of(view))
            sys.stdout.flush()
            if chosen.once:
                return codes.FINE
        raise codes.NoServer(f"no $SYS values came within {chosen.wait:g} s: does the broker have any?")
    return codes.FINE


def _values(client: BrokerClient, wait: float) -> dict[str, str]:
    """Collect the values that a broker sends together."""
    values: dict[str, str] = {}
    while message := client.receive(wait):
        values[message.topic.removeprefix(ROOT)] = message.payload.decode(errors="replace")
        wait = _SETTLED_SECONDS
    return values


def lines_of(view: View) -> list[str]:
    """The view as lines of text."""

    def count(topic: str) -> str:
        return human_count(number(view.values.get(topic)))

    files = plural(int(number(view.values.get("log/files"))), "file")
    up = human_duration(number(view.values.get("uptime")))
    lines = [
        f"{view.values.get('version', 'a broker')}  up {up}  clients {count('clients/connected')} "
        f"(at most {count('clients/maximum')}, away {count('clients/disconnected')}, "
        f"behind {count('clients/behind')})",
        f"subscriptions {count('subscriptions/count')}  retained {count('retained messages/count')}  "
        f"unacknowledged {count('messages/inflight')}  log {human_bytes(number(view.values.get('log/bytes')))} "
        f"in {files}, up to {view.values.get('log/position', '-')}",
    ]
    rows: list[tuple[str, ...]] = [("", ">total", ">now/s", ">1min/s", ">5min/s", ">15min/s")]
    for name, topic in _RATES.items():
        shown: Any = human_bytes if name.startswith("bytes") else human_count
        loads = [number(view.values.get(f"load/{topic}/{span}")) / 60 for span in ("1min", "5min", "15min")]
        now = shown(round(view.rates[topic], 1)) if topic in view.rates else "-"
        rows.append((name, shown(number(view.values.get(topic))), now, *(shown(round(load, 1)) for load in loads)))
    return lines + table(rows)
