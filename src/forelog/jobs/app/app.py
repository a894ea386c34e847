"""An app: its tasks, the options of its queues, its schedules, and its clients.

    from forelog.jobs import App, Retry, exponential

    app = App("127.0.0.1:9922")

    @app.task(retries=5, backoff=exponential("1s", max="1h"))
    def send(to: str, text: str) -> str:
        return mailer.send(to, text)

    job = send.delay("you", "hello")        # adds a job
    print(job.get(timeout=10))              # what the worker's call has returned

A worker does the jobs: `forelog jobs worker MODULE:app`, or `app.worker().run()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from forelog.jobs.app.envelope import encode_failure
from forelog.jobs.app.home import Called
from forelog.jobs.app.injection import Overrides
from forelog.jobs.app.middleware import Chain, Middleware
from forelog.jobs.app.options import Span, TaskOptions, check
from forelog.jobs.app.runner import Runner
from forelog.jobs.app.schedules import Schedule
from forelog.jobs.app.task import Task
from forelog.jobs.app.testing import Testing
from forelog.jobs.client.administration import Missed
from forelog.jobs.client.client import Client
from forelog.jobs.client.words import name_of
from forelog.jobs.client.worker import Worker

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

    from forelog.jobs.client.async_client import AsyncClient

P = ParamSpec("P")
R = TypeVar("R")
SERVER = "127.0.0.1:9922"
QUEUE = "default"
JOIN = "forelog.join"
Hook = Callable[[], Any]


class App:
    """Tasks that are done by workers of a job server.

    `server` is its address, by default that of the variable WORKQ_SERVER. `token` is by default that of
    WORKQ_TOKEN. `queue` is the queue of tasks that name no other. Further options are those of every job: see
    `TaskOptions`.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        queue: str = QUEUE,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool = False,
        **options: Unpack[TaskOptions],
    ) -> None:
        check(TaskOptions, options, "an app")
        self.tasks: dict[str, Task[..., Any]] = {}
        """The tasks by name."""
        self.queues: dict[str, dict[str, Any]] = {}
        """The options of queues, by name."""
        self.schedules: dict[str, Schedule] = {}
        """The schedules by name."""
        self.middleware = Chain()
        """What is done around every call."""
        self.overrides = Overrides()
        """What is used in place of dependencies."""
        self._server = server
        self._queue = name_of(queue)
        self._connect: dict[str, Any] = {"token": token, "tls": tls}
        self._options = dict(options)
        self._starting: list[Hook] = []
        self._stopping: list[Hook] = []
        self._client: Client | None = None
        self._async_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = (
            weakref.WeakKeyDictionary()
        )
        self._join = self.task(name=JOIN)(_join)

    @property
    def called(self) -> Mapping[str, Called]:
        """The tasks by name, for the app's parts."""
        return self.tasks

    @property
    def joining(self) -> Called:
        """The task that does nothing, for workflows."""
        return self._join

    # -- tasks

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, *, name: str | None = None, queue: str | None = None, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, *functions: Any, **options: Any) -> Any:
        """Decorate a function that is to be done by workers. The options are those of its jobs.

        Its `name` is by default that of the module and the function. Workers and callers have to agree on it.
        """
        name, queue = options.pop("name", None), options.pop("queue", None)
        check(TaskOptions, options, "a task")

        def make(function: Callable[P, R]) -> Task[P, R]:
            known = name or f"{function.__module__}.{function.__qualname__}"
            if known in self.tasks:
                raise ValueError(f"there is a task {known} already: give this one another name=")
            made = Task(self, function, known, queue or self._queue, {**self._options, **options})
            self.tasks[known] = made
            return made

        return make(*functions) if functions else make

    def queue(self, name: str, **options: Unpack[TaskOptions]) -> None:
        """Options of all jobs of a queue, where neither their task nor their call has others."""
        check(TaskOptions, options, "a queue")
        self.queues[name_of(name)] = dict(options)

    def cron(
        self,
        expression: str,
        *,
        zone: str | None = None,
        missed: Missed | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
    ) -> Callable[[Any], Any]:
        """Decorate a task, or a function that becomes one, that is called at the times of a cron expression.

        `missed` says what becomes of times at which the server was away: `skip` (the default), `once` or `all`.
        The server has to know `repeat`: docs/jobs-protocol.md says whether it does.
        """
        return self._scheduled(Schedule(name or "", (*args,), cron=expression, zone=zone, missed=missed))

    def every(
        self, span: Span, *, missed: Missed | None = None, name: str | None = None, args: Sequence[Any] = ()
    ) -> Callable[[Any], Any]:
        """Decorate a task, or a function that becomes one, that is called at an interval: `"5m"`. See `cron`."""
        return self._scheduled(Schedule(name or "", (*args,), every=span, missed=missed))

    def _scheduled(self, schedule: Schedule) -> Callable[[Any], Any]:
        def take(function: Any) -> Any:
            task = function if isinstance(function, Task) else self.task(function)
            made = schedule.of(task)
            if made.name in self.schedules:
                raise ValueError(f"there is a schedule {made.name} already: give this one another name=")
            self.schedules[made.name] = made
            return task

        return take

    # -- around tasks

    def use(self, middleware: Middleware) -> None:
        """Add a middleware, for all calls."""
        self.middleware.use(middleware)

    def on_start(self, hook: Hook) -> Hook:
        """Decorate a function that each worker calls when it starts."""
        self._starting.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Decorate a function that each worker calls when it ends."""
        self._stopping.append(hook)
        return hook

    @contextlib.contextmanager
    def override(self, factory: Callable[..., Any], by: Callable[..., Any]) -> Iterator[None]:
        """Use another factory for a dependency, inside the `with` block: for tests."""
        with self.overrides.replaced(factory, by):
            yield

    def testing(self, *, worker: bool = True, concurrency: int = 1) -> Testing:
        """A context manager for tests: a server in this process without a log, and a worker on a thread."""
        return Testing(self, worker=worker, concurrency=concurrency)

    # -- connections

    @property
    def server(self) -> str:
        """The server's address."""
        return self._server or os.environ.get("WORKQ_SERVER") or SERVER

    @property
    def client(self) -> Client:
        """A client of the server, shared by all threads."""
        if self._client is None:
            self._client = Client(self.server, **self._connection())
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        """A client of the server, for the running event loop."""
        loop = asyncio.get_running_loop()
        client = self._async_clients.get(loop)
        if client is None:
            from forelog.jobs.client.async_client import AsyncClient

            self._async_clients[loop] = client = AsyncClient(self.server, **self._connection())
        return client

    def _connection(self) -> dict[str, Any]:
        token = self._connect["token"] or os.environ.get("WORKQ_TOKEN") or None
        return {**self._connect, "token": token}

    def close(self) -> None:
        """Close the connections. The next call makes new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._async_clients.clear()  # each is closed in its own event loop, if it is

    async def close_async(self) -> None:
        """Close the connections of the running event loop."""
        client = self._async_clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def use_server(
        self,
        server: str | None = None,
        *,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool | None = None,
    ) -> None:
        """Use another server, token or TLS, where they are given: as a command line may say."""
        self.close()
        self._server = server or self._server
        given = {"token": token, "tls": tls}
        self._connect |= {name: value for name, value in given.items() if value is not None}

    @contextlib.contextmanager
    def connected_to(self, server: str) -> Iterator[None]:
        """Use another server inside the `with` block: for tests."""
        before = self._server
        self.close()
        self._server = server
        try:
            yield
        finally:
            self.close()
            self._server = before

    # -- workers

    def worker(self, queues: Iterable[str] | None = None, *, concurrency: int = 1, **options: Any) -> Worker:
        """A worker for the jobs of these queues, by default of all queues that tasks name.

        If any task is a coroutine, it runs an event loop, with threads for the others. The options are those of
        `Worker`. `run_worker` also registers schedules and calls hooks.
        """
        awaited = any(task.is_coroutine for task in self.tasks.values())
        threads = ThreadPoolExecutor(concurrency, "forelog-task") if awaited else None
        runner = Runner(self, threads)
        chosen = list(dict.fromkeys(queues or [*(task.queue for task in self.tasks.values()), *self.queues]))
        worker = Worker(
            dict.fromkeys(chosen, runner.do_async if awaited else runner.do),
            self.server,
            concurrency=concurrency,
            **self._connection(),
            **options,
        )
        worker.describe_errors(encode_failure)
        return worker

    def run_worker(self, queues: Iterable[str] | None = None, **options: Any) -> None:
        """Do jobs until SIGTERM or Ctrl-C. The options are those of `worker`."""
        with self.started():
            self.worker(queues, **options).run()

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Around a worker's work: registers schedules, and calls the hooks."""
        self.register_schedules()
        for hook in self._starting:
            _call(hook)
        try:
            yield
        finally:
            for hook in reversed(self._stopping):
                _call(hook)

    def register_schedules(self) -> None:
        """Let the server know the app's schedules. Those that it knows already don't change."""
        if self.schedules:
            self.client.call_many([schedule.request() for schedule in self.schedules.values()])


def _call(hook: Hook) -> None:
    value = hook()
    if inspect.iscoroutine(value):
        asyncio.run(value)


def _join() -> None:
    """Does nothing."""
