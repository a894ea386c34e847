"""Does the jobs of an app's tasks: from the payload of a job to its result."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, ExitStack
from typing import Any
from uuid import UUID

from forelog.errors import JobFailed
from forelog.jobs.app.envelope import Call, decode, decode_call, decode_failure, encode
from forelog.jobs.app.home import Called, Home
from forelog.jobs.app.injection import make, make_async
from forelog.jobs.app.steps import Recorder, recording
from forelog.jobs.client import requests
from forelog.jobs.client.attempt import Attempt
from forelog.jobs.client.requests import Request
from forelog.jobs.client.values import Result


class Runner:
    """The function of a worker that does the jobs of all tasks of an app."""

    def __init__(self, app: Home, threads: Executor | None = None) -> None:
        self._app = app
        self._threads = threads
        """For tasks that aren't coroutines, beside those that are."""

    def do(self, attempt: Attempt) -> bytes:
        """Do a job on this thread."""
        call = decode_call(attempt.payload)
        middleware = self._app.middleware
        try:
            task = self._task(call)
            results = _fetch(call)
            found = attempt.client.call_many(results) if results else []
            args, kwargs = _arguments(task, attempt, call, found)
            if middleware:
                middleware.before(attempt, call)
            token = recording.set(Recorder(attempt))
            try:
                value = self._call(task, args, kwargs)
            finally:
                recording.reset(token)
            result = encode(value)
        except BaseException as error:
            middleware.on_error(attempt, call, error)
            raise
        if middleware:
            middleware.after(attempt, call, value)
        return result

    def _call(self, task: Called, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        dependencies = task.arguments.dependencies
        if not dependencies:
            return task.plain(*args, **kwargs)
        with ExitStack() as stack:
            made = make(dependencies, self._app.overrides, stack, {})
            return task.plain(*args, **kwargs, **made)

    async def do_async(self, attempt: Attempt) -> bytes:
        """Do a job in this event loop. A task that isn't a coroutine runs on a thread."""
        call = decode_call(attempt.payload)
        task = self._app.called.get(call.task)
        if task is not None and not task.is_coroutine:
            loop = asyncio.get_running_loop()
            context = contextvars.copy_context()
            return await loop.run_in_executor(self._threads, context.run, self.do, attempt)
        middleware = self._app.middleware
        try:
            task = self._task(call)
            results = _fetch(call)
            found = await attempt.aio.client.call_many(results) if results else []
            args, kwargs = _arguments(task, attempt, call, found)
            middleware.before(attempt, call)
            token = recording.set(Recorder(attempt))
            try:
                async with AsyncExitStack() as stack:
                    made = await make_async(task.arguments.dependencies, self._app.overrides, stack, {})
                    value = await task.plain(*args, **kwargs, **made)
            finally:
                recording.reset(token)
            result = encode(value)
        except BaseException as error:
            middleware.on_error(attempt, call, error)
            raise
        middleware.after(attempt, call, value)
        return result

    def _task(self, call: Call) -> Called:
        task = self._app.called.get(call.task)
        if task is None:
            raise LookupError(f"this worker has no task {call.task!r:.200}: is its module imported?")
        return task


def _fetch(call: Call) -> list[Request[Result]]:
    """The results of other jobs that a call needs."""
    return [requests.result(UUID(one)) for one in call.results]


def _arguments(
    task: Called, attempt: Attempt, call: Call, results: Sequence[Result]
) -> tuple[Sequence[Any], dict[str, Any]]:
    given = list(call.args)
    if results:
        values = [_value(result) for result in results]
        given = [values, *given] if call.gather else [*values, *given]
    args, kwargs = task.arguments.load(given, call.kwargs)
    if task.arguments.attempt is not None:
        kwargs[task.arguments.attempt] = attempt
    return args, kwargs


def _value(result: Result) -> Any:
    if result.success:
        return decode(result.result) if result.result else None
    failure = decode_failure(result.result)
    raise JobFailed(
        f"{result.id}, whose result this job needs, failed: {failure}",
        job_id=result.id,
        type=failure.type,
        reason=failure.message,
        traceback=failure.traceback,
    )


def call_here(task: Called, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a task's function here, without a job. Dependencies that aren't given are made."""
    missing = {name: made for name, made in task.arguments.dependencies.items() if name not in kwargs}
    if not missing:
        return task.plain(*args, **kwargs)
    if task.is_coroutine:
        return _call_here_async(task, args, kwargs, missing)
    with ExitStack() as stack:
        return task.plain(*args, **kwargs, **make(missing, task.home.overrides, stack, {}))


async def _call_here_async(
    task: Called, args: Sequence[Any], kwargs: Mapping[str, Any], missing: Mapping[str, Any]
) -> Any:
    async with AsyncExitStack() as stack:
        return await task.plain(*args, **kwargs, **await make_async(missing, task.home.overrides, stack, {}))
