"""Timers by the million: a wheel of lists, in which setting, moving and cancelling a timer need no search.

Time is cut into ticks of about a millisecond, and the wheel into slots. A timer that is due soon lies in a slot of
one tick, a later one in a slot of 64 ticks, then of 64 times 64, and so on. When a larger slot is due, its timers
move to smaller slots. So a timer moves only a few times, and costs one place in a list.

No timer rings early, and each rings within two ticks of its time. `advance` does a bounded amount of work, so a
hundred thousand timers of the same second do not block the server.

>>> wheel, timer = Wheel(0), Timer()
>>> wheel.set(timer, 5_000_000)
>>> wheel.advance(4_000_000, limit=100), wheel.advance(7_000_000, limit=100) == [timer]
([], True)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heappop, heappush

NEVER = 2**63 - 1
UNSET = -1
_UNSET = UNSET
_TICK_BITS = 20  # a tick is 2**20 ns
_SLOT_BITS = 6  # each level's slots are 64 times as long as those of the level below
_LEVELS = 8
_LATEST_NS = NEVER - 2**_TICK_BITS


class Clock:
    """The time of day, which never goes back here.

    When the system's clock is set back, this clock runs on, a tenth slower, until the system's has caught up. So
    waits take a tenth longer at most.
    """

    def __init__(self) -> None:
        self._wall = time.time_ns()
        self._ahead = 0

    def now(self) -> int:
        """The time in nanoseconds since 1970."""
        wall = time.time_ns()
        passed = wall - self._wall
        self._wall = wall
        if passed < 0:
            self._ahead -= passed
        elif self._ahead > 0:
            self._ahead -= min(self._ahead, passed // 10)
        return wall + self._ahead


class Timer:
    """Base of everything that has a time at which it rings."""

    def __init__(self) -> None:
        self.when_ns = NEVER
        self.slot = UNSET
        """The key of the slot that it lies in, or UNSET."""
        self.place = 0
        """The timer's index in that slot."""


class Bell(Timer):
    """A timer that is about no job and no client: it calls a function, with the time."""

    def __init__(self, ring: Callable[[int], None]) -> None:
        self.when_ns = NEVER
        self.slot = UNSET
        self.place = 0
        self.ring = ring


class Wheel:
    """All timers of a server."""

    def __init__(self, now_ns: int) -> None:
        self.count = 0
        """How many timers are set."""
        self._tick = now_ns >> _TICK_BITS
        self._slots: dict[int, list[Timer]] = {}
        self._heap: list[tuple[int, int]] = []
        """For each slot its first tick and its key: the slot's number, then its level in three bits."""
        self._dealing: list[Timer] | None = None
        """The slot that is due and not empty yet."""
        self._dealing_level = 0

    def set(self, timer: Timer, when_ns: int) -> None:
        """Let the timer ring at this time instead of an earlier setting."""
        if timer.slot != _UNSET:
            self.cancel(timer)
        timer.when_ns = when_ns
        self.count += 1
        self._put(timer)

    def cancel(self, timer: Timer) -> None:
        """Cancel the timer, if it is set."""
        if timer.slot == _UNSET:
            return
        slot = self._slots.get(timer.slot)
        if slot is None or timer.place >= len(slot) or slot[timer.place] is not timer:
            slot = self._dealing
        assert slot is not None
        last = slot.pop()
        if last is not timer:
            slot[timer.place] = last
            last.place = timer.place
        timer.slot = _UNSET
        self.count -= 1

    def advance(self, now_ns: int, limit: int) -> list[Timer]:
        """Take out the timers that are due. Looks at up to `limit`; `pending` says whether more wait."""
        due: list[Timer] = []
        tick = now_ns >> _TICK_BITS
        while limit > 0:
            dealing = self._dealing
            if dealing is None:
                if not self._heap or self._heap[0][0] > tick:
                    break
                first, key = heappop(self._heap)
                dealing = self._dealing = self._slots.pop(key)
                self._dealing_level = key & 7
                self._tick = max(self._tick, first)
            while dealing and limit > 0:
                limit -= 1
                timer = dealing.pop()
                timer.slot = _UNSET
                if self._dealing_level == 0:
                    self.count -= 1
                    due.append(timer)
                else:
                    self._put(timer)
            if not dealing:
                self._dealing = None
        if self._dealing is None:
            self._tick = max(self._tick, tick)
        return due

    def pending(self, now_ns: int) -> bool:
        """Whether `advance` has work to do."""
        return self._dealing is not None or (bool(self._heap) and self._heap[0][0] <= now_ns >> _TICK_BITS)

    def next_ns(self) -> int:
        """When `advance` next has work to do, or NEVER."""
        if self._dealing is not None:
            return self._tick << _TICK_BITS
        return self._heap[0][0] << _TICK_BITS if self._heap else NEVER

    def _put(self, timer: Timer) -> None:
        # The first tick that begins at or after the time, but not before the tick that is being emptied.
        due = -(-min(timer.when_ns, _LATEST_NS) >> _TICK_BITS)
        tick = max(due, self._tick)
        level = 0
        low, base = tick, self._tick
        while low - base >= 1 << _SLOT_BITS and level < _LEVELS - 1:
            low >>= _SLOT_BITS
            base >>= _SLOT_BITS
            level += 1
        key = low << 3 | level
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = []
            heappush(self._heap, (low << (_SLOT_BITS * level), key))
        timer.slot = key
        timer.place = len(slot)
        slot.append(timer)
