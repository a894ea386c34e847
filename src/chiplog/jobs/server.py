"""The job server: connections in front of a machine, a command log behind it.

Everything happens on one event loop. What the clients of one turn of it have changed is written to the log with
one write, and only then are they answered; under `always` the write and its sync are done by a thread, and the
next turns gather what the next write will have. So no client hears of a change that isn't as durable as the policy
says, and many clients share one sync.

If the log can't be written, the changes are undone, whoever asked for them is told so, and the server is read
only: what changes nothing is still answered. After a while one change at a time is let through, until one is
written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import cast

from chiplog.errors import ChiplogError
from chiplog.jobs.cleaning import CommandCleaner
from chiplog.jobs.journal import Journal
from chiplog.jobs.machine import Batch, Machine
from chiplog.jobs.protocol import Answers, Session
from chiplog.jobs.queue import Leaser, Waiter
from chiplog.jobs.replies import READ_ONLY
from chiplog.jobs.wheel import NEVER

__all__ = ["Server"]

logger = logging.getLogger("chiplog")

CLIENTS_MAX = 10_000
BUFFER_BYTES_MAX = 256 << 10  # of commands behind one that waits
COMMAND_SECONDS_MAX = 60.0  # from a command's first byte to its last
EVENTS_PER_TURN = 500
RETRY_SECONDS = (0.1, 5.0)  # how long to wait before writing is tried again, at first and at most
STOP_SECONDS = 10.0  # for what is being written
FAREWELL_SECONDS = 2.0  # for answers that clients don't take
_TOO_MANY = b"-SERVER-ERROR Too many clients\r\n"
_SWEEP_SECONDS = 5.0


class _Connection(asyncio.Protocol):
    """A client, as the event loop sees it."""

    __slots__ = ("_dirty", "_paused", "_since", "server", "session", "transport")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.session = Session(server.machine, server, self)
        self.transport: asyncio.Transport | None = None
        self._dirty = False
        self._paused = False
        """Whether the client doesn't take its answers."""
        self._since = 0.0
        """Since when a command is on its way; 0 if none is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.welcome(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        self.session.leave()
        self.server.farewell(self)

    def data_received(self, data: bytes) -> None:
        session = self.session
        session.feed(data, time.time_ns())
        self.touch()

    def touch(self) -> None:
        """Something may have changed: it is looked after at the end of the turn."""
        if not self._dirty:
            self._dirty = True
            self.server.touched(self)

    def take(self) -> Answers:
        self._dirty = False
        return self.session.take()

    def send(self, answers: list[bytes]) -> None:
        """Answers, which may now be sent."""
        transport, session = self.transport, self.session
        if transport is None:
            return
        if answers:
            transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        if session.closed:
            transport.close()
        elif session.buffered():
            self._go_on(transport)
        elif self._since:
            self._since = 0.0

    def _go_on(self, transport: asyncio.Transport) -> None:
        """There are bytes left, of a command that waits or that isn't whole."""
        session = self.session
        if not self._paused and not session.is_held():
            before = session.buffered()
            session.resume(time.time_ns())
            if session.buffered() != before:
                self.touch()
        held = session.is_held()
        self._since = 0.0 if held else self._since or time.monotonic()
        if held and session.buffered() > BUFFER_BYTES_MAX:
            transport.pause_reading()
        elif not self._paused:
            transport.resume_reading()

    def is_late(self, now: float) -> bool:
        """Whether a command has been on its way for too long."""
        return self._since > 0 and now - self._since > COMMAND_SECONDS_MAX

    def pause_writing(self) -> None:
        self._paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self.transport is not None:
            self.transport.resume_reading()
            self.touch()


class Server:
    """Serves jobs. `start` and `stop`, or `async with`."""

    def __init__(
        self,
        journal: Journal,
        *,
        clients_max: int = CLIENTS_MAX,
        token: bytes | None = None,
        clean_interval_ms: int = 300_000,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.journal = journal
        self.token = token
        self.read_only = False
        self.trial = False
        self.started_ns = time.time_ns()
        self.restored = journal.open(self.started_ns, progress)
        self.machine: Machine = self.restored.machine
        self._clients_max = clients_max
        self._connections: set[_Connection] = set()
        self._touched: list[_Connection] = []
        self._turning = False
        self._tick_handle: asyncio.TimerHandle | None = None
        self._tick_ns = NEVER
        self._retry_seconds = RETRY_SECONDS[0]
        self._writer = _Writer(journal) if journal.waits else None
        self._in_flight: tuple[Batch, list[tuple[_Connection, Answers]]] | None = None
        self._stopping = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cleaner = (
            CommandCleaner(journal.stream, self.machine)
            if journal.stream is not None and clean_interval_ms
            else None
        )
        self._clean_seconds = clean_interval_ms / 1000

    # -- starting and stopping

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[tuple[str, int]]:
        """Accept clients; returns where."""
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(lambda: _Connection(self), host, port, ssl=tls, backlog=1024)
        self._later(self._sweep())
        if self._cleaner is not None:
            self._later(self._clean(self._cleaner))
        self._turn_soon()
        return [found.getsockname()[:2] for found in self._server.sockets]

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Take no more clients, finish what was begun, sync, close."""
        if self._stopping:
            return
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._cleaner is not None:
            self._cleaner.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while (self._touched or self._in_flight) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        await self._dismiss(time.monotonic() + FAREWELL_SECONDS)
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        # A `run` whose client was just cut off has left an end to be written.
        records, _ = self.machine.take()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        if self._cleaner is not None:
            await asyncio.to_thread(self._cleaner.wait)
        await asyncio.to_thread(self._close, records)

    async def _dismiss(self, deadline: float) -> None:
        """Close connections, once their answers are sent."""
        for connection in list(self._connections):
            if connection.transport is not None:
                connection.transport.close()
        while self._connections and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        for connection in list(self._connections):
            if connection.transport is not None:
                connection.transport.abort()

    def _close(self, records: list[bytes]) -> None:
        if records and not self.read_only:
            with contextlib.suppress(OSError, ChiplogError):
                self.journal.write(records)
        self.journal.close()

    # -- clients

    def clients(self) -> int:
        """How many there are."""
        return len(self._connections)

    def welcome(self, connection: _Connection) -> None:
        """A client has come."""
        self._connections.add(connection)
        if len(self._connections) > self._clients_max or self._stopping:
            connection.session.closed = True
            connection.session.out.append(_TOO_MANY)
            connection.touch()

    def farewell(self, connection: _Connection) -> None:
        """A client has gone."""
        self._connections.discard(connection)
        if self.machine.records:
            self._turn_soon()

    def touched(self, connection: _Connection) -> None:
        """A client may have something to send, and the log something to write."""
        self._touched.append(connection)
        if not self._turning:
            self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """The end of a turn of the event loop: write, then answer."""
        self._turning = False
        machine = self.machine
        if machine.answered:
            self._hand_answers()
        if self._in_flight is None and (self._touched or machine.records):
            self._write()
        when_ns = machine.wheel.next_ns()
        if when_ns < self._tick_ns:
            self._set_tick(when_ns)

    def _hand_answers(self) -> None:
        """Those who waited go on with what they sent meanwhile, which may end other waits."""
        machine = self.machine
        while machine.answered:
            answered, machine.answered = machine.answered, []
            now_ns = time.time_ns()
            for waiting in answered:
                session = cast(Session, cast(Leaser | Waiter, waiting).client)
                if not session.closed:
                    session.answer()
                    session.resume(now_ns)
                    cast(_Connection, session.connection).touch()

    def _write(self) -> None:
        touched, self._touched = self._touched, []
        batch = self.machine.take()
        answers = [(connection, connection.take()) for connection in touched]
        if not batch[0]:
            self._send(answers)
        elif self.read_only:
            self.machine.rollback(batch, time.time_ns())
            self._refuse(answers)
        elif self._writer is None:
            try:
                self.journal.write(batch[0])
            except (OSError, ChiplogError) as error:
                self._fail(batch, answers, error)
            else:
                self._succeed(batch, answers)
        else:
            self._in_flight = batch, answers
            self._writer.write(batch[0], self._written)

    def _written(self, error: BaseException | None) -> None:
        """Called by the writing thread."""
        self._loop.call_soon_threadsafe(self._landed, error)

    def _landed(self, error: BaseException | None) -> None:
        if self._in_flight is None:
            return
        (batch, answers), self._in_flight = self._in_flight, None
        if error is None:
            self._succeed(batch, answers)
        else:
            self._fail(batch, answers, error)
        if self._touched or self.machine.records:
            self._turn_soon()

    def _succeed(self, batch: Batch, answers: list[tuple[_Connection, Answers]]) -> None:
        self.machine.landed(batch)
        if self.trial:
            self.trial = False
            self._retry_seconds = RETRY_SECONDS[0]
            logger.warning("the command log can be written again")
            self.machine.offer(time.time_ns())
            if self.machine.answered:
                self._turn_soon()
        self._send(answers)

    def _send(self, answers: list[tuple[_Connection, Answers]]) -> None:
        for connection, (replies, _) in answers:
            connection.send(replies)

    # -- when the log can't be written

    def try_writing(self, session: Session) -> None:
        """Write what a client has changed at once, by itself, to find out whether it can be written."""
        cast(_Connection, session.connection).touch()
        if self._in_flight is None and self._writer is None:
            self._write()
        else:
            self._turn_soon()

    def _fail(self, batch: Batch, answers: list[tuple[_Connection, Answers]], error: BaseException) -> None:
        """Undo what couldn't be written, and what has been done since on top of it."""
        if not self.trial:
            logger.error("the command log can't be written, nothing can be changed until it can: %s", error)
        now_ns = time.time_ns()
        later = [(connection, connection.take()[0]) for connection in self._touched]
        self._touched = []
        self.machine.rollback(self.machine.take(), now_ns)
        self.machine.rollback(batch, now_ns)
        self.read_only, self.trial = True, False
        self._refuse(answers)
        for connection, replies in later:
            connection.send([READ_ONLY] * len(replies))
        self._loop.call_later(self._retry_seconds, self._try_again)
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS[1])

    def _refuse(self, answers: list[tuple[_Connection, Answers]]) -> None:
        """Say no wherever an answer tells of what wasn't written."""
        for connection, (replies, tentative) in answers:
            settled = len(replies) - tentative
            connection.send(replies[:settled] + [READ_ONLY] * tentative)

    def _try_again(self) -> None:
        if self._stopping:
            return
        if self.journal.failed:
            self._later(self._reopen())
        else:
            self.read_only, self.trial = False, True
            self._turn_soon()

    async def _reopen(self) -> None:
        try:
            await asyncio.to_thread(self.journal.reopen)
            adopted = self.journal.adopt(self.machine, time.time_ns())
        except (OSError, ChiplogError) as error:
            logger.error("the command log can't be opened again: %s", error)
            self._loop.call_later(self._retry_seconds, self._try_again)
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS[1])
            return
        if adopted:
            logger.warning("%d commands are in the log although writing them had failed: they count", adopted)
        self.read_only, self.trial = False, True
        self._turn_soon()

    # -- time

    def _set_tick(self, when_ns: int) -> None:
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self._tick_ns = when_ns
        # Not before the tick is over: what rings too early would only be looked at again.
        delay = max(0.0, (when_ns - time.time_ns()) / 1e9)
        self._tick_handle = self._loop.call_later(min(delay, 3600.0), self._tick)

    def _tick(self) -> None:
        self._tick_handle, self._tick_ns = None, NEVER
        machine, now_ns = self.machine, time.time_ns()
        machine.tick(now_ns, EVENTS_PER_TURN, self.read_only)
        if machine.wheel.pending(now_ns):
            self._set_tick(now_ns)
        self._turn_soon()

    async def _sweep(self) -> None:
        """End the connections of those who began a command and never finish it."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            for connection in [found for found in self._connections if found.is_late(now)]:
                if connection.transport is not None:
                    connection.transport.abort()

    async def _clean(self, cleaner: CommandCleaner) -> None:
        while True:
            await asyncio.sleep(self._clean_seconds)
            if not self.read_only:
                await cleaner.run()


class _Writer:
    """A thread that writes to a log whose writes take as long as a sync."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._work: SimpleQueue[tuple[list[bytes], Callable[[BaseException | None], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="chiplog-jobs", daemon=True)
        self._thread.start()

    def write(self, records: list[bytes], done: Callable[[BaseException | None], None]) -> None:
        self._work.put((records, done))

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            records, done = work
            error: BaseException | None = None
            try:
                self._journal.write(records)
            except (OSError, ChiplogError) as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                done(error)
