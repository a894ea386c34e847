"""What is done around every call of an app's tasks.

    class Traced(Middleware):
        def enqueue(self, call):
            call.headers["trace"] = current_trace()

        def before(self, attempt, call):
            begin_span(call.headers.get("trace"))

    app.use(Traced())

Methods are called in the thread or the event loop of the task, `before` in the order in which middleware was added
and the others the other way round.
"""

from __future__ import annotations

from typing import Any

from forelog.jobs.app.envelope import Call
from forelog.jobs.client.attempt import Attempt


class Middleware:
    """Override what you need."""

    def enqueue(self, call: Call) -> None:
        """A job is about to be added. `call.headers` can be changed."""

    def before(self, attempt: Attempt, call: Call) -> None:
        """A task is about to be called. An exception fails the attempt."""

    def after(self, attempt: Attempt, call: Call, value: Any) -> None:
        """A task has returned."""

    def on_error(self, attempt: Attempt, call: Call, error: BaseException) -> None:
        """A task has raised, or its arguments were refused."""


class Chain:
    """The middleware of an app."""

    def __init__(self) -> None:
        self._all: list[Middleware] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def use(self, middleware: Middleware) -> None:
        """Add one."""
        self._all.append(middleware)

    def enqueue(self, call: Call) -> None:
        """A job is about to be added."""
        for one in self._all:
            one.enqueue(call)

    def before(self, attempt: Attempt, call: Call) -> None:
        """A task is about to be called."""
        for one in self._all:
            one.before(attempt, call)

    def after(self, attempt: Attempt, call: Call, value: Any) -> None:
        """A task has returned."""
        for one in reversed(self._all):
            one.after(attempt, call, value)

    def on_error(self, attempt: Attempt, call: Call, error: BaseException) -> None:
        """A task has raised."""
        for one in reversed(self._all):
            one.on_error(attempt, call, error)
