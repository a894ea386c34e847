"""A job that was added, as its caller has it: its result, its progress, and how to cancel it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from forelog.errors import JobFailed, JobTimeout
from forelog.jobs.app.arguments import convert
from forelog.jobs.app.envelope import decode, decode_failure
from forelog.jobs.app.home import Home
from forelog.jobs.client import lifecycle, requests
from forelog.jobs.client.values import JobInfo, Progress, Result
from forelog.jobs.client.words import span_ms

T = TypeVar("T")
_WAIT_MS = 20_000


class Job(Generic[T]):
    """A job of a task. `get()` waits for what the task returns."""

    def __init__(self, app: Home, job_id: UUID, returns: Any = Any) -> None:
        self.id = job_id
        """The job's id."""
        self._app = app
        self._returns = returns

    def __repr__(self) -> str:
        return f"Job({str(self.id)!r})"

    @property
    def aio(self) -> AsyncJob[T]:
        """The same methods, to be awaited."""
        return AsyncJob(self)

    def get(self, timeout: str | float | timedelta | None = None) -> T:
        """What the task returned. Waits for it, at most for `timeout`: `"5m"`, seconds, or a timedelta.

        Raises JobFailed, with the task's exception, if the job has failed for good; JobTimeout if it isn't
        finished in time; JobNotFound if the server doesn't know it.
        """
        waits = _Waits(timeout)
        while True:
            try:
                return self.value(self._app.client.call(requests.result(self.id, next(waits))))
            except JobTimeout:
                if not waits.more():
                    raise

    def value(self, result: Result) -> T:
        """The value of a result. Raises JobFailed if it is that of a job that failed."""
        if not result.success:
            failure = decode_failure(result.result)
            raise JobFailed(
                f"{self.id} failed: {failure}",
                job_id=self.id,
                type=failure.type,
                reason=failure.message,
                traceback=failure.traceback,
            )
        found: T = convert(decode(result.result) if result.result else None, self._returns)
        return found

    def is_done(self) -> bool:
        """Whether it has completed, or failed for good."""
        try:
            self._app.client.call(requests.result(self.id))
        except JobTimeout:
            return False
        return True

    def info(self) -> JobInfo:
        """Everything that the server reports about the job."""
        return self._app.client.inspect_job(self.id)

    def cancel(self) -> None:
        """Cancel it, if the server knows `cancel`. If it waits it is deleted; if it runs, its attempt is told."""
        self._app.client.cancel(self.id)

    def progress(self) -> Iterator[Progress]:
        """What the job reports, until it is finished."""
        seen = 0
        while True:
            try:
                reports = self._app.client.call(lifecycle.follow(self.id, seen, _WAIT_MS))
            except JobTimeout:
                continue
            if not reports:
                return
            for report in reports:
                seen = report.number
                yield report


class AsyncJob(Generic[T]):
    """The methods of a job, to be awaited."""

    def __init__(self, job: Job[T]) -> None:
        self._job = job
        self._app = job._app

    async def get(self, timeout: str | float | timedelta | None = None) -> T:
        """What the task returned. See `Job.get`."""
        waits = _Waits(timeout)
        while True:
            try:
                return self._job.value(
                    await self._app.async_client.call(requests.result(self._job.id, next(waits)))
                )
            except JobTimeout:
                if not waits.more():
                    raise

    async def is_done(self) -> bool:
        """Whether it has completed, or failed for good."""
        try:
            await self._app.async_client.call(requests.result(self._job.id))
        except JobTimeout:
            return False
        return True

    async def info(self) -> JobInfo:
        """Everything that the server reports about the job."""
        return await self._app.async_client.inspect_job(self._job.id)

    async def cancel(self) -> None:
        """Cancel it. See `Job.cancel`."""
        await self._app.async_client.cancel(self._job.id)

    async def progress(self) -> AsyncIterator[Progress]:
        """What the job reports, until it is finished."""
        seen = 0
        while True:
            try:
                reports = await self._app.async_client.call(lifecycle.follow(self._job.id, seen, _WAIT_MS))
            except JobTimeout:
                continue
            if not reports:
                return
            for report in reports:
                seen = report.number
                yield report


class _Waits:
    """How long each of several requests waits, until a time is over."""

    def __init__(self, timeout: str | float | timedelta | None) -> None:
        self._until = None if timeout is None else time.monotonic() + span_ms("timeout", timeout) / 1000

    def __next__(self) -> int:
        if self._until is None:
            return _WAIT_MS
        return max(0, min(_WAIT_MS, round((self._until - time.monotonic()) * 1000)))

    def more(self) -> bool:
        """Whether there is time left."""
        return self._until is None or time.monotonic() < self._until
