"""Connections, and what is done with all of them in a turn of the event loop: read, write, then answer.

This is what every request goes through. `forelog.jobs.server.server` has what happens now and then.

Where it can be, sockets are read by the kernel, all that have something at once, and the event loop only tells
when: to have it read each by itself takes longer than to do what is asked for. The transports still do what is
seldom: they close sockets, and write what a socket doesn't take at once. Connections with TLS are theirs alone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from forelog import kernel
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Leaser, Waiter
from forelog.jobs.machine.wheel import Clock
from forelog.jobs.server.protocol import Session

if TYPE_CHECKING:
    from forelog.jobs.log.journal import Journal
    from forelog.jobs.machine.ledger import Batch
    from forelog.jobs.server.protocol import Answers
    from forelog.log.position import Positions

__all__ = ["Connection", "Held", "Turns"]

logger = logging.getLogger("forelog")

PATIENCE_SECONDS = 60.0  # for a command from its first byte to its last, and for a client who takes no answers
_BUFFER_BYTES_MAX = 256 << 10  # of commands behind one that waits
_clock = time.perf_counter
_send = kernel.socket_send


class Connection:
    """A client, as the event loop sees it: an asyncio protocol."""

    __slots__ = (
        "_buffered",
        "_dirty",
        "_ended",
        "_file",
        "_is_closing",
        "_joined",
        "_paused",
        "_reading",
        "_since",
        "_turns",
        "session",
        "transport",
    )

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.session = Session(turns.machine, turns, self)
        self.transport: Any = None
        self._is_closing: Any = None
        self._buffered: Any = None
        self._file = -1
        """The socket's number, where bytes can be written to it as they are."""
        self._joined = False
        """Whether it is read with the others."""
        self._dirty = False
        self._reading = True
        self._ended = False
        """Whether the client has said that it sends no more."""
        self._paused = False
        """Whether the client doesn't take its answers."""
        self._since = 0.0
        """Since when a command is on its way or expected, or answers are on theirs; 0 if none are."""

    def connection_made(self, transport: Any) -> None:
        """The client has come."""
        self.transport = transport
        self._is_closing, self._buffered = transport.is_closing, transport.get_write_buffer_size
        found = transport.get_extra_info("socket")
        if found is not None:
            if transport.get_extra_info("sslcontext") is None:
                self._file = found.fileno()
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._turns.welcome(self)
        if self._file >= 0 and self._turns.sockets is not None:
            # Not at once: a transport may begin to read after this.
            self._turns.call_soon(self._join)

    def _join(self) -> None:
        """Be read with the others from now on."""
        if self.transport is not None and not self._is_closing():
            self.transport.pause_reading()
            self._joined = True
            if self._reading:
                self._turns.sockets.add(self._file, self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """The client has gone."""
        if self._joined:
            self._turns.sockets.forget(self._file, self)
        self.transport = self._is_closing = self._buffered = None
        self.session.leave()
        self._turns.farewell(self)

    def close(self) -> None:
        """End it, once all answers are sent."""
        self._read(False)
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End it at once."""
        self._read(False)
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        turns = self._turns
        if not turns.turning:
            turns.now_ns = turns.clock.now()
        session = self.session
        session.feed(data, turns.now_ns)
        if session.buffered() > (_BUFFER_BYTES_MAX if session.known else 0) and session.is_held():
            self._read(False)  # a write may take long
        self.touch()

    def eof_received(self) -> bool:
        """The client sends no more. Who waits is taken for gone; others still get their answers."""
        if self._file < 0 or self.session.waiting is not None:
            return False
        self._ended = True
        self.touch()
        return True

    def arrived(self, data: bytes | None) -> None:
        """What a read of the socket gave: bytes, none if no more will come, or None if it is broken."""
        if self.transport is None or self._is_closing():
            return
        if data:
            self.data_received(data)
        elif data is None:
            self.abort()
        else:
            self._read(False)
            if not self.eof_received():
                self.close()

    def touch(self) -> None:
        """Something may have changed: it is looked after at the end of the turn."""
        if not self._dirty:
            self._dirty = True
            self._turns.touched(self)

    def take(self) -> Answers:
        """The answers so far."""
        self._dirty = False
        return self.session.take()

    def send(self, answers: list[bytes]) -> None:
        """Answers, which may now be sent."""
        session = self.session
        if self.transport is None:
            return
        if answers:
            self._write(answers[0] if len(answers) == 1 else b"".join(answers))
        if session.closed:
            self.close()
        elif session.buffered() or not self._reading:
            self._go_on()
        elif not self._paused:
            self._since = 0.0
        if self._ended and not self._dirty and (not self._paused or session.waiting is not None):
            self.close()

    def _write(self, data: bytes) -> None:
        """Write at once what the socket takes. A transport would do it after it has looked for what came in."""
        transport = self.transport
        if self._is_closing():
            return
        if self._file >= 0 and self._buffered() == 0:
            sent = _send(self._file, data)
            if sent == len(data):
                return
            if sent > 0:
                data = data[sent:]  # else the socket is full, or broken: the transport knows what to do
        transport.write(data)

    def _go_on(self) -> None:
        """There are bytes left, of commands that wait or that aren't whole."""
        session = self.session
        if not self._paused and not session.is_held():
            before = session.buffered()
            session.resume(self._turns.clock.now())
            if session.buffered() != before or session.out:
                self.touch()
        held = session.is_held()
        if held and session.waiting is None and session.buffered():
            self.touch()  # what it waits for is a write, and then it is its turn
        if not self._paused:
            self._since = 0.0 if held or not session.buffered() else self._since or time.monotonic()
        most = _BUFFER_BYTES_MAX if session.known else 0
        self._read(not self._paused and not (held and session.buffered() > most))

    def _read(self, wanted: bool) -> None:
        if self._ended:
            wanted = False
        if wanted == self._reading or self.transport is None or self._is_closing():
            return
        self._reading = wanted
        if self._joined:
            if wanted:
                self._turns.sockets.add(self._file, self)
            else:
                self._turns.sockets.remove(self._file)
        elif wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def is_late(self, now: float) -> bool:
        """Whether a command, or an answer, has been on its way for too long."""
        return self._since > 0 and now - self._since > PATIENCE_SECONDS

    def pause_writing(self) -> None:
        """The client doesn't take its answers: let it ask nothing more."""
        self._paused = True
        self._since = time.monotonic()
        self._read(False)

    def resume_writing(self) -> None:
        """It does again."""
        self._paused = False
        self._since = 0.0
        self._read(True)
        self.touch()


Held = list[tuple[Connection, tuple[list[bytes], int]]]
"""Answers that are held back until what they tell is written, and whose they are."""


class Turns:
    """The turns of a server. What happens now and then is for those who derive from it."""

    def __init__(self, machine: Machine, journal: Journal, token: bytes | None, started_ns: int) -> None:
        self.machine = machine
        self.journal = journal
        self.token = token
        self.clock = Clock()
        self.started_ns = started_ns
        self.read_only = False
        self.trial = False
        self.in_flight: tuple[Batch, Held] | None = None
        """What is being written by a thread, and the answers that wait for it."""
        self.waiting: list[Connection] = []
        """Those that were touched in this turn."""
        self.turning = False
        self.handing = False
        """Whether those who waited are being answered: until all of them are, nothing is written."""
        self.now_ns = started_ns
        """When the turn began."""
        self.share = 1
        """How many clients may wait for the end of the turn: with more it ends early, so that some of the clients
        are at work while we are."""
        self.slow = False
        """Whether writes take so long, because each waits for a sync, that a thread does them."""
        self.crowd = 0
        """How many clients the last sync was for, if writes wait for one: most of them come again at once, and are
        waited for, so that they share the next one too."""
        self.call_soon: Any = None
        """The event loop's, once there is one."""
        self.segment = 0
        """Of the log, that was last written to."""
        self.sockets: Any = None
        """Those that are read together, where they can be."""

    def touched(self, connection: Connection) -> None:
        """A client may have something to send, and the log something to write."""
        self.waiting.append(connection)
        if not self.turning:
            self.turn_soon()
        elif (
            len(self.waiting) >= self.share
            and not self.journal.waits
            and not self.machine.answered
            and not self.handing
        ):
            self.write()

    def read(self) -> None:
        """Some of the sockets have something to be read."""
        if self.take_in():
            self.turn()

    def take_in(self) -> bool:
        """Read what has come, and do what it asks for. Whether there was anything."""
        arrived = self.sockets.read()
        if not arrived:
            return False
        self.turning = True
        self.now_ns = self.clock.now()
        for connection, data in arrived:
            try:
                connection.arrived(data)
            except Exception:
                self.end_alone(connection)
        return True

    def turn_soon(self) -> None:
        """When everything that has come in is looked at."""
        if not self.turning:
            self.turning = True
            self.call_soon(self.turn)

    def turn(self) -> None:
        """Write what was changed, then answer; and see to the next timer."""
        self.turning = False
        if self.machine.answered:
            self.hand_answers()
        if self.in_flight is None and (self.waiting or self.machine.records):
            while len(self.waiting) < self.crowd and self.is_early():
                if not self.sockets:  # the event loop has to read them
                    self.turn_soon()
                    return
                self.take_in()
                self.turning = False
                if self.machine.answered:
                    self.hand_answers()
            self.write()
        self.see_to_timers(self.machine.wheel.next_ns())

    def hand_answers(self) -> None:
        """Those who waited go on with what they sent meanwhile, which may end other waits."""
        machine = self.machine
        self.handing = True
        while machine.answered:
            answered, machine.answered = machine.answered, []
            now_ns = self.clock.now()
            for waiter in answered:
                assert isinstance(waiter, Leaser | Waiter)
                session: Any = waiter.client
                if not session.closed:
                    try:
                        session.answer()
                        session.resume(now_ns)
                        session.connection.touch()
                    except Exception:
                        self.end_alone(session.connection)
        self.handing = False

    def end_alone(self, connection: Connection) -> None:
        """Something went wrong with a client, in here: that is the end of its connection, and of no other."""
        logger.exception("a client's command failed, and its connection is ended")
        connection.abort()

    def write(self) -> None:
        """Write what was changed, and answer once that is done."""
        waiting, self.waiting = self.waiting, []
        batch = self.machine.take()
        held: Held = [(connection, connection.take()) for connection in waiting]
        if not batch[0]:
            self.send(held)
        elif self.read_only:
            self.refuse(batch, held)
        elif self.slow:
            self.in_flight = batch, held
            self.hand_over(batch[0])
        else:
            began = _clock()
            try:
                where = self.journal.write(batch[0])
            except Exception as error:  # whatever it is: without an answer clients would wait for ever
                self.fail(batch, held, error)
            else:
                took = _clock() - began
                self.succeed(batch, held, where)
                if self.journal.waits:
                    self.measure(took, len(held))

    def succeed(self, batch: Batch, held: Held, where: int | Positions) -> None:
        """It is written, to this place."""
        self.machine.landed(batch, where)
        if not isinstance(where, int) and where.segment != self.segment:
            self.segment = where.segment
            self.begun()
        if self.machine.kept_bytes > self.machine.kept_bytes_max:
            for job in self.machine.unload():  # no log has them: the oldest are forgotten
                self.machine.delete(job.id)
        if self.trial:
            self.recover()
        self.send(held)

    def send(self, held: Held) -> None:
        """Answer."""
        for connection, answers in held:
            connection.send(answers[0])

    # -- for those who derive from this

    def measure(self, took: float, clients: int) -> None:
        """So many clients, whose write with a sync took so many seconds, have been answered."""
        raise NotImplementedError

    def is_early(self) -> bool:
        """Whether it is worth while to wait for more clients."""
        raise NotImplementedError

    def see_to_timers(self, when_ns: int) -> None:
        """The next timer rings then."""
        raise NotImplementedError

    def hand_over(self, records: list[bytes]) -> None:
        """Let a thread write."""
        raise NotImplementedError

    def refuse(self, batch: Batch, held: Held) -> None:
        """Nothing can be written now."""
        raise NotImplementedError

    def fail(self, batch: Batch, held: Held, error: BaseException) -> None:
        """It couldn't be written."""
        raise NotImplementedError

    def recover(self) -> None:
        """It could be written again."""
        raise NotImplementedError

    def fetch(self, waiter: Waiter) -> None:
        """Read from the log what a client asks for."""
        raise NotImplementedError

    def admit(self, session: Session) -> bytes | None:
        """A client has shown the token."""
        raise NotImplementedError

    def refuse_token(self, session: Session, tried: bool) -> int:
        """A client has shown a wrong token, or none."""
        raise NotImplementedError

    def complain(self, session: Session, what: str) -> None:
        """A client speaks something else."""
        raise NotImplementedError

    def begun(self) -> None:
        """The log has a new segment."""
        raise NotImplementedError

    def try_writing(self, session: Session) -> None:
        """Write what this client has changed, at once."""
        raise NotImplementedError

    def clients(self) -> int:
        """How many there are."""
        raise NotImplementedError

    def welcome(self, connection: Connection) -> None:
        """A client has come."""
        raise NotImplementedError

    def farewell(self, connection: Connection) -> None:
        """A client has gone."""
        raise NotImplementedError
