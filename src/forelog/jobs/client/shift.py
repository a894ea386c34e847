"""What the threads and the tasks of a worker share: what to lease, what runs, outcomes on their way, counters."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forelog.errors import ConnectionLost, JobError, JobRefused, ServerFailed
from forelog.jobs.client import requests
from forelog.jobs.client.attempt import AsyncClients, Attempt, Clients, Describe, Function, text_of
from forelog.jobs.client.endpoint import reason_of
from forelog.jobs.client.requests import Request
from forelog.jobs.client.signals import Discard, Retry
from forelog.jobs.client.values import Leased
from forelog.jobs.machine.limits import RESULT_BYTES_MAX

logger = logging.getLogger("forelog")

AWAY_SECONDS = (0.1, 5.0)
AWAY_LOG_SECONDS = 1.0
"""Between two log lines that say that the server is away."""
STOP_SECONDS = 10.0
"""How long a stopping worker keeps a result while the server is away."""
BEATS = 3
"""A lease ends when so many heartbeats are missed."""
LEASE_COUNT_MAX = 100
_UNKNOWN_FLAGS = ("Invalid command args", "Invalid command flags")


@dataclass(frozen=True, slots=True)
class Counters:
    """What a worker has done so far."""

    leased: int = 0
    """Jobs that were leased."""
    completed: int = 0
    """Jobs that completed."""
    failed: int = 0
    """Attempts that failed."""
    late: int = 0
    """Attempts that took longer than their time to run."""
    lost: int = 0
    """Results that the server refused, or that may not have arrived."""
    reconnects: int = 0
    """How often the server was away."""


class Pause:
    """How long to wait before the server is tried again: longer each time."""

    def __init__(self) -> None:
        self._seconds = AWAY_SECONDS[0]

    def next(self) -> float:
        """The next wait, in seconds."""
        seconds, self._seconds = self._seconds, min(2 * self._seconds, AWAY_SECONDS[1])
        return seconds * random.uniform(0.5, 1.0)


class Shift:
    """The work of a worker between its start and its end."""

    def __init__(self, lease_ms: int, heartbeat_ms: int = 0) -> None:
        self.functions: dict[str, Function] = {}
        """The functions by the names of their queues."""
        self.describe: Describe = text_of
        """Makes the result of a job that failed."""
        self.stopping = threading.Event()
        """Whether no more jobs are to be leased."""
        self.heartbeat_ms = heartbeat_ms
        """Between two heartbeats of a job. 0: none, and a lease lasts for the job's time to run."""
        self.running: set[Attempt] = set()
        """Attempts that were leased and whose outcome has not arrived."""
        self.late: deque[Delivery] = deque()
        """Outcomes that could not be sent at the first try."""
        self.clients: tuple[Clients, AsyncClients] | None = None
        """The clients of attempts."""
        self._plain = False
        """Whether the server knows no more than workq."""
        self._lease_ms = lease_ms
        self._lease_requests: dict[int, Request[Any]] = {}
        self._stopped_at = 0.0
        self._logged_away = -AWAY_LOG_SECONDS
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Counters.__dataclass_fields__, 0)

    @property
    def counters(self) -> Counters:
        """What was done so far."""
        return Counters(**self._counts)

    @contextmanager
    def open(self, server: str, concurrency: int) -> Iterator[None]:
        """Hold this open during all work. Raises the error that has ended the work, if one has."""
        if not self.functions:
            raise ValueError("a worker needs a function: @worker.job(NAME)")
        names = ", ".join(self.functions)
        logger.info("doing jobs of %s at %s, %d at a time", names, server, concurrency)
        yield
        logger.info("stopped: %s", self.counters)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Lease no more."""
        self._stopped_at = self._stopped_at or time.monotonic()
        self.stopping.set()

    def is_out_of_time(self) -> bool:
        """Whether the worker was stopped so long ago that results are given up."""
        return self.stopping.is_set() and time.monotonic() - self._stopped_at > STOP_SECONDS

    # -- leases

    def lease_request(self, count: int) -> Request[Any]:
        """A lease of up to `count` jobs of any of the names. Its value is for `leased`."""
        if self._plain:
            count = 1
        count = min(count, LEASE_COUNT_MAX)
        request = self._lease_requests.get(count)
        if request is None:
            names = list(self.functions)
            if self._plain:
                request = requests.lease(names, self._lease_ms)
            else:
                lease_ms = BEATS * self.heartbeat_ms
                request = requests.leases(names, self._lease_ms, count=count, lease_ms=lease_ms, info=True)
            self._lease_requests[count] = request
        return request

    def begin(self, found: Leased | Sequence[Leased] | None) -> list[Attempt]:
        """Begin an attempt for each job that was leased."""
        if not found:
            return []
        now = time.monotonic()
        attempts = [
            Attempt(
                leased.id,
                leased.name,
                leased.payload,
                leased.ttr_ms,
                now + leased.ttr_ms / 1000,
                leased.info,
                begun=now,
                clients=self.clients,
            )
            for leased in ([found] if isinstance(found, Leased) else found)
        ]
        self.running.update(attempts)
        self.count("leased", len(attempts))
        return attempts

    def is_plain(self, error: Exception) -> bool:
        """Whether a refused lease means that the server knows no more than workq. Then ask it in its own words."""
        if self._plain or not isinstance(error, JobRefused) or error.reason not in _UNKNOWN_FLAGS:
            return False
        logger.info("the server knows neither heartbeats nor retries with a backoff: jobs are leased as of workq")
        self._lease_requests = {}
        self._plain = True
        self.heartbeat_ms = 0
        return True

    def is_away(self, error: Exception) -> bool:
        """Whether the server is only away. If not, or if the worker is stopping, leasing ends."""
        if isinstance(error, ConnectionLost | ServerFailed):
            if self.stopping.is_set():
                return False
            self.count("reconnects")
            now = time.monotonic()
            if now - self._logged_away > AWAY_LOG_SECONDS:  # once, not by each thread
                self._logged_away = now
                logger.warning("no jobs for now: %s", error)
            return True
        self.end_with(error)
        return False

    def end_if_meant(self, error: BaseException) -> None:
        """End the worker if a function has raised something meant for the program, such as sys.exit()."""
        if not isinstance(error, Exception):
            self.end_with(error)

    def end_with(self, error: BaseException) -> None:
        """End the worker with an error."""
        self._error = self._error or error
        self.stop()

    # -- outcomes

    def success(self, attempt: Attempt, value: object) -> Delivery:
        """The outcome of an attempt whose function has returned."""
        result = value.encode() if isinstance(value, str) else b"" if value is None else value
        if not isinstance(result, bytes | bytearray):
            raise TypeError(f"a job's result is bytes, a text or None, not {type(value).__name__}")
        if len(result) > RESULT_BYTES_MAX:
            raise ValueError(f"a result of {len(result)} bytes is over the limit of {RESULT_BYTES_MAX}")
        request = requests.complete(attempt.id, bytes(result), attempt=attempt.number)
        return Delivery(attempt, True, request, self)

    def failure(self, attempt: Attempt, error: BaseException) -> Delivery:
        """The outcome of an attempt whose function has raised."""
        wait: int | None = None
        final = False
        if isinstance(error, Retry):
            wait = error.after_ms
            logger.info("%s %s is to be tried again: %s", attempt.name, attempt.id, error)
        elif isinstance(error, Discard):
            final = True
            logger.warning("%s %s is discarded: %s", attempt.name, attempt.id, error)
        else:
            text = text_of(error).decode()
            logger.error("%s %s failed: %s", attempt.name, attempt.id, text, exc_info=error)
        data = self.describe(error)[:RESULT_BYTES_MAX]
        if self._plain or attempt.info is None:
            request = requests.fail(attempt.id, data)
        else:
            request = requests.fail(attempt.id, data, attempt=attempt.number, retry_after_ms=wait, final=final)
        return Delivery(attempt, False, request, self)

    def refused(self, delivery: Delivery, error: JobError) -> None:
        """The server hasn't taken an outcome. The keeper sends it again, if that may help."""
        seconds = delivery.refused(error)
        if seconds is not None:
            delivery.due = time.monotonic() + seconds
            self.late.append(delivery)

    def broken(self, deliveries: Iterable[Delivery], error: Exception, *, unknown: bool) -> None:
        """The connection broke before the replies to these came. `unknown` says whether they were sent."""
        for delivery in deliveries:
            self.refused(delivery, ConnectionLost(reason_of(error), unknown=unknown))

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """The server has taken these outcomes."""
        completed = 0
        for delivery in deliveries:
            completed += delivery.success
            self.running.discard(delivery.attempt)
        with self._lock:
            self._counts["completed"] += completed
            self._counts["failed"] += len(deliveries) - completed

    def given_up(self, delivery: Delivery, what: str) -> None:
        """An outcome is not sent any more: it is `late`, or `lost`."""
        self.running.discard(delivery.attempt)
        self.count(what)

    def count(self, what: str, more: int = 1) -> None:
        """Count."""
        with self._lock:
            self._counts[what] += more

    def log_late(self, attempt: Attempt, consequence: str) -> None:
        """Log an attempt that took too long."""
        logger.warning(
            "%s %s took longer than its %d ms: %s, the server gives the job to another worker",
            attempt.name,
            attempt.id,
            attempt.ttr_ms,
            consequence,
        )


@dataclass(slots=True)
class Delivery:
    """An outcome on its way to the server."""

    attempt: Attempt
    success: bool
    request: Request[None]
    """What to send."""
    shift: Shift
    due: float = 0.0
    """When it may be sent again, on the clock of `time.monotonic`."""
    _unknown: bool = False
    """Whether it may have arrived already."""
    _pause: Pause | None = None

    def is_over(self) -> bool:
        """Whether it is too late to send it."""
        if self.attempt.remaining() <= 0:
            self.shift.log_late(self.attempt, "its result is not sent")
            self.shift.given_up(self, "late")
            return True
        if self.shift.is_out_of_time():
            logger.warning(
                "%s %s: the worker ends before its result was taken", self.attempt.name, self.attempt.id
            )
            self.shift.given_up(self, "lost")
            return True
        return False

    def sent(self) -> None:
        """The server has taken it."""
        self.shift.delivered([self])

    def refused(self, error: JobError) -> float | None:
        """Handle a refusal. Returns how long to wait before it is sent again, or None if it isn't."""
        # A second complete does no harm, nor does a fail that names its attempt. Another second fail might count
        # twice, or end another worker's attempt.
        harmless = self.success or self.attempt.number > 0
        if isinstance(error, ConnectionLost | ServerFailed) and (harmless or not error.unknown):
            self._unknown = self._unknown or error.unknown
            self._pause = self._pause or Pause()
            return self._pause.next()
        if self._unknown and isinstance(error, JobRefused) and error.reason in ("Duplicate result", "Lost lease"):
            self.sent()
            return None
        logger.warning("the result of %s %s is lost: %s", self.attempt.name, self.attempt.id, error)
        self.shift.given_up(self, "lost")
        return None
