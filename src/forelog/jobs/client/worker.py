"""Does jobs: leases them, calls a function by the name of their queue, and sends the outcome to the server.

    from forelog.jobs import Worker

    worker = Worker(concurrency=4)

    @worker.job("mail")
    def send(job):
        deliver(job.payload, timeout=job.remaining())
        return b"sent"

    worker.run()                # until SIGTERM, Ctrl-C or stop()

What a function returns (bytes, a text or None) completes the job. An exception fails it, with its text as the
result, and its traceback is logged. `Retry` and `Discard` say what becomes of the job.

The worker sends heartbeats for jobs that take long. If it is killed, its leases end within three times
`heartbeat_ms`, if the server knows heartbeats. Once an attempt's time to run is over, the server gives the job to
another worker. A result that comes later is counted as late and logged, but not sent. The worker's clock starts
when the job arrives, and the server's when it was sent: the worker does not notice a result that is late by less
than that.

After `stop()` or a signal the worker finishes the jobs that it has, and leases no more. While the server is away
it tries to connect, less and less often. A result that is ready is sent when the server is back, if its time is
not over. Functions with `async def` run as tasks of one event loop, and are cancelled when their time is over
(`forelog.jobs.client.tasks`).
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from forelog.bounds import check_number, check_whole
from forelog.jobs.client import requests
from forelog.jobs.client.attempt import Attempt, Describe
from forelog.jobs.client.client import Client
from forelog.jobs.client.crew import Crew
from forelog.jobs.client.endpoint import Endpoint
from forelog.jobs.client.exchange import CONNECT_SECONDS, REPLY_SECONDS
from forelog.jobs.client.keeper import Keeper
from forelog.jobs.client.link import Link
from forelog.jobs.client.shift import BEATS, Counters, Shift
from forelog.jobs.machine.limits import TTR_MS_MAX

if TYPE_CHECKING:
    import ssl

    from forelog.jobs.client.async_client import AsyncClient

F = TypeVar("F", bound=Callable[[Attempt], Any])
HEARTBEAT_MS = 2000
CONCURRENCY_MAX = 10_000
"""Jobs of one worker at a time: each has a thread."""


class Worker:
    """Does jobs of the queues that it has functions for, `concurrency` of them at a time.

    If several queues have jobs, those named first go first. `lease_ms` is how long a request for a job waits;
    stopping an idle worker takes about as long. `heartbeat_ms` is how often it says that a job is still being
    done: if it is killed, other workers get the job after three times as long. 0 is for never, and then they get
    it when the job's time to run is over. The other options are those of `Client`.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Attempt], Any]] | None = None,
        server: str = "127.0.0.1:9922",
        *,
        concurrency: int = 1,
        lease_ms: int = 1000,
        heartbeat_ms: int = HEARTBEAT_MS,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool = False,
        timeout: float = REPLY_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
    ) -> None:
        check_whole("concurrency", concurrency, most=CONCURRENCY_MAX)
        check_whole("lease_ms", lease_ms, least=0, most=TTR_MS_MAX)
        check_whole("heartbeat_ms", heartbeat_ms, least=0, most=TTR_MS_MAX // BEATS)
        check_number("timeout", timeout, above=True)
        check_number("connect_timeout", connect_timeout, above=True)
        self._server = server
        self._concurrency = concurrency
        self._endpoint = Endpoint.of(server, tls, token)
        self._timeouts = timeout, connect_timeout
        self._options: dict[str, Any] = {
            "token": token,
            "tls": tls,
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "connections": concurrency,
        }
        self._client: Client | None = None
        self._async_client: AsyncClient | None = None
        self._shift = Shift(lease_ms, heartbeat_ms)
        self._shift.clients = self.client, self.async_client
        for name, function in (functions or {}).items():
            self.job(name)(function)

    def job(self, name: str) -> Callable[[F], F]:
        """Decorate the function that does the jobs of a queue. It is called with an `Attempt`."""
        requests.lease([name])  # raises if this is no name

        def take(function: F) -> F:
            if name in self._shift.functions:
                raise ValueError(f"there is a function for {name} already")
            self._shift.functions[name] = function
            return function

        return take

    def describe_errors(self, describe: Describe) -> None:
        """Set what makes the result of a failed job of its exception. By default that is its type and message."""
        self._shift.describe = describe

    @property
    def counters(self) -> Counters:
        """What was done so far."""
        return self._shift.counters

    def stop(self) -> None:
        """Finish the jobs that were begun, and lease no more. Call it from any thread, or a signal handler."""
        self._shift.stop()

    def run(self) -> None:
        """Do jobs until stopped: by `stop()`, and in the main thread also by SIGTERM and SIGINT."""
        if any(inspect.iscoroutinefunction(function) for function in self._shift.functions.values()):
            import asyncio

            from forelog.serving.loops import loop_factory

            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self.run_async())
            return
        shift = self._shift
        try:
            with shift.open(self._server, self._concurrency), Keeper(shift, self._link), _signals(shift):
                Crew(shift, self._link, self._concurrency).run()
        finally:
            if self._client is not None:
                self._client.close()

    async def run_async(self) -> None:
        """Do jobs in the running event loop, until stopped. Functions that aren't coroutines run on threads."""
        import asyncio  # which threads do not need

        from forelog.jobs.client.tasks import run_tasks

        shift = self._shift
        try:
            with shift.open(self._server, self._concurrency):
                keeper = Keeper(shift, self._link).__enter__()
                try:
                    await run_tasks(shift, self._endpoint, *self._timeouts, self._concurrency)
                finally:
                    await asyncio.to_thread(keeper.__exit__)
        finally:
            if self._async_client is not None:
                await self._async_client.close()

    def _link(self) -> Link:
        return Link(self._shift, self._endpoint, *self._timeouts)

    def client(self) -> Client:
        """The client that attempts use. It connects when it is first used."""
        if self._client is None:
            self._client = Client(self._server, **self._options)
        return self._client

    def async_client(self) -> AsyncClient:
        """The client that attempts of coroutines use."""
        if self._async_client is None:
            from forelog.jobs.client.async_client import AsyncClient

            self._async_client = AsyncClient(self._server, **self._options)
        return self._async_client


@contextmanager
def _signals(shift: Shift) -> Iterator[None]:
    """Stop on the first signal. A second one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(*_: object) -> None:
        restore()
        shift.stop()

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()
