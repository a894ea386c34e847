"""Group commit: many writers, one write and one sync.

A writer puts what it has into a queue and waits. One of those that wait leads: it takes the whole queue,
has it written and synced in one go, and releases everyone in it with their results. Whoever came
meanwhile is led by one of their own number, so that the next round starts at once and carries all who
arrived during the last. Under load one sync serves as many as there are writers; alone, a writer waits
for nobody.

Threads wait at a gate, a lock of their own; tasks have their results delivered; and some only leave their
entry and go on. Where no thread can lead, one of the commit's own does. The main thread never leads: Python
interrupts it, and only it, between any two steps, and what it led would be left half done for everyone.

The queue is bounded, by writes and by bytes: who finds it full waits for room, or is refused.

How gates are opened decides the speed. Let loose all at once, the threads of a round only queue again, for
the interpreter's lock, at the price of several switches between processors each. So the leader opens a few
gates, and a thread that came through opens the next when it is itself about to wait again, or to lead: then
the interpreter is free for it. A few, and not one, so that no processor goes to sleep in between, which takes
longer to end than an append takes. While no round is under way the next is opened at once; and a round that
ends opens all that were left over from the last, if hardly anyone came back to do it. Beside a slow disk all
that is nothing: there a round opens all gates when it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from forelog import kernel
from forelog.errors import QueueFull
from forelog.kernel import Gate
from forelog.kernel.types import REENTERED

T = TypeVar("T")

logger = logging.getLogger("forelog")

QUEUE_WRITES_MAX = 65_536
QUEUE_BYTES_MAX = 64 << 20
ROUND_ENTRIES_MAX = 4096
ROUND_BYTES_MAX = 16 << 20
_SLOW_SECONDS = 0.001  # from here on switching between threads costs little beside a round
_OPENED_FIRST = 4  # at the end of a round; each of them opens another one
_OPENED_MIN = 4  # fewer than this during a round, and those left over are let loose at once


class Entry(Generic[T]):
    """What one writer hands in, and what it gets back."""

    deliver: Callable[[list[Entry[T]]], None] | None = None
    """Called with all entries of a round that have the same one, when they are settled."""
    future: Any = None
    """Where a task waits for the result."""
    gate: Gate | None = None
    is_main = False
    """Whether the main thread waits for it."""
    alone = False
    """Whether its one item's result is wanted, and not a sequence with it."""
    settled = False
    result: T | None = None
    error: Exception | None = None
    under_way: Sequence[Entry[T]] = ()
    """The entries of the round that this one's thread leads."""

    def __init__(self, items: Sequence[Any], byte_count: int) -> None:
        self.items = items
        self.byte_count = byte_count
        self.begun = time.perf_counter()


class GroupCommit(Generic[T]):
    """Shares rounds of `commit` among threads and tasks.

    `commit(entries)` makes all entries durable and sets each one's result or error, or raises: then every
    entry of the round gets that error. Exactly one thread leads at a time: the one that found nobody
    leading, then whoever the lead was passed to, under the mutex.

    `queue_timeout` is for how many seconds a writer waits for room in a full queue, None for ever.
    """

    def __init__(
        self,
        commit: Callable[[list[Entry[T]]], None],
        *,
        queue_max_writes: int = QUEUE_WRITES_MAX,
        queue_max_bytes: int = QUEUE_BYTES_MAX,
        queue_timeout: float | None = None,
    ) -> None:
        self._commit = commit
        self.queue = kernel.BoundedQueue(queue_max_writes, queue_max_bytes)
        self._queue_timeout = queue_timeout
        self._mutex = threading.RLock()  # only so that a thread can tell that it is the one who holds it
        self._room = threading.Condition(self._mutex)
        self._waiting_for_room = 0
        self._leader: Entry[T] | GroupCommit[T] | None = None
        """The entry whose thread leads; this object itself for the commit's own thread; None for nobody."""
        self._committing = 0
        """The thread that is inside of `commit`."""
        self._line: deque[Gate] = deque()
        """The gates of those whose entries are settled, not opened yet."""
        self._lined_up = 0
        """How many there were when the last round ended."""
        self._seconds = 0.0
        """How long the last round took."""
        self._crowd = 0
        """How many entries were in the last round or waited for the next when it ended."""
        self._thread: threading.Thread | None = None
        self._serving = False
        self._wake: SimpleQueue[None] = SimpleQueue()  # in C: an interrupt can't leave it locked
        self._refusal: Exception | None = None

    def submit(self, entry: Entry[T]) -> T:
        """Wait until a round that began after this call has settled the entry."""
        self._refuse_reentry()
        entry.is_main = threading.current_thread() is threading.main_thread()
        entry.gate = gate = kernel.Gate()
        try:
            self._enter(entry)
            if self._leader is None:
                self._take_lead(self if entry.is_main else entry, entry)
            if self._leader is not entry:
                self._wait(gate)
            else:
                self._open_next()
            while self._leader is entry:  # a full round may leave the leader's own entry for the next
                self._round(entry)
        except BaseException:  # an interrupt: never leave the others without a leader, or without results
            self._step_down(entry)
            raise
        if entry.error is not None:
            raise entry.error
        return cast(T, entry.result)

    def post(self, entry: Entry[T], *, wait: bool = True) -> bool:
        """Leave an entry for a later round; its `deliver`, if any, is called when it is settled.

        False if the queue is full and the caller can't wait for room.
        """
        self._refuse_reentry()
        if not self._enter(entry, wait=wait):
            return False
        if self._leader is None:
            self._take_lead(self, entry)
        return True

    def close(self, refusal: Exception) -> None:
        """Refuse what comes from now on, settle what came before, and end the commit's own thread."""
        with self._mutex:
            self._refusal = refusal
            self._room.notify_all()
            if self.is_committing():
                return  # called from inside of a commit, which ends by itself
            if self._leader is None:
                self._pass_on()  # what an interrupted thread has left
            self._room.wait_for(lambda: self._leader is None and not len(self.queue))
            thread = self._thread
        if thread is not None:
            self._wake.put(None)
            thread.join()

    def is_committing(self) -> bool:
        """Whether the calling thread is inside of `commit`."""
        return self._committing == threading.get_ident()

    # -- entering

    def _refuse_reentry(self) -> None:
        """A logging handler or a clock that appends would wait for its own thread; so may a signal handler."""
        if self._committing == threading.get_ident() or self._mutex._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(REENTERED)

    def _enter(self, entry: Entry[T], *, wait: bool = True) -> bool:
        """Put the entry into the queue, mostly without the mutex: its holders would be in each other's way."""
        self._check_open()
        if not self.queue.push(entry):
            if not wait:
                return False
            self._wait_for_room(entry)
        if self._refusal is not None and self._withdraw(entry):
            self._check_open()
        return True

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _wait_for_room(self, entry: Entry[T]) -> None:
        with self._mutex:
            self._waiting_for_room += 1
            try:
                room = self._room.wait_for(
                    lambda: self._refusal is not None or self.queue.push(entry), self._queue_timeout
                )
            finally:
                self._waiting_for_room -= 1
            self._check_open()
        if not room:
            raise QueueFull(
                f"the queue is full: {self.queue.writes} writes of {self.queue.writes_max}, {self.queue.bytes} "
                f"bytes of {self.queue.bytes_max} (waited {self._queue_timeout:g} s). The disk is slower than "
                "the writers: write less, in larger batches, or give the queue more room"
            )

    def _withdraw(self, entry: Entry[T]) -> bool:
        """Closing refuses first, then waits until the queue is empty: an entry that is in it came too late.

        False if it isn't there any more: a leader has taken it, so that it came in time.
        """
        with self._mutex:
            withdrawn = self.queue.remove(entry)
            self._room.notify_all()
            return withdrawn

    # -- waiting

    def _wait(self, gate: Gate) -> None:
        """Until a leader opens the gate: the entry is settled, or the next to lead."""
        try:
            gate.wait(self._line)
        finally:
            if self._leader is None:
                self._open_next()

    def _open_next(self) -> None:
        """Open the gate of the next one whose entry is settled."""
        kernel.open_first(self._line)

    def _step_down(self, entry: Entry[T]) -> None:
        """After an interrupt: settle what was under way, and pass the lead on."""
        with self._mutex:
            gate, entry.gate = entry.gate, None
            try:
                self._line.remove(gate)  # type: ignore[arg-type]
            except (ValueError, IndexError):
                self._open_next()  # whoever came through a gate opens the next
            entries = list(entry.under_way)
            if self._leader is entry:
                self._committing = 0
                _settle(entries, RuntimeError("the thread that led this commit was interrupted: outcome unknown"))
                self._pass_on()
                self._release(entries)
            elif self._leader is None:
                self._pass_on()
        self._deliver(entries)

    # -- leading

    def _take_lead(self, leader: Entry[T] | GroupCommit[T], entry: Entry[T]) -> None:
        """Lead if nobody does and the entry still needs it."""
        with self._mutex:
            if self._leader is None and not entry.settled:
                if leader is entry:
                    self._leader, entry.gate = entry, None
                else:
                    self._lead_by_thread()

    def _lead_by_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="forelog-commit", daemon=True)
            thread.start()
            self._thread = thread
        self._leader = self
        self._wake.put(None)

    def _serve(self) -> None:
        with self._mutex:
            if self._serving:
                return  # another one was started by a thread that was interrupted before it could tell
            self._serving = True
        own: Entry[T] = Entry((), 0)
        while True:
            self._wake.get()
            while self._leader is self:
                try:
                    self._round(own)
                except BaseException:  # it has been told to everyone in the round; the others still need a leader
                    logger.exception("a commit was interrupted")
            with self._mutex:
                if self._refusal is not None and self._leader is None:
                    return

    def _round(self, own: Entry[T]) -> None:
        """Take what is queued, commit it, release everyone in it; pass the lead on once that is due."""
        self._wait_for_crowd()
        with self._mutex:
            own.under_way = entries = self.queue.take(ROUND_ENTRIES_MAX, ROUND_BYTES_MAX)
            self._committing = threading.get_ident()
            if self._waiting_for_room:
                self._room.notify_all()
        error: Exception | None = None
        interrupt: BaseException | None = None
        begun = time.perf_counter()
        try:
            if entries:
                self._commit(entries)
        except Exception as failure:
            error = failure
        except BaseException as other:  # raised again when everyone has been released
            interrupt = other
            error = RuntimeError("the thread that led this commit was interrupted: its outcome is unknown")
        self._seconds = time.perf_counter() - begun
        _settle(entries, error)
        with self._mutex:
            self._committing = 0
            self._count_crowd(entries)
            if own.settled or interrupt is not None or self._leader is self:
                self._pass_on()
            self._release(entries)
        self._deliver(entries)
        own.under_way = ()
        if interrupt is not None:
            raise interrupt

    def _wait_for_crowd(self) -> None:
        """Where a round takes long, let those come back first who were in the last one.

        Without it they fall into two halves that wait for each other, and each sync serves one of them.
        """
        if self._seconds >= _SLOW_SECONDS and len(self.queue) < self._crowd:
            patience = self._seconds / 4
            end = time.perf_counter() + patience
            while len(self.queue) < self._crowd and time.perf_counter() < end:
                time.sleep(patience / 8)

    def _count_crowd(self, entries: Sequence[Entry[T]]) -> None:
        waiting = sum(1 for entry in entries if entry.gate is not None or entry.deliver is not None)
        self._crowd = waiting + 1 + len(self.queue) if waiting else 0

    def _pass_on(self) -> None:
        """Give the lead to the first in the queue, if its thread waits, else to the commit's own, or to nobody."""
        while (entry := self.queue.first()) is None:
            self._leader = None
            # Who enters looks for a leader afterwards: it has seen that there is none, or is seen here.
            if not len(self.queue):
                self._room.notify_all()  # close() waits for this
                return
        if entry.gate is not None and not entry.is_main:
            gate, entry.gate, self._leader = entry.gate, None, entry
            gate.open()
        elif self._leader is not self:
            self._lead_by_thread()

    def _deliver(self, entries: Sequence[Entry[T]]) -> None:
        groups: dict[Callable[[list[Entry[T]]], None], list[Entry[T]]] = {}
        for entry in entries:
            if entry.deliver is not None:
                groups.setdefault(entry.deliver, []).append(entry)
        for deliver, group in groups.items():
            deliver(group)

    def _release(self, entries: Sequence[Entry[T]]) -> None:
        """Line up the waiting threads of a settled round, and open the first gates, unless a line is moving."""
        goes_on = self._lined_up - len(self._line) >= _OPENED_MIN and self._leader is not None
        if not goes_on:
            self._open(len(self._line))
        for entry in entries:
            if entry.gate is not None:
                if entry.is_main:  # which may be interrupted before it opens the next
                    entry.gate.open()
                else:
                    self._line.append(entry.gate)
        if self._seconds >= _SLOW_SECONDS:
            self._open(len(self._line))
        elif not goes_on:
            self._open(_OPENED_FIRST)
        self._lined_up = len(self._line)

    def _open(self, count: int) -> None:
        for _ in range(count):
            self._open_next()


def _settle(entries: Sequence[Entry[T]], error: Exception | None) -> None:
    for entry in entries:
        if not entry.settled:
            entry.settled = True
            if error is not None:
                entry.error = error
