"""When a server cleans its log: at an interval, after much growth, and when the log cannot be written."""

from __future__ import annotations

import asyncio
import contextlib

SEGMENTS_MIN = (
    4  # segments to begin before an early cleaning, or as many as the last cleaning left if these are more
)


class Schedule:
    """Says when to clean."""

    def __init__(self, interval_ms: int) -> None:
        self._seconds = interval_ms / 1000
        self._due = asyncio.Event()
        self._begun = 0
        """Segments begun since the last cleaning."""
        self._begun_max = SEGMENTS_MIN

    def segment_begun(self) -> None:
        """Note that the log has a new segment. After many of them cleaning is due."""
        self._begun += 1
        if self._begun > self._begun_max:
            self._due.set()

    def hurry(self) -> None:
        """Make cleaning due: the disk may be full of what no job needs."""
        self._due.set()

    async def wait(self) -> None:
        """Wait until cleaning is due."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._due.wait(), self._seconds)
        self._due.clear()
        self._begun = 0

    def cleaned(self, segments: int) -> None:
        """Note how many segments a cleaning has left."""
        self._begun_max = max(SEGMENTS_MIN, segments)
