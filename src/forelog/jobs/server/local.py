"""A job server inside this process, on a thread of its own: for tests, and for programs that need no other.

    with LocalServer("cmdlog") as server:
        client = Client(server.address)

It is the same server as `workq-server`, on a free port of this machine. To serve other processes for long, run
`workq-server` instead.
"""

from __future__ import annotations

import asyncio
import os
import threading

from forelog.bounds import check_whole
from forelog.closing import Closing
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.server.server import Server
from forelog.log.appender import Sync
from forelog.serving.addresses import shown


class LocalServer(Closing):
    """A job server on a thread of this process.

    Its jobs are in the command log at `path`; without a path they are lost when it is closed. `sync` is when
    commands are synced: `os`, `interval` or `always`. With a `token` clients have to send it first. `mode` is
    the permissions of a new log's files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        sync: Sync = "os",
        host: str = "127.0.0.1",
        port: int = 0,
        token: bytes | None = None,
        mode: int | None = None,
    ) -> None:
        check_whole("port", port, least=0, most=65_535)
        self._log = CommandLog(path, sync=sync, mode=mode)
        self._token = token
        self._host, self._port = host, port
        self._ready = threading.Event()
        self._errors: list[BaseException] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self.address = ""
        """Where it serves: `HOST:PORT`, for `Client`."""
        self.server: Server | None = None
        """The server that runs on the thread."""
        self._thread = threading.Thread(target=self._run, name="forelog-job-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._errors:
            self._thread.join()
            raise self._errors[0]

    def close(self) -> None:
        """Finish what was begun, sync, stop."""
        if self._thread.is_alive() and self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.server = server = Server(self._log, token=self._token)
        try:
            self.address = shown(*(await server.start(self._host, self._port))[0])
            self._ready.set()
            await self._stopped.wait()
        finally:
            await server.stop()
