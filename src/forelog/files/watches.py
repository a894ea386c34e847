"""Noticing that something in a directory has changed: by the system, or by looking again and again."""

from __future__ import annotations

import os
import select
import struct
import time

_READ_BYTES = 65_536
_EVENT_BYTES_MAX = struct.calcsize("iIII") + 256


class PollWatch:
    """Where the system reports no changes: look again, at first soon, then every 50 ms."""

    def __init__(self) -> None:
        self._pause = 0.001

    def wait(self, timeout: float) -> bool:
        time.sleep(min(timeout, self._pause))
        self._pause = min(self._pause * 2, 0.05)
        return False

    def fileno(self) -> int | None:
        return None

    def drain(self) -> None:
        self._pause = 0.001

    def close(self) -> None:
        pass


class InotifyWatch:
    """Linux reports every change in the directory, also by other processes."""

    _EVENTS = 0x2 | 0x40 | 0x80 | 0x100 | 0x200  # modify, moved from, moved to, create, delete

    def __init__(self, path: str) -> None:
        import ctypes  # only programs that follow a log pay for it

        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self._fd, os.fsencode(path), self._EVENTS) < 0:
            number = ctypes.get_errno()
            self.close()
            raise OSError(number, f"inotify_add_watch on {path}")

    def wait(self, timeout: float) -> bool:
        poll = select.poll()  # select() would refuse descriptors past 1023
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def fileno(self) -> int | None:
        return self._fd

    def drain(self) -> None:
        try:
            while len(os.read(self._fd, _READ_BYTES)) > _READ_BYTES - _EVENT_BYTES_MAX:
                pass
        except BlockingIOError:
            return  # nothing has changed

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
