"""What an app gets to enumerate its state, while other threads continue to update it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from forelog.log.position import Position

TURN_SECONDS = 0.00005  # an enumeration computes for so long, then pauses ...
PAUSE_SECONDS = 0.00002  # ... for as short as the system can ...
PAUSES_MAX = 8.0  # ... in all at most this many times as long as it computes
QUIET_SECONDS = 0.01  # it pauses only if there was an update within this time

T = TypeVar("T")


class Enumeration:
    """The argument of `enumerate`, which calls its `update` for everything in the state."""

    def __init__(self, append: Callable[[Any], Position], updates: Callable[[], int]) -> None:
        self._append = append
        self._updates = updates
        self.objects = 0
        """Events so far."""

    def update(self, event: Any) -> Position:
        """Write a thing as it is now, and return the position. Hold the thing's lock."""
        self.objects += 1
        return self._append(event)

    def each(self, things: Iterable[T]) -> Iterator[T]:
        """Iterate over things, with short pauses for other threads. Hold no lock here.

        Without the pauses, a thread that updates can wait milliseconds for the interpreter. Without updates there
        are no pauses.
        """
        clock = time.perf_counter
        updates, busy_until, paused = self._updates(), 0.0, 0.0
        computed_before, turn_ends = time.thread_time(), clock() + TURN_SECONDS
        for thing in things:
            yield thing
            now = clock()
            if now < turn_ends:
                continue
            if (so_far := self._updates()) != updates:
                updates, busy_until = so_far, now + QUIET_SECONDS
            # Pauses are long if other threads keep the interpreter busy. Without a limit this would never end.
            if now < busy_until and paused <= PAUSES_MAX * (time.thread_time() - computed_before):
                time.sleep(PAUSE_SECONDS)
                before, now = now, clock()
                paused += now - before
            turn_ends = now + TURN_SECONDS
