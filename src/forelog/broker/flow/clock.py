"""How old a message is, by a clock that doesn't step.

Messages have the time of day at which they were written, and somebody may set the clock at any moment. So whoever
writes notes now and then how that time and a steady clock compare: ages of messages that this process has written
are the steady clock's. Of those that were written before it started the time of day at the start is all that there
is to go by.

>>> clock = MessageClock(wall_ns=lambda: 1_000_000_000_000, steady_ns=lambda: 5_000_000_000)
>>> clock.age_ns(997_000_000_000)
3000000000
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable

from forelog.broker.flow.batches import Stored
from forelog.times import SECOND_NS

__all__ = ["MessageClock"]

_STEP_NS = SECOND_NS // 4
_STEPS_MAX = 1000


class MessageClock:
    """The ages of messages."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._steady_ns = steady_ns
        self._start = wall_ns() - steady_ns()
        self._times: list[int] = []
        """From which message on the times of messages were ahead of the steady clock by this much."""
        self._ahead: list[int] = []

    def wrote(self, time_ns: int) -> None:
        """A message of this time was just written, later than all before it."""
        ahead = time_ns - self._steady_ns()
        if not self._ahead or abs(ahead - self._ahead[-1]) > _STEP_NS:
            self._times.append(time_ns)
            self._ahead.append(ahead)
            if len(self._times) > _STEPS_MAX:  # a clock that steps all the time: the oldest steps are forgotten
                del self._times[: _STEPS_MAX // 2], self._ahead[: _STEPS_MAX // 2]

    def age_ns(self, time_ns: int) -> int:
        """How long ago the message of this time was written; never less than 0."""
        at = bisect_right(self._times, time_ns) - 1
        ahead = self._start if at < 0 else self._ahead[at]
        return max(self._steady_ns() - (time_ns - ahead), 0)

    def seconds_left(self, message: Stored) -> int | None:
        """Until it expires, from 0 to the interval that it was published with; None if it never does."""
        expiry = message.properties.get("expiry")
        if not isinstance(expiry, int):
            return None
        return max(expiry - self.age_ns(message.time_ns) // SECOND_NS, 0)
