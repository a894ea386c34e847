"""Locks of the operating system on files, which processes and threads take turns with."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time

from forelog.errors import LockTimeout
from forelog.files.forks import forking, let_go_in_children
from forelog.files.modes import open_or_create
from forelog.files.protocol import Lock

logger = logging.getLogger("forelog")

_SILENT_SECONDS = 2.0  # a longer wait for a lock is logged
_LOCK_POLL_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


class OSLock(Lock):
    """flock(2) on a file of its own: across processes, and across the threads of one."""

    _fd = -1

    def __init__(self, fd: int, *, exclusive: bool) -> None:
        self._pid = os.getpid()
        self._fd = fd
        if exclusive:
            let_go_in_children(self)

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            if os.getpid() == self._pid:  # in a child only closed: to unlock it would be to unlock the parent's
                fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the descriptor too
            os.close(fd)

    _forked = release

    def __del__(self) -> None:
        if self._fd >= 0:
            self.release()


def take_lock(path: str, *, exclusive: bool, timeout: float | None, mode: int) -> OSLock:
    """Lock a file, and create it if it doesn't exist. Raises LockTimeout after `timeout` seconds."""
    operation = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        with forking:  # no child has the descriptor of an exclusive lock that it doesn't know of
            fd = _open_lock_file(path, mode, exclusive=exclusive)
            lock = OSLock(fd, exclusive=exclusive)
        try:
            if deadline is None:
                _wait_flock(fd, operation, path)
            else:
                _poll_flock(fd, operation, max(deadline - time.monotonic(), 0), path)
            if _is_where_others_look(fd, path):
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()


def _open_lock_file(path: str, mode: int, *, exclusive: bool) -> int:
    try:
        return open_or_create(path, os.O_RDWR, mode)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if exclusive:
                raise error from None
            # Nobody can have cleaned a log without this file: reading a copy on read-only media is fine.
            return os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_where_others_look(fd: int, path: str) -> bool:
    """Whether a locked file still has its name. A lock on a removed file excludes nobody."""
    found = os.fstat(fd)
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return stat.S_ISDIR(found.st_mode)  # on read-only media, where nobody can make the file
    return os.path.samestat(found, named)


def _wait_flock(fd: int, operation: int, path: str) -> None:
    try:
        _poll_flock(fd, operation, _SILENT_SECONDS, path)
    except LockTimeout:
        logger.warning("waiting for %s, which another process or thread holds", path)
        fcntl.flock(fd, operation)


def _poll_flock(fd: int, operation: int, timeout: float, path: str) -> None:
    # flock has no timeout of its own, and an alarm signal would be the program's, not ours.
    deadline = time.monotonic() + timeout
    attempt = 0
    while True:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            rest = deadline - time.monotonic()
            if not rest > 0:
                raise LockTimeout(
                    f"{path} is locked by another process or thread (waited {timeout:.3g} s): "
                    "close it there, or give a longer timeout"
                ) from None
            time.sleep(min(rest, _LOCK_POLL_SECONDS[min(attempt, len(_LOCK_POLL_SECONDS) - 1)]))
            attempt += 1
