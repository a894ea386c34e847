"""The threads of a worker.

At any time one of them leads: it sends the outcomes that are ready, and a lease for as many jobs as threads are
idle, in one exchange. It does one of the jobs itself, and wakes another thread for the rest. That one wakes the
next if there is still a rest, or leads. So long jobs are done side by side, and short ones are done by the thread
that leased them, without waking the others.

A thread that ends a job while another one waits for a lease sends the outcome by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from forelog.errors import JobError
from forelog.jobs.client.attempt import Attempt
from forelog.jobs.client.link import Link
from forelog.jobs.client.shift import Delivery, Pause, Shift

Job = tuple[Attempt | None, list[Delivery] | None, int]


class Crew:
    """Threads that do jobs until the worker is stopped."""

    def __init__(self, shift: Shift, link: Callable[[], Link], concurrency: int) -> None:
        self._shift = shift
        self._link = link
        self._lock = threading.Lock()
        self._ready: deque[Attempt] = deque()
        """Jobs that were leased, never more than threads are idle."""
        self._outbox: list[Delivery] = []
        """Outcomes for the next exchange."""
        self._idle: list[threading.Lock] = []
        """What each idle thread waits for: a lock that is released to wake it."""
        self._waking = False
        """Whether a thread was woken that does not run yet."""
        self._leading = False
        """Whether a thread is leasing jobs."""
        self._threads = [
            threading.Thread(target=self._work, name=f"forelog-worker-{number}", daemon=True)
            for number in range(concurrency)
        ]

    def run(self) -> None:
        """Do jobs until the worker is stopped."""
        for thread in self._threads:
            thread.start()
        self._shift.stopping.wait()
        with self._lock:
            for bell in self._idle:
                bell.release()
            self._idle.clear()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        bell = threading.Lock()
        bell.acquire()
        link = self._link()
        outcome: Delivery | None = None
        try:
            while True:
                attempt, mail, free = self._next(outcome, bell)
                outcome = None
                if attempt is not None:
                    outcome = self._attempt(attempt)
                elif free:
                    self._lead(link, mail or [], free)
                elif mail:
                    with contextlib.suppress(JobError, OSError):  # the keeper has them then
                        link.exchange(mail)
                elif mail is None:
                    bell.acquire()
                    self._waking = False
                else:
                    return
        finally:
            link.close()

    def _next(self, outcome: Delivery | None, bell: threading.Lock) -> Job:
        """What a thread does next: a job; or sending outcomes, with a lease for so many jobs; or waiting (None);
        or ending (no outcomes)."""
        with self._lock:
            if outcome is not None:
                self._outbox.append(outcome)
            if self._ready:
                attempt = self._ready.popleft()
                if self._idle and not self._waking and (self._ready or not self._leading):
                    self._waking = True
                    self._idle.pop().release()
                return attempt, None, 0
            mail, self._outbox = self._outbox, []
            if self._shift.stopping.is_set():
                return None, mail, 0
            if not self._leading:
                self._leading = True
                return None, mail, len(self._idle) + 1
            if mail:
                return None, mail, 0
            self._idle.append(bell)
            return None, None, 0

    def _attempt(self, attempt: Attempt) -> Delivery | None:
        """Do a job. Returns the outcome, unless it comes too late."""
        shift = self._shift
        try:
            outcome = shift.success(attempt, shift.functions[attempt.name](attempt))
        except BaseException as error:
            outcome = shift.failure(attempt, error)
            shift.end_if_meant(error)
        return None if outcome.is_over() else outcome

    def _lead(self, link: Link, mail: list[Delivery], free: int) -> None:
        """Send outcomes, and lease jobs for this thread and those that are idle."""
        shift = self._shift
        found: list[Attempt] = []
        pause = Pause()
        try:
            while True:
                try:
                    found = shift.begin(link.exchange(mail, shift.lease_request(free)))
                    return
                except Exception as error:
                    mail = []
                    if shift.is_plain(error):
                        continue
                    if not shift.is_away(error):
                        return
                    shift.stopping.wait(pause.next())
                    if shift.stopping.is_set():
                        return
        finally:
            with self._lock:
                self._leading = False
                self._ready.extend(found)
