"""A task: a function that is done by workers, and called as a job."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast
from uuid import UUID

from forelog.jobs.app.arguments import Arguments
from forelog.jobs.app.envelope import Call, encode_call
from forelog.jobs.app.handle import Job
from forelog.jobs.app.home import Home
from forelog.jobs.app.options import CallOptions, check, merged, of_client
from forelog.jobs.app.runner import call_here
from forelog.jobs.app.workflows import Signature
from forelog.jobs.client import requests
from forelog.jobs.client.requests import Request
from forelog.jobs.client.words import id_of, name_of

if TYPE_CHECKING:
    from typing import Unpack


P = ParamSpec("P")
R = TypeVar("R")
_NONE: dict[str, Any] = {}


class Task(Generic[P, R]):
    """A function that is done by workers. Called as it is, it runs here and now."""

    def __init__(
        self, home: Home, function: Callable[P, R], name: str, queue: str, options: Mapping[str, Any]
    ) -> None:
        self.home = home
        """The app of the task."""
        self.function = function
        """The function itself."""
        self.plain: Callable[..., Any] = function
        """The function, whatever it takes."""
        self.name = name
        """The task's name, in the payload of its jobs."""
        self.queue = name_of(queue)
        """The queue of its jobs."""
        self.options = dict(options)
        """The options of its jobs."""
        self.arguments = Arguments(function)
        """The function's parameters."""
        self.is_coroutine = inspect.iscoroutinefunction(function)
        """Whether it is to be awaited."""
        self._known: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        """The options by queue, and the queue's own from which they were made."""
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here, with what it depends on."""
        return cast(R, call_here(self, args, kwargs))

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @property
    def aio(self) -> AsyncTask[P, R]:
        """`delay` and `apply_async`, to be awaited."""
        return AsyncTask(self)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job that calls the task with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Job[R]:
        """Add a job that calls the task with these arguments, and with options."""
        return self.job(self.home.client.call(self.request(args, kwargs or {}, options)))

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """The call as a part of a workflow. Results of the part before come before `args`."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """The call as a part of a workflow that takes no results of the part before."""
        return Signature(self, args, kwargs, immutable=True)

    def job(self, job_id: UUID | str) -> Job[R]:
        """A job of this task, by its id."""
        return Job(self.home, id_of(job_id), self.arguments.returns)

    def request(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        results: Sequence[UUID] = (),
        gather: bool = False,
    ) -> Request[UUID]:
        """The command that adds the job of a call. `results` are jobs whose results come before `args`."""
        if not results:
            self.arguments.check(args, kwargs)
        headers = dict(options.get("headers") or {})
        call = Call(self.name, args, kwargs, headers, [str(one) for one in results], gather)
        self.home.middleware.enqueue(call)
        payload = encode_call(call)
        queue = options.get("queue") or self.queue
        if not options:
            return requests.add(queue, payload, **self._options_of(queue))
        check(CallOptions, options, "a call")
        chosen = {**self._options_of(queue), **of_client(merged(options))}
        eta = options.get("eta")
        if eta is None:
            return requests.add(queue, payload, **chosen)
        return requests.schedule(queue, payload, eta, **chosen)

    def _options_of(self, queue: str) -> dict[str, Any]:
        """The options of the queue and the task, as the client's commands have them."""
        of_queue = self.home.queues.get(queue, _NONE)
        known = self._known.get(queue)
        if known is None or known[0] is not of_queue:
            self._known[queue] = known = of_queue, of_client(merged(of_queue, self.options))
        return known[1]


class AsyncTask(Generic[P, R]):
    """The methods of a task, to be awaited."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    async def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job that calls the task with these arguments."""
        return await self.apply_async(args, kwargs)

    async def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Job[R]:
        """Add a job that calls the task with these arguments, and with options."""
        task = self._task
        job_id: UUID = await task.home.async_client.call(task.request(args, kwargs or {}, options))
        return task.job(job_id)
