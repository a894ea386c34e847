"""Spark's daemon of Python workers, for sessions whose workers answer over Unix domain sockets.

All is as in Spark's, but for two things.

A worker may find that nobody listens any more: a query has enough rows (`limit`, `show`), or Spark lets go of a
worker that was idle for a minute. Over TCP its last bytes go nowhere and nobody is the wiser; over a Unix domain
socket it is told, and Spark's daemon prints a traceback for each. Here such a worker ends as it would have over
TCP.

And Spark has workers ended by their process ids, also those that have ended by themselves. Their ids may be
somebody else's by then, also a thread's, whose whole process would go. Here none but workers are ended.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark import daemon

_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """One task of a worker; its exit code, which ends the worker unless it is 0."""
    try:
        code: int = _worker(sock, authenticated)
    except BrokenPipeError:
        return 1
    return code


class OwnChildren:
    """`os`, as the daemon sees it: it can signal its own group, and its own children, but nobody else."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def kill(self, pid: int, number: int) -> None:
        """os.kill(); ProcessLookupError, as if there were no such process, if it is no child of this one."""
        if pid != 0:
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                raise ProcessLookupError(f"{pid} is no worker of this daemon") from None
        os.kill(pid, number)


if __name__ == "__main__":
    vars(daemon).update(worker=worker, os=OwnChildren())
    daemon.manager()
