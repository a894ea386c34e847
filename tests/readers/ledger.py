"""What a writer has tried to append, and what came of it: true whenever the writer is killed.

The ledger lies on another filesystem than the log. Each line is written before the next step is taken::

    trying 17 3                    records 17 to 19 are about to be appended together
    acked 17 000000004:8           each has its position, or ? if the writer doesn't know it
    acked 18 000000004:120
    acked 19 000000004:232
    trying 20 5
    refused 20 5 WriteFailed       they are not in the log, and never will be
    cut 000000004.log              a segment was made shorter
    killed                         the writer was killed

An attempt that no line tells the outcome of is *unknown*: its records may be in the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forelog import Position

ACKED, REFUSED, UNKNOWN = "acked", "refused", "unknown"


class Ledger:
    """The ledger as its writer sees it. A second writer may go on where a first one was killed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        os.ftruncate(self._fd, whole)  # the line in the middle of which the last writer was killed
        attempts = [line.split() for line in data[:whole].splitlines() if line.startswith(b"trying ")]
        self.next = int(attempts[-1][1]) + int(attempts[-1][2]) if attempts else 1
        """The number of the next record to try."""

    def trying(self, count: int) -> int:
        """So many records are about to be appended together; returns the number of the first."""
        first, self.next = self.next, self.next + count
        self.note(f"trying {first} {count}")
        return first

    def acked(self, first: int, positions: Sequence[Position | None]) -> None:
        """They are in the log."""
        lines = (f"acked {first + n} {position or '?'}" for n, position in enumerate(positions))
        self.note("\n".join(lines))

    def refused(self, first: int, count: int, why: str) -> None:
        """They are not."""
        self.note(f"refused {first} {count} {why}")

    def note(self, line: str) -> None:
        """One or more lines, with one write."""
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """The file; all that was noted is in it already."""
        os.close(self._fd)


@dataclass(slots=True)
class Attempt:
    """Records that were to be appended together."""

    first: int
    count: int
    outcome: str = UNKNOWN

    @property
    def numbers(self) -> range:
        """Of its records."""
        return range(self.first, self.first + self.count)


@dataclass(slots=True)
class Noted:
    """A ledger, read."""

    attempts: list[Attempt] = field(default_factory=list)
    acked: dict[int, Position | None] = field(default_factory=dict)
    """Every record that was acknowledged, and where."""
    refused: set[int] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    """Why attempts were refused, one by one."""
    cuts: int = 0
    kills: int = 0

    @property
    def unknown(self) -> set[int]:
        """Records that may or may not be in the log."""
        tried = {number for attempt in self.attempts for number in attempt.numbers}
        return tried - self.acked.keys() - self.refused

    @property
    def refusals(self) -> int:
        """Attempts that were refused."""
        return sum(attempt.outcome == REFUSED for attempt in self.attempts)

    @property
    def segments(self) -> set[int]:
        """Those in which records were acknowledged, as far as the writer knows."""
        return {position.segment for position in self.acked.values() if position is not None}


def read_ledger(path: Path) -> Noted:
    """All that is noted in whole lines."""
    noted = Noted()
    by_first: dict[int, Attempt] = {}
    data = path.read_bytes()
    for line in data[: data.rfind(b"\n") + 1].decode().splitlines():
        what, *words = line.split(maxsplit=3)
        if what == "trying":
            attempt = by_first[int(words[0])] = Attempt(int(words[0]), int(words[1]))
            noted.attempts.append(attempt)
        elif what == ACKED:
            number = int(words[0])
            noted.acked[number] = None if words[1] == "?" else Position.parse(words[1])
            if number in by_first:
                by_first[number].outcome = ACKED
        elif what == REFUSED:
            by_first[int(words[0])].outcome = REFUSED
            noted.refused.update(by_first[int(words[0])].numbers)
            noted.reasons.append(words[2])
        elif what == "cut":
            noted.cuts += 1
        elif what == "killed":
            noted.kills += 1
    return noted
