"""Spark's daemon of Python workers, for sessions that use Unix domain sockets. It differs in two points.

A worker may lose its listener: a query has enough rows (`limit`, `show`), or Spark drops a worker that was idle
for a minute. Over TCP its last bytes are lost in silence. A Unix domain socket reports an error, and Spark's
daemon prints a traceback for each. Here such a worker ends in silence too.

Spark kills workers by their process ids, also those that have already ended. By then the id may belong to another
process or thread. This daemon kills only its own workers.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark import daemon

_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """Run one task of a worker. Returns its exit code; any but 0 ends the worker."""
    try:
        code: int = _worker(sock, authenticated)
    except BrokenPipeError:
        return 1
    return code


class OwnChildren:
    """`os` for the daemon, which can signal only its own group and its own children."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def kill(self, pid: int, number: int) -> None:
        """os.kill(). Raises ProcessLookupError for a process that is not a child of this one."""
        if pid != 0:
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                raise ProcessLookupError(f"{pid} is not a worker of this daemon") from None
        os.kill(pid, number)


if __name__ == "__main__":
    vars(daemon).update(worker=worker, os=OwnChildren())
    daemon.manager()
