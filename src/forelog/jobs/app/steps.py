"""Functions whose results are recorded, so that a task that was interrupted goes on after its last recorded step.

    @step
    def charge(customer: int) -> str: ...

    @app.task(retries=10)
    def order(customer: int) -> str:
        receipt = charge(customer)      # runs once, even if the task is tried ten times
        return ship(customer, receipt)

The server has to know `step`: docs/jobs-protocol.md says whether it does.

A step is recorded before its value is returned. If the task is tried again, the recorded value is returned, and
the function isn't called. If the worker dies after the function has ended and before the record, the step runs
again. So a step that must not be done twice needs a key of its own for that, such as the job's id and its name.

Steps are told apart by their names, and by how often the task has called each. So a task must call them in the
same order whenever it gets the same results. Outside of a task a step is a plain function.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from forelog.errors import JobRefused
from forelog.jobs.app.arguments import convert
from forelog.jobs.app.envelope import decode, encode
from forelog.jobs.client import lifecycle
from forelog.jobs.client.attempt import Attempt
from forelog.jobs.client.values import Step
from forelog.jobs.client.words import key_of

P = ParamSpec("P")
R = TypeVar("R")
_DUPLICATE = "Duplicate step"


class Recorder:
    """The recorded steps of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        """The attempt."""
        self._calls: Counter[str] = Counter()
        self._recorded: dict[str, bytes] | None = None if attempt.info is None or attempt.info.steps else {}

    def next(self, name: str) -> str:
        """The name of the next call of a step."""
        self._calls[name] += 1
        count = self._calls[name]
        return name if count == 1 else f"{name}.{count}"

    def needs_steps(self) -> bool:
        """Whether the recorded steps are still to be fetched."""
        return self._recorded is None

    def take(self, steps: Sequence[Step]) -> None:
        """Take the steps that the server has."""
        self._recorded = {one.name: one.result for one in steps}

    def find(self, name: str) -> bytes | None:
        """The recorded result of a step."""
        return (self._recorded or {}).get(name)


recording: ContextVar[Recorder | None] = ContextVar("recording", default=None)
"""The recorder of the task that runs."""


def current_attempt() -> Attempt:
    """The attempt of the task that runs. Also as a dependency: `attempt: Attempt = Depends(current_attempt)`."""
    recorder = recording.get()
    if recorder is None:
        raise LookupError("no task runs here: only what a worker calls has an attempt")
    return recorder.attempt


@overload
def step(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def step(*, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def step(function: Any = None, /, *, name: str | None = None) -> Any:
    """Record the results of a function, when a task calls it. With `async def` they are awaited."""
    if function is None:
        return functools.partial(_decorated, name=name)
    return _decorated(function, name=None)


def _decorated(function: Callable[..., Any], *, name: str | None) -> Callable[..., Any]:
    known = key_of("name", name or function.__name__)
    returns = typing.get_type_hints(function).get("return", Any)
    wrap = _awaited if inspect.iscoroutinefunction(function) else _called
    return functools.wraps(function)(wrap(function, known, returns))


def _called(function: Callable[..., Any], name: str, returns: Any) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        recorder = recording.get()
        if recorder is None:
            return function(*args, **kwargs)
        attempt, key = recorder.attempt, recorder.next(name)
        if recorder.needs_steps():
            recorder.take(attempt.client.steps(attempt.id))
        found = recorder.find(key)
        if found is None:
            value = function(*args, **kwargs)
            try:
                attempt.client.call(lifecycle.step(attempt.id, key, encode(value), attempt=attempt.number))
                return value
            except JobRefused as error:
                if error.reason != _DUPLICATE:
                    raise
            recorder.take(attempt.client.steps(attempt.id))
            found = recorder.find(key)
        return convert(decode(found or b"null"), returns)

    return recorded


def _awaited(function: Callable[..., Any], name: str, returns: Any) -> Callable[..., Any]:
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        recorder = recording.get()
        if recorder is None:
            return await function(*args, **kwargs)
        attempt, key = recorder.attempt, recorder.next(name)
        client = attempt.aio.client
        if recorder.needs_steps():
            recorder.take(await client.steps(attempt.id))
        found = recorder.find(key)
        if found is None:
            value = await function(*args, **kwargs)
            try:
                await client.call(lifecycle.step(attempt.id, key, encode(value), attempt=attempt.number))
                return value
            except JobRefused as error:
                if error.reason != _DUPLICATE:
                    raise
            recorder.take(await client.steps(attempt.id))
            found = recorder.find(key)
        return convert(decode(found or b"null"), returns)

    return recorded
