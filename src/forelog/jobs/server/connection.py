"""A client's connection: an asyncio protocol between a socket and a session.

Where the system allows it, the kernel module reads all sockets that have something at once, and the event loop
only says when: reading them one by one takes longer than the work itself. Transports still do what is rare. They
close sockets, and write what a socket does not take at once. A connection with TLS is left to its transport.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forelog import kernel
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.wheel import Clock
from forelog.jobs.server.archive import Archive
from forelog.jobs.server.beyond import Beyond
from forelog.jobs.server.clients import Clients
from forelog.jobs.server.outage import Outage
from forelog.jobs.server.rare import Rare
from forelog.jobs.server.session import Session
from forelog.serving.addresses import shown

if TYPE_CHECKING:
    from forelog.jobs.server.session import Replies

PATIENCE_SECONDS = 60.0  # for a command from its first byte to its last, and for a client that takes no replies
SHARE_MIN = 8  # clients that get their replies together, if there are as many
TURN_SECONDS = 0.005  # of commands in a turn; each client that sends little may do one more
SHARE_SECONDS = 0.0005  # of commands of a client that was in line
_LITTLE_BYTES = 512
_BUFFER_BYTES_MAX = 256 << 10  # of commands behind one that waits
_SMALL_BYTES = 64 << 10  # of a client, in and out, that are not counted
_socket_send = kernel.socket_send


class Round:
    """The turn that is going on, as connections see it.

    It ends with `end`. If many connections were touched, `write_early` is called before that. `try_writing` writes
    at once while the log is on trial.
    """

    def __init__(
        self, end: Callable[[], None], write_early: Callable[[], None], try_writing: Callable[[], None]
    ) -> None:
        self.clock = Clock()
        self.now_ns = self.clock.now()
        """When the turn began."""
        self.begun = False
        """Whether a turn has begun, or is about to."""
        self.touched: list[Connection] = []
        """The connections that the end of the turn looks at."""
        self.call_soon: Any = None
        """The event loop's, once there is one."""
        self.sockets: Any = None
        """The sockets that are read together, where the system allows it."""
        self.line: deque[Connection] = deque()
        """Clients that wait for their turn. Nothing has looked at what they sent."""
        self.later: deque[Connection] = deque()
        """Clients that had a turn, and have more to do."""
        self.ends = 0.0
        """When the time of this turn is over."""
        self._is_due = False
        """Whether the event loop is about to end a turn."""
        self._share = 1
        """How many clients a turn serves before it writes and replies. If it served all, every client would be
        waiting while the server works."""
        self._end = end
        self._write_early = write_early
        self._try_writing = try_writing

    def begin(self) -> None:
        """Begin a turn, which ends when the event loop has looked at everything that came in."""
        if not self.begun:
            self.begun = True
            if not self._is_due:  # else turns would pile up, and sockets be read only after all of them
                self._is_due = True
                self.call_soon(self._due)

    def _due(self) -> None:
        self._is_due = False
        self._end()

    def start_clock(self) -> None:
        """Start the time of this turn's commands."""
        self.now_ns = self.clock.now()
        self.ends = time.perf_counter() + TURN_SECONDS

    def count(self, clients: int) -> None:
        """Note how many clients there are now."""
        self._share = max(SHARE_MIN, clients // 4)

    def touch(self, connection: Connection) -> None:
        """A connection may have replies to be sent, and the log commands to be written."""
        self.touched.append(connection)
        if not self.begun:
            self.begin()
        elif len(self.touched) >= self._share:
            self._write_early()

    def try_writing(self) -> None:
        """Write what was changed without waiting for the end of the turn."""
        self._try_writing()


class Connection:
    """A client, as the event loop sees it: an asyncio protocol."""

    def __init__(
        self,
        current: Round,
        clients: Clients,
        machine: Machine,
        outage: Outage,
        archive: Archive,
        rare: Rare,
        beyond: Beyond,
    ) -> None:
        self._round = current
        self._clients = clients
        self.session = Session(machine, clients, outage, archive, rare, beyond, self)
        self.transport: Any = None
        self._is_closing: Any = None
        self._buffered: Any = None
        self._file = -1
        """The socket's descriptor, if bytes can be written to it directly."""
        self._joined = False
        """Whether it is read together with others."""
        self._counted = False
        """Whether it holds so many bytes that they count among those of all clients."""
        self._dirty = False
        self._reading = True
        self._ended = False
        """Whether the client has closed its side."""
        self._paused = False
        """Whether the client does not take its replies."""
        self._since = 0.0
        """Since when a command or replies have been under way; 0 if none are."""

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
        refusal = self._clients.enter(self)
        self._round.count(len(self._clients))
        if refusal is not None:
            self.session.refuse(refusal)
            self.touch()
        if self._file >= 0 and self._round.sockets is not None:
            # Not at once: a transport may begin to read after this.
            self._round.call_soon(self._join)

    def _join(self) -> None:
        """Be read together with others from now on."""
        if self.transport is not None and not self._is_closing():
            self.transport.pause_reading()
            self._joined = True
            if self._reading:
                self._round.sockets.add(self._file, self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """The client has gone."""
        if self._joined:
            self._round.sockets.forget(self._file, self)
        self.transport = self._is_closing = self._buffered = None
        self.session.leave()
        self._clients.leave(self)
        self._round.count(len(self._clients))
        self._round.begin()  # the job of a `run` may have ended

    def address(self) -> str:
        """The client's host and port."""
        found = self.transport.get_extra_info("peername") if self.transport is not None else None
        if not found:
            return "-"
        return shown(*found[:2])

    def close(self) -> None:
        """End it, once all replies are sent."""
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
        current = self._round
        if not current.begun:
            current.start_clock()
        session = self.session
        if len(data) > _LITTLE_BYTES and not session.is_held() and time.perf_counter() >= current.ends:
            session.in_line = True
            current.line.append(self)
        session.feed(data, current.now_ns)
        if session.buffered() > self._most() and session.is_held():
            self._read(False)  # a write may take long
        self._count()
        self.touch()

    def eof_received(self) -> bool:
        """The client sends no more. If it is blocked in a wait, it counts as gone; else it gets its replies."""
        session = self.session
        if self._file < 0 or (session.waiting is not None and not session.is_in_line()):
            return False
        self._ended = True
        self.touch()
        return True

    def arrived(self, data: bytes | None) -> None:
        """The result of reading the socket: bytes, none at its end, or None if it is broken."""
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
        """Have the end of the turn look at this connection."""
        if not self._dirty:
            self._dirty = True
            self._round.touch(self)

    def has_time(self) -> bool:
        """Whether the client may do another command in this turn. If not, it is lined up for the next ones."""
        current = self._round
        if time.perf_counter() < current.ends:
            return True
        current.later.append(self)
        return False

    def go_on(self) -> None:
        """Do the client's next commands: it is its turn."""
        if self.transport is not None:
            self.session.go_on(self._round.now_ns)
            self.touch()

    def _most(self) -> int:
        """How many bytes of waiting commands are kept before the socket isn't read any more."""
        session = self.session
        if not session.known:
            return 0
        return _SMALL_BYTES if session.in_line else _BUFFER_BYTES_MAX

    def try_writing(self) -> None:
        """Write what this client has changed at once, by itself, to find out whether it can be written."""
        self.touch()
        self._round.try_writing()

    def take(self) -> Replies:
        """Take the replies so far."""
        self._dirty = False
        return self.session.take()

    def send(self, replies: list[bytes]) -> None:
        """Send replies, and go on with what the client has sent since."""
        session = self.session
        if self.transport is None:
            return
        if replies:
            self._write(replies[0] if len(replies) == 1 else b"".join(replies))
        if session.closed:
            self.close()
        elif session.buffered() or not self._reading:
            self._go_on()
        elif not self._paused:
            self._since = 0.0
        over = self._ended and not self._dirty and not session.is_in_line()
        if over and (not self._paused or session.waiting is not None):
            self.close()

    def _write(self, data: bytes) -> None:
        """Write at once as much as the socket takes. A transport would wait for its next look at the socket."""
        transport = self.transport
        if self._is_closing():
            return
        if self._file >= 0 and self._buffered() == 0:
            sent = _socket_send(self._file, data)
            if sent == len(data):
                return
            if sent > 0:
                transport.write(memoryview(data)[sent:])
                return
        transport.write(data)  # if the socket is full or broken, the transport knows what to do

    def _go_on(self) -> None:
        """Look at the bytes that are left: commands that had to wait, or aren't complete."""
        session = self.session
        if not self._paused and not session.is_held():
            before = session.buffered()
            session.resume(self._round.clock.now())
            if session.buffered() != before or session.out:
                self.touch()
        held = session.is_held()
        if held and session.waiting is None and not session.in_line and session.buffered():
            self.touch()  # it waits for a write, and then it is its turn
        if not self._paused:
            self._since = 0.0 if held or not session.buffered() else self._since or time.monotonic()
        self._read(not self._paused and not (held and session.buffered() > self._most()))
        self._count()

    def _count(self) -> None:
        """Note how many bytes the connection holds, if they are many."""
        size = self.session.buffered()
        if self._paused and self.transport is not None:
            size += self._buffered()
        if (size > _SMALL_BYTES or self._counted) and self.transport is not None and not self._is_closing():
            self._counted = size > _SMALL_BYTES
            self._clients.keep(self, size if self._counted else 0)

    def _read(self, wanted: bool) -> None:
        """Read from the client, or stop reading."""
        if self._ended:
            wanted = False
        if wanted == self._reading or self.transport is None or self._is_closing():
            return
        self._reading = wanted
        if self._joined:
            if wanted:
                self._round.sockets.add(self._file, self)
            else:
                self._round.sockets.remove(self._file)
        elif wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def is_late(self, now: float) -> bool:
        """Whether a command or a reply has been under way for too long."""
        return self._since > 0 and now - self._since > PATIENCE_SECONDS

    def pause_writing(self) -> None:
        """The client doesn't read its replies: read no more of its commands."""
        self._paused = True
        self._since = time.monotonic()
        self._read(False)
        self._count()

    def resume_writing(self) -> None:
        """The client reads its replies again."""
        self._paused = False
        self._since = 0.0
        self._read(True)
        self._count()
        self.touch()
