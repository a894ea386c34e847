"""Whether a reader that resumes at a position has missed nothing.

A log removes whole segments. If the segment at a reader's position is gone, records that it hasn't read may be
gone too, unless it had read that segment to its end. The position alone doesn't tell. The log notes where the
segments that it removes have ended (removed.py), so a reader knows after any pause. Other programs note nothing.
But a removed file stays until it is closed everywhere, so a reader that keeps the segment open still sees where it
ended.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from forelog.errors import BadPosition, DataLoss
from forelog.log.directory.removed import read_removed
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.trace import agrees
from forelog.log.position import Position
from forelog.spark.planning import Log
from forelog.spark.remote import is_remote

logger = logging.getLogger("forelog")

_HELD_MAX = 256  # open files: with more logs, a few more reports of loss may be false


@dataclass(frozen=True, slots=True)
class Phrases:
    """How errors name a reader and its options."""

    stood: str
    anew: str
    go_on: str


class Continuity:
    """Keeps the segments at a reader's positions open."""

    def __init__(self, words: Phrases, *, fails: bool) -> None:
        self._words = words
        self._fails = fails
        self._held: dict[str, dict[int, SegmentReader]] = {}
        self._count = 0
        """How many segments are open."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _anew, (self._words, self._fails)  # tasks get a copy: open files stay here

    def go_on(self, log: Log, begin: Position, known: str | None = None) -> Position:
        """Where to resume in a log: at the position, or at the next segment if this one was read to its end.

        `known` is the trace that the log had there. Raises DataLoss if unread records may be gone, or if the log
        has other records before the position than it had. Raises BadPosition if the log has no such position.
        """
        directory = log.stream().directory
        numbers = directory.numbers()
        if not agrees(directory, begin, known):
            changed = (
                f"{log.path}: {self._words.stood} {begin}, and what the log has before that is different by now: "
                "it was cut, restored or replaced. Records may be missing here, or gone from the log"
            )
            if self._fails:
                raise DataLoss(f"{changed}. {self._words.anew}, or continue anyway with {self._words.go_on}")
            logger.warning("%s", changed)
        if not numbers or begin == Position(0, 0) or begin.segment in numbers:
            return begin
        if begin.segment > numbers[-1]:
            raise BadPosition(
                f"{log.path}: {self._words.stood} {begin}, and the log ends in segment {numbers[-1]}: it is "
                f"another log, or was replaced. {self._words.anew}"
            )
        after = self._after(log, numbers, begin)
        if after is not None:
            return after
        if self._fails:
            raise DataLoss(
                f"{log.path}: {self._words.stood} {begin}, and that segment is gone: cleaning or retention may "
                f"have removed records that were not read. Continue without them with {self._words.go_on}"
            )
        return begin

    def stand(self, log: Log, *positions: Position) -> None:
        """Keep the segments at these positions open, and close the log's others.

        Does nothing on a remote file system, where a removed file can't be read any more.
        """
        if is_remote(log.path):
            return
        wanted = {position.segment for position in positions}
        held = self._held.setdefault(log.name, {})
        for number in held.keys() - wanted:
            held.pop(number).close()
            self._count -= 1
        for number in wanted:
            self._hold(log, number, held)

    def close(self) -> None:
        for held in self._held.values():
            for segment in held.values():
                segment.close()
        self._held.clear()
        self._count = 0

    def _hold(self, log: Log, number: int, held: dict[int, SegmentReader]) -> None:
        known = held.get(number)
        if known is None and self._count >= _HELD_MAX:
            return
        if known is None or known.replaced():
            try:
                held[number] = SegmentReader(log.stream().directory, number)
                self._count += known is None
            except FileNotFoundError:
                return  # an open one still tells where it ended
            if known is not None:
                known.close()

    def _after(self, log: Log, numbers: list[int], begin: Position) -> Position | None:
        """Where to resume if the segment at `begin` is gone; None unless it was surely read to its end."""
        following = numbers[bisect_right(numbers, begin.segment)]
        if self._is_next(log, begin.segment, following) and self._was_read(log, begin):
            return Position(following, 0)
        directory, place = log.stream().directory, begin
        removed = read_removed(directory)
        while place.segment not in numbers:
            gone = removed.get(place.segment)
            if gone is None or max(place.offset, directory.format.header_bytes) < gone.end:
                return None
            place = Position(gone.following, 0)  # which may be gone too, if it was empty
        return place

    def _is_next(self, log: Log, number: int, following: int) -> bool:
        """Whether there can't have been a segment between the two."""
        if not log.format.numbered_by_time:
            return following == number + 1
        # Numbers don't tell. But if the held segment is empty, the following one has replaced it.
        held = self._held.get(log.name, {}).get(number)
        return held is not None and not held.refresh() and held.size == 0

    def _was_read(self, log: Log, begin: Position) -> bool:
        held = self._held.get(log.name, {}).get(begin.segment)
        if held is None:
            return False
        held.refresh()
        return max(begin.offset, held.header_bytes) >= held.end()


def _anew(words: Phrases, fails: bool) -> Continuity:
    return Continuity(words, fails=fails)
