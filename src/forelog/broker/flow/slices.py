"""Long work in short steps, so that one client doesn't block the event loop for the others.

A client may ask for much at once: a SUBSCRIBE with thousands of filters, all retained messages, a session with ten
thousand subscriptions. Such work is an iterator with short steps. Clients take turns, a few steps each, until the
time of a slice is over. The event loop serves all other events before the next slice. Work of one client is done
in the order in which it was asked for.

Small work doesn't wait: `start` runs it at once, as long as everything that was started in this round of the event
loop fits into one slice.

Delivery is urgent: it has a slice of its own before those of clients, so a message never waits behind the work
that other clients have asked for.

What clients leave behind isn't: nobody waits for it. While there is other work, it gets a turn after every few
turns of that. So a client that connects doesn't wait until thousands that have left are forgotten.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

logger = logging.getLogger("forelog")

SLICE_SECONDS = 0.005
STEPS_EACH = 16
"""Steps of one client's work before the next client's turn."""
TURNS_BETWEEN = 4
"""Turns of clients between two turns of what others have left behind."""

Queues = OrderedDict[Hashable, deque[Iterator[None]]]


class Slices:
    """Work of clients, a few steps of each in turn. `call_soon` is the event loop's."""

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
        self._queues: Queues = OrderedDict()
        self._behind: Queues = OrderedDict()
        """What clients have left behind, unless they have asked for something else since."""
        self._turns = 0
        self._urgent: deque[Iterator[None]] = deque()
        self._is_due = False
        self._allowed: float | None = None
        """Seconds that `start` may still use in this round of the event loop; None in a new round."""
        self.steps = 0
        """Steps that were done."""

    def __len__(self) -> int:
        """The number of clients with unfinished work."""
        return len(self._queues) + len(self._behind)

    def has(self, owner: Hashable) -> bool:
        """Whether a client has unfinished work."""
        return owner in self._queues or owner in self._behind

    @property
    def is_urgent(self) -> bool:
        """Whether there is unfinished urgent work."""
        return bool(self._urgent)

    def add(self, owner: Hashable, work: Iterator[None]) -> None:
        """Do this after the client's earlier work."""
        if owner in self._behind:
            self._queues[owner] = self._behind.pop(owner)
        self._queues.setdefault(owner, deque()).append(work)
        self._run_soon()

    def leave(self, owner: Hashable, work: Iterator[None]) -> None:
        """Do this after the client's earlier work, when there is time: the client has left."""
        if self.has(owner) or not self._begin(work):
            queues = self._queues if owner in self._queues else self._behind
            queues.setdefault(owner, deque()).append(work)
            self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._run)

    def soon(self, owner: Hashable, what: Callable[[], None]) -> None:
        """Call this now if time allows, else as one step, as `leave` does."""
        self.leave(owner, _once(what))

    def later(self, owner: Hashable, what: Callable[[], None]) -> None:
        """Have `what` called, as one step, after the client's earlier work."""
        self.add(owner, _once(what))

    def start(self, owner: Hashable, work: Iterator[None]) -> bool:
        """Do this work now, as far as time allows, and the rest later. Returns whether it is done."""
        if not self.has(owner) and self._begin(work):
            return True
        self.add(owner, work)
        return False

    def start_urgent(self, work: Iterator[None]) -> None:
        """Do this work now, as far as time allows, and the rest before the work of any client."""
        if self._urgent or not self._begin(work):
            self._urgent.append(work)
            self._run_soon()

    def _begin(self, work: Iterator[None]) -> bool:
        """Do work as far as time allows. Returns whether it is done."""
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
        """Whether `start` has time left in this round of the event loop."""
        return self._allowed is None or self._allowed > 0

    def use(self, seconds: float) -> None:
        """Take time from `start` in this round, because it was used for something else."""
        if self._allowed is None:
            self._allowed = self._seconds
            self._call_soon(self._allow)
        self._allowed -= seconds

    def finish(self) -> None:
        """Do everything that is left, now."""
        self._some_urgent(math.inf)
        while len(self):
            self._some(math.inf)
            self._some_urgent(math.inf)

    def _allow(self) -> None:
        self._allowed = None

    def _run(self) -> None:
        """Do a slice of urgent work and one of clients' work."""
        if self._urgent:
            self._some_urgent(self._clock() + self._seconds)
        deadline = self._clock() + self._seconds
        while len(self) and self._clock() < deadline:
            self._some(deadline)
        self._is_due = bool(len(self) or self._urgent)
        if self._is_due:
            self._call_soon(self._run)

    def _some_urgent(self, deadline: float) -> None:
        while self._urgent and self._clock() < deadline:
            if not self._step(self._urgent[0]):
                self._urgent.popleft()

    def _some(self, deadline: float) -> None:
        """Do a few steps of one client's work, then move it to the end."""
        self._turns += 1
        is_turn_of_clients = self._queues and (self._turns % (TURNS_BETWEEN + 1) or not self._behind)
        queues = self._queues if is_turn_of_clients else self._behind
        owner, queue = next(iter(queues.items()))
        for _ in range(STEPS_EACH):
            if not self._step(queue[0]):
                queue.popleft()
                if not queue:
                    queues.pop(owner, None)
                    return
            if self._clock() >= deadline:
                break
        if owner in queues:
            queues.move_to_end(owner)

    def _step(self, work: Iterator[None]) -> bool:
        """Do one step. Returns whether there is more. Work that raises ends; the client's next work goes on."""
        self.steps += 1
        try:
            next(work)
        except StopIteration:
            return False
        except Exception:
            logger.exception("broker: work for a client has failed")
            return False
        return True


def _once(what: Callable[[], None]) -> Iterator[None]:
    yield from ()
    what()
