"""Many commands in one write: a batch, as `Client.pipeline()` gives it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from forelog.jobs.client import requests
from forelog.jobs.client.answers import Leased, Result
from forelog.jobs.client.exchange import Pending
from forelog.jobs.client.requests import JobOptions, Request

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["Batch"]

T = TypeVar("T")


class Batch:
    """Commands to be sent together. Each gives a `Pending`, whose `value()` is there after the `with` block."""

    def __init__(self) -> None:
        self.pending: list[Pending[Any]] = []

    def call(self, request: Request[T]) -> Pending[T]:
        """Any request of `forelog.jobs.client.requests`."""
        pending = Pending(request)
        self.pending.append(pending)
        return pending

    def add(self, name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> Pending[UUID]:
        """Add a job."""
        return self.call(requests.add(name, payload, **options))

    def schedule(
        self, name: str, payload: bytes, time: str | datetime | int, **options: Unpack[JobOptions]
    ) -> Pending[UUID]:
        """Add a job that is due at a time."""
        return self.call(requests.schedule(name, payload, time, **options))

    def lease(self, *names: str) -> Pending[Leased | None]:
        """Take a job, if there is one."""
        return self.call(requests.lease(names))

    def complete(self, job_id: UUID | str, result: bytes = b"") -> Pending[None]:
        """A job is done."""
        return self.call(requests.complete(job_id, result))

    def fail(self, job_id: UUID | str, result: bytes = b"") -> Pending[None]:
        """A job couldn't be done."""
        return self.call(requests.fail(job_id, result))

    def delete(self, job_id: UUID | str) -> Pending[None]:
        """Forget a job."""
        return self.call(requests.delete(job_id))

    def result(self, job_id: UUID | str) -> Pending[Result]:
        """A job's result, if it has one."""
        return self.call(requests.result(job_id))
