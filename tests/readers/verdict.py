"""What a reader has seen, compared with what its writer has noted and with what the log has in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forelog import Position
from tests.readers.ledger import UNKNOWN, Noted
from tests.readers.records import DAMAGED, END, NOWHERE, Seen

IDLE_SHARE_MAX = 0.15
"""Of a core, that a reader may use while nothing is written."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a reader's records differ from the log's. All of it is to be 0."""

    gaps: int = 0
    """Records that are in the log, and that the reader didn't get."""
    lost: int = 0
    """Records that were acknowledged, and that the log doesn't have."""
    phantoms: int = 0
    """Records that the reader or the log has, and that were refused, cut off, damaged or never written."""
    doubles: int = 0
    """Positions that two records have had."""
    moved: int = 0
    """Records whose position isn't the one that was acknowledged."""
    again: int = 0
    """Records that the reader got more than once, if it promises not to."""
    disorder: int = 0
    """Records that came after a later one."""
    halves: int = 0
    """Batches of which the reader had a part when it took itself to have everything."""

    def wrong(self) -> list[str]:
        """What isn't 0, in words."""
        return [f"{value:,} {WORDS[name]}" for name in self.__slots__ if (value := getattr(self, name))]


WORDS = {
    "gaps": "gaps",
    "lost": "lost from the log",
    "phantoms": "phantoms",
    "doubles": "positions twice",
    "moved": "at another position",
    "again": "more than once",
    "disorder": "out of order",
    "halves": "batches in part",
}


def compare(noted: Noted, seen: Sequence[Seen], kept: Sequence[Seen], *, exact: bool) -> Comparison:
    """Compare a ledger, what a reader has seen, and what is left in the log.

    The log may have been cleaned at its start: `kept` is what is left. `exact` says that the reader promises to
    get each record once.
    """
    got = [row for row in seen if row.number != END]
    numbers = {row.number for row in got}
    in_log = {row.number for row in kept}
    first_kept = min(in_log, default=max(noted.acked, default=0) + 1)
    unknown = noted.unknown
    cut_off = {number for number in numbers & unknown if number >= first_kept} - in_log
    counts = Counter(row.number for row in got)
    return Comparison(
        gaps=len((noted.acked.keys() | in_log) - numbers),
        lost=sum(number >= first_kept and number not in in_log for number in noted.acked),
        phantoms=len((numbers | in_log) - noted.acked.keys() - unknown | cut_off) + max(counts[DAMAGED] - 1, 0),
        doubles=_doubles(noted, got, kept),
        moved=_moved(noted, got, kept),
        again=sum(count - 1 for number, count in counts.items() if number != DAMAGED) if exact else 0,
        disorder=_disorder(row.number for row in got),
        halves=_halves(noted, seen, numbers),
    )


def _doubles(noted: Noted, got: Iterable[Seen], kept: Iterable[Seen]) -> int:
    had: dict[Position, set[int]] = {}
    acked = (Seen(number, position) for number, position in noted.acked.items() if position is not None)
    for rows in (acked, got, kept):
        for number, position in rows:
            if position != NOWHERE:
                had.setdefault(position, set()).add(number)
    return sum(len(numbers) > 1 for numbers in had.values())


def _moved(noted: Noted, got: Iterable[Seen], kept: Iterable[Seen]) -> int:
    """Records that are elsewhere than their writer was told."""
    moved = set()
    for rows in (got, kept):
        for number, position in rows:
            expected = noted.acked.get(number)
            if expected is not None and position not in (expected, NOWHERE):
                moved.add(number)
    return len(moved)


def _disorder(numbers: Iterable[int]) -> int:
    """Of first occurrences: a record that comes again, where it may, isn't out of order."""
    highest, count = 0, 0
    met: set[int] = set()
    for number in numbers:
        if number < 0 or number in met:
            continue
        met.add(number)
        count += number < highest
        highest = max(highest, number)
    return count


def _halves(noted: Noted, seen: Iterable[Seen], numbers: set[int]) -> int:
    """Batches of which only a part ever came, or was all that there was at some moment."""
    after = {attempt.first + attempt.count - 1: attempt for attempt in noted.attempts}
    parted = {
        attempt.first
        for attempt in noted.attempts
        if attempt.outcome == UNKNOWN and 0 < sum(number in numbers for number in attempt.numbers) < attempt.count
    }
    last = 0
    for number, _ in seen:
        if number != END:
            last = number
        elif last > 0 and last not in after:
            parted.add(last)
    return len(parted)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run went."""

    reader: str
    writer: str
    noted: Noted
    comparison: Comparison
    records: int
    """That the reader got."""
    segments: int
    """That the log has, or has had."""
    seconds: float
    idle_cpu_seconds: float
    idle_seconds: float
    """For how long it was watched while nothing was written."""
    held: str | None = None
    """Which lock somebody held on to."""
    complaint: str | None = None
    """What the reader or the writer ended with, if not in order."""

    def wrong(self) -> list[str]:
        """What the run has shown to be wrong."""
        wrong = self.comparison.wrong()
        if self.idle_cpu_seconds > IDLE_SHARE_MAX * self.idle_seconds:
            wrong.append(f"{self.idle_cpu_seconds:.2f} s of CPU in {self.idle_seconds:.1f} s with nothing to do")
        wrong += [told for told in (self.held, self.complaint) if told]
        if not self.noted.acked:
            wrong.append("nothing was acknowledged")
        if self.writer == "full" and not self.noted.refusals:
            wrong.append("nothing was refused: there was too much room")
        return wrong

    def line(self) -> str:
        """All of it in one line."""
        noted, found = self.noted, self.comparison
        happened = (
            f"{self.reader:8} {self.writer:7} {self.records:8,} records, {self.segments:6,} segments, "
            f"{noted.cuts:4,} cuts, {noted.refusals:4,} refusals, {noted.kills:2} kills:"
        )
        counts = (
            f" {found.gaps:,} gaps, {found.phantoms:,} phantoms, {found.doubles:,} positions twice, "
            f"idle {self.idle_cpu_seconds:.2f} s CPU, {self.seconds:.0f} s"
        )
        wrong = self.wrong()
        return happened + counts + (f"\n  WRONG: {'; '.join(wrong)}" if wrong else "")
