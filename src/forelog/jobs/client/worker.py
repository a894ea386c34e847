"""Does jobs: leases them, calls a function by the name of their queue, and sends the outcome to the server.

    from forelog.jobs import Worker

    worker = Worker(concurrency=4)

    @worker.job("mail")
    def send(job):
        deliver(job.payload, timeout=job.remaining())
        return b"sent"

    worker.run()                # until SIGTERM, Ctrl-C or stop()

What a function returns (bytes, a text or None) completes the job. An exception fails it, with its text as the
result. Once an attempt's time to run is over, the server gives the job to another worker. A result that comes
later is counted as late and logged, but not sent, as it would end the other attempt. The worker's clock starts
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
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from forelog.bounds import check_number, check_whole
from forelog.errors import JobError
from forelog.jobs.client import requests
from forelog.jobs.client.client import Client
from forelog.jobs.client.exchange import CONNECT_SECONDS, REPLY_SECONDS
from forelog.jobs.client.shift import Attempt, Counters, Delivery, Pause, Shift
from forelog.jobs.machine.limits import TTR_MS_MAX

if TYPE_CHECKING:
    import ssl

F = TypeVar("F", bound=Callable[[Attempt], Any])
CONCURRENCY_MAX = 10_000
"""Jobs of one worker at a time: each has a thread."""


class Worker:
    """Does jobs of the queues that it has functions for, `concurrency` of them at a time.

    If several queues have jobs, those named first go first. `lease_ms` is how long a request for a job waits;
    stopping an idle worker takes about as long. The other options are those of `Client`.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Attempt], Any]] | None = None,
        server: str = "127.0.0.1:9922",
        *,
        concurrency: int = 1,
        lease_ms: int = 1000,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool = False,
        timeout: float = REPLY_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
    ) -> None:
        check_whole("concurrency", concurrency, most=CONCURRENCY_MAX)
        check_whole("lease_ms", lease_ms, least=0, most=TTR_MS_MAX)
        check_number("timeout", timeout, above=True)
        check_number("connect_timeout", connect_timeout, above=True)
        self._server = server
        self._concurrency = concurrency
        self._options: dict[str, Any] = {
            "token": token,
            "tls": tls,
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "retry_seconds": 0,
            "connections": concurrency,
        }
        self._shift = Shift(lease_ms)
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

            asyncio.run(self.run_async())
            return
        shift = self._shift
        with (
            shift.open(self._server, self._concurrency),
            Client(self._server, **self._options) as client,
            _signals(shift),
        ):
            threads = [
                threading.Thread(target=_work, args=(shift, client), name=f"forelog-worker-{number}", daemon=True)
                for number in range(self._concurrency)
            ]
            for thread in threads:
                thread.start()
            shift.stopping.wait()
            for thread in threads:
                thread.join()

    async def run_async(self) -> None:
        """Do jobs in the running event loop, until stopped. Functions that aren't coroutines run on threads."""
        from forelog.jobs.client.async_client import AsyncClient  # loads asyncio, which threads do not need
        from forelog.jobs.client.tasks import run_tasks

        with self._shift.open(self._server, self._concurrency):
            async with AsyncClient(self._server, **self._options) as client:
                await run_tasks(self._shift, client, self._concurrency)


def _work(shift: Shift, client: Client) -> None:
    """What one thread does."""
    pause = Pause()
    lease = shift.lease_request()
    while not shift.stopping.is_set():
        try:
            leased = client.call(lease)
        except Exception as error:
            if not shift.is_away(error):
                return
            shift.stopping.wait(pause.next())
            continue
        pause = Pause()
        if leased is not None:
            attempt = shift.begin(leased)
            try:
                delivery = shift.success(attempt, shift.functions[attempt.name](attempt))
            except BaseException as error:
                delivery = shift.failure(attempt, error)
                shift.end_if_meant(error)
            _deliver(client, delivery)


def _deliver(client: Client, delivery: Delivery) -> None:
    while not delivery.is_over():
        try:
            client.call(delivery.request)
        except JobError as error:
            seconds = delivery.refused(error)
            if seconds is None:
                return
            time.sleep(seconds)
        else:
            delivery.sent()
            return


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
