"""The job server: connections in front of a machine, a command log behind it.

All of it runs on one event loop. What the clients of one turn of the loop have changed is written to the log
with one write, and only then do they get their replies. Under `always` a sync goes with it, for all of them. If
syncs are slow, a thread does them, and the next turns gather what the next write will have. So no client hears
of a change that is not as durable as the policy says, and many clients share one sync.

If the log can't be written, the changes are undone, the clients that asked for them get an error, and the server
is read-only until a change can be written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from typing import cast

from forelog.bounds import check_whole
from forelog.errors import ForelogError
from forelog.jobs.log.cleaner import CommandCleaner
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.log.notecleaner import NoteCleaner
from forelog.jobs.machine.ledger import KEPT_BYTES_MAX, MEMORY_BYTES_MAX, Changes
from forelog.jobs.server.clients import CLIENTS_MAX, Clients
from forelog.jobs.server.door import STRANGERS_MAX
from forelog.jobs.server.replies import EXPECTS_TLS
from forelog.jobs.server.schedule import Schedule
from forelog.jobs.server.tasks import Tasks
from forelog.jobs.server.turns import Turns
from forelog.jobs.server.writer import Writer
from forelog.serving.heap import Heap
from forelog.serving.lobby import Lobby

STOP_SECONDS = 10.0  # for what is being written
FAREWELL_SECONDS = 2.0  # for replies that clients do not take
_MOMENTS = 1000
TEND_SECONDS = 1.0  # between two looks at the memory that is free


class Server:
    """Serves jobs, between `start` and `stop`."""

    def __init__(
        self,
        log: CommandLog,
        *,
        clients_max: int = CLIENTS_MAX,
        strangers_max: int = STRANGERS_MAX,
        token: bytes | None = None,
        clean_interval_ms: int = 300_000,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        progress: Callable[[int, int], None] | None = None,
        writer: Writer | None = None,
    ) -> None:
        """Restore what the log holds. Where a write takes as long as a sync, `writer` does it, or a thread."""
        started_ns = time.time_ns()
        self.log = log
        self.restored = log.open(started_ns, progress, kept_bytes_max=kept_bytes_max)
        """What the log held."""
        self.machine = self.restored.machine
        self.machine.ledger.memory_bytes_max = memory_bytes_max
        self.clients = Clients(started_ns, token=token, clients_max=clients_max, strangers_max=strangers_max)
        self._schedule = Schedule(clean_interval_ms)
        self._tasks = Tasks()
        self.turns = Turns(self.machine, log, self.clients, self._schedule, self._tasks, writer)
        self._cleaner = CommandCleaner(log.stream, self.machine) if log.stream and clean_interval_ms else None
        self._note_cleaner = None if log.annex is None else NoteCleaner(log.annex, self.machine.notebook)
        self._server: asyncio.Server | None = None
        self._lobby: Lobby | None = None
        self._stopping = False

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[tuple[str, int]]:
        """Accept clients. Returns the addresses."""
        check_whole("port", port, least=0, most=65_535)
        accept = make = cast(Callable[[], asyncio.Protocol], self.turns.connection)
        if tls is not None:
            self._lobby = Lobby(tls, make, self.clients.notices, to_plain=EXPECTS_TLS)
            accept = self._lobby.accept
        self.turns.start()
        self._server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=1024)
        self._tasks.begin(self.clients.watch())
        self._tasks.begin(self.clients.watch_door())
        self._tasks.begin(_tend(Heap()))
        if self._cleaner is not None:
            self._tasks.begin(self._clean(self._cleaner))
        return [found.getsockname()[:2] for found in self._server.sockets]

    async def stop(self) -> None:
        """Let no more clients in, finish what was begun, sync, close."""
        if self._stopping:
            return
        self._stopping = True
        self.clients.refuse_more()
        if self._server is not None:
            self._server.close()
        if self._lobby is not None:
            self._lobby.close()
        self._tasks.cancel()
        if self._cleaner is not None:
            self._cleaner.stop()
        await self.turns.finish(STOP_SECONDS)
        await self.clients.dismiss(FAREWELL_SECONDS)
        changes = await self.turns.stop()
        if self._cleaner is not None:
            await asyncio.to_thread(self._cleaner.wait)
        await asyncio.to_thread(self._close, changes)

    def _close(self, changes: Changes) -> None:
        if (changes[0] or changes[2]) and not self.turns.outage.read_only:
            with contextlib.suppress(OSError, ForelogError):
                self.log.write(changes[0], changes[2])
        self.log.close()

    async def _rest(self) -> bool:
        """Wait for a moment when all that was changed is written. Returns whether there was one soon."""
        for _ in range(_MOMENTS):
            if not self.turns.is_writing() and not self.machine.ledger.is_dirty():
                return True
            await asyncio.sleep(0.001)
        return False

    async def _clean(self, cleaner: CommandCleaner) -> None:
        """Clean the log whenever that is due."""
        outage = self.turns.outage
        while True:
            await self._schedule.wait()
            idle = not outage.read_only and await self._rest()
            if idle and cleaner.wants_next_segment(self.log.end):
                with contextlib.suppress(OSError, ForelogError):  # the next write reports what is wrong
                    self.log.roll()
            notes_due = False
            if idle and self._note_cleaner is not None:
                with contextlib.suppress(OSError, ForelogError):
                    notes_due = self._note_cleaner.prepare()
            await cleaner.run(cramped=outage.read_only)
            if notes_due and self._note_cleaner is not None:
                await asyncio.to_thread(self._note_cleaner.clean)
            self._schedule.cleaned(cleaner.segments)


async def _tend(heap: Heap) -> None:
    """Give memory that clients don't need any more back to the system."""
    while True:
        await asyncio.sleep(TEND_SECONDS)
        heap.tend()
