"""Limits reads from disk: one cursor of a client at a time, and a limited number of clients.

What was read stays in memory until it has been used, so this limits memory too. Other clients wait, and take
turns.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

READS_MAX = 32
"""Clients that are reading, or that haven't used up what was read for them."""

Begin = Callable[[], object]


class Reads:
    """Keeps count of who reads and who waits to read."""

    def __init__(self, most: int = READS_MAX) -> None:
        self._most = most
        self._reading: set[Hashable] = set()
        self._waiting: dict[Hashable, deque[Begin]] = {}
        self._turns: OrderedDict[Hashable, None] = OrderedDict()
        """Keys that wait to read; the first is next."""

    def __len__(self) -> int:
        """How many are reading."""
        return len(self._reading)

    def begin(self, reader: Hashable, begin: Begin) -> None:
        """Call `begin` when the reader's turn has come. The turn ends with `end`."""
        self._waiting.setdefault(reader, deque()).append(begin)
        if reader not in self._reading:
            self._turns[reader] = None
        self._go_on()

    def end(self, reader: Hashable) -> None:
        """End a turn: what was read is used up."""
        self._reading.discard(reader)
        if reader in self._waiting:
            self._turns[reader] = None
        self._go_on()

    def stop(self) -> None:
        """Let nobody begin to read any more."""
        self._most = 0
        self._turns.clear()
        self._waiting.clear()

    def _go_on(self) -> None:
        while self._turns and len(self._reading) < self._most:
            reader, _ = self._turns.popitem(last=False)
            self._reading.add(reader)
            waiting = self._waiting[reader]
            begin = waiting.popleft()
            if not waiting:
                del self._waiting[reader]
            begin()
