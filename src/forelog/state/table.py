"""The items of a dict in memory, and when they expire, for any number of threads.

A lookup takes no lock while nothing changes and nothing expires. Iterating copies nothing: `now` returns the items
themselves, and a change that comes while somebody still holds them is made in a copy. So whoever iterates sees one
moment, and a loop during which nothing changes costs nothing. The copy is of references, not of values; it is made
once for all changes until the next iteration.

>>> table = Table("prices")
>>> table.open()
>>> table.change([["chips", 250], ["dip", 120]])
>>> seen = iter(table.now())
>>> table.change([["chips"], ["salsa", 90]])
>>> list(seen), list(table.now())
(['chips', 'dip'], ['dip', 'salsa'])
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection, Sequence
from itertools import count
from sys import getrefcount
from typing import Any, Generic, TypeVar

from forelog.errors import AppenderClosed
from forelog.state.items import hashable

K = TypeVar("K")
V = TypeVar("V")

STALE_MAX = 64  # entries of the queue that no longer count; more are dropped once they are half of it


class Table(Generic[K, V]):
    """Items that a log has; `change` takes the events of forelog.state.items."""

    def __init__(self, path: str, clock: Callable[[], int] | None = None) -> None:
        self._path = path
        self.clock = clock or time.time_ns
        """The time, in nanoseconds since 1970."""
        self._lock = threading.RLock()  # for moments, never while a disk is waited for
        self._items: dict[K, V] = {}
        self._alone = getrefcount(self._items)
        """The references to the items while nobody iterates over them."""
        self._until: dict[K, int] = {}
        self._queue: list[tuple[int, int, K]] = []
        """When keys expire, the next one first. A key that was set again is in it more than once."""
        self._numbers = count()
        self._unfinished: Collection[Sequence[Any]] = ()
        """Changes that are being made. An interrupt may come in between: then whoever comes next makes them."""
        self._opened = False
        self._steady = False
        """Whether a lookup needs no lock: the table is open, no change is half made, and no key expires."""

    def close(self) -> None:
        """Keep readers out, and forget everything: it will be restored from the log."""
        with self._lock:
            self._opened = self._steady = False
            self._items, self._until, self._queue, self._unfinished = {}, {}, [], ()

    def open(self) -> None:
        """Let readers in: the items have been restored."""
        with self._lock:
            self._opened = True
            self._settle()

    @property
    def opened(self) -> bool:
        """Whether the items have been restored."""
        return self._opened

    # -- reading

    def __getitem__(self, key: K) -> V:
        if self._steady:
            return self._items[key]
        with self._lock:
            self._settle()
            return self._items[key]

    def __contains__(self, key: object) -> bool:
        with self._lock:
            self._settle()
            return key in self._items

    def __len__(self) -> int:
        with self._lock:
            self._settle()
            return len(self._items)

    def now(self) -> dict[K, V]:
        """The current items, which stay as they are. Don't change them. While you hold them, the next change is
        made in a copy."""
        with self._lock:
            self._settle()
            return self._items

    def event(self, key: K) -> list[Any] | None:
        """The event that sets a key to its current value; None if there is no such key."""
        with self._lock:
            self._settle()
            if key not in self._items:
                return None
            until_ns = self._until.get(key)
            return [key, self._items[key]] if until_ns is None else [key, self._items[key], until_ns]

    def until(self, key: K) -> int | None:
        """When a key expires; None if it never does. KeyError if there is no such key."""
        event = self.event(key)
        if event is None:
            raise KeyError(key)
        return event[2] if len(event) > 2 else None

    # -- changing

    def change(self, events: Collection[Sequence[Any]]) -> None:
        """Make changes that are in the log. Readers see all of them or none, also after an interrupt."""
        with self._lock:
            self._steady = False
            self._unfinished = events
            self._settle()

    def _finish(self) -> None:
        """Make the changes that have been begun. Making one again changes nothing."""
        self._own()
        for event in self._unfinished:
            self.replay(event)
        self._unfinished = ()

    def replay(self, event: Sequence[Any]) -> None:
        """Make one change, before the table is open or from `change`."""
        if not event:
            self._items.clear()
            self._until.clear()
            return
        key = event[0]
        if type(key) is list:
            key = hashable(key)
        if self._until:
            self._until.pop(key, None)
        if len(event) == 1:
            self._items.pop(key, None)
            return
        self._items[key] = event[1]
        if len(event) > 2:
            self._until[key] = until_ns = event[2]
            heapq.heappush(self._queue, (until_ns, next(self._numbers), key))

    def _own(self) -> None:
        """Make sure that nobody else holds the items."""
        if getrefcount(self._items) > self._alone:
            self._items = self._items.copy()

    def _settle(self) -> None:
        """Finish what was interrupted, and remove what has expired. An interrupt in between loses neither."""
        if not self._opened:
            raise AppenderClosed(f"the state log {self._path} has not been opened: use it in a `with`")
        if self._unfinished:
            self._finish()
        queue, until = self._queue, self._until
        if queue and queue[0][0] <= (now_ns := self.clock()):
            self._own()
            while queue and queue[0][0] <= now_ns:
                until_ns, _, key = queue[0]
                if until.get(key) == until_ns:
                    self._items.pop(key, None)
                    until.pop(key, None)
                heapq.heappop(queue)
        if len(queue) > 2 * len(until) + STALE_MAX:
            queue = [(until_ns, next(self._numbers), key) for key, until_ns in until.items()]
            heapq.heapify(queue)
            self._queue = queue
        self._steady = not until
