"""A job, as a worker's function gets it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from forelog.jobs.client import lifecycle
from forelog.jobs.client.values import LeaseInfo
from forelog.jobs.client.words import span_ms

if TYPE_CHECKING:
    from forelog.jobs.client.async_client import AsyncClient
    from forelog.jobs.client.client import Client

Clients = Callable[[], "Client"]
AsyncClients = Callable[[], "AsyncClient"]


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a job, as a worker's function gets it."""

    id: UUID
    """The job's id."""
    name: str
    """The name of its queue."""
    payload: bytes
    """What the client that added the job has sent."""
    ttr_ms: int
    """Time to run: how long this attempt may take."""
    deadline: float
    """When that time is over, on the clock of `time.monotonic`."""
    info: LeaseInfo | None = None
    """What else the server knows of the job. None if it is a server that doesn't tell."""
    cancelled: bool = False
    """Whether somebody has cancelled the job: stop, its result isn't needed."""
    lost: bool = False
    """Whether the lease has ended: another worker may have the job."""
    begun: float = field(default=0.0, repr=False)
    """When it began, on the clock of `time.monotonic`."""
    clients: tuple[Clients, AsyncClients] | None = field(default=None, repr=False)
    """The worker's clients."""
    on_end: Callable[[], object] | None = field(default=None, repr=False)
    """Called, on another thread, when the attempt is cancelled or lost."""
    on_extend: Callable[[float], object] | None = field(default=None, repr=False)
    """Called when it may take so many seconds more from now."""

    @property
    def number(self) -> int:
        """The attempt's number, from 1. 0 if the server doesn't tell."""
        return 0 if self.info is None else self.info.attempt

    @property
    def last_error(self) -> str | None:
        """The error of the last attempt that failed, if there was one: `ValueError: no such customer`."""
        return None if self.info is None or self.info.error is None else error_text(self.info.error)

    def remaining(self) -> float:
        """How many seconds are left. Negative once the attempt is late."""
        return self.deadline - time.monotonic()

    @property
    def client(self) -> Client:
        """A client of the job's server, for the function to use."""
        if self.clients is None:
            raise ValueError("this attempt isn't one of a worker: it has no client")
        return self.clients[0]()

    @property
    def aio(self) -> AsyncAttempt:
        """The same methods, to be awaited in coroutines."""
        return AsyncAttempt(self)

    def progress(self, percent: int, text: str | bytes = b"") -> None:
        """Report how much of the job is done. Clients that follow the job see it."""
        data = text.encode() if isinstance(text, str) else text
        self.client.call(lifecycle.progress(self.id, percent, data, attempt=self.number))

    def extend(self, span: str | float | timedelta) -> None:
        """Let the attempt take so long from now: `"5m"`, seconds, or a timedelta."""
        ms = span_ms("span", span)
        self.client.call(lifecycle.extend(self.id, ms, attempt=self.number))
        self.deadline = time.monotonic() + ms / 1000

    def end(self, *, cancelled: bool) -> None:
        """The server says that the job was cancelled, or that its lease has ended."""
        self.cancelled, self.lost = self.cancelled or cancelled, self.lost or not cancelled
        if self.on_end is not None:
            self.on_end()


class AsyncAttempt:
    """The methods of an attempt, to be awaited."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def client(self) -> AsyncClient:
        """A client of the job's server, for the coroutine to use."""
        if self._attempt.clients is None:
            raise ValueError("this attempt isn't one of a worker: it has no client")
        return self._attempt.clients[1]()

    async def progress(self, percent: int, text: str | bytes = b"") -> None:
        """Report how much of the job is done. Clients that follow the job see it."""
        data = text.encode() if isinstance(text, str) else text
        attempt = self._attempt
        await self.client.call(lifecycle.progress(attempt.id, percent, data, attempt=attempt.number))

    async def extend(self, span: str | float | timedelta) -> None:
        """Let the attempt take so long from now: `"5m"`, seconds, or a timedelta."""
        ms = span_ms("span", span)
        attempt = self._attempt
        await self.client.call(lifecycle.extend(attempt.id, ms, attempt=attempt.number))
        attempt.deadline = time.monotonic() + ms / 1000
        if attempt.on_extend is not None:
            attempt.on_extend(ms / 1000)


def error_text(data: bytes) -> str:
    """What a failed attempt has sent, in a line: type and message, also of a task of an app, which sends JSON.

    >>> error_text(b'{"error":{"type":"ValueError","message":"no","traceback":"..."}}'), error_text(b"OSError: no")
    ('ValueError: no', 'OSError: no')
    """
    if data.startswith(b'{"error"'):
        import json  # workers of other kinds do without

        try:
            found = json.loads(data)["error"]
            return f"{found['type']}: {found['message']}" if found["message"] else str(found["type"])
        except (ValueError, KeyError, TypeError):
            pass
    return data.decode("utf-8", "backslashreplace")


def text_of(error: BaseException) -> bytes:
    """An exception as the result of a job that failed: its type and its message."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.encode("utf-8", "backslashreplace")


Describe = Callable[[BaseException], bytes]
Function = Callable[[Attempt], Any]
