"""The job server: connections in front of a machine, a command log behind it.

Everything happens on one event loop. What the clients of one turn of it have changed is written to the log with
one write, and only then are they answered. Under `always` a sync goes with it, for all of them; where syncs are
slow a thread does them, and the next turns gather what the next write will have. So no client hears of a change
that isn't as durable as the policy says, and many clients share one sync.

If the log can't be written, the changes are undone, whoever asked for them is told so, and the server is read
only: what changes nothing is still answered. After a while one change at a time is let through, until one is
written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import cast

from forelog import kernel
from forelog.bounds import check_whole
from forelog.errors import ForelogError
from forelog.formats.commands.commands import Add, Complete, Fail, Schedule
from forelog.jobs.log.cleaning import CommandCleaner
from forelog.jobs.log.journal import Journal
from forelog.jobs.machine.ledger import KEPT_BYTES_MAX, MEMORY_BYTES_MAX, Batch
from forelog.jobs.machine.queue import Waiter
from forelog.jobs.machine.wheel import NEVER
from forelog.jobs.server.door import STRANGERS_MAX, Door
from forelog.jobs.server.protocol import Session
from forelog.jobs.server.replies import READ_ONLY, UNKNOWN_OUTCOME
from forelog.jobs.server.turns import Connection, Held, Turns
from forelog.log.position import Positions
from forelog.serving.lobby import Lobby
from forelog.serving.notices import Notices

__all__ = ["Server"]

Done = Callable[[int | Positions, BaseException | None], None]

logger = logging.getLogger("forelog")

CLIENTS_MAX = 10_000
EVENTS_PER_TURN = 500
SLOW_SECONDS = 0.002  # that writes with their syncs take: longer ones are not for the event loop to wait for
TYPICAL_WRITES = 8  # that tell how long one takes: one that takes long among quick ones means nothing
PATIENCE_SYNCS = 1.5  # for how many syncs' time those who shared the last one are waited for,
PATIENCE_SECONDS_MAX = 0.001  # and for how long at most
SHARE_MIN = 8  # clients to be answered together, if there are as many
TICK_SECONDS_MAX = 1.0  # to wait for a timer before the clock is looked at again: it may have been set
RETRY_SECONDS = (0.1, 5.0)  # how long to wait before writing is tried again, at first and at most
READS_MAX = 4  # of results from the log at a time
CLEAN_SEGMENTS = 4  # that are begun before the log is cleaned early, if it had no more after the last time
STOP_SECONDS = 10.0  # for what is being written
FAREWELL_SECONDS = 2.0  # for answers that clients don't take
_TOO_MANY = b"-SERVER-ERROR Too many clients\r\n"
_EXPECTS_TLS = b"-CLIENT-ERROR This server expects TLS\r\n"
_SWEEP_SECONDS = 5.0
_DOOR_SECONDS = 1.0


class Server(Turns):
    """Serves jobs, between `start` and `stop`."""

    def __init__(
        self,
        journal: Journal,
        *,
        clients_max: int = CLIENTS_MAX,
        strangers_max: int = STRANGERS_MAX,
        token: bytes | None = None,
        clean_interval_ms: int = 300_000,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        started_ns = time.time_ns()
        self.restored = journal.open(started_ns, progress, kept_bytes_max=kept_bytes_max)
        super().__init__(self.restored.machine, journal, token, started_ns)
        self.machine.memory_bytes_max = memory_bytes_max
        self._reading = asyncio.Semaphore(READS_MAX)
        self._clients_max = clients_max
        self.door = Door(strangers_max)
        self.notices = Notices("jobs")
        """Log lines, and how often clients were refused."""
        self._connections: set[Connection] = set()
        self._tick_handle: asyncio.TimerHandle | None = None
        self._tick_ns = NEVER
        self._retry_seconds = RETRY_SECONDS[0]
        self._writer = _Writer(journal) if journal.waits else None
        self._began = self._answered = self._typical = 0.0
        self._crowd = 0
        self._stopping = False
        self._server: asyncio.Server | None = None
        self._lobby: Lobby | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cleaner = (
            CommandCleaner(journal.stream, self.machine)
            if journal.stream is not None and clean_interval_ms
            else None
        )
        self._clean_seconds = clean_interval_ms / 1000
        self._due = asyncio.Event()
        """Whether the log has grown much, or couldn't be written, since it was last cleaned."""
        self._begun = 0
        """How many segments have been begun since then."""
        self._begun_max = CLEAN_SEGMENTS

    # -- starting and stopping

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[tuple[str, int]]:
        """Accept clients; returns where."""
        check_whole("port", port, least=0, most=65_535)
        self._loop = asyncio.get_running_loop()
        self.call_soon = self._loop.call_soon
        with contextlib.suppress(OSError):  # there are such sets on Linux only
            self.sockets = kernel.SocketSet()
            self._loop.add_reader(self.sockets.fileno(), self.read)
        factory = cast(Callable[[], asyncio.Protocol], lambda: Connection(self))
        accept = factory
        if tls is not None:
            self._lobby = Lobby(tls, factory, self.notices, to_plain=_EXPECTS_TLS)
            accept = self._lobby.accept
        self._server = await self._loop.create_server(accept, host, port, backlog=1024)
        self._later(self._sweep())
        self._later(self._watch_door())
        if self._cleaner is not None:
            self._later(self._clean(self._cleaner))
        self.turn_soon()
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
        if self._lobby is not None:
            self._lobby.close()
        for task in list(self._tasks):
            task.cancel()
        if self._cleaner is not None:
            self._cleaner.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while (self.waiting or self.in_flight) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        self.notices.close()
        await self._dismiss(time.monotonic() + FAREWELL_SECONDS)
        if self.sockets is not None:
            self._loop.remove_reader(self.sockets.fileno())
            self.sockets.close()
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
            connection.close()
        while self._connections and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        for connection in list(self._connections):
            connection.abort()

    def _close(self, records: list[bytes]) -> None:
        if records and not self.read_only:
            with contextlib.suppress(OSError, ForelogError):
                self.journal.write(records)
        self.journal.close()

    # -- clients

    def clients(self) -> int:
        """How many there are."""
        return len(self._connections)

    def welcome(self, connection: Connection) -> None:
        """A client has come."""
        self._connections.add(connection)
        self._count()
        if self.token is not None:
            crowded = self.door.enter(connection, _host(connection))
            if crowded is not None:
                self._end(crowded, "too many without a token")
            return
        refusal = self.admit(connection.session)
        if refusal is not None:
            connection.session.closed = True
            connection.session.out.append(refusal)
            connection.touch()

    def admit(self, session: Session) -> bytes | None:
        """A client may come in, unless there are too many: then why not."""
        connection = cast(Connection, session.connection)
        self.door.leave(connection)
        if len(self._connections) - len(self.door) > self._clients_max or self._stopping:
            self.notices.warning("too many clients", _host(connection), from_=_peer(connection))
            return _TOO_MANY
        self.notices.info("connected", _host(connection), from_=_peer(connection))
        return None

    def refuse_token(self, session: Session, tried: bool) -> int:
        """A client has shown a wrong token, or none: it is told after a while."""
        connection = cast(Connection, session.connection)
        why = "a wrong token" if tried else "no token"
        self.notices.warning("refused", _host(connection), from_=_peer(connection), reason=why)
        delay = self.door.delay(_host(connection)) if tried else 0.0
        return self.clock.now() + int(delay * 1e9)

    def complain(self, session: Session, what: str) -> None:
        """A client speaks something else."""
        connection = cast(Connection, session.connection)
        self.notices.warning("protocol error", _host(connection), from_=_peer(connection), reason=what)

    def _end(self, connection: Connection, why: str) -> None:
        """End a connection at once."""
        self.notices.warning("disconnected", _host(connection), from_=_peer(connection), reason=why)
        connection.abort()

    def _count(self) -> None:
        self.share = max(SHARE_MIN, len(self._connections) // 4)

    def farewell(self, connection: Connection) -> None:
        """A client has gone."""
        self._connections.discard(connection)
        self.door.leave(connection)
        self._count()
        if self.machine.records:
            self.turn_soon()

    # -- writing on a thread

    def measure(self, took: float, clients: int) -> None:
        """Those who shared a sync have been answered. Where writes are slow, a thread does the next ones."""
        self._answered = time.perf_counter()
        self._typical += (took - self._typical) / TYPICAL_WRITES
        self.crowd = self._crowd = max(clients, self._crowd * 7 // 8)
        self.slow = self._typical > (SLOW_SECONDS / 2 if self.slow else SLOW_SECONDS)

    def is_early(self) -> bool:
        """Whether it is worth while to wait for those who were just answered: not for much longer than a write."""
        if time.perf_counter() - self._answered < min(PATIENCE_SYNCS * self._typical, PATIENCE_SECONDS_MAX):
            return True
        self.crowd = 0
        return False

    def hand_over(self, records: list[bytes]) -> None:
        """Let the thread write."""
        assert self._writer is not None
        self._began = time.perf_counter()
        self._writer.write(records, self._written)

    def _written(self, where: int | Positions, error: BaseException | None) -> None:
        """Called by the thread."""
        self._loop.call_soon_threadsafe(self._landed, where, error)

    def _landed(self, where: int | Positions, error: BaseException | None) -> None:
        if self.in_flight is None:
            return
        (batch, held), self.in_flight = self.in_flight, None
        took = time.perf_counter() - self._began
        if error is None:
            self.succeed(batch, held, where)
        else:
            self.hand_answers()  # they are told of what is undone now
            self.fail(batch, held, error)
        self.measure(took, len(held))
        if self.waiting or self.machine.records:
            self.turn_soon()

    # -- what is only in the log

    def fetch(self, waiter: Waiter) -> None:
        """Read what a client asks for on a thread: a disk may be slow."""
        self._later(self._fetch(waiter))

    async def _fetch(self, waiter: Waiter) -> None:
        job = waiter.job
        place = (job.segment, job.offset) if waiter.inspects else (job.result_segment, job.result_offset)
        try:
            if place[0] == 0:
                waiter.read = b""  # it failed by a timeout, without a result
            else:
                async with self._reading:
                    command = await asyncio.to_thread(self.journal.read, *place, job.id)
                if isinstance(command, Add | Schedule):
                    waiter.read = command.payload
                elif isinstance(command, Complete | Fail):
                    waiter.read = command.result
        except (OSError, ForelogError) as error:
            logger.error("a job that is done can't be read from the command log: %s", error)
        waiter.gone = self.machine.jobs.get(job.id) is not job
        self.machine.answered.append(waiter)
        self.turn_soon()

    # -- when the log can't be written

    def try_writing(self, session: Session) -> None:
        """Write what a client has changed at once, by itself, to find out whether it can be written."""
        cast(Connection, session.connection).touch()
        if self.in_flight is None and not self.slow and not self.handing:
            self.hand_answers()
            self.write()

    def fail(self, batch: Batch, held: Held, error: BaseException) -> None:
        """Undo what couldn't be written, and what has been done since on top of it."""
        if not self.trial:
            expected = isinstance(error, OSError | ForelogError)
            logger.error(
                "the command log can't be written, nothing can be changed until it can: %s",
                error,
                exc_info=None if expected else error,
            )
        later = [(connection, connection.take()[0]) for connection in self.waiting]
        self.waiting = []
        since = self.machine.take()
        self.read_only, self.trial = True, False
        # A write that failed is undone. After a sync that failed nobody knows: see _reopen.
        no = UNKNOWN_OUTCOME if self.journal.failed else READ_ONLY
        self.refuse((batch[0] + since[0], batch[1] + since[1]), held, no)
        for connection, replies in later:
            connection.send([READ_ONLY] * len(replies))
        self._due.set()
        self._try_later()

    def refuse(self, batch: Batch, held: Held, no: bytes = READ_ONLY) -> None:
        """Undo what can't be written, and say no wherever an answer tells of it."""
        self.machine.rollback(batch, self.clock.now())
        for connection, (replies, tentative) in held:
            settled = len(replies) - tentative
            connection.send(replies[:settled] + [no] * tentative)

    def recover(self) -> None:
        """It could be written again."""
        self.trial = False
        self._retry_seconds = RETRY_SECONDS[0]
        logger.warning("the command log can be written again")
        self.machine.offer(self.clock.now())
        self.turn_soon()

    def _try_later(self) -> None:
        self._loop.call_later(self._retry_seconds, self._try_again)
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS[1])

    def _try_again(self) -> None:
        if self._stopping:
            return
        if self.journal.failed:
            self._later(self._reopen())
        else:
            self.read_only, self.trial = False, True
            self.turn_soon()

    async def _reopen(self) -> None:
        try:
            found = await asyncio.to_thread(self.journal.reopen)
        except Exception as error:  # whatever it is: without another try the server would be read-only for ever
            expected = isinstance(error, OSError | ForelogError)
            logger.error("the command log can't be opened again: %s", error, exc_info=None if expected else error)
            self._try_later()
            return
        self.journal.adopt(found, self.machine, self.clock.now())
        if found:
            logger.warning("%d commands are in the log although writing them had failed: they count", len(found))
        self.read_only, self.trial = False, True
        self.turn_soon()

    # -- time

    def see_to_timers(self, when_ns: int) -> None:
        """The next timer rings then."""
        if when_ns < self._tick_ns:
            self._set_tick(when_ns)

    def _set_tick(self, when_ns: int) -> None:
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self._tick_ns = when_ns
        # Not before the tick is over: what rings too early would only be looked at again.
        delay = max(0.0, (when_ns - self.clock.now()) / 1e9)
        self._tick_handle = self._loop.call_later(min(delay, TICK_SECONDS_MAX), self._tick)

    def _tick(self) -> None:
        self._tick_handle, self._tick_ns = None, NEVER
        machine, now_ns = self.machine, self.clock.now()
        machine.tick(now_ns, EVENTS_PER_TURN, self.read_only)
        if machine.wheel.pending(now_ns):
            self._set_tick(now_ns)
        self.turn_soon()

    async def _sweep(self) -> None:
        """End the connections of those who don't finish a command, or who don't take their answers."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.notices.sweep()
            now = time.monotonic()
            for connection in [found for found in self._connections if found.is_late(now)]:
                self._end(connection, "too slow")

    async def _watch_door(self) -> None:
        """End the connections of those who don't show a token."""
        while True:
            await asyncio.sleep(_DOOR_SECONDS)
            for connection in self.door.late():
                self._end(connection, "no token in time")

    def begun(self) -> None:
        """The log has a new segment: with many of them it is time to clean."""
        self._begun += 1
        if self._begun > self._begun_max:
            self._due.set()

    async def _clean(self, cleaner: CommandCleaner) -> None:
        """Now and then; when the log has grown by as much as it took after the last time; and when it can't be
        written, since the disk may be full of what nobody needs."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), self._clean_seconds)
            self._due.clear()
            self._begun = 0
            # Not while a thread writes: what it writes isn't known to be there yet.
            if not self.read_only and self.in_flight is None and cleaner.wants_next_segment(self.journal.end):
                with contextlib.suppress(OSError, ForelogError):  # the next write tells what is wrong
                    self.journal.roll()
            await cleaner.run(cramped=self.read_only)
            self._begun_max = max(CLEAN_SEGMENTS, cleaner.segments)


def _peer(connection: Connection) -> str:
    """A client's address."""
    found = connection.transport.get_extra_info("peername") if connection.transport is not None else None
    if not found:
        return "-"
    return f"[{found[0]}]:{found[1]}" if ":" in found[0] else f"{found[0]}:{found[1]}"


def _host(connection: Connection) -> str:
    return _peer(connection).rpartition(":")[0]


class _Writer:
    """A thread that writes to a log whose writes take as long as a sync."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._work: SimpleQueue[tuple[list[bytes], Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="forelog-jobs", daemon=True)
        self._thread.start()

    def write(self, records: list[bytes], done: Done) -> None:
        self._work.put((records, done))

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            records, done = work
            where: int | Positions = 0
            error = None
            try:
                where = self._journal.write(records)
            except Exception as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                done(where, error)
