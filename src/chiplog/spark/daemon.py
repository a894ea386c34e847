"""Spark's daemon of Python workers, for sessions whose workers answer over Unix domain sockets.

A worker may find that nobody listens any more: a query has enough rows (`limit`, `show`), or Spark lets go of a
worker that was idle for a minute. Over TCP its last bytes go nowhere and nobody is the wiser; over a Unix domain
socket it is told, and Spark's daemon prints a traceback for each. Here such a worker ends as it would have over
TCP. All else is as in Spark's.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
