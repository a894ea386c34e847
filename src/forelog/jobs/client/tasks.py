"""A worker whose functions are coroutines: tasks of one event loop, and not threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forelog.errors import JobError
from forelog.jobs.client.async_client import AsyncClient
from forelog.jobs.client.shift import Attempt, Delivery, Pause, Shift

_LOOK_SECONDS = 0.1


async def run_tasks(shift: Shift, client: AsyncClient, concurrency: int) -> None:
    """Do jobs until the worker is stopped."""
    with _signals(shift), ThreadPoolExecutor(concurrency, "forelog-worker") as threads:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_work(shift, client, threads))


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


async def _work(shift: Shift, client: AsyncClient, threads: ThreadPoolExecutor) -> None:
    pause = Pause()
    lease = shift.lease_request()
    while not shift.stopping.is_set():
        try:
            leased = await client.call(lease)
        except Exception as error:
            if not shift.is_away(error):
                return
            await _rest(shift, pause.next())
            continue
        pause = Pause()
        if leased is not None:
            attempt = shift.begin(leased)
            delivery = await _attempt(shift, attempt, threads)
            if delivery is not None:
                await _deliver(client, delivery)


async def _rest(shift: Shift, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not shift.stopping.is_set() and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _LOOK_SECONDS))


async def _attempt(shift: Shift, attempt: Attempt, threads: ThreadPoolExecutor) -> Delivery | None:
    """The outcome of an attempt, or None if it took too long and was cancelled."""
    function = shift.functions[attempt.name]
    try:
        if not inspect.iscoroutinefunction(function):
            loop = asyncio.get_running_loop()
            return shift.success(attempt, await loop.run_in_executor(threads, function, attempt))
        value: Any = None
        scope = asyncio.timeout(max(0.0, attempt.remaining()))
        try:
            async with scope:
                value = await function(attempt)
        except TimeoutError:
            if not scope.expired():
                raise
            shift.count_late(attempt, "it was cancelled")
            return None
        return shift.success(attempt, value)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the worker was cancelled, and not something that the function waited for
        return shift.failure(attempt, error)
    except BaseException as error:
        shift.end_if_meant(error)
        return shift.failure(attempt, error)


async def _deliver(client: AsyncClient, delivery: Delivery) -> None:
    while not delivery.is_over():
        try:
            await client.call(delivery.request)
        except JobError as error:
            seconds = delivery.refused(error)
            if seconds is None:
                return
            await asyncio.sleep(seconds)
        else:
            delivery.sent()
            return
