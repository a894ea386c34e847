"""The parts of the engine that need asyncio, kept apart so that `import chiplog` doesn't load it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, cast

from chiplog.files import Watch
from chiplog.log.commit import Entry, GroupCommit

P = ParamSpec("P")
T = TypeVar("T")

_POLL_SECONDS = 0.05


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what may block on a thread of the loop's executor."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def submit(commit: GroupCommit[T], payloads: Sequence[bytes]) -> T:
    """GroupCommit.submit() for a task."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(entry: Entry[T]) -> None:
        if future.done():
            return  # the task was cancelled meanwhile
        if entry.error is not None:
            future.set_exception(entry.error)
        else:
            future.set_result(cast(T, entry.result))

    def settled(entry: Entry[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, entry)

    commit.submit_callback(payloads, settled)
    return await future


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
