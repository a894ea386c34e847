"""A worker whose functions are coroutines: tasks of one event loop instead of threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from forelog.errors import JobError
from forelog.jobs.client.aio import AsyncClient
from forelog.jobs.client.worker import Attempt, Delivery, Pause

if TYPE_CHECKING:
    from forelog.jobs.client.worker import Worker

__all__ = ["run_tasks"]

_LOOK_SECONDS = 0.1


async def run_tasks(worker: Worker) -> None:
    """Do jobs until the worker is stopped."""
    with worker.serving(), _signals(worker), ThreadPoolExecutor(worker.concurrency, "forelog-worker") as threads:
        async with AsyncClient(worker.server, **worker.settings) as client, asyncio.TaskGroup() as group:
            for _ in range(worker.concurrency):
                group.create_task(_work(worker, client, threads))


@contextlib.contextmanager
def _signals(worker: Worker) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def stop() -> None:
        restore()  # a second one is not for us
        worker.stop()

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        restore()


async def _work(worker: Worker, client: AsyncClient, threads: ThreadPoolExecutor) -> None:
    pause = Pause()
    lease = worker.lease_request()
    while not worker.is_stopping():
        try:
            leased = await client.call(lease)
        except Exception as error:
            if not worker.is_away(error):
                return
            await _rest(worker, pause.next())
            continue
        pause = Pause()
        if leased is not None:
            attempt = worker.begin(leased)
            delivery = await _attempt(worker, attempt, threads)
            if delivery is not None:
                await _deliver(client, delivery)


async def _rest(worker: Worker, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not worker.is_stopping() and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _LOOK_SECONDS))


async def _attempt(worker: Worker, attempt: Attempt, threads: ThreadPoolExecutor) -> Delivery | None:
    """What came of an attempt; None if it took too long and was cancelled."""
    function = worker.functions[attempt.name]
    try:
        if not inspect.iscoroutinefunction(function):
            loop = asyncio.get_running_loop()
            return worker.delivery_of(attempt, await loop.run_in_executor(threads, function, attempt))
        value: Any = None
        scope = asyncio.timeout(max(0.0, attempt.remaining()))
        try:
            async with scope:
                value = await function(attempt)
        except TimeoutError:
            if not scope.expired():
                raise
            worker.count_late(attempt, "it was cancelled")
            return None
        return worker.delivery_of(attempt, value)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the worker is, and not something that the function waited for
        return worker.failure_of(attempt, error)
    except BaseException as error:
        worker.end_if_meant(error)
        return worker.failure_of(attempt, error)


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
