"""The age of messages, and for how long sessions have been away, by clocks that don't step.

A message carries the time of day at which it was written, and the system's clock may be set at any moment. The
broker therefore notes how the time of day compares to a steady clock whenever that changes. The age of a message
that this process wrote is measured by the steady clock; of an older one, by the time of day at the start.

>>> clock = MessageClock(wall_ns=lambda: 1_000_000_000_000, steady_ns=lambda: 5_000_000_000)
>>> clock.age_ns(997_000_000_000)
3000000000
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable

from forelog.broker.log.batch import StoredMessage
from forelog.times import SECOND_NS

_STEP_NS = SECOND_NS // 4
_STEPS_MAX = 1000


class SteadyClock:
    """The time of day at the start, plus what has passed since: setting the system's clock doesn't change it.

    >>> wall = [1_000_000_000_000]
    >>> clock = SteadyClock(wall_ns=lambda: wall[0], steady_ns=lambda: 5_000_000_000)
    >>> clock.has_stepped()
    False
    >>> wall[0] += 3600 * 10**9
    >>> clock.has_stepped(), clock.has_stepped()
    (True, False)
    >>> clock.now_ns(), clock.wall_ns(clock.now_ns())
    (1000000000000, 4600000000000)
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._ahead = self._noted = wall_ns() - steady_ns()

    def now_ns(self) -> int:
        """The time now."""
        return self._steady_ns() + self._ahead

    def wall_ns(self, at_ns: int | None) -> int | None:
        """The time of day that belongs to a time of this clock, as of the last step that was seen."""
        return None if at_ns is None else at_ns + self._noted - self._ahead

    def has_stepped(self) -> bool:
        """Whether the system's clock was set, by a second or more, since the last call."""
        ahead = self._wall_ns() - self._steady_ns()
        if abs(ahead - self._noted) < SECOND_NS:
            return False
        self._noted = ahead
        return True


class MessageClock:
    """Tells how old messages are, and when they expire."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._steady_ns = steady_ns
        self._start = wall_ns() - steady_ns()
        self._times: list[int] = []
        """Times of messages. From each one on, the difference in `_ahead` holds."""
        self._ahead: list[int] = []
        """Time of day minus steady clock, for each entry of `_times`."""

    def wrote(self, time_ns: int) -> None:
        """Note that a message with this time was just written; times only grow."""
        ahead = time_ns - self._steady_ns()
        if not self._ahead or abs(ahead - self._ahead[-1]) > _STEP_NS:
            self._times.append(time_ns)
            self._ahead.append(ahead)
            if len(self._times) > _STEPS_MAX:  # the clock steps all the time: forget the oldest steps
                del self._times[: _STEPS_MAX // 2], self._ahead[: _STEPS_MAX // 2]

    def age_ns(self, time_ns: int) -> int:
        """How long ago the message with this time was written; never less than 0."""
        at = bisect_right(self._times, time_ns) - 1
        ahead = self._start if at < 0 else self._ahead[at]
        return max(self._steady_ns() - (time_ns - ahead), 0)

    def seconds_left(self, message: StoredMessage) -> int | None:
        """Seconds until a message expires, 0 if it has expired, None if it never does."""
        expiry = message.properties.get("expiry")
        if not isinstance(expiry, int):
            return None
        return max(expiry - self.age_ns(message.time_ns) // SECOND_NS, 0)
