"""What a task needs besides its arguments, made for each call, and replaced in tests.

    def database():
        with connect() as connection:
            yield connection                  # closed after the task

    @app.task
    def report(day: date, db: Connection = Depends(database)) -> int: ...

    with app.override(database, lambda: FakeConnection()):
        report(date(2026, 1, 1))

A dependency is a function, a generator function that yields once, or one of these with `async`, for tasks that are
coroutines. It may have dependencies itself. Each is made once for a call.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any


class _Dependency:
    """The default of a parameter that gets a dependency."""

    def __init__(self, factory: Callable[..., Any]) -> None:
        self.factory = factory


def Depends(factory: Callable[..., Any]) -> Any:  # noqa: N802 - as elsewhere
    """The default of a parameter: it gets what `factory` makes. Any type, so it fits every annotation."""
    return _Dependency(factory)


def dependencies_of(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The factories by the names of the parameters that get what they make."""
    return {
        name: parameter.default.factory
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(parameter.default, _Dependency)
    }


class Overrides:
    """What is used in place of dependencies, in tests."""

    def __init__(self) -> None:
        self._replaced: dict[Callable[..., Any], Callable[..., Any]] = {}

    def get(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """The factory to use for this one."""
        return self._replaced.get(factory, factory)

    @contextlib.contextmanager
    def replaced(self, factory: Callable[..., Any], by: Callable[..., Any]) -> Iterator[None]:
        """Use another factory inside the `with` block."""
        missing = object()
        before: Any = self._replaced.get(factory, missing)
        self._replaced[factory] = by
        try:
            yield
        finally:
            if before is missing:
                del self._replaced[factory]
            else:
                self._replaced[factory] = before


Made = dict[Callable[..., Any], Any]


def make(
    factories: Mapping[str, Callable[..., Any]], overrides: Overrides, stack: ExitStack, made: Made
) -> dict[str, Any]:
    """What the dependencies are for this call, by the names of their parameters."""
    found = {}
    for name, wanted in factories.items():
        if wanted not in made:
            factory = overrides.get(wanted)
            inner = make(dependencies_of(factory), overrides, stack, made)
            if inspect.isgeneratorfunction(factory):
                made[wanted] = stack.enter_context(contextlib.contextmanager(factory)(**inner))
            elif inspect.isasyncgenfunction(factory) or inspect.iscoroutinefunction(factory):
                raise TypeError(f"{factory.__qualname__} is a coroutine, and only tasks that are one can use it")
            else:
                made[wanted] = factory(**inner)
        found[name] = made[wanted]
    return found


async def make_async(
    factories: Mapping[str, Callable[..., Any]], overrides: Overrides, stack: AsyncExitStack, made: Made
) -> dict[str, Any]:
    """Make what a task that is a coroutine depends on, as `make` does for other tasks."""
    found = {}
    for name, wanted in factories.items():
        if wanted not in made:
            factory = overrides.get(wanted)
            inner = await make_async(dependencies_of(factory), overrides, stack, made)
            if inspect.isasyncgenfunction(factory):
                made[wanted] = await stack.enter_async_context(contextlib.asynccontextmanager(factory)(**inner))
            elif inspect.isgeneratorfunction(factory):
                made[wanted] = stack.enter_context(contextlib.contextmanager(factory)(**inner))
            else:
                value = factory(**inner)
                made[wanted] = await value if inspect.isawaitable(value) else value
        found[name] = made[wanted]
    return found
