"""Locks for the writers of keys: the oracle for `state/keys.pxi`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable
from contextvars import ContextVar, Token
from typing import Any

from forelog.kernel.types import IN_A_CHANGE, IN_A_TRANSACTION

LOCKS = 16


class KeyLocks:
    def __init__(self, mend: Callable[[Any], object], among: ContextVar[tuple[Any, ...]]) -> None:
        self._mend, self.among = mend, among
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._owners = [0] * LOCKS
        self._since: list[Any] = [None] * LOCKS
        self.transaction: Any = None

    def of(self, key: Hashable) -> Held:
        at = hash(key) & (LOCKS - 1)
        return Held(self, range(at, at + 1))

    def all(self) -> Held:
        return Held(self, range(LOCKS))

    def together(self, transaction: Any, commit: Callable[[Any], object]) -> Held:
        return Held(self, range(LOCKS), transaction, commit)

    def begin(self, position: tuple[int, int]) -> None:
        for at in self._own():
            if self._since[at] is None:
                self._since[at] = position

    def done(self) -> None:
        for at in self._own():
            self._since[at] = None

    def forget(self) -> None:
        self._since = [None] * LOCKS

    def _own(self) -> list[int]:
        return [at for at in range(LOCKS) if self._owners[at] == threading.get_ident()]

    def take(self, places: range) -> None:
        self._take(places)
        while any(self._since[at] is not None for at in places):
            self.give(places)
            self._take(range(LOCKS))
            try:
                if since := [position for position in self._since if position is not None]:
                    self._mend(min(since))
                    self.forget()
            finally:
                self.give(range(LOCKS))
            self._take(places)

    def _take(self, places: range) -> None:
        if self._own():
            raise RuntimeError(IN_A_CHANGE if self.transaction is None else IN_A_TRANSACTION)
        for at in places:
            self._locks[at].acquire()
            self._owners[at] = threading.get_ident()

    def give(self, places: range) -> None:
        for at in places:
            self._owners[at] = 0
            self._locks[at].release()


class Held:
    def __init__(
        self,
        locks: KeyLocks,
        places: range,
        transaction: Any = None,
        commit: Callable[[Any], object] = lambda _: None,
    ) -> None:
        self._locks, self._places = locks, places
        self._transaction, self._commit = transaction, commit
        self._held = False
        self._token: Token[tuple[Any, ...]] | None = None

    def __enter__(self) -> None:
        if self._held:
            raise RuntimeError("these locks are held already: each `with` takes its own")
        self._locks.take(self._places)
        self._held = True
        if self._transaction is not None:
            self._locks.transaction = self._transaction
            self._token = self._locks.among.set((*self._locks.among.get(), self._transaction))

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if self._transaction is not None:
                transaction, self._transaction, self._locks.transaction = self._transaction, None, None
                if self._token is not None:
                    with contextlib.suppress(ValueError):
                        self._locks.among.reset(self._token)
                if kind is None:
                    self._commit(transaction)
        finally:
            if self._held:
                self._held = False
                self._locks.give(self._places)
