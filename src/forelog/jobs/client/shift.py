"""What the threads and the tasks of a worker share: what to lease, outcomes on their way, counters, when to
stop."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from forelog.errors import ConnectionLost, JobError, JobRefused, ServerFailed
from forelog.jobs.client import requests
from forelog.jobs.client.requests import Request
from forelog.jobs.client.values import Leased
from forelog.jobs.machine.limits import RESULT_BYTES_MAX

logger = logging.getLogger("forelog")

AWAY_SECONDS = (0.1, 5.0)
AWAY_LOG_SECONDS = 1.0
"""Between two log lines that say that the server is away."""
STOP_SECONDS = 10.0
"""How long a stopping worker keeps a result while the server is away."""

Function = Callable[["Attempt"], Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job, as a worker's function gets it."""

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

    def remaining(self) -> float:
        """How many seconds are left. Negative once the attempt is late."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class Counters:
    """What a worker has done so far."""

    leased: int = 0
    """Jobs that were leased."""
    completed: int = 0
    """Jobs that completed."""
    failed: int = 0
    """Jobs that failed."""
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

    def __init__(self, lease_ms: int) -> None:
        self.functions: dict[str, Function] = {}
        """The functions by the names of their queues."""
        self.stopping = threading.Event()
        """Whether no more jobs are to be leased."""
        self.counters = Counters()
        self._lease_ms = lease_ms
        self._stopped_at = 0.0
        self._logged_away = -AWAY_LOG_SECONDS
        self._error: BaseException | None = None
        self._lock = threading.Lock()

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

    def lease_request(self) -> Request[Leased | None]:
        """A lease of any of the names."""
        return requests.lease(list(self.functions), self._lease_ms)

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
        self._end_with(error)
        return False

    def end_if_meant(self, error: BaseException) -> None:
        """End the worker if a function has raised something meant for the program, such as sys.exit()."""
        if not isinstance(error, Exception):
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    def begin(self, leased: Leased) -> Attempt:
        """Begin an attempt."""
        self.count("leased")
        logger.debug("%s %s begins", leased.name, leased.id)
        deadline = time.monotonic() + leased.ttr_ms / 1000
        return Attempt(leased.id, leased.name, leased.payload, leased.ttr_ms, deadline)

    def success(self, attempt: Attempt, value: object) -> Delivery:
        """The outcome of an attempt whose function has returned."""
        result = value.encode() if isinstance(value, str) else b"" if value is None else value
        if not isinstance(result, bytes | bytearray):
            raise TypeError(f"a job's result is bytes, a text or None, not {type(value).__name__}")
        if len(result) > RESULT_BYTES_MAX:
            raise ValueError(f"a result of {len(result)} bytes is over the limit of {RESULT_BYTES_MAX}")
        return Delivery(attempt, True, requests.complete(attempt.id, bytes(result)), self)

    def failure(self, attempt: Attempt, error: BaseException) -> Delivery:
        """The outcome of an attempt whose function has raised."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        detailed = logger.isEnabledFor(logging.DEBUG)
        logger.warning("%s %s failed: %s", attempt.name, attempt.id, text, exc_info=error if detailed else None)
        data = text.encode("utf-8", "backslashreplace")[:RESULT_BYTES_MAX]
        return Delivery(attempt, False, requests.fail(attempt.id, data), self)

    def count(self, what: str) -> None:
        """Count one more."""
        with self._lock:
            self.counters = replace(self.counters, **{what: getattr(self.counters, what) + 1})

    def count_late(self, attempt: Attempt, consequence: str) -> None:
        """Count and log an attempt that took too long."""
        self.count("late")
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
    pause: Pause = field(default_factory=Pause)
    _unknown: bool = False
    """Whether it may have arrived already."""

    def is_over(self) -> bool:
        """Whether it is too late to send it."""
        if self.attempt.remaining() <= 0:
            self.shift.count_late(self.attempt, "its result is not sent")
            return True
        if self.shift.is_out_of_time():
            self.shift.count("lost")
            logger.warning(
                "%s %s: the worker ends before its result was taken", self.attempt.name, self.attempt.id
            )
            return True
        return False

    def sent(self) -> None:
        """The server has taken it."""
        self.shift.count("completed" if self.success else "failed")
        logger.debug("%s %s is %s", self.attempt.name, self.attempt.id, "done" if self.success else "failed")

    def refused(self, error: JobError) -> float | None:
        """Handle a refusal. Returns how long to wait before it is sent again, or None if it isn't."""
        if isinstance(error, ConnectionLost | ServerFailed) and (self.success or not error.unknown):
            # A second complete does no harm. A second fail might count twice, or end another worker's attempt.
            self._unknown = self._unknown or error.unknown
            return self.pause.next()
        if self._unknown and isinstance(error, JobRefused) and error.reason == "Duplicate result":
            self.sent()
            return None
        self.shift.count("lost")
        logger.warning("the result of %s %s is lost: %s", self.attempt.name, self.attempt.id, error)
        return None
