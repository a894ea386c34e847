"""Jobs that wait for others: chains, and groups with something to do when all are done.

    chain(fetch.s(url), resize.s(640), store.s()).delay()     # each gets the result of the one before
    chain(group(fetch.s(url) for url in urls), summary.s()).delay()    # summary gets a list of all results

The server has to know `-after`: docs/jobs-protocol.md says whether it does. All jobs are added in one write. A job
that waits is in the server's log like any other, so a workflow survives restarts of clients, workers and server.
If a job fails for good, those that wait for it fail too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from forelog.jobs.app.handle import Job
from forelog.jobs.app.home import Called, Home
from forelog.jobs.app.options import CallOptions, check
from forelog.jobs.client.requests import Request

if TYPE_CHECKING:
    from typing import Unpack


AFTER_MAX = 200
"""Jobs that one waits for. Of more, some are joined by jobs that do nothing: a line of the protocol is limited."""


@dataclass(frozen=True)
class _Before:
    """The jobs that the next part waits for."""

    ids: tuple[UUID, ...] = ()
    gather: bool = False


class Node:
    """A part of a workflow."""

    def plan(self, plan: Plan, before: _Before) -> _Before:
        """Plan the jobs of this part. Returns those that the next part waits for."""
        raise NotImplementedError

    def app(self) -> Home:
        """The app of its tasks."""
        raise NotImplementedError

    def last(self, ids: Sequence[UUID]) -> Any:
        """What the caller gets: the jobs whose results are those of the workflow."""
        raise NotImplementedError

    def delay(self) -> Any:
        """Add all jobs of the workflow, in one write. Returns the last job, or a GroupResult."""
        plan = Plan(self.app())
        end = self.plan(plan, _Before())
        self.app().client.call_many(plan.requests)
        return self.last(end.ids)

    async def delay_async(self) -> Any:
        """Add all jobs as `delay` does, and await it."""
        plan = Plan(self.app())
        end = self.plan(plan, _Before())
        await self.app().async_client.call_many(plan.requests)
        return self.last(end.ids)


class Plan:
    """The commands that add a workflow's jobs."""

    def __init__(self, app: Home) -> None:
        self.requests: list[Request[UUID]] = []
        """The commands so far."""
        self._app = app

    def add(
        self,
        task: Called,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        before: _Before,
        *,
        results: bool,
    ) -> UUID:
        """Plan a job that waits for others."""
        job_id = uuid4()
        after = list(before.ids)
        while len(after) > AFTER_MAX:
            after = [self._join(after[at : at + AFTER_MAX]) for at in range(0, len(after), AFTER_MAX)]
        chosen: dict[str, Any] = {**options, "id": job_id}
        if after:
            chosen["after"] = after
        found = before.ids if results else ()
        self.requests.append(task.request(args, kwargs, chosen, results=found, gather=before.gather))
        return job_id

    def _join(self, after: Sequence[UUID]) -> UUID:
        job_id = uuid4()
        self.requests.append(self._app.joining.request((), {}, {"id": job_id, "after": after}))
        return job_id


@dataclass(frozen=True)
class Signature(Node):
    """A call of a task, to be a part of a workflow."""

    task: Called
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    immutable: bool = False

    def set(self, **options: Unpack[CallOptions]) -> Signature:
        """The same call with options of its job."""
        check(CallOptions, options, "a call")
        return replace(self, options={**(self.options or {}), **options})

    def app(self) -> Home:
        return self.task.home

    def plan(self, plan: Plan, before: _Before) -> _Before:
        results = not self.immutable
        job_id = plan.add(self.task, self.args, self.kwargs or {}, self.options or {}, before, results=results)
        return _Before((job_id,))

    def last(self, ids: Sequence[UUID]) -> Any:
        return self.task.job(ids[0])


class chain(Node):  # noqa: N801 - a verb of workflows, as elsewhere
    """Parts of a workflow, one after the other. Each gets the results of the one before it."""

    def __init__(self, *parts: Node) -> None:
        if not parts:
            raise ValueError("a chain needs at least one part")
        self.parts = parts

    def app(self) -> Home:
        return self.parts[0].app()

    def plan(self, plan: Plan, before: _Before) -> _Before:
        for part in self.parts:
            before = part.plan(plan, before)
        return before

    def last(self, ids: Sequence[UUID]) -> Any:
        return self.parts[-1].last(ids)


class group(Node):  # noqa: N801
    """Parts of a workflow, side by side. What comes after them in a chain gets all results as a list."""

    def __init__(self, parts: Iterable[Node] | Node, *more: Node) -> None:
        self.parts = [parts, *more] if isinstance(parts, Node) else [*parts, *more]
        if not self.parts:
            raise ValueError("a group needs at least one part")

    def app(self) -> Home:
        return self.parts[0].app()

    def plan(self, plan: Plan, before: _Before) -> _Before:
        ids: list[UUID] = []
        for part in self.parts:
            ids += part.plan(plan, before).ids
        return _Before(tuple(ids), gather=True)

    def last(self, ids: Sequence[UUID]) -> GroupResult:
        app = self.app()
        return GroupResult([Job(app, one) for one in ids])


@dataclass(frozen=True)
class GroupResult:
    """The jobs of a group."""

    jobs: list[Job[Any]]
    """The jobs, in the group's order."""

    def get(self, timeout: float | None = None) -> list[Any]:
        """What each task returned. Raises JobFailed for the first that has failed."""
        return [job.get(timeout) for job in self.jobs]

    async def get_async(self, timeout: float | None = None) -> list[Any]:
        """Await the jobs, and return what `get` returns."""
        return [await job.aio.get(timeout) for job in self.jobs]
