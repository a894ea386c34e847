"""The network of a world: TCP connections over links that delay, cut and lose.

A connection carries bytes in order, each way, in pieces of any size. Bytes sent over a cut link are sent again,
at growing intervals. If that takes too long, the sender's connection breaks. When a process is killed, its
machine closes its connections. When a machine loses power, nobody is informed: its peers find out when they
send, or never.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable
from typing import Any, Protocol

from forelog.testing.world.core import Core
from forelog.testing.world.transport import Transport, Wired, reset_error

_MS = 1_000_000
_PIECE_BYTES_MAX = 16 << 10
_RESEND_NS = 200 * _MS
_GIVE_UP_NS = 20_000 * _MS
"""How long bytes are sent again before a connection counts as broken."""
_FIRST_PORT = 20_000


class Host(Wired, Protocol):
    """What the network needs of a process."""

    listeners: dict[int, Listener]

    def future(self) -> asyncio.Future[Any]:
        """A future of its event loop."""


class Listener:
    """Where a process accepts connections: the part of asyncio's server that a world has."""

    def __init__(self, network: Network, host: Host, make: Callable[[], asyncio.BaseProtocol], port: int) -> None:
        self._network = network
        self._address = host.machine_name, port
        self.host = host
        self.make = make
        self.sockets: tuple[Listener, ...] = (self,)

    def getsockname(self) -> tuple[str, int]:
        """The address."""
        return self._address

    def is_serving(self) -> bool:
        """Whether it still accepts."""
        return bool(self.sockets)

    def close(self) -> None:
        """Accept no more."""
        self.sockets = ()
        self._network.listeners.pop(self._address, None)
        self.host.listeners.pop(self._address[1], None)

    async def wait_closed(self) -> None:
        """Closing takes no time."""

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Network:
    """Links between machines. Each direction has its own."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._random = core.branch("network")
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.is_up: Callable[[str], bool | None] = lambda name: None  # noqa: ARG005
        """Whether a machine has power; None if there is no such machine."""
        self.delay_ns = (100_000, 2 * _MS)
        """How long a piece takes from machine to machine, at least and at most."""
        self._cut: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], int] = {}
        self._ports = _FIRST_PORT

    # -- faults

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Let nothing through from one machine to another, and by default nothing back."""
        self._core.note("cut", f"{source} {'<>' if both else '>'} {target}")
        self._cut.add((source, target))
        if both:
            self._cut.add((target, source))

    def slow_down(self, source: str, target: str, seconds: float) -> None:
        """Delay everything from one machine to another by this much."""
        self._core.note("slow", f"{source} > {target} {seconds:g} s")
        self._slow[source, target] = round(seconds * 1e9)

    def heal(self) -> None:
        """Let everything through again, without delay."""
        self._core.note("heal", "")
        self._cut.clear()
        self._slow.clear()

    def reset(self) -> bool:
        """Break one open connection, if there is any. Both sides get an error."""
        hosts = {listener.host.label: listener.host for listener in self.listeners.values()}
        found = [side for _, host in sorted(hosts.items()) for side in host.transports]
        if not found:
            return False
        side = self._random.choice(found)
        self._core.note("reset", side.label)
        side.broken(reset_error())
        side.peer.broken(reset_error())
        return True

    # -- for processes

    def listen(self, host: Host, make: Callable[[], asyncio.BaseProtocol], port: int) -> Listener:
        """Accept connections at a port; 0 chooses a free one."""
        if not port:
            self._ports += 1
            port = self._ports
        address = host.machine_name, port
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self.listeners[address] = host.listeners[port] = Listener(self, host, make, port)
        return listener

    async def connect(
        self, host: Host, make: Callable[[], asyncio.BaseProtocol], name: str, port: int
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Connect to a machine."""
        target = host.machine_name if name in ("127.0.0.1", "localhost", "::1") else name
        if self.is_up(target) is None:
            raise OSError(f"there is no machine {target} in this world")
        future = host.future()
        core = self._core
        began_ns = core.now_ns
        core.step_out(host, "connect")

        def refuse(error: OSError) -> None:
            host.call(lambda: None if future.done() else future.set_exception(error))

        def ask(attempt: int = 0) -> None:
            if future.done() or not host.alive:
                return
            there = self.is_up(target) and self.passes(host.machine_name, target)
            if not there or not self.passes(target, host.machine_name):
                if core.now_ns - began_ns > _GIVE_UP_NS:
                    refuse(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
                else:
                    core.after(_RESEND_NS << min(attempt, 5), lambda: ask(attempt + 1))
                return
            listener = self.listeners.get((target, port))
            if listener is None:
                back_ns = self.takes(target, host.machine_name)
                error = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                core.after(back_ns, lambda: refuse(error))
                return
            self._join(host, listener, make, future)

        core.after(host.ahead_ns + self.takes(host.machine_name, target), ask)
        return await future  # type: ignore[no-any-return]

    def _join(
        self,
        host: Host,
        listener: Listener,
        make: Callable[[], asyncio.BaseProtocol],
        future: asyncio.Future[Any],
    ) -> None:
        self._ports += 1
        client = Transport(self._core, self, host, (host.machine_name, self._ports))
        server = Transport(self._core, self, listener.host, listener.getsockname())
        client.peer, server.peer = server, client
        self._core.note("connect", f"{client.label} {server.label}")
        listener.host.call(lambda: server.begin(listener.make()))

        def connected() -> None:
            if future.done():
                client.abort()
            else:
                client.begin(make())
                future.set_result((client, client.get_protocol()))

        self._core.after(self.takes(server.machine, client.machine), lambda: host.call(connected))

    # -- for transports

    def takes(self, source: str, target: str) -> int:
        """How long a piece takes from one machine to another."""
        return self._random.randint(*self.delay_ns) + self._slow.get((source, target), 0)

    def piece(self, available: int) -> int:
        """How many of these bytes travel together, or are read at once."""
        if available <= 1 or self._random.random() < 0.7:
            return min(available, _PIECE_BYTES_MAX)
        return self._random.randint(1, min(available, _PIECE_BYTES_MAX))

    def passes(self, source: str, target: str) -> bool:
        """Whether a link lets anything through."""
        return (source, target) not in self._cut

    def carry(self, source: Transport, arrive: Callable[[], None], due_ns: int) -> None:
        """Deliver something to the other side of a connection, not before what was sent earlier."""
        core = self._core

        def attempt_it() -> None:
            target = source.peer
            if source.is_forgotten:
                return  # nobody sends it again
            if self.is_up(target.machine) and self.passes(source.machine, target.machine):
                arrive()
            elif core.now_ns - due_ns > _GIVE_UP_NS:
                source.broken(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
            else:
                core.after(_RESEND_NS << min(next(attempts), 5), attempt_it)

        attempts = itertools.count()
        core.after(due_ns - core.now_ns, attempt_it)
