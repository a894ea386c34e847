"""Does jobs: leases them, calls a function by their name, and tells the server what came of it.

    from forelog.jobs import Worker

    worker = Worker(concurrency=4)

    @worker.job("mail")
    def send(job):
        deliver(job.payload, timeout=job.remaining())
        return b"sent"

    worker.run()                # until SIGTERM, Ctrl-C or stop()

What a function returns (bytes, a text or None) completes the job; an exception fails it, with its text as the
result. Once an attempt's time to run is over, the server gives the job to somebody else. A result that comes later
is not sent, since it would end that other attempt: it is counted as late, and logged. The worker's clock begins
when the job arrives, the server's when it was sent: by as much as that took, a late result is not seen to be late.

`stop()` and signals let the worker finish what it has, and lease no more. While the server is away it tries to
connect, less and less often; a result that is ready is sent as soon as the server is back, if its time is not
over. Functions with `async def` run as tasks of one event loop, and are cancelled when their time is over; see
worker_tasks.py.
"""

from __future__ import annotations

import inspect
import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from forelog.bounds import check_number, check_whole
from forelog.errors import ConnectionLost, JobError, JobRefused, ServerFailed
from forelog.jobs.client import requests
from forelog.jobs.client.answers import Leased
from forelog.jobs.client.client import Client
from forelog.jobs.client.exchange import ANSWER_SECONDS, CONNECT_SECONDS
from forelog.jobs.client.requests import Request
from forelog.jobs.machine.limits import RESULT_BYTES_MAX, TTR_MS_MAX

if TYPE_CHECKING:
    import ssl

__all__ = ["Attempt", "Counters", "Worker"]

logger = logging.getLogger("forelog")

AWAY_SECONDS = (0.1, 5.0)
AWAY_TOLD_SECONDS = 1.0
"""How long it is before it is told again that the server is away."""
STOP_SECONDS = 10.0
"""How long a result is kept for a server that is away when the worker is to stop."""

Function = Callable[["Attempt"], Any]
F = TypeVar("F", bound=Function)
CONCURRENCY_MAX = 10_000
"""Jobs of one worker at a time: each has a thread."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job, as a function gets it."""

    id: UUID
    name: str
    payload: bytes
    ttr_ms: int
    deadline: float
    """By when it must be done, on the clock of `time.monotonic`."""

    def remaining(self) -> float:
        """How many seconds are left; below zero when it is late."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class Counters:
    """What a worker has done."""

    leased: int = 0
    completed: int = 0
    failed: int = 0
    late: int = 0
    """Attempts that took longer than their time to run."""
    lost: int = 0
    """Results that the server didn't want, or of which it isn't known whether they arrived."""
    reconnects: int = 0
    """How often the server was away."""


class Pause:
    """How long to wait before the server is tried again: longer and longer, until it was there."""

    def __init__(self) -> None:
        self._seconds = AWAY_SECONDS[0]

    def next(self) -> float:
        seconds, self._seconds = self._seconds, min(2 * self._seconds, AWAY_SECONDS[1])
        return seconds * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class Delivery:
    """A result on its way to the server: what to send, and what to make of the answer."""

    attempt: Attempt
    success: bool
    request: Request[None]
    worker: Worker
    pause: Pause = field(default_factory=Pause)
    _unknown: bool = False
    """Whether it may have arrived already."""

    def is_over(self) -> bool:
        """Whether it is too late to send it."""
        if self.attempt.remaining() <= 0:
            self.worker.count_late(self.attempt, "its result is not sent")
            return True
        if self.worker.is_out_of_time():
            self.worker.count("lost")
            logger.warning(
                "%s %s: the worker ends before its result was taken", self.attempt.name, self.attempt.id
            )
            return True
        return False

    def sent(self) -> None:
        """The server has taken it."""
        self.worker.count("completed" if self.success else "failed")
        logger.debug("%s %s is %s", self.attempt.name, self.attempt.id, "done" if self.success else "failed")

    def refused(self, error: JobError) -> float | None:
        """It wasn't taken. Returns how long to wait before it is sent again, or None if it isn't."""
        if isinstance(error, ConnectionLost | ServerFailed) and (self.success or not error.unknown):
            # A second complete does no harm. A second fail might count twice, or end an attempt of someone else.
            self._unknown = self._unknown or error.unknown
            return self.pause.next()
        if self._unknown and isinstance(error, JobRefused) and error.reason == "Duplicate result":
            self.sent()
            return None
        self.worker.count("lost")
        logger.warning("the result of %s %s is lost: %s", self.attempt.name, self.attempt.id, error)
        return None


class Worker:
    """Does jobs of the names that it has functions for, `concurrency` of them at a time.

    Where several names have jobs, those named first are done first. `lease_ms` is how long one lease waits, and
    about how long it takes to stop an idle worker. The other options are those of `Client`.
    """

    def __init__(
        self,
        functions: Mapping[str, Function] | None = None,
        server: str = "127.0.0.1:9922",
        *,
        concurrency: int = 1,
        lease_ms: int = 1000,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool = False,
        timeout: float = ANSWER_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
    ) -> None:
        check_whole("concurrency", concurrency, most=CONCURRENCY_MAX)
        check_whole("lease_ms", lease_ms, least=0, most=TTR_MS_MAX)
        check_number("timeout", timeout, above=True)
        check_number("connect_timeout", connect_timeout, above=True)
        self.concurrency = concurrency
        self.functions: dict[str, Function] = {}
        self.server = server
        self.settings: dict[str, Any] = {
            "token": token,
            "tls": tls,
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "retry_seconds": 0,
            "connections": concurrency,
        }
        self._lease_ms = lease_ms
        self._stopping = threading.Event()
        self._stopped_at = 0.0
        self._told_away = -AWAY_TOLD_SECONDS
        self._error: BaseException | None = None
        self._counters = Counters()
        self._lock = threading.Lock()
        for name, function in (functions or {}).items():
            self.job(name)(function)

    def job(self, name: str) -> Callable[[F], F]:
        """Let a function do the jobs of this name. It is called with an `Attempt`."""
        requests.lease([name])  # it must be a name

        def take(function: F) -> F:
            if name in self.functions:
                raise ValueError(f"there is a function for {name} already")
            self.functions[name] = function
            return function

        return take

    @property
    def counters(self) -> Counters:
        """What has been done so far."""
        return self._counters

    def stop(self) -> None:
        """Finish what was begun, lease no more. From any thread, or a signal handler."""
        self._stopped_at = self._stopped_at or time.monotonic()
        self._stopping.set()

    def run(self) -> None:
        """Do jobs until it is stopped: by `stop()`, and in the main thread by SIGTERM and SIGINT."""
        if any(inspect.iscoroutinefunction(function) for function in self.functions.values()):
            import asyncio

            asyncio.run(self.run_async())
            return
        with self.serving(), Client(self.server, **self.settings) as client, self._signals():
            threads = [
                threading.Thread(target=self._work, args=(client,), name=f"forelog-worker-{number}", daemon=True)
                for number in range(self.concurrency)
            ]
            for thread in threads:
                thread.start()
            self._stopping.wait()
            for thread in threads:
                thread.join()

    async def run_async(self) -> None:
        """Do jobs in the running event loop. Functions that aren't coroutines run on threads."""
        from forelog.jobs.client.tasks import run_tasks

        await run_tasks(self)

    # -- one thread

    def _work(self, client: Client) -> None:
        pause = Pause()
        lease = self.lease_request()
        while not self._stopping.is_set():
            try:
                leased = client.call(lease)
            except Exception as error:
                if not self.is_away(error):
                    return
                self._stopping.wait(pause.next())
                continue
            pause = Pause()
            if leased is not None:
                attempt = self.begin(leased)
                try:
                    delivery = self.delivery_of(attempt, self.functions[attempt.name](attempt))
                except BaseException as error:
                    delivery = self.failure_of(attempt, error)
                    self.end_if_meant(error)
                self._deliver(client, delivery)

    def _deliver(self, client: Client, delivery: Delivery) -> None:
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

    # -- what threads and tasks have in common

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Around all the work."""
        if not self.functions:
            raise ValueError("a worker needs a function: @worker.job(NAME)")
        names = ", ".join(self.functions)
        logger.info("doing jobs of %s at %s, %d at a time", names, self.server, self.concurrency)
        yield
        logger.info("stopped: %s", self._counters)
        if self._error is not None:
            raise self._error

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.getsignal(number) for number in numbers}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(*_: object) -> None:
            restore()  # a second one is not for us
            self.stop()

        for number in numbers:
            signal.signal(number, stop)
        try:
            yield
        finally:
            restore()

    def is_stopping(self) -> bool:
        """Whether nothing more is to be leased."""
        return self._stopping.is_set()

    def is_out_of_time(self) -> bool:
        """Whether the worker has been stopped, and its patience is over."""
        return self._stopping.is_set() and time.monotonic() - self._stopped_at > STOP_SECONDS

    def lease_request(self) -> Request[Leased | None]:
        """A lease of any of the names."""
        return requests.lease(list(self.functions), self._lease_ms)

    def is_away(self, error: Exception) -> bool:
        """Whether it is worth while to try again after this; if not, the worker ends with the error."""
        if isinstance(error, ConnectionLost | ServerFailed):
            if self._stopping.is_set():
                return False  # nor is it an error: no more jobs are wanted
            self.count("reconnects")
            now = time.monotonic()
            if now - self._told_away > AWAY_TOLD_SECONDS:  # once, not by each thread
                self._told_away = now
                logger.warning("no jobs for now: %s", error)
            return True
        self._end_with(error)
        return False

    def end_if_meant(self, error: BaseException) -> None:
        """What a function raised may be meant for the program, and not for a job: sys.exit() ends the worker."""
        if not isinstance(error, Exception):
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    def begin(self, leased: Leased) -> Attempt:
        """An attempt begins."""
        self.count("leased")
        logger.debug("%s %s begins", leased.name, leased.id)
        deadline = time.monotonic() + leased.ttr_ms / 1000
        return Attempt(leased.id, leased.name, leased.payload, leased.ttr_ms, deadline)

    def delivery_of(self, attempt: Attempt, value: object) -> Delivery:
        """What a function returned."""
        result = value.encode() if isinstance(value, str) else b"" if value is None else value
        if not isinstance(result, bytes | bytearray):
            raise TypeError(f"a job's result is bytes, a text or None, not {type(value).__name__}")
        if len(result) > RESULT_BYTES_MAX:
            raise ValueError(f"a result of {len(result)} bytes is over the limit of {RESULT_BYTES_MAX}")
        return Delivery(attempt, True, requests.complete(attempt.id, bytes(result)), self)

    def failure_of(self, attempt: Attempt, error: BaseException) -> Delivery:
        """What a function raised."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        detailed = logger.isEnabledFor(logging.DEBUG)
        logger.warning("%s %s failed: %s", attempt.name, attempt.id, text, exc_info=error if detailed else None)
        data = text.encode("utf-8", "backslashreplace")[:RESULT_BYTES_MAX]
        return Delivery(attempt, False, requests.fail(attempt.id, data), self)

    def count(self, what: str) -> None:
        """One more."""
        with self._lock:
            self._counters = replace(self._counters, **{what: getattr(self._counters, what) + 1})

    def count_late(self, attempt: Attempt, consequence: str) -> None:
        """An attempt took too long."""
        self.count("late")
        logger.warning(
            "%s %s took longer than its %d ms: %s, the server gives the job to somebody else",
            attempt.name,
            attempt.id,
            attempt.ttr_ms,
            consequence,
        )
