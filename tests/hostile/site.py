"""What an attack works with: connections to one server, and a count of what was sent over them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, Connack, Connect, Properties
from tests.broker.talking import Closed, Talk
from tests.hostile.servers import PASSWORD, TOKEN, Server

__all__ = ["Closed", "Pumped", "Site", "Unmet", "packet"]

CHUNK_BYTES = 1 << 18
REFUSED_SECONDS = 2.0
"""A server that takes nothing for so long from a client that doesn't read won't take more."""
LISTEN_SECONDS = 8.0
"""For what a server says after a flood: to some there is always something to say."""


class Unmet(Exception):
    """A server doesn't do what its documentation says."""


class Pumped(NamedTuple):
    """What came of a flood."""

    sent: int
    got: int
    closed: int
    """Connections that the server has ended."""
    whole: bool
    """Whether all was sent that was to be."""


def packet(one: Any, version: int = MQTT_5_0) -> bytes:
    """An MQTT packet of a client."""
    return bytes(encode(one, version, from_server=False))


class _Counted(Talk):
    """A client whose bytes are counted."""

    def __init__(self, site: Site, version: int) -> None:
        self._site = site
        super().__init__(site.port, version)

    def raw(self, data: bytes | bytearray) -> None:
        super().raw(data)
        self._site.sent += len(data)


class Site:
    """One server, and those who are connected to it for an attack."""

    def __init__(self, server: Server, seconds: float, scale: float = 1.0) -> None:
        self.server = server
        self.sent = 0
        self.scale = scale
        self._seconds = seconds
        self._open: list[Any] = []
        self.begin()

    def begin(self) -> None:
        """The attack begins: what came before was preparation."""
        self.sent = 0
        self.deadline = time.monotonic() + self._seconds

    def leave(self) -> None:
        """Close everything, without a word."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.close()
        self._open.clear()

    def drop(self, one: Any) -> None:
        """Close one of them."""
        one.close()
        if one in self._open:
            self._open.remove(one)

    def many(self, count: int) -> int:
        """So many, or fewer in the short form."""
        return max(1, int(count * self.scale))

    @property
    def port(self) -> int:
        return self.server.port

    def left(self) -> float:
        """Seconds that the attack may still take."""
        return self.deadline - time.monotonic()

    # -- connections

    def dial(self, *, port: int | None = None, source: str | None = None, receive_bytes: int = 0) -> socket.socket:
        """A connection that says nothing."""
        found = socket.socket()
        if receive_bytes:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        if source is not None:
            found.bind((source, 0))
        found.settimeout(20)
        found.connect(("127.0.0.1", port or self.port))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.append(found)
        return found

    def send(self, to: socket.socket, data: bytes) -> bool:
        """All of it, if the server takes it in time; whether it did."""
        try:
            to.settimeout(max(0.01, min(20.0, self.left())))
            to.sendall(data)
        except OSError:
            return False
        self.sent += len(data)
        return True

    def mqtt(self, client_id: str = "", version: int = MQTT_5_0, **options: Any) -> Talk:
        """A client that the broker has let in."""
        talk = _Counted(self, version)
        self._open.append(talk)
        talk.socket.settimeout(max(1.0, min(30.0, self.left())))
        answer = talk.connect(client_id, **options)
        if answer.reason_code:
            raise Unmet(f"{client_id or 'a client'} is refused with {answer.reason_code}")
        return talk

    def mqtt_many(self, count: int, prefix: str = "c", **options: Any) -> list[socket.socket]:
        """Sockets of clients that the broker has let in; all CONNECTs first, then the answers."""
        expiry = options.pop("expiry", None)
        clean = options.pop("clean", True)
        properties: Properties = options.pop("properties", {}).copy()
        receive_bytes = options.pop("receive_bytes", 0)
        if expiry is not None:
            properties["session_expiry_interval"] = expiry
        found = []
        for number in range(count):
            one = self.dial(receive_bytes=receive_bytes)
            connect = Connect(f"{prefix}{number}", MQTT_5_0, clean, 0, properties=properties, **options)
            self.send(one, packet(connect))
            found.append(one)
            if len(found) % 500 == 0:
                time.sleep(0.05)  # not more at a time than the server's queue of newcomers takes
        for one in found:
            with contextlib.suppress(OSError):
                one.settimeout(max(0.1, min(20.0, self.left())))
                one.recv(4096)
        return found

    def job_client(self, *, secret: bool = False, receive_bytes: int = 0) -> socket.socket:
        """A connection to a job server."""
        one = self.dial(receive_bytes=receive_bytes)
        if secret:
            self.send(one, f"auth {TOKEN}\r\n".encode())
            self.line(one)
        return one

    def line(self, of: socket.socket) -> bytes:
        """The next line that a server says. Bytes after it are left where they are."""
        found = b""
        of.settimeout(max(0.1, min(20.0, self.left())))
        while not found.endswith(b"\r\n"):
            more = of.recv(1)
            if not more:
                return found
            found += more
        return found[:-2]

    def ask(self, of: socket.socket, data: bytes) -> bytes:
        """Send something that is answered by one line; empty if the server closes."""
        try:
            of.settimeout(max(0.1, min(20.0, self.left())))
            of.sendall(data)
            self.sent += len(data)
            return self.line(of)
        except ConnectionError:
            return b""

    def is_closed(self, one: socket.socket, seconds: float) -> bool:
        """Whether the server ends this connection within a while, whatever it says before."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            one.settimeout(left)
            try:
                if not one.recv(1 << 16):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    # -- floods

    def pump(
        self,
        work: Mapping[socket.socket, bytes | Iterable[bytes]],
        *,
        reads: bool = True,
        quiet: float = 0.0,
        seconds: float = 1000.0,
    ) -> Pumped:
        """Send to each what is there for it, as fast as the server takes it, and throw away what it says.

        Ends when all is sent and then nothing came for `quiet` seconds, or after `seconds`.
        """
        pump = _Pump(work, reads)
        until = min(self.deadline, time.monotonic() + seconds)
        try:
            while time.monotonic() < until and pump.step(until, quiet):
                pass
        finally:
            pump.close()
        self.sent += pump.sent
        return Pumped(pump.sent, pump.got, pump.closed, not pump.sending)

    def login(self) -> dict[str, Any]:
        """For a broker that asks for a name."""
        return {"user_name": "mallory", "password": PASSWORD}

    def settle(self, seconds: float) -> None:
        """Let time pass, though not more than the attack has."""
        time.sleep(max(0.0, min(seconds, self.left())))


class _Pump:
    def __init__(self, work: Mapping[socket.socket, bytes | Iterable[bytes]], reads: bool) -> None:
        self.sent = self.got = self.closed = 0
        self.sending = 0
        self._reads = reads
        self._selector = selectors.DefaultSelector()
        self._last = self._done = time.monotonic()
        for one, data in work.items():
            one.setblocking(False)
            chunks = iter((data,) if isinstance(data, bytes) else data)
            self._selector.register(one, self._events(True), [chunks, memoryview(b"")])
            self.sending += 1

    def _events(self, sending: bool) -> int:
        return (selectors.EVENT_WRITE if sending else 0) | (selectors.EVENT_READ if self._reads else 0)

    def step(self, until: float, quiet: float) -> bool:
        """Whether there is more to do."""
        if not self._selector.get_map():
            return False
        now = time.monotonic()
        if self.sending:
            self._done = now
            if not self._reads and now - self._last >= REFUSED_SECONDS:
                return False
        elif not self._reads or now - self._last >= quiet or now - self._done >= LISTEN_SECONDS:
            return False
        for key, events in self._selector.select(min(0.05, max(0.0, until - time.monotonic()))):
            one: Any = key.fileobj
            try:
                if events & selectors.EVENT_READ and not self._read(one):
                    raise ConnectionError
                if events & selectors.EVENT_WRITE:
                    self._write(one, key.data)
            except BlockingIOError:
                pass
            except OSError:
                self._end(one, key)
        return True

    def _read(self, one: socket.socket) -> bool:
        count = len(one.recv(CHUNK_BYTES))
        self.got += count
        self._last = time.monotonic()
        return count > 0

    def _write(self, one: socket.socket, state: list[Any]) -> None:
        chunks, left = state
        while not left:
            try:
                left = memoryview(next(chunks))
            except StopIteration:
                self.sending -= 1
                self._last = time.monotonic()
                if self._reads:
                    self._selector.modify(one, self._events(False), state)
                else:
                    self._selector.unregister(one)
                return
        state[1] = left  # also if it isn't taken now
        count = one.send(left[:CHUNK_BYTES])
        self.sent += count
        self._last = time.monotonic()
        state[1] = left[count:]

    def _end(self, one: socket.socket, key: selectors.SelectorKey) -> None:
        self.closed += 1
        if key.events & selectors.EVENT_WRITE:
            self.sending -= 1
        self._selector.unregister(one)

    def close(self) -> None:
        self._selector.close()


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Bytes in small parts."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


def refused(talk: Talk, connect: Connect) -> int:
    """The reason with which a CONNECT is refused; 0 if it isn't."""
    talk.send(connect)
    return talk.expect(Connack).reason_code
