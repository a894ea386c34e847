"""A machine's clocks, as they go wrong: they drift, and the wall clock is set, forwards and backwards.

Times are whole nanoseconds. The world's time is the true one, which no program can read.
"""

from __future__ import annotations

SECOND = 1_000_000_000
EPOCH_NS = 1_800_000_000 * SECOND
"""The time of day at which each world begins."""


class Clock:
    """What a machine takes the time to be."""

    def __init__(self, *, boot_ns: int = 0) -> None:
        self._rate_ppm = 0
        self._since_ns = boot_ns
        self._then_ns = SECOND
        """What the steady clock said at `_since_ns`. It begins at one second, because many programs use 0 for
        "never"."""
        self._wall_offset_ns = EPOCH_NS + boot_ns - SECOND

    def steady_ns(self, true_ns: int) -> int:
        """The clock that is never set, at a true time."""
        passed = true_ns - self._since_ns
        return self._then_ns + passed + passed * self._rate_ppm // 1_000_000

    def wall_ns(self, true_ns: int) -> int:
        """The time of day, at a true time."""
        return self.steady_ns(true_ns) + self._wall_offset_ns

    def true_ns(self, steady_ns: int) -> int:
        """The first true time at which the steady clock says `steady_ns` or more."""
        wanted = steady_ns - self._then_ns
        guess = self._since_ns + wanted * 1_000_000 // (1_000_000 + self._rate_ppm)
        while self.steady_ns(guess) < steady_ns:
            guess += 1
        return guess

    def drift(self, true_ns: int, ppm: int) -> None:
        """From now on, run too fast by this many millionths, or too slow if negative."""
        self._then_ns, self._since_ns = self.steady_ns(true_ns), true_ns
        self._rate_ppm = ppm

    def step(self, seconds: float) -> None:
        """Set the time of day forwards or back."""
        self._wall_offset_ns += round(seconds * SECOND)
