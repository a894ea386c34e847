"""Who reads from disk now: one cursor of a client at a time, and a limited number of clients.

What was read stays in memory until it has been used, so this limits memory too. The others wait, and clients take
turns.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

READS_MAX = 32
"""Clients for which something is read, or was read and isn't used up."""

Begin = Callable[[], object]


class Reads:
    """The readers of now, and those that wait."""

    def __init__(self, most: int = READS_MAX) -> None:
        self._most = most
        self._reading: set[Hashable] = set()
        self._waiting: dict[Hashable, deque[Begin]] = {}
        self._turns: OrderedDict[Hashable, None] = OrderedDict()
        """Those that wait and don't read; the first is next."""

    def __len__(self) -> int:
        """How many read now."""
        return len(self._reading)

    def begin(self, reader: Hashable, begin: Begin) -> None:
        """Call this when the reader's turn has come. It ends with `end`."""
        self._waiting.setdefault(reader, deque()).append(begin)
        if reader not in self._reading:
            self._turns[reader] = None
        self._go_on()

    def end(self, reader: Hashable) -> None:
        """What was read is used up."""
        self._reading.discard(reader)
        if reader in self._waiting:
            self._turns[reader] = None
        self._go_on()

    def stop(self) -> None:
        """Let nobody begin any more."""
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
