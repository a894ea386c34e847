"""The parts of the engine that need asyncio, kept apart so that `import forelog` doesn't load it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from forelog.files import Watch
from forelog.log.commit import GroupCommit, Request

P = ParamSpec("P")
T = TypeVar("T")

_POLL_SECONDS = 0.05


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that may block, on a thread of the loop's executor."""
    return await asyncio.to_thread(function, *args, **kwargs)


Deliver = Callable[[list[Request[Any]]], None]

_deliveries: WeakKeyDictionary[asyncio.AbstractEventLoop, Deliver] = WeakKeyDictionary()


def _delivery(loop: asyncio.AbstractEventLoop) -> Deliver:
    """A function that passes results to the tasks of a loop: all results of a round with one call into the
    loop."""
    if (known := _deliveries.get(loop)) is not None:
        return known
    reference = ref(loop)

    def deliver(requests: list[Request[Any]]) -> None:
        running = reference()
        if running is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                running.call_soon_threadsafe(_settle, requests)

    _deliveries[loop] = deliver
    return deliver


def _settle(requests: list[Request[Any]]) -> None:
    for request in requests:
        future: asyncio.Future[Any] = request.future
        if future.done():
            continue  # its task was cancelled meanwhile
        if request.error is not None:
            future.set_exception(request.error)
        else:
            future.set_result(request.result)


async def submit(commit: GroupCommit[T], request: Request[T]) -> T:
    """Do what GroupCommit.submit() does, for a task."""
    loop = asyncio.get_running_loop()
    future = request.future = loop.create_future()
    request.deliver = _delivery(loop)
    await post(commit, request)
    return cast(T, await future)


async def post(commit: GroupCommit[T], request: Request[T]) -> None:
    """Do what GroupCommit.post() does, for a task. If the queue is full, another thread waits for room."""
    if not commit.post(request, wait=False):
        await in_thread(commit.post, request)


async def wait_for_change(watch: Watch, timeout: float) -> None:
    """Return after a change or after `timeout` seconds, without holding up the event loop."""
    descriptor = watch.fileno()
    if descriptor is None:
        await asyncio.sleep(min(timeout, _POLL_SECONDS))
        return
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    loop.add_reader(descriptor, changed.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), timeout)
    finally:
        loop.remove_reader(descriptor)
