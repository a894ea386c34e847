"""A bounded queue, and gates: the oracle for `log/queue.pxi` and `log/gate.pxi`."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from forelog.kernel.types import REENTERED


class BoundedQueue:
    def __init__(self, writes_max: int, bytes_max: int) -> None:
        self.writes_max = writes_max
        self.bytes_max = bytes_max
        self.writes = 0
        self.bytes = 0
        self._entries: deque[Any] = deque()
        self._mutex = threading.RLock()

    def push(self, entry: Any) -> bool:
        writes, size = len(entry.items), entry.byte_count
        if self._mutex._is_owned():  # type: ignore[attr-defined] # by what this interrupts, as a signal handler:
            raise RuntimeError(REENTERED)  # nobody could take the entry while that waits for it
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
        return taken

    def remove(self, entry: Any) -> bool:
        with self._mutex:
            if entry not in self._entries:
                return False
            self._entries.remove(entry)
            self.writes -= len(entry.items)
            self.bytes -= entry.byte_count
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

    def wait(self, line: deque[Gate]) -> None:
        open_first(line)
        self._lock.acquire()


def open_first(line: deque[Gate]) -> None:
    try:
        gate = line.popleft()
    except IndexError:
        return
    gate.open()
