"""Where a reader stands that goes on where it left off, and whether all that came after is still there.

A log forgets whole segments. If the one in which a reader stands is gone, then so may be records that it
hasn't read. Or none: when it had read the segment to its end, before that was rolled and cleaned away. A position
doesn't tell. But a file that is removed stays until everybody has closed it, so that who keeps the segment open
still sees where it ended.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from forelog.errors import BadPosition, DataLoss
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.trace import agrees
from forelog.log.position import Position
from forelog.spark.planning import Log
from forelog.spark.remote import is_remote

logger = logging.getLogger("forelog")

_HELD_MAX = 256  # open files: with more logs than that, a few more alarms may be false


@dataclass(frozen=True, slots=True)
class Words:
    """How a reader is spoken of in errors."""

    stood: str
    anew: str
    go_on: str


class Standing:
    """The segments in which a reader stands, or soon will, kept open."""

    def __init__(self, words: Words, *, fails: bool) -> None:
        self._words = words
        self._fails = fails
        self._held: dict[str, dict[int, SegmentReader]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _anew, (self._words, self._fails)  # tasks get a copy: open files stay here

    def go_on(self, log: Log, begin: Position, known: str | None = None) -> Position:
        """Where to go on in a log: a position, or the start of the segment after it if that was read to its end.

        `known` is the trace that the log had there. Raises DataLoss if records may be gone that weren't read, or
        if the log has others before the position than it had, and BadPosition if it is no position of this log.
        """
        directory = log.stream().directory
        numbers = directory.numbers()
        if not agrees(directory, begin, known):
            changed = (
                f"{log.path}: {self._words.stood} {begin}, and what the log has before that is different by now: "
                "it was cut, restored or written anew. Records may be missing here, or gone from the log"
            )
            if self._fails:
                raise DataLoss(f"{changed}. {self._words.anew}, or go on all the same with {self._words.go_on}")
            logger.warning("%s", changed)
        if not numbers or begin == Position(0, 0) or begin.segment in numbers:
            return begin
        if begin.segment > numbers[-1]:
            raise BadPosition(
                f"{log.path}: {self._words.stood} {begin}, and the log ends in segment {numbers[-1]}: it is "
                f"another log, or was made anew. {self._words.anew}"
            )
        following = numbers[bisect_right(numbers, begin.segment)]
        if self._is_next(log, begin.segment, following) and self._was_read(log, begin):
            return Position(following, 0)
        if self._fails:
            raise DataLoss(
                f"{log.path}: {self._words.stood} {begin}, and that segment is gone: cleaning or retention may "
                f"have taken what hadn't been read. Go on without it with {self._words.go_on}"
            )
        return begin

    def stand(self, log: Log, *positions: Position) -> None:
        """Keep the segments of these positions open, and let go of the log's others.

        Not on a remote filesystem: what is open there doesn't outlive its removal, nor tell that it has grown.
        """
        if is_remote(log.path):
            return
        wanted = {position.segment for position in positions}
        held = self._held.setdefault(log.name, {})
        for number in held.keys() - wanted:
            held.pop(number).close()
        for number in wanted:
            self._hold(log, number, held)

    def close(self) -> None:
        for held in self._held.values():
            for segment in held.values():
                segment.close()
        self._held.clear()

    def _hold(self, log: Log, number: int, held: dict[int, SegmentReader]) -> None:
        known = held.get(number)
        if known is None and sum(map(len, self._held.values())) >= _HELD_MAX:
            return
        if known is None or known.replaced():
            try:
                held[number] = SegmentReader(log.stream().directory, number)
            except FileNotFoundError:
                return  # what is open, if it is, still tells where it ended
            if known is not None:
                known.close()

    def _is_next(self, log: Log, number: int, following: int) -> bool:
        """Whether no segment can have been between the two."""
        if not log.format.numbered_by_time:
            return following == number + 1
        # Numbers don't tell. But an empty segment is replaced, by one that is there unless it was cleaned too.
        held = self._held.get(log.name, {}).get(number)
        return held is not None and not held.refresh() and held.size == 0

    def _was_read(self, log: Log, begin: Position) -> bool:
        held = self._held.get(log.name, {}).get(begin.segment)
        if held is None:
            return False
        held.refresh()
        return max(begin.offset, held.header_bytes) >= held.end()


def _anew(words: Words, fails: bool) -> Standing:
    return Standing(words, fails=fails)
