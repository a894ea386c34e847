"""What was acknowledged, and when: the promises that are held against the logs in the end."""

from __future__ import annotations

import time
from collections.abc import Iterable

MESSAGES, JOBS, RESULTS, FAILS, STATE, POINTS = (
    "messages published",
    "jobs added",
    "jobs completed",
    "attempts failed",
    "stock changes",
    "datapoints",
)
KINDS = (MESSAGES, JOBS, RESULTS, FAILS, STATE, POINTS)


class Ledger:
    """For each kind the keys of what was acknowledged, with the time. Any thread may note."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
        self.killed_ns = 0
        """When all processes were dead."""

    def note(self, kind: str, key: str, time_ns: int | None = None) -> None:
        """An answer has come that says: this is done."""
        self.acknowledged[kind][key] = time.time_ns() if time_ns is None else time_ns

    def note_all(self, kind: str, keys: Iterable[str]) -> None:
        """Several at once."""
        now = time.time_ns()
        for key in keys:
            self.acknowledged[kind][key] = now

    def count(self, kind: str) -> int:
        return len(self.acknowledged[kind])

    def before_the_kill(self, kind: str) -> int:
        return sum(time_ns <= self.killed_ns for time_ns in list(self.acknowledged[kind].values()))
