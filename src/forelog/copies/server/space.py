"""The disk space of all copies on a replica server, and its limits."""

from __future__ import annotations

import os
import threading

from forelog.errors import ReplicaError
from forelog.files import BLOCK_BYTES


class Space:
    """Counts the disk space of each log's copies, and refuses what is over a limit.

    Logs that were not used since the start count too.
    """

    def __init__(self, path: str, *, bytes_max: int | None, log_bytes_max: int | None, logs_max: int) -> None:
        self._bytes_max, self._log_bytes_max, self._logs_max = bytes_max, log_bytes_max, logs_max
        self._lock = threading.Lock()
        self._sizes = {entry.name: _size(entry.path) for entry in os.scandir(path) if entry.is_dir()}
        self._total = sum(self._sizes.values())

    @property
    def byte_count(self) -> int:
        """The space that all copies take."""
        return self._total

    def admit(self, name: str) -> None:
        """Note a log; ReplicaError if there are too many."""
        with self._lock:
            if name not in self._sizes:
                if len(self._sizes) >= self._logs_max:
                    raise ReplicaError(
                        f"there are {self._logs_max} logs here already, which is as many as this server takes"
                    )
                self._sizes[name] = 0

    def forget(self, name: str) -> None:
        """Note that the directory of a log is gone."""
        with self._lock:
            self._total -= self._sizes.pop(name, 0)

    def note(self, name: str, size: int) -> None:
        """Note how much space a log takes."""
        with self._lock:
            self._total += size - self._sizes.get(name, 0)
            self._sizes[name] = size

    def fits(self, name: str, kept: int, more: int) -> None:
        """Raise ReplicaError if a log that takes `kept` bytes may not take `more`."""
        size = kept + more
        with self._lock:
            if self._log_bytes_max is not None and size > self._log_bytes_max:
                raise ReplicaError(
                    f"the copies of {name} would take up {size:,} bytes, and this server allows "
                    f"{self._log_bytes_max:,} for a log: rotate the log more often, or raise the limit there"
                )
            total = self._total - self._sizes.get(name, 0) + size
            if self._bytes_max is not None and total > self._bytes_max:
                raise ReplicaError(
                    f"all copies together would take up {total:,} bytes, and this server allows "
                    f"{self._bytes_max:,}: remove copies there, or raise the limit"
                )
            self._sizes[name], self._total = size, total


def _size(path: str) -> int:
    """The disk space of a log's copies, in whole blocks."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(".log"):
                total += max(os.stat(f"{folder}/{name}").st_size, BLOCK_BYTES)
    return total
