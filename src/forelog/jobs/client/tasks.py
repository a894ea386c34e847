"""A worker whose functions are coroutines: tasks of one event loop, and not threads.

One task leases jobs for all that have nothing to do, and sends the outcomes of those that ended meanwhile in the
same write. While it waits for jobs, another task sends outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forelog.errors import ConnectionLost, JobError
from forelog.jobs.client.async_connections import AsyncConnections
from forelog.jobs.client.attempt import Attempt
from forelog.jobs.client.endpoint import Endpoint, reason_of
from forelog.jobs.client.requests import Request
from forelog.jobs.client.shift import Delivery, Pause, Shift

_LOOK_SECONDS = 0.1


async def run_tasks(
    shift: Shift, endpoint: Endpoint, timeout: float, connect_timeout: float, concurrency: int
) -> None:
    """Do jobs until the worker is stopped."""
    with _signals(shift), ThreadPoolExecutor(concurrency, "forelog-worker") as threads:
        links = AsyncLinks(shift, endpoint, timeout, connect_timeout)
        try:
            await Tasks(shift, links, threads, concurrency).run()
        finally:
            await links.close()


@contextlib.contextmanager
def _signals(shift: Shift) -> Iterator[None]:
    """Stop on the first signal. A second one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def stop() -> None:
        restore()
        shift.stop()

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        restore()


class AsyncLinks:
    """The two connections of such a worker: one that leases, and one for outcomes while that one waits."""

    def __init__(self, shift: Shift, endpoint: Endpoint, timeout: float, connect_timeout: float) -> None:
        self._shift = shift
        self._endpoint = endpoint
        self._timeout = timeout
        self._connections = AsyncConnections(endpoint, connect_timeout, 2)

    async def exchange(self, deliveries: Sequence[Delivery], lease: Request[Any] | None = None) -> Any:
        """Send outcomes, and a lease behind them. Returns the value of the lease.

        Each outcome is settled, or left to the shift's keeper. Raises the error of the lease.
        """
        settled = 0
        whole = False
        try:
            connection = await self._connections.take()
        except (OSError, JobError) as error:
            self._shift.broken(deliveries, error, unknown=False)
            raise
        try:
            data = [delivery.request.data for delivery in deliveries]
            if lease is not None:
                data.append(lease.data)
            await connection.send(b"".join(data), self._timeout)
            for delivery in deliveries:
                reply = await connection.reply(delivery.request.kind, self._timeout)
                settled += 1
                if reply is True:
                    delivery.sent()
                else:
                    self._shift.refused(delivery, reply)
            if lease is not None:
                reply = await connection.reply(lease.kind, self._timeout + lease.wait_seconds)
            whole = True
        except (OSError, JobError) as error:
            self._shift.broken(deliveries[settled:], error, unknown=True)
            if isinstance(error, JobError):
                raise
            raise ConnectionLost(f"the connection to {self._endpoint} broke: {reason_of(error)}") from error
        finally:
            await self._connections.give(connection, whole)
        return None if lease is None else lease.value(reply)

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()


class Tasks:
    """Tasks that do jobs until the worker is stopped."""

    def __init__(self, shift: Shift, links: AsyncLinks, threads: ThreadPoolExecutor, concurrency: int) -> None:
        self._shift = shift
        self._links = links
        self._threads = threads
        self._concurrency = self._free = concurrency
        self._outbox: list[Delivery] = []
        self._waiting = False
        """Whether a lease is under way, so outcomes have to be sent beside it."""
        self._ended = asyncio.Event()
        """Set when a job has ended."""
        self._mail = asyncio.Event()
        """Set when there are outcomes to be sent beside a lease."""

    async def run(self) -> None:
        """Do jobs until the worker is stopped."""
        try:
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(self._send())
                await self._lease(group)
                while self._free < self._concurrency:
                    await self._next_end()
                sender.cancel()
        finally:
            await self._flush()

    async def _lease(self, group: asyncio.TaskGroup) -> None:
        shift, pause = self._shift, Pause()
        while not shift.stopping.is_set():
            if not self._free:
                await self._next_end()
                continue
            mail, self._outbox = self._outbox, []
            self._waiting = True
            try:
                attempts = shift.begin(await self._links.exchange(mail, shift.lease_request(self._free)))
            except Exception as error:
                if shift.is_plain(error):
                    continue
                if not shift.is_away(error):
                    return
                await self._rest(pause.next())
                continue
            finally:
                self._waiting = False
            pause = Pause()
            self._free -= len(attempts)
            for attempt in attempts:
                group.create_task(self._do(attempt))
            await asyncio.sleep(0)  # what ends at once is sent with the next lease

    async def _next_end(self) -> None:
        """Wait until a job has ended, or for a moment: stop() may come from another thread."""
        self._ended.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._ended.wait()

    async def _rest(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self._shift.stopping.is_set() and (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, _LOOK_SECONDS))

    async def _send(self) -> None:
        """Send outcomes while a lease waits."""
        while True:
            await self._mail.wait()
            self._mail.clear()
            await self._flush()

    async def _flush(self) -> None:
        mail, self._outbox = self._outbox, []
        if mail:
            with contextlib.suppress(JobError, OSError):  # the keeper has them then
                await self._links.exchange(mail)

    async def _do(self, attempt: Attempt) -> None:
        try:
            outcome = await self._attempt(attempt)
            if outcome is not None and not outcome.is_over():
                self._outbox.append(outcome)
        finally:
            self._free += 1
            self._ended.set()
            if self._waiting or self._shift.stopping.is_set():
                self._mail.set()

    async def _attempt(self, attempt: Attempt) -> Delivery | None:
        """The outcome of an attempt, or None if it took too long and was cancelled."""
        shift = self._shift
        function = shift.functions[attempt.name]
        try:
            if not inspect.iscoroutinefunction(function):
                loop = asyncio.get_running_loop()
                return shift.success(attempt, await loop.run_in_executor(self._threads, function, attempt))
            return shift.success(attempt, await self._call(attempt, function))
        except _Late:
            shift.log_late(attempt, "it was cancelled")
            shift.running.discard(attempt)
            shift.count("late")
            return None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling() and not (attempt.cancelled or attempt.lost):
                raise  # the worker was cancelled, and not something that the function waited for
            return shift.failure(attempt, error)
        except BaseException as error:
            shift.end_if_meant(error)
            return shift.failure(attempt, error)

    async def _call(self, attempt: Attempt, function: Any) -> Any:
        """Await a coroutine, until its time is over or its job is cancelled."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        scope = asyncio.timeout(max(0.0, attempt.remaining()))
        attempt.on_end = lambda: loop.call_soon_threadsafe(task.cancel)
        attempt.on_extend = lambda seconds: scope.reschedule(loop.time() + seconds)
        try:
            async with scope:
                return await function(attempt)
        except TimeoutError:
            if scope.expired():
                raise _Late from None
            raise
        finally:
            attempt.on_end = attempt.on_extend = None


class _Late(Exception):
    """An attempt's time is over."""
