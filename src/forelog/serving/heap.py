"""Gives memory back to the system that clients don't need any more.

What is freed stays with malloc, for what is allocated next. After hundreds of megabytes in small pieces, some of
which are still in use, it would stay for ever. A `Heap` looks now and then how much was freed since the last time,
and has it given back.

>>> free = [100 << 20]
>>> heap = Heap(free_bytes=lambda: free[0], trim=lambda: print("given back"), clock=lambda: 0.0)
>>> heap.tend()
given back
>>> heap.tend()  # it is still free, but with the system
>>> free[0] = 20 << 20
>>> heap.tend()  # most of it is in use again
>>> free[0] = 60 << 20
>>> heap.tend()
given back
"""

from __future__ import annotations

import time
from collections.abc import Callable

from forelog import kernel

FREED_BYTES = 16 << 20
"""What must have been freed to be given back: a few milliseconds of work."""
REST = 100
"""Times as long as a look took, that no other look is taken: a heap in many pieces is slow to look at."""


class Heap:
    """What malloc has free, and how much of it the system already has."""

    def __init__(
        self,
        *,
        free_bytes: Callable[[], int] = kernel.heap_free_bytes,
        trim: Callable[[], None] = kernel.heap_trim,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._free_bytes = free_bytes
        self._trim = trim
        self._clock = clock
        self._given = 0
        """At most so many of the free bytes have been returned to the system."""
        self._next = -1.0

    def tend(self) -> None:
        """Return freed memory to the system, if there is much of it."""
        begun = self._clock()
        if begun < self._next:
            return
        free = self._free_bytes()
        if free - self._given >= FREED_BYTES:
            self._trim()
            free = self._free_bytes()
            self._given = free
        self._given = min(self._given, free)
        ended = self._clock()
        self._next = ended + REST * (ended - begun)
