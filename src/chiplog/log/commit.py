"""Group commit: many writers, one write and one sync.

A writer puts what it has into a queue and waits. One of those that wait leads: it takes the whole queue,
has it written and synced in one go, and releases everyone in it with their results. Whoever came
meanwhile is led by one of their own number, so that the next round starts at once and carries all who
arrived during the last. Under load one sync serves as many as there are writers; alone, a writer waits
for nobody.

Threads wait at a gate; tasks leave a callback, and where only they are waiting, a thread of the commit's
own leads. The leader opens one gate, and each thread that comes through opens the next before anything
else: were they all let loose at once, they would only queue again, for the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, cast

T = TypeVar("T")

ROUND_ENTRIES_MAX = 4096
ROUND_BYTES_MAX = 16 << 20


class Gate(Protocol):
    """Closed when made. `acquire` waits until `release` has opened it, and closes it again."""

    def acquire(self) -> object: ...
    def release(self) -> object: ...


class PipeGate:
    """A gate made of a pipe.

    A pipe wakes its reader on the writer's own processor, which is about to be free. A lock wakes it on
    any other one, where it finds the interpreter's lock taken and sleeps again: twice the cost.
    """

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def acquire(self) -> None:
        os.read(self._reader, 1)

    def release(self) -> None:
        os.write(self._writer, b"\0")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._reader)
        close(self._writer)


def _new_gate() -> Gate:
    try:
        return PipeGate()
    except OSError:  # out of descriptors
        gate = threading.Lock()
        gate.acquire()
        return gate


class Entry(Generic[T]):
    """What one writer hands in, and what it gets back."""

    callback: Callable[[Entry[T]], None] | None = None
    gate: Gate | None = None
    following: Gate | None = None
    """Whose gate to open after coming through one's own."""
    leads = False
    settled = False
    result: T | None = None
    error: Exception | None = None

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads


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
        self._local = threading.local()
        self._thread: threading.Thread | None = None
        self._thread_leads = threading.Semaphore(0)
        self._stopping = False

    def submit(self, payloads: Sequence[bytes]) -> T:
        """Wait until a round that began after this call has made the payloads durable."""
        entry: Entry[T] = Entry(payloads)
        with self._mutex:
            self._queue.append(entry)
            if self._led:
                gate = entry.gate = self._own_gate()
            else:
                self._led = entry.leads = True
        if not entry.leads:
            self._pass_through(gate, entry)
        if entry.leads:
            self._lead(entry)
        if entry.error is not None:
            raise entry.error
        return cast(T, entry.result)

    def submit_callback(self, payloads: Sequence[bytes], callback: Callable[[Entry[T]], None]) -> None:
        """The same for a task: `callback(entry)` is called from another thread when it is settled."""
        entry: Entry[T] = Entry(payloads)
        entry.callback = callback
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
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._thread_leads.release()
            thread.join()

    # -- waiting

    def _own_gate(self) -> Gate:
        try:
            return cast(Gate, self._local.gate)
        except AttributeError:
            gate = self._local.gate = _new_gate()
            return gate

    def _pass_through(self, gate: Gate, entry: Entry[T]) -> None:
        try:
            gate.acquire()  # opened by a leader: settled, or the next to lead
        except BaseException:  # an interrupt: never leave the others without a leader
            del self._local.gate  # somebody may still open it
            with self._mutex:
                entry.gate = None
            if entry.leads:
                self._lead(entry)
            raise
        finally:
            if entry.following is not None:
                entry.following.release()

    def _serve(self) -> None:
        while True:
            self._thread_leads.acquire()
            if self._queue:
                self._lead(None)
            elif self._stopping:
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
                successor = self._pass_on() if done else None
                first = self._link(entries)
            if successor is not None:
                successor.release()
            if first is not None:
                first.release()
            for entry in entries:
                if entry.callback is not None:
                    entry.callback(entry)
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

    def _pass_on(self) -> Gate | None:
        """Give the lead to the first waiting thread, to the commit's own, or to nobody; the gate to open."""
        for entry in self._queue:
            if entry.gate is not None:
                gate, entry.gate, entry.leads = entry.gate, None, True
                return gate
        if not self._queue or self._thread is None:
            self._queue.clear()  # without gate and callback: their threads were interrupted
            self._led = False
        else:
            self._thread_leads.release()
        return None

    def _link(self, entries: list[Entry[T]]) -> Gate | None:
        """Have each waiting thread open the gate of the next one; the gate of the first."""
        following: Gate | None = None
        for entry in reversed(entries):
            if entry.gate is not None:
                entry.following = following
                following = entry.gate
        return following
