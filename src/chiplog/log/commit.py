"""Group commit: many writers, one write and one sync.

A writer puts what it has into a queue and waits. One of those that wait leads: it takes the whole queue,
has it written and synced in one go, and releases everyone in it with their results. Whoever came
meanwhile is led by one of their own number, so that the next round starts at once and carries all who
arrived during the last. Under load one sync serves as many as there are writers; alone, a writer waits
for nobody.

Threads wait at a gate, a lock of their own; tasks have their results delivered, and where only they are
waiting, a thread of the commit's own leads.

How gates are opened decides the speed. Let loose all at once, the threads of a round only queue again, for
the interpreter's lock, at the price of several switches between processors each. So the leader opens one
gate, and a thread that came through opens the next when it is itself about to wait again, or to lead: then
the interpreter is free for it. While no round is under way it opens the next at once; and a round that
ends opens all that were left over from the last, if hardly anyone came back to do it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

T = TypeVar("T")

ROUND_ENTRIES_MAX = 4096
ROUND_BYTES_MAX = 16 << 20
_OPENED_MIN = 4  # fewer than this during a round, and those left over are let loose at once


class Entry(Generic[T]):
    """What one writer hands in, and what it gets back."""

    deliver: Callable[[list[Entry[T]]], None] | None = None
    """Called with all entries of a round that have the same one, when they are settled."""
    gate: threading.Lock | None = None
    leads = False
    settled = False
    result: T | None = None
    error: Exception | None = None

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads
        self.begun = time.perf_counter()


class GroupCommit(Generic[T]):
    """Shares rounds of `commit` among threads and tasks.

    `commit(entries)` makes all entries durable and sets each one's result, or raises: then every entry of
    the round gets the error. Exactly one thread leads at a time: the one that found nobody leading, then
    whoever the lead was passed to, under the mutex.
    """

    def __init__(self, commit: Callable[[list[Entry[T]]], None]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._queue: deque[Entry[T]] = deque()
        self._led = False
        self._released: deque[threading.Lock] = deque()
        """The gates of those whose entries are settled, not opened yet."""
        self._opened = 0
        """How many of them were opened since the last round ended."""
        self._thread: threading.Thread | None = None
        self._thread_leads = threading.Semaphore(0)
        self._stopping = False

    def submit(self, payloads: Sequence[bytes]) -> T:
        """Wait until a round that began after this call has made the payloads durable."""
        entry: Entry[T] = Entry(payloads)
        gate: threading.Lock | None = None
        with self._mutex:
            self._queue.append(entry)
            if self._led:
                gate = entry.gate = threading.Lock()
                gate.acquire()
            else:
                self._led = entry.leads = True
            self._open_next()
        if gate is not None:
            self._wait(gate, entry)
        if entry.leads:
            self._lead(entry)
        if entry.error is not None:
            raise entry.error
        return cast(T, entry.result)

    def submit_entry(self, entry: Entry[T]) -> None:
        """The same for a task: the entry's `deliver` is called from another thread when it is settled."""
        assert entry.deliver is not None
        with self._mutex:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="chiplog-commit", daemon=True)
                self._thread.start()
            self._queue.append(entry)
            if not self._led:
                self._led = True
                self._thread_leads.release()

    def close(self) -> None:
        """End the commit's own thread, after what was submitted to it is settled."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        if thread is not None:
            self._thread_leads.release()
            thread.join()

    # -- waiting

    def _wait(self, gate: threading.Lock, entry: Entry[T]) -> None:
        try:
            gate.acquire()  # opened by a leader: settled, or the next to lead
        except BaseException:  # an interrupt: never leave the others without a leader
            with self._mutex:
                entry.gate = None
            if entry.leads:
                self._lead(entry)
            raise
        finally:
            if not self._led:
                with self._mutex:
                    self._open_next()

    def _open_next(self) -> None:
        """Open the gate of the next one whose entry is settled."""
        if self._released:
            self._opened += 1
            self._released.popleft().release()

    def _serve(self) -> None:
        while True:
            self._thread_leads.acquire()
            if self._queue:
                self._lead(None)
            with self._mutex:
                if self._stopping and not self._queue:
                    self._thread = None
                    return

    # -- leading

    def _lead(self, own: Entry[T] | None) -> None:
        """Rounds until the leader's own entry is settled; then pass the lead on, or give it up."""
        while True:
            with self._mutex:
                entries = self._take()
            interrupt = self._round(entries)
            with self._mutex:
                # A full round may have left the leader's own entry for the next one.
                done = own is None or own.settled or interrupt is not None
                if done:
                    self._pass_on()
                self._release(entries)
            self._deliver(entries)
            if interrupt is not None:
                raise interrupt
            if done:
                return

    def _round(self, entries: list[Entry[T]]) -> BaseException | None:
        """Commit and settle; an interrupt is returned, to be raised when everyone has been released."""
        interrupt: BaseException | None = None
        error: Exception | None = None
        try:
            self._commit(entries)
        except Exception as failure:
            error = failure
        except BaseException as other:
            interrupt = other
            error = RuntimeError("the thread that led this commit was interrupted: its outcome is unknown")
        for entry in entries:
            entry.settled = True
            if error is not None:
                entry.error = error
        return interrupt

    def _take(self) -> list[Entry[T]]:
        queue = self._queue
        entries: list[Entry[T]] = []
        room = ROUND_BYTES_MAX
        while queue and len(entries) < ROUND_ENTRIES_MAX:
            room -= sum(map(len, queue[0].payloads))
            if room < 0 and entries:
                break
            entries.append(queue.popleft())
        return entries

    def _pass_on(self) -> None:
        """Give the lead to the first waiting thread, to the commit's own, or to nobody."""
        for entry in self._queue:
            if entry.gate is not None:
                gate, entry.gate, entry.leads = entry.gate, None, True
                gate.release()
                return
        if any(entry.deliver is not None for entry in self._queue):
            self._thread_leads.release()
        else:
            self._queue.clear()  # those whose threads were interrupted
            self._led = False

    def _deliver(self, entries: list[Entry[T]]) -> None:
        groups: dict[Callable[[list[Entry[T]]], None], list[Entry[T]]] = {}
        for entry in entries:
            if entry.deliver is not None:
                groups.setdefault(entry.deliver, []).append(entry)
        for deliver, group in groups.items():
            deliver(group)

    def _release(self, entries: list[Entry[T]]) -> None:
        """Line up the waiting threads of a settled round, and open the first one's gate."""
        if self._opened < _OPENED_MIN:
            while self._released:
                self._open_next()
        self._opened = 0
        self._released.extend(entry.gate for entry in entries if entry.gate is not None)
        self._open_next()
