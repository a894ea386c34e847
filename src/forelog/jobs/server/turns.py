"""What one turn of the event loop does with all connections: read, write, reply, ring timers.

Every request goes through here. What the clients of a turn have changed is written to the log with one write, and
only then do they get their replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from forelog import kernel
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Leaser, Waiter
from forelog.jobs.machine.wheel import NEVER, Timer
from forelog.jobs.server.archive import Archive
from forelog.jobs.server.beyond import Beyond
from forelog.jobs.server.clients import Clients
from forelog.jobs.server.connection import SHARE_SECONDS, Connection, Round
from forelog.jobs.server.inspection import Inspections
from forelog.jobs.server.outage import Outage
from forelog.jobs.server.pace import Pace
from forelog.jobs.server.rare import Rare
from forelog.jobs.server.replies import READ_ONLY, UNKNOWN_OUTCOME
from forelog.jobs.server.schedule import Schedule
from forelog.jobs.server.tasks import Tasks
from forelog.jobs.server.writer import ThreadWriter, Writer

if TYPE_CHECKING:
    from forelog.jobs.log.commandlog import CommandLog
    from forelog.jobs.machine.ledger import Changes
    from forelog.log.position import Positions

logger = logging.getLogger("forelog")

EVENTS_PER_TURN = 500  # timers that ring at once
_HANDED_BYTES_MAX = 4 << 20  # replies in a turn, past which clients that wait for results wait for the next one
_MANY = 48  # sockets that had something: there may be more
ALARM_SECONDS_MAX = 1.0  # until the clock is looked at again: it may have been set
_ALL = 1 << 62


Held = list[tuple[Connection, tuple[list[bytes], int]]]
"""Connections, each with the replies that are held back until the changes that they report are written."""


class Turns:
    """The turns of a server."""

    def __init__(
        self,
        machine: Machine,
        log: CommandLog,
        clients: Clients,
        schedule: Schedule,
        tasks: Tasks,
        writer: Writer | None = None,
    ) -> None:
        self.machine = machine
        self._ledger = machine.ledger
        self.log = log
        self.clients = clients
        self.pace = Pace()
        self.round = Round(self.turn, self._write_early, self._try_writing)
        self._clock = self.round.clock
        self.outage = Outage(log, machine, self._clock, tasks, self._resume)
        self.archive = Archive(log, machine, tasks, self._resume)
        self._rare = Rare(machine, clients, self.outage, Inspections(machine, self._resume))
        self._beyond = Beyond(machine, self.outage)
        self._late: deque[Waiter] = deque()
        """Clients whose result is there, and that get it in one of the next turns."""
        self._in_flight: tuple[Changes, Held] | None = None
        """What the thread is writing, and the replies that wait for it."""
        self._handing = False
        """Whether waits are being ended: nothing is written until all of them are."""
        self._segment = 0
        """The segment that was last written to."""
        self._schedule = schedule
        self._writer = (writer or ThreadWriter(log)) if log.waits else None
        self._write_began = 0.0
        self._loop: Any = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ns = NEVER

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.round.call_soon = self._loop.call_soon
        with contextlib.suppress(OSError):  # only Linux has such sets
            self.round.sockets = kernel.SocketSet()
            self._loop.add_reader(self.round.sockets.fileno(), self.read)
        self.round.begin()

    async def finish(self, seconds: float) -> None:
        """Wait until everything is written and replied to, for so many seconds at most."""
        deadline = time.monotonic() + seconds
        while self._has_more() and time.monotonic() < deadline:
            await asyncio.sleep(0.001)

    def _has_more(self) -> bool:
        current = self.round
        return bool(current.touched or current.line or current.later or self._in_flight or self._late)

    async def stop(self) -> Changes:
        """End. Returns what is still to be written: a `run` whose client was just cut off has ended."""
        if self.round.sockets is not None:
            self._loop.remove_reader(self.round.sockets.fileno())
            self.round.sockets.close()
        if self._alarm is not None:
            self._alarm.cancel()
        changes = self._ledger.take()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        return changes

    def connection(self) -> Connection:
        """Make the connection of a new client."""
        return Connection(
            self.round, self.clients, self.machine, self.outage, self.archive, self._rare, self._beyond
        )

    def _resume(self) -> None:
        """There is something to do outside of a turn."""
        self.round.begin()

    def is_writing(self) -> bool:
        """Whether the thread writes: what it writes is not known to be in the log yet."""
        return self._in_flight is not None

    # -- a turn

    def read(self) -> None:
        """Some of the sockets have something to read."""
        if self._take_in():
            self.turn()

    def _take_in(self) -> bool:
        """Read what has come, as far as this turn has time, and do what it asks for. Returns whether there was
        anything."""
        arrived = self.round.sockets.read()
        if not arrived:
            return False
        current = self.round
        current.begun = True
        current.start_clock()
        ends = current.ends
        while arrived:
            many = len(arrived) >= _MANY
            if many:
                current.ends = 0.0  # all of them are to be read soon: what takes longer gets in line
            for connection, data in arrived:
                try:
                    connection.arrived(data)
                except Exception:
                    self._end_alone(connection)
            arrived = current.sockets.read() if many and time.perf_counter() < ends else None
        return True

    def turn(self) -> None:
        """End the turn: write what was changed, then reply, and set the alarm for the next timer."""
        self.round.begun = False
        if self.round.line or self.round.later:
            self._go_on()
        if self.machine.ended or self._late:
            self._end_waits(_HANDED_BYTES_MAX)
        if self._in_flight is None and (self.round.touched or self._ledger.is_dirty()):
            while len(self.round.touched) < self.pace.crowd and self.pace.is_early():
                if not self.round.sockets:  # the event loop has to read them
                    self.round.begin()
                    return
                self._take_in()
                self.round.begun = False
                if self.machine.ended:
                    self._end_waits(_HANDED_BYTES_MAX)
            self._write()
        if self._late or self.round.line or self.round.later:
            self.round.begin()
        when_ns = self.machine.wheel.next_ns()
        if when_ns < self._alarm_ns:
            self._set_alarm(when_ns)

    def _go_on(self) -> None:
        """Let clients that are in line do their next commands, a few each, as long as this turn has time. Clients
        that haven't had a turn yet and those that have take turns."""
        current, clock = self.round, time.perf_counter
        current.begun = True
        current.start_clock()
        ends = current.ends
        for _ in range(max(len(current.line), len(current.later))):
            for line in (current.line, current.later):
                if line:
                    connection = line.popleft()
                    current.ends = min(ends, clock() + SHARE_SECONDS)
                    try:
                        connection.go_on()
                    except Exception:
                        self._end_alone(connection)
            if clock() >= ends:
                break
        current.begun = False

    def _end_waits(self, most: int = _ALL) -> None:
        """Reply to clients whose wait is over, and do what they sent meanwhile. That may end other waits. After
        replies of more than `most` bytes, clients that wait for a result have to wait for the next turn."""
        machine, late = self.machine, self._late
        size = 0
        self._handing = True
        while late and size <= most:
            size += self._end_wait(late.popleft())
        while machine.ended:
            ended, machine.ended = machine.ended, []
            for waiter in ended:
                if size > most and isinstance(waiter, Waiter):
                    late.append(waiter)
                else:
                    size += self._end_wait(waiter)
        self._handing = False

    def _end_wait(self, waiter: Timer) -> int:
        """Reply to a client whose wait is over. Returns how many bytes of replies it is sent."""
        assert isinstance(waiter, Leaser | Waiter)
        session: Any = waiter.client
        size = 0
        if not session.closed:
            try:
                session.end_wait()
                size = session.out_bytes
                session.resume(self._clock.now())
                session.connection.touch()
            except Exception:
                self._end_alone(session.connection)
        return size

    def _end_alone(self, connection: Connection) -> None:
        """A client's command has raised in here: end its connection, and no other."""
        logger.exception("a client's command failed, and its connection is ended")
        connection.abort()

    def _write_early(self) -> None:
        """Write before the end of the turn, as many clients wait. Where writes are slow, the more share one the
        better."""
        if not self.log.waits and not self.machine.ended and not self._handing:
            self._write()

    def _try_writing(self) -> None:
        """Write at once, to find out whether the log can be written."""
        if self._in_flight is None and not self.pace.slow and not self._handing:
            self._end_waits()
            self._write()

    def _write(self) -> None:
        """Write what was changed, and reply once that is done."""
        touched, self.round.touched = self.round.touched, []
        changes = self._ledger.take()
        held: Held = [(connection, connection.take()) for connection in touched]
        if not changes[0] and not changes[2]:
            self._send(held)
        elif self.outage.read_only:
            self._refuse(changes, held, READ_ONLY)
        elif self.pace.slow and self._writer is not None:
            self._in_flight = changes, held
            self._write_began = time.perf_counter()
            self._writer.write(changes[0], changes[2], self._written)
        else:
            began = time.perf_counter()
            try:
                where = self.log.write(changes[0], changes[2])
            except Exception as error:  # whatever it is: without a reply clients would wait for ever
                self._end_waits()  # their replies report what is undone now
                self._fail(changes, held, error)
            else:
                took = time.perf_counter() - began
                self._succeed(changes, held, where)
                if self.log.waits:
                    self.pace.measure(took, len(held), len(self.clients))

    def _written(self, where: int | Positions, error: BaseException | None) -> None:
        """Take the result of the thread's write. The thread calls this."""
        self._loop.call_soon_threadsafe(self._landed, where, error)

    def _landed(self, where: int | Positions, error: BaseException | None) -> None:
        """Finish the thread's write, on the event loop."""
        if self._in_flight is None:
            return
        (changes, held), self._in_flight = self._in_flight, None
        took = time.perf_counter() - self._write_began
        if error is None:
            self._succeed(changes, held, where)
        else:
            self._end_waits()  # their replies report what is undone now
            self._fail(changes, held, error)
        self.pace.measure(took, len(held), len(self.clients))
        if self.round.touched or self._ledger.is_dirty():
            self.round.begin()

    def _succeed(self, changes: Changes, held: Held, where: int | Positions) -> None:
        """Enter changes that were written to this place, and send their replies."""
        self._ledger.landed(changes, where)
        if not isinstance(where, int) and where.segment != self._segment:
            self._segment = where.segment
            self._schedule.segment_begun()
        if self._ledger.kept_bytes > self._ledger.kept_bytes_max:
            for job in self._ledger.unload():  # without a log the oldest finished jobs are forgotten
                self.machine.delete(job.id)
        if self.outage.trial:
            self.outage.end()
        self._send(held)

    def _send(self, held: Held) -> None:
        for connection, replies in held:
            connection.send(replies[0])

    # -- when the log can't be written

    def _fail(self, changes: Changes, held: Held, error: BaseException) -> None:
        """Undo changes that could not be written, and what was done since on top of them."""
        later = [(connection, connection.take()[0]) for connection in self.round.touched]
        self.round.touched = []
        since = self._ledger.take()
        self.outage.begin(error)
        # A write that failed is undone. After a sync that failed nobody knows: see CommandLog.reopen.
        refusal = UNKNOWN_OUTCOME if self.log.failed else READ_ONLY
        both = changes[0] + since[0], changes[1] + since[1], changes[2] + since[2], changes[3] + since[3]
        self._refuse(both, held, refusal)
        for connection, replies in later:
            connection.send([READ_ONLY] * len(replies))
        self._schedule.hurry()

    def _refuse(self, changes: Changes, held: Held, refusal: bytes) -> None:
        """Undo changes, and send the refusal in place of every reply that reports one."""
        self.machine.rollback(changes, self._clock.now())
        for connection, (replies, tentative) in held:
            settled = len(replies) - tentative
            connection.send(replies[:settled] + [refusal] * tentative)

    # -- timers

    def _set_alarm(self, when_ns: int) -> None:
        """Ring timers at this time."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ns = when_ns
        # Not before the tick is over: a timer that rings too early would only be looked at again.
        delay = max(0.0, (when_ns - self._clock.now()) / 1e9)
        self._alarm = self._loop.call_later(min(delay, ALARM_SECONDS_MAX), self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_ns = None, NEVER
        machine, now_ns = self.machine, self._clock.now()
        machine.tick(now_ns, EVENTS_PER_TURN, self.outage.read_only)
        if machine.wheel.pending(now_ns):
            self._set_alarm(now_ns)
        self.round.begin()
