"""The disk space of all copies on a replica server, and its limits."""

from __future__ import annotations

import os
import threading

from forelog.errors import ReplicaError
from forelog.files import BLOCK_BYTES

__all__ = ["Space"]


class Space:
    """The disk of all copies together: how much each log takes up, and how much all may.

    Logs that nobody has asked for since the start count too.
    """

    def __init__(self, path: str, *, bytes_max: int | None, log_bytes_max: int | None, logs_max: int) -> None:
        self._bytes_max, self._log_bytes_max, self._logs_max = bytes_max, log_bytes_max, logs_max
        self._lock = threading.Lock()
        self._sizes = {entry.name: _size(entry.path) for entry in os.scandir(path) if entry.is_dir()}
        self._total = sum(self._sizes.values())

    @property
    def byte_count(self) -> int:
        """What is taken up."""
        return self._total

    def admit(self, name: str) -> None:
        """Raise ReplicaError if there is no place for another log."""
        with self._lock:
            if name not in self._sizes:
                if len(self._sizes) >= self._logs_max:
                    raise ReplicaError(
                        f"there are {self._logs_max} logs here already, which is as many as this server takes"
                    )
                self._sizes[name] = 0

    def forget(self, name: str) -> None:
        """Its directory is gone."""
        with self._lock:
            self._total -= self._sizes.pop(name, 0)

    def note(self, name: str, size: int) -> None:
        """A log takes up so much now."""
        with self._lock:
            self._total += size - self._sizes.get(name, 0)
            self._sizes[name] = size

    def fits(self, name: str, kept: int, more: int) -> None:
        """Raise ReplicaError if a log that has so much may not have so much more."""
        size = kept + more
        with self._lock:
            if self._log_bytes_max is not None and size > self._log_bytes_max:
                raise ReplicaError(
                    f"the copies of {name} would take up {size:,} bytes, and this server allows "
                    f"{self._log_bytes_max:,} for a log: rotate the log more often, or have the limit raised there"
                )
            total = self._total - self._sizes.get(name, 0) + size
            if self._bytes_max is not None and total > self._bytes_max:
                raise ReplicaError(
                    f"all copies together would take up {total:,} bytes, and this server allows "
                    f"{self._bytes_max:,}: remove copies there, or have the limit raised"
                )
            self._sizes[name], self._total = size, total


def _size(path: str) -> int:
    """What the files of a log's copies take up, counting whole blocks."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(".log"):
                total += max(os.stat(f"{folder}/{name}").st_size, BLOCK_BYTES)
    return total
