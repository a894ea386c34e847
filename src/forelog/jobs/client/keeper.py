"""Keeps a worker's leases alive, and sends outcomes again that could not be sent.

It runs on a thread of its own, so a function that takes long, or an event loop that is blocked, keeps its lease. A
worker that is killed sends no more heartbeats, and its jobs are leased by others within seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from forelog.errors import JobError, JobNotFound, JobRefused
from forelog.jobs.client import lifecycle
from forelog.jobs.client.attempt import Attempt
from forelog.jobs.client.link import Link
from forelog.jobs.client.shift import BEATS, Delivery, Shift, logger

_LOOK_SECONDS = 0.05
_IDLE_SECONDS = 0.25
_BEATS_AT_ONCE = 500


class Keeper:
    """The thread that keeps leases alive. Use it as a context manager around a worker's work."""

    def __init__(self, shift: Shift, link: Callable[[], Link]) -> None:
        self._shift = shift
        self._link = link()
        self._ended = threading.Event()
        self._next = time.monotonic() + shift.heartbeat_ms / 1000
        self._thread = threading.Thread(target=self._run, name="forelog-keeper", daemon=True)

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send what is left, as long as the worker may take to stop."""
        self._ended.set()
        self._thread.join()
        self._link.close()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds()) or self._shift.late:
            if self._shift.late:
                self._deliver()
                if self._ended.is_set():
                    time.sleep(_LOOK_SECONDS)
            if self._shift.heartbeat_ms and time.monotonic() >= self._next:
                self._next = time.monotonic() + self._shift.heartbeat_ms / 1000
                self._beat()

    def _seconds(self) -> float:
        """How long to wait before the next look."""
        if self._shift.late:
            return _LOOK_SECONDS
        beat_ms = self._shift.heartbeat_ms
        return min(_IDLE_SECONDS, max(0.005, self._next - time.monotonic())) if beat_ms else _IDLE_SECONDS

    # -- outcomes

    def _deliver(self) -> None:
        now = time.monotonic()
        due: list[Delivery] = []
        for _ in range(len(self._shift.late)):
            delivery = self._shift.late.popleft()
            if delivery.is_over():
                continue
            if delivery.due <= now:
                due.append(delivery)
            else:
                self._shift.late.append(delivery)
        if due:
            try:
                self._link.exchange(due)
            except (OSError, JobError) as error:  # they are with the late ones again
                logger.debug("outcomes are not sent yet: %s", error)

    # -- heartbeats

    def _beat(self) -> None:
        for attempts in self._lots():
            lease_ms = BEATS * self._shift.heartbeat_ms
            beats = [
                lifecycle.heartbeat(attempt.id, attempt=attempt.number, lease_ms=lease_ms) for attempt in attempts
            ]
            try:
                replies = self._link.call(beats)
            except (OSError, JobError) as error:
                logger.debug("no heartbeat: %s", error)
                return
            for attempt, reply in zip(attempts, replies, strict=True):
                if isinstance(reply, JobRefused | JobNotFound):
                    self._end(attempt, reply)

    def _lots(self) -> Iterator[list[Attempt]]:
        """Attempts that have run for a while: short ones need no heartbeat."""
        before = time.monotonic() - self._shift.heartbeat_ms / 2000
        old = [attempt for attempt in list(self._shift.running) if attempt.begun <= before and not attempt.lost]
        for start in range(0, len(old), _BEATS_AT_ONCE):
            yield old[start : start + _BEATS_AT_ONCE]

    def _end(self, attempt: Attempt, error: JobError) -> None:
        cancelled = isinstance(error, JobRefused) and error.reason == "Cancelled"
        if attempt not in self._shift.running or (cancelled and attempt.cancelled):
            return
        what = "was cancelled" if cancelled else "has lost its lease: another worker may get it"
        logger.warning("%s %s %s", attempt.name, attempt.id, what)
        attempt.end(cancelled=cancelled)
