"""Changes of several keys that go into the log as one record, and the locks that keep writers apart.

Writers of one key take turns, from the look at the old value until the log has the new one. Writers of different
keys don't, so that they share a sync. A transaction keeps out all other writers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from forelog.state.table import Table

K = TypeVar("K")
V = TypeVar("V")

LOCKS = 16

joined: ContextVar[tuple[Transaction[Any, Any], ...]] = ContextVar("forelog transactions", default=())
"""The transactions, of any dicts, that the calls of this thread or task belong to."""


class Transaction(Generic[K, V]):
    """Changes that the table doesn't have yet."""

    def __init__(self, table: Table[K, V]) -> None:
        self._table = table
        self._changed: dict[K, list[Any]] = {}
        self._cleared = False

    def change(self, event: list[Any]) -> None:
        """Note a change."""
        if event:
            self._changed[event[0]] = event
        else:
            self._cleared = True
            self._changed.clear()

    def event(self, key: K) -> list[Any] | None:
        """The event that sets a key to what it is in this transaction; None if there is no such key."""
        event = self._changed.get(key)
        if event is not None:
            return event if len(event) > 1 else None
        return None if self._cleared else self._table.event(key)

    def now(self) -> dict[K, V]:
        """The items as they are in this transaction."""
        items = {} if self._cleared else self._table.now().copy()
        for key, event in self._changed.items():
            if len(event) > 1:
                items[key] = event[1]
            else:
                items.pop(key, None)
        return items

    def events(self) -> list[list[Any]]:
        """The events to be logged."""
        return [*([[]] if self._cleared else []), *self._changed.values()]


class KeyLocks:
    """Locks for the writers of keys, and one for them all."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._calling: set[int] = set()
        """Threads that run a function of the app while they hold a lock."""

    def of(self, key: Hashable) -> threading.Lock:
        """The lock of a key."""
        self._refuse_waiting_for_oneself()
        return self._locks[hash(key) % LOCKS]

    @contextlib.contextmanager
    def all(self) -> Iterator[None]:
        """Keep out all writers."""
        self._refuse_waiting_for_oneself()
        held = 0
        try:
            for lock in self._locks:
                lock.acquire()
                held += 1
            yield
        finally:
            for lock in self._locks[:held]:
                lock.release()

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Call a function of the app, with a lock held: it must not write."""
        thread = threading.get_ident()
        self._calling.add(thread)
        try:
            yield
        finally:
            self._calling.discard(thread)

    def _refuse_waiting_for_oneself(self) -> None:
        if self._calling and threading.get_ident() in self._calling:
            raise RuntimeError("a function given to update_with() must not write to the dict: use a transaction")
