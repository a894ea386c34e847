"""What is there of all that was acknowledged: asked of the job server, and read from the logs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from examples.demo.ledger import FAILS, JOBS, MESSAGES, POINTS, RESULTS, STATE, Ledger
from examples.demo.writers import MACHINES
from forelog import Stream
from forelog.broker import MessageLogReader
from forelog.commitlog import scan_datapoints
from forelog.errors import JobNotFound
from forelog.jobs import Client
from forelog.state import EventCodec

EVENT = 1
"""The byte that a change begins with in a state log; what begins otherwise are marks of the log itself."""


class Held(NamedTuple):
    """A promise, and what became of it."""

    what: str
    where: str
    before_the_kill: int
    acknowledged: int
    found: int

    @property
    def lost(self) -> int:
        return self.acknowledged - self.found


def prove(ledger: Ledger, logs: Path, jobs: str, received: dict[str, int]) -> list[Held]:
    """A row for each kind. The job server runs, at `jobs`; nobody acknowledges anything any more."""
    found: list[tuple[str, str, set[str]]] = [
        (MESSAGES, "broker's log", messages_in(logs / "broker" / "messages")),
        (MESSAGES, "subscriber", set(received)),
        *((kind, "job server", keys) for kind, keys in _jobs(ledger, jobs).items()),
        (STATE, "state log", {str(serial) for _, _, _, serial in changes_in(logs / "stock")}),
        (POINTS, "commit log", _points(logs / "meters")),
    ]
    held = []
    for kind, where, keys in found:
        promised = ledger.acknowledged[kind]
        there = sum(key in keys for key in promised)
        held.append(Held(kind, where, ledger.before_the_kill(kind), len(promised), there))
    return held


def messages_in(path: Path) -> set[str]:
    with MessageLogReader(str(path)) as reader:
        return {f"{message.topic} {json.loads(message.payload)['n']}" for message in reader}


def _jobs(ledger: Ledger, server: str) -> dict[str, set[str]]:
    """Which of the jobs, results and fails the server knows of."""
    known: dict[str, set[str]] = {JOBS: set(), RESULTS: set(), FAILS: set()}
    failed: dict[str, list[str]] = {}
    for key in ledger.acknowledged[FAILS]:
        failed.setdefault(key.partition(" ")[0], []).append(key)
    with Client(server) as client:
        for key in ledger.acknowledged[JOBS]:
            try:
                info = client.inspect_job(key)
            except JobNotFound:
                continue
            known[JOBS].add(key)
            if info.state == "completed":
                known[RESULTS].add(key)
            known[FAILS].update(failed.get(key, [])[: info.fails])
    return known


def changes_in(path: Path) -> list[tuple[int, str, int, int]]:
    """Every change of the stock: its time, the item, how many there were then, the change's number."""
    decode = EventCodec().decode
    changes = []
    with Stream.open(str(path)).cursor() as cursor:
        for record in cursor:
            if record.payload[0] == EVENT:
                event: Any = decode(record.payload[1:])
                changes.append((record.time_ns, event[0], *event[1]))
    return changes


def _points(path: Path) -> set[str]:
    """Times of which every machine's datapoint is there, a key for each of them."""
    times: Counter[int] = Counter()
    for batch in scan_datapoints(Stream.open(str(path)), ["timestamp"]):
        times.update(batch.column(0).view("int64").to_pylist())
    return {f"{time} {name}" for time, count in times.items() if count == len(MACHINES) for name in MACHINES}
