"""Sockets that are read together: the oracle for `broker/sockets.pxi`."""

from __future__ import annotations

import errno
import os
import select
from typing import Any

READ_BYTES_MAX = 1 << 16
READY_MAX = 64


class SocketSet:
    def __init__(self) -> None:
        if not hasattr(select, "epoll"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._ready = select.epoll()
        self._owners: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def fileno(self) -> int:
        return self._ready.fileno()

    def add(self, descriptor: int, owner: Any) -> None:
        self._ready.register(descriptor, select.EPOLLIN)
        self._owners[descriptor] = owner

    def remove(self, descriptor: int) -> None:
        if self._owners.pop(descriptor, None) is not None:
            self._ready.unregister(descriptor)

    def forget(self, descriptor: int, owner: Any) -> None:
        if self._owners.get(descriptor) is owner:
            del self._owners[descriptor]

    def read(self) -> list[tuple[Any, bytes | None]]:
        found: list[tuple[Any, bytes | None]] = []
        for descriptor, _ in self._ready.poll(0, READY_MAX):
            owner = self._owners.get(descriptor)
            if owner is None:
                continue
            try:
                found.append((owner, os.read(descriptor, READ_BYTES_MAX)))
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                found.append((owner, None))
        return found

    def close(self) -> None:
        self._owners.clear()
        self._ready.close()


def socket_send(descriptor: int, data: bytes) -> int:
    try:
        return os.write(descriptor, data)
    except OSError:
        return -1
