"""Sockets that are read together, and written to without a wait, in plain Python."""

from __future__ import annotations

import errno
import os
import select
from typing import Any

READ_BYTES_MAX = 1 << 16
READY_MAX = 256


class SocketSet:
    """Sockets, each with an owner, that are all read by one call. Not for use by several threads.

    It is for an event loop that waits for `fileno` to be readable, as it is while one of the sockets is, and then
    calls `read`. A socket is removed before it is closed; one that somebody else has closed is forgotten. There
    are such sets on Linux only: elsewhere making one raises OSError.
    """

    def __init__(self) -> None:
        if not hasattr(select, "epoll"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._ready = select.epoll()
        self._owners: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def fileno(self) -> int:
        """What is readable while one of the sockets is."""
        return self._ready.fileno()

    def add(self, descriptor: int, owner: Any) -> None:
        """Read this socket from now on."""
        self._ready.register(descriptor, select.EPOLLIN)
        self._owners[descriptor] = owner

    def remove(self, descriptor: int) -> None:
        """Don't read it any more."""
        if self._owners.pop(descriptor, None) is not None:
            self._ready.unregister(descriptor)

    def forget(self, descriptor: int, owner: Any) -> None:
        """A socket of this owner, unless another has its number by now, was closed."""
        if self._owners.get(descriptor) is owner:
            del self._owners[descriptor]

    def read(self) -> list[tuple[Any, bytes | None]]:
        """What has come, with its owner: bytes, none if no more will come, or None if the socket is broken."""
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
        """Let go of all of them; they stay open."""
        self._owners.clear()
        self._ready.close()


def socket_send(descriptor: int, data: bytes) -> int:
    """Hand bytes to a socket that doesn't block; how many it took, or less than 0 if it couldn't take any."""
    try:
        return os.write(descriptor, data)
    except OSError:
        return -1
