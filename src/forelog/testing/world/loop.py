"""The event loop of one process in a world.

It is asyncio's own, except for how it waits. Time is the machine's, sockets are the network's, and work for a
thread runs in one piece, some time later.
"""

from __future__ import annotations

import asyncio
import errno
import os
from asyncio import base_events, events
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Protocol

_RESOLUTION_SECONDS = 1e-6


class Owner(Protocol):
    """What a loop needs of its process."""

    def steady_ns(self) -> int:
        """The steady clock."""

    def run_aside(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """Run a function in one piece later, then set the future."""

    def failed(self, message: str, error: BaseException | None) -> None:
        """Take an exception that nobody caught."""

    def listen(self, make: Callable[[], asyncio.BaseProtocol], port: int) -> Any:
        """Accept connections. Returns the part of an asyncio.Server that a world has."""

    def connect(self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Coroutine[Any, Any, Any]:
        """Make a connection: a transport and its protocol."""


class _NoSelector:
    """Stands where asyncio waits for descriptors. The world does the waiting."""

    def select(self, timeout: float | None) -> list[Any]:  # noqa: ARG002
        return []


class ProcessLoop(base_events.BaseEventLoop):
    """An event loop that a world runs step by step."""

    _ready: Any  # asyncio's own, as are the next two
    _scheduled: Any
    _run_once: Callable[[], None]

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._selector = _NoSelector()
        self._is_cut_off = False
        self._clock_resolution = _RESOLUTION_SECONDS
        self.set_exception_handler(lambda _, context: owner.failed(context["message"], context.get("exception")))

    # -- for the process

    def next_ns(self) -> int | None:
        """When its next step is due, by its steady clock: 0 for now, None if it has nothing to do."""
        if self._ready:
            return 0
        return round(self._scheduled[0].when() * 1e9) if self._scheduled else None

    def step(self) -> None:
        """Do what is due now."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            self._run_once()
        except IndexError:
            if not self._is_cut_off:
                raise
        finally:
            events._set_running_loop(before)

    def cut_off(self) -> None:
        """Do nothing more, not even what is still due in the current step."""
        self._is_cut_off = True
        self._ready.clear()

    # -- what asyncio's loop asks of a loop

    def time(self) -> float:
        return self._owner.steady_ns() / 1e9

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from descriptors."""

    def _write_to_self(self) -> None:
        """Do nothing: a loop that is stepped needs no waking."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002
        """Run a function in one piece, later. The event loop isn't held up meanwhile."""
        future = self.create_future()
        self._owner.run_aside(lambda: func(*args), future)
        return future

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]  # noqa: ARG002
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    # -- the network

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Any = None,  # noqa: ARG002 - a machine has one address
        port: int | None = None,
        **options: Any,
    ) -> Any:
        _refuse_tls(options)
        return self._owner.listen(protocol_factory, port or 0)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **options: Any,
    ) -> Any:
        _refuse_tls(options)
        return await self._owner.connect(protocol_factory, host, port)


def _refuse_tls(options: dict[str, Any]) -> None:
    if options.get("ssl"):
        raise NotImplementedError("TLS isn't simulated: try it for real")
