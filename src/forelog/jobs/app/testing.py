"""An app in tests: a real server inside the process, whose jobs are in memory only, and a worker on a thread.

with app.testing():
    assert add.delay(2, 3).get(timeout=5) == 5
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

from forelog.jobs.app.home import Home
from forelog.jobs.client.client import Client
from forelog.jobs.client.worker import Worker

_LEASE_MS = 20


class Testing:
    """A server of its own for an app, as long as the `with` block lasts."""

    def __init__(self, app: Home, *, worker: bool, concurrency: int) -> None:
        self._app = app
        self._works = worker
        self._concurrency = concurrency
        self._stack = ExitStack()
        self.worker: Worker | None = None
        """The worker, if there is one."""
        self._error: BaseException | None = None

    def __enter__(self) -> Testing:
        from forelog.jobs.server.local import LocalServer  # a server is loaded where there is one

        server = self._stack.enter_context(LocalServer())
        self._stack.enter_context(self._app.connected_to(server.address))
        if self._works:
            self.start_worker()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._error is not None:
            raise self._error

    @property
    def client(self) -> Client:
        """A client of the server."""
        return self._app.client

    def start_worker(self) -> Worker:
        """Start a worker. It is stopped at the end of the `with` block."""
        self.worker = worker = self._app.worker(concurrency=self._concurrency, lease_ms=_LEASE_MS)
        thread = threading.Thread(target=self._run, args=(worker,), name="forelog-testing")
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(worker.stop)
        return worker

    def _run(self, worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:
            self._error = error
