"""Changes of several keys that go into the log as one record.

Writers of one key take turns, from the look at the old value until the log has the new one. Writers of different
keys don't, so that they share a sync. A transaction keeps out all other writers. The locks are `kernel.KeyLocks`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from forelog.state.table import Table

K = TypeVar("K")
V = TypeVar("V")

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
