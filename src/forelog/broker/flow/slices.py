"""Work that may take long, in slices between the turns of other clients.

A client may ask for more than an event loop should do at once: a SUBSCRIBE with thousands of filters, all retained
messages, a session with ten thousand subscriptions that comes back. Such work is an iterator whose steps are
short. Clients take turns, a few steps each, until the slice's time is over; then the event loop looks after
everybody else before the next slice. The works of one client are done one after the other, in the order in which
they were asked for.

Small works don't wait: `start` runs them at once, as long as all that was started since the event loop last looked
after everybody fits into one slice.

What is being delivered to all is urgent: it has a slice of its own, before those of clients. However many of them
have much to do, what others were sent doesn't wait behind it.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

__all__ = ["Slices"]

logger = logging.getLogger("forelog")

SLICE_SECONDS = 0.005
STEPS_EACH = 16
"""Steps that one client's work may take before that of another goes on."""


class Slices:
    """Works of clients, a little of each in turn. `call_soon` is the event loop's."""

    def __init__(
        self,
        call_soon: Callable[..., Any],
        *,
        seconds: float = SLICE_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._seconds = seconds
        self._clock = clock
        self._queues: OrderedDict[Hashable, deque[Iterator[None]]] = OrderedDict()
        self._urgent: deque[Iterator[None]] = deque()
        self._is_due = False
        self._allowed: float | None = None
        """Seconds that `start` may still use before the event loop goes round; None: it has gone round."""
        self.steps = 0
        """Steps that were done, in all."""

    def __len__(self) -> int:
        """Clients whose work isn't done."""
        return len(self._queues)

    def has(self, owner: Hashable) -> bool:
        """Whether work of a client isn't done."""
        return owner in self._queues

    @property
    def is_urgent(self) -> bool:
        """Whether urgent work isn't done."""
        return bool(self._urgent)

    def add(self, owner: Hashable, work: Iterator[None]) -> None:
        """Do this work after what the client asked for before."""
        self._queues.setdefault(owner, deque()).append(work)
        self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._run)

    def later(self, owner: Hashable, what: Callable[[], None]) -> None:
        """Do this, as one step, after what the client asked for before."""
        self.add(owner, _once(what))

    def start(self, owner: Hashable, work: Iterator[None]) -> bool:
        """Do this work now, as far as there is time for it. Returns whether it is done; else it goes on later."""
        if owner not in self._queues and self._begin(work):
            return True
        self.add(owner, work)
        return False

    def start_urgent(self, work: Iterator[None]) -> None:
        """The same for work that comes before that of all clients."""
        if self._urgent or not self._begin(work):
            self._urgent.append(work)
            self._run_soon()

    def _begin(self, work: Iterator[None]) -> bool:
        """Do some work, as far as there is time for it now. Returns whether it is done."""
        if self._allowed is None:
            self._allowed = self._seconds
            self._call_soon(self._allow)
        begun = self._clock()
        deadline = begun + self._allowed
        try:
            while self._clock() < deadline:
                if not self._step(work):
                    return True
        finally:
            self._allowed -= self._clock() - begun
        return False

    def has_time(self) -> bool:
        """Whether `start` could still do something before the event loop goes round."""
        return self._allowed is None or self._allowed > 0

    def use(self, seconds: float) -> None:
        """Some of the time that `start` may use was used for something else."""
        if self._allowed is None:
            self._allowed = self._seconds
            self._call_soon(self._allow)
        self._allowed -= seconds

    def finish(self) -> None:
        """Do all that is left, now."""
        self._some_urgent(math.inf)
        while self._queues:
            self._some(math.inf)
            self._some_urgent(math.inf)

    def _allow(self) -> None:
        self._allowed = None

    def _run(self) -> None:
        """A slice of what is urgent, and one of clients."""
        if self._urgent:
            self._some_urgent(self._clock() + self._seconds)
        deadline = self._clock() + self._seconds
        while self._queues and self._clock() < deadline:
            self._some(deadline)
        self._is_due = bool(self._queues or self._urgent)
        if self._is_due:
            self._call_soon(self._run)

    def _some_urgent(self, deadline: float) -> None:
        while self._urgent and self._clock() < deadline:
            if not self._step(self._urgent[0]):
                self._urgent.popleft()

    def _some(self, deadline: float) -> None:
        """A few steps of one client's work; then others come first."""
        owner, queue = next(iter(self._queues.items()))
        for _ in range(STEPS_EACH):
            if not self._step(queue[0]):
                queue.popleft()
                if not queue:
                    del self._queues[owner]
                    return
            if self._clock() >= deadline:
                break
        self._queues.move_to_end(owner)

    def _step(self, work: Iterator[None]) -> bool:
        """Whether there is more to do. Work that fails is over: its client's next work isn't."""
        self.steps += 1
        try:
            next(work)
        except StopIteration:
            return False
        except Exception:
            logger.exception("broker: some work for a client has failed")
            return False
        return True


def _once(what: Callable[[], None]) -> Iterator[None]:
    yield from ()
    what()
