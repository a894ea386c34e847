"""Group commit: many writers, one write and one sync.

A writer puts a request into a queue and waits. One of the waiting writers leads: it takes the whole queue, has it
written and synced in one go, and releases all others with their results. Requests that arrive meanwhile make up
the next round, which one of them leads and which starts at once. Under load one sync serves as many writers as
there are.

A writer without company doesn't need any of this: `kernel.LoneWriter` leads, writes, syncs and passes the lead on
in one compiled call. Whoever came meanwhile is in the queue and leads the next round. While there is company, as
far as the last round shows, everyone uses the queue.

A thread waits at a gate, which is a lock of its own. A task gets its result delivered. Some writers only leave
their request and continue. If no writer's thread can lead, a thread of the commit itself does. The main thread
never leads a round, because Python may interrupt it between any two steps, which would leave everyone's round half
done. Entering the queue, finding a leader, and passing the lead on are single steps, which nothing interrupts: so
nobody holds a lock that an interrupt could leave behind.

The queue is bounded, by writes and by bytes: a writer that finds it full waits for room, or is refused.

The order in which gates are opened decides the speed. If all threads of a round were released at once, they
would only queue for the interpreter's lock, with several switches between processors each. So the leader opens
a few gates. A released thread opens the next gate when it is about to wait again, or to lead, because then the
interpreter is free. The leader opens a few gates and not one, so that no processor goes to sleep: waking it
takes longer than an append. While no round is in progress, the next gate is opened at once. If hardly any
thread came back to open gates, the round that ends opens all that are left. With a slow disk none of this
matters, and a round opens all gates when it ends.
"""

from __future__ import annotations

import functools
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
ROUND_REQUESTS_MAX = 4096
ROUND_BYTES_MAX = 16 << 20
_SLOW_SECONDS = 0.001  # from here on switching between threads costs little beside a round
_OPENED_FIRST = 4  # at the end of a round; each of them opens another one
_OPENED_MIN = 4  # fewer than this during a round, and those left over are let loose at once


class Request(Generic[T]):
    """One writer's request: what it hands in, and the result or error that it gets back."""

    deliver: Callable[[list[Request[T]]], None] | None = None
    """Called with all requests of a round that have the same one, when they are settled."""
    future: Any = None
    """Where a task waits for the result."""
    gate: Gate | None = None
    is_main = False
    """Whether the main thread waits for it."""
    alone = False
    """Whether the result is that of its one item, and not a sequence."""
    settled = False
    result: T | None = None
    error: Exception | None = None
    under_way: Sequence[Request[T]] = ()
    """The requests of the round that this one's thread leads."""

    def __init__(self, items: Sequence[Any], byte_count: int) -> None:
        self.items = items
        self.byte_count = byte_count
        self.begun = time.perf_counter()


class GroupCommit(Generic[T]):
    """Shares rounds of `commit` among threads and tasks.

    `commit(requests)` makes all requests durable and sets each one's result or error, or raises: then every
    request of the round gets that error. Exactly one thread leads at a time. The queue knows which one, as each of
    its methods is a single step.

    `queue_timeout` is how many seconds a writer waits for room in a full queue; None means for ever.
    """

    def __init__(
        self,
        commit: Callable[[list[Request[T]]], None],
        *,
        queue_max_writes: int = QUEUE_WRITES_MAX,
        queue_max_bytes: int = QUEUE_BYTES_MAX,
        queue_timeout: float | None = None,
    ) -> None:
        self._commit = commit
        # Both in C: an interrupt can't leave the queue locked, nor come between finding no leader and waking one.
        self._wake: SimpleQueue[None] = SimpleQueue()
        wake = functools.partial(self._wake.put, None)
        self.queue = kernel.BoundedQueue(queue_max_writes, queue_max_bytes, wake)
        self._queue_timeout = queue_timeout
        self._line: deque[Gate] = deque()
        """Gates of settled requests that aren't opened yet."""
        self._lined_up = 0
        """How many gates there were when the last round ended."""
        self._seconds = 0.0
        """How long the last round took."""
        self._thread: threading.Thread | None = None
        self._serving = threading.Lock()
        """Held for good by the one thread that serves."""
        self._refusal: Exception | None = None

    def submit(self, request: Request[T]) -> T:
        """Wait until a round that began after this call has settled the request."""
        self._refuse_reentry()
        request.is_main = threading.current_thread() is threading.main_thread()
        if request.is_main:
            self._start_thread()
        request.gate = gate = kernel.Gate()
        queue = self.queue
        try:
            self._enter(request)
            if queue.leader is not request:
                self._wait(gate)
            else:
                self._open_next()
            while queue.leader is request:  # a full round may leave the leader's own request for the next
                self._round(request)
        except BaseException:  # an interrupt: never leave the others without a leader, or without results
            self._step_down(request)
            raise
        if request.error is not None:
            raise request.error
        return cast(T, request.result)

    def post(self, request: Request[T], *, wait: bool = True) -> bool:
        """Leave a request for a later round. Its `deliver`, if any, is called when the request is settled.

        Returns False if the queue is full and the caller can't wait for room.
        """
        self._refuse_reentry()
        self._start_thread()
        return self._enter(request, wait=wait)

    def close(self, refusal: Exception) -> None:
        """Refuse new requests, settle earlier ones, and end the commit's own thread."""
        self._refusal = refusal
        self.queue.refuse()
        if self.is_committing():
            return  # called from inside of a commit, which ends soon
        if len(self.queue):
            self._start_thread()  # for what an interrupted thread has left
        while not self.queue.rest(gate := kernel.Gate()):
            gate.wait()
        if self._thread is not None:
            self._wake.put(None)
            self._thread.join()

    def is_committing(self) -> bool:
        """Whether the calling thread is inside of `commit`."""
        return self.queue.is_committing

    # -- entering

    def _refuse_reentry(self) -> None:
        """Raise if this thread is already committing. A handler or clock that appends would wait for its own
        thread."""
        if self.queue.is_committing:
            raise RuntimeError(REENTERED)

    def _enter(self, request: Request[T], *, wait: bool = True) -> bool:
        """Put the request into the queue. If nobody leads, the request's thread leads, or the commit's own."""
        self._check_open()
        if self.queue.enter(request):
            return True
        self._check_open()
        if wait:
            self._wait_for_room(request)
        return wait

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _wait_for_room(self, request: Request[T]) -> None:
        timeout = self._queue_timeout
        end = None if timeout is None else time.monotonic() + timeout
        while not self.queue.enter(request, gate := kernel.Gate()):
            self._check_open()
            if end is None:
                gate.wait()
            elif not gate.wait_for(end - time.monotonic()):
                raise QueueFull(
                    f"the queue is full: {self.queue.writes} writes of {self.queue.writes_max}, "
                    f"{self.queue.bytes} bytes of {self.queue.bytes_max} (waited {timeout:g} s). The disk is "
                    "slower than the writers: write less, in larger batches, or give the queue more room"
                )

    # -- waiting

    def _wait(self, gate: Gate) -> None:
        """Wait until a leader opens the gate. Then the request is settled, or this thread leads next."""
        try:
            gate.wait(self._line)
        finally:
            if self.queue.leader is None:
                self._open_next()

    def _open_next(self) -> None:
        """Open the gate of the next one whose request is settled."""
        kernel.open_first(self._line)

    def _step_down(self, request: Request[T]) -> None:
        """After an interrupt, settle the current round and pass the lead on."""
        self._start_thread()
        gate = self.queue.leave(request)
        try:
            self._line.remove(gate)  # type: ignore[arg-type]
        except (ValueError, IndexError):
            self._open_next()  # each thread that comes through a gate opens the next
        requests = list(request.under_way)
        if self.queue.leader is request:
            _settle(requests, RuntimeError("the thread that led this commit was interrupted: outcome unknown"))
            self.queue.pass_on()
            self._release(requests)
        self._deliver(requests)

    # -- leading

    def _start_thread(self) -> None:
        """Start the commit's own thread, for those that can't lead."""
        if self._thread is None:
            threading.Thread(target=self._serve, name="forelog-commit", daemon=True).start()

    def _serve(self) -> None:
        if not self._serving.acquire(blocking=False):
            return  # another thread, or one that was interrupted, had started one before
        self._thread = threading.current_thread()
        own: Request[T] = Request((), 0)
        while self._refusal is None or self.queue.leader is not None:
            self._wake.get()
            while self.queue.leader is self.queue:
                try:
                    self._round(own)
                except BaseException:  # the round has this error; the others still need a leader
                    logger.exception("a commit was interrupted")

    def _round(self, own: Request[T]) -> None:
        """Commit everything that is queued, release its writers, and pass on the lead if that is due."""
        self._wait_for_crowd()
        queue = self.queue
        own.under_way = requests = queue.take(ROUND_REQUESTS_MAX, ROUND_BYTES_MAX)
        queue.committing = threading.get_ident()
        error: Exception | None = None
        interrupt: BaseException | None = None
        begun = time.perf_counter()
        try:
            if requests:
                self._commit(requests)
        except Exception as failure:
            error = failure
        except BaseException as other:  # raised again when everyone has been released
            interrupt = other
            error = RuntimeError("the thread that led this commit was interrupted: its outcome is unknown")
        self._seconds = time.perf_counter() - begun
        _settle(requests, error)
        queue.committing = 0
        self._count_crowd(requests, own)
        if own.settled or interrupt is not None or queue.leader is queue:
            queue.pass_on()
        self._release(requests)
        self._deliver(requests)
        own.under_way = ()
        if interrupt is not None:
            raise interrupt

    def _wait_for_crowd(self) -> None:
        """If rounds take long, wait for the writers of the last round to come back.

        Otherwise writers split into two halves that wait for each other, and each sync serves only one half.
        """
        if self._seconds >= _SLOW_SECONDS and len(self.queue) < self.queue.crowd:
            patience = self._seconds / 4
            end = time.perf_counter() + patience
            while len(self.queue) < self.queue.crowd and time.perf_counter() < end:
                time.sleep(patience / 8)

    def _count_crowd(self, requests: Sequence[Request[T]], own: Request[T]) -> None:
        """Count the writers in this round and in the queue, if the round's leader had company."""
        waiting = sum(1 for request in requests if request.gate is not None or request.deliver is not None)
        crowd = waiting + own.settled + len(self.queue)
        self.queue.crowd = crowd if waiting and crowd > 1 else 0

    def _deliver(self, requests: Sequence[Request[T]]) -> None:
        groups: dict[Callable[[list[Request[T]]], None], list[Request[T]]] = {}
        for request in requests:
            if request.deliver is not None:
                groups.setdefault(request.deliver, []).append(request)
        for deliver, group in groups.items():
            deliver(group)

    def _release(self, requests: Sequence[Request[T]]) -> None:
        """Queue the waiting threads of a settled round, and open the first gates unless others are being
        opened."""
        goes_on = self._lined_up - len(self._line) >= _OPENED_MIN and self.queue.leader is not None
        if not goes_on:
            self._open(len(self._line))
        for request in requests:
            if request.gate is not None:
                if request.is_main:  # which may be interrupted before it opens the next
                    request.gate.open()
                else:
                    self._line.append(request.gate)
        if self._seconds >= _SLOW_SECONDS:
            self._open(len(self._line))
        elif not goes_on:
            self._open(_OPENED_FIRST)
        self._lined_up = len(self._line)

    def _open(self, count: int) -> None:
        for _ in range(count):
            self._open_next()


def _settle(requests: Sequence[Request[T]], error: Exception | None) -> None:
    for request in requests:
        if not request.settled:
            request.settled = True
            if error is not None:
                request.error = error
