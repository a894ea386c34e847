"""A bounded queue, gates and a lock: the oracle for `log/queue.pxi` and `log/gate.pxi`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Self


class OwnedLock:
    def __init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def held(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class BoundedQueue:
    ALONE = "a writer without company"

    def __init__(self, writes_max: int, bytes_max: int, wake: Callable[[], object] | None = None) -> None:
        self.writes_max = writes_max
        self.bytes_max = bytes_max
        self.writes = 0
        self.bytes = 0
        self.crowd = 0
        self.committing = 0
        self.leader: Any = None
        self._wake = wake or (lambda: None)
        self._entries: deque[Any] = deque()
        self._full: list[Gate] = []
        self._idle: list[Gate] = []
        self._refused = False
        self._mutex = threading.RLock()

    @property
    def is_committing(self) -> bool:
        return self.committing == threading.get_ident()

    def enter(self, entry: Any, gate: Gate | None = None) -> bool:
        with self._mutex:
            if self._refused or not self.push(entry):
                if gate is not None and not self._refused:
                    self._full.append(gate)
                return False
            if self.leader is None:
                self._lead()
            return True

    def _lead(self) -> None:
        first = self._entries[0]
        if first.gate is not None and not first.is_main:
            gate, first.gate, self.leader = first.gate, None, first
            gate.open()
        elif self.leader is not self:
            self.leader = self
            self._wake()

    def pass_on(self) -> None:
        with self._mutex:
            self.committing = 0
            if self._entries:
                self._lead()
            else:
                self.leader = None
                _open_all(self._idle)

    def rest(self, gate: Gate) -> bool:
        with self._mutex:
            if self.leader is None:
                if not self._entries:
                    return True
                self._lead()
            self._idle.append(gate)
            return False

    def leave(self, entry: Any) -> Gate | None:
        with self._mutex:
            gate: Gate | None = entry.gate
            entry.gate = None
            if self.leader is None and self._entries:
                self._lead()
            return gate

    def refuse(self) -> None:
        with self._mutex:
            self._refused = True
            _open_all(self._full)

    def lead_alone(self) -> bool:
        with self._mutex:
            if self.leader is not None or self.crowd or self._refused or self._entries:
                return False
            self.leader, self.committing = self.ALONE, threading.get_ident()
            return True

    def push(self, entry: Any) -> bool:
        writes, size = len(entry.items), entry.byte_count
        with self._mutex:
            if (
                writes
                and self.writes
                and (self.writes + writes > self.writes_max or self.bytes + size > self.bytes_max)
            ):
                return False
            self._entries.append(entry)
            self.writes += writes
            self.bytes += size
            return True

    def take(self, entries_max: int, bytes_max: int) -> list[Any]:
        taken: list[Any] = []
        with self._mutex:
            while self._entries and len(taken) < entries_max:
                entry = self._entries[0]
                bytes_max -= entry.byte_count
                if bytes_max < 0 and taken:
                    break
                self._entries.popleft()
                self.writes -= len(entry.items)
                self.bytes -= entry.byte_count
                taken.append(entry)
            _open_all(self._full)
        return taken

    def remove(self, entry: Any) -> bool:
        with self._mutex:
            if entry not in self._entries:
                return False
            self._entries.remove(entry)
            self.writes -= len(entry.items)
            self.bytes -= entry.byte_count
            _open_all(self._full)
            return True

    def first(self) -> Any:
        with self._mutex:
            return self._entries[0] if self._entries else None

    def __len__(self) -> int:
        return len(self._entries)


class Gate:
    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        self._lock.release()

    def wait(self, line: deque[Gate] | tuple[()] = ()) -> None:
        open_first(line)
        self._lock.acquire()

    def wait_for(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=max(seconds, 0))


def open_first(line: deque[Gate] | tuple[()]) -> None:
    if line:
        line.popleft().open()


def _open_all(gates: list[Gate]) -> None:
    for gate in gates:
        gate.open()
    gates.clear()
