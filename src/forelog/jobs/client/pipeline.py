"""Many commands in one write."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from forelog.jobs.client import requests
from forelog.jobs.client.exchange import Pending
from forelog.jobs.client.flags import JobOptions
from forelog.jobs.client.requests import Request
from forelog.jobs.client.values import Leased, Result

if TYPE_CHECKING:
    from typing import Unpack

T = TypeVar("T")


class Pipeline:
    """Commands to be sent together. Each returns a `Pending`, which has its `value()` after the `with` block."""

    def __init__(self) -> None:
        self.pending: list[Pending[Any]] = []
        """The commands so far."""

    def call(self, request: Request[T]) -> Pending[T]:
        """Add a request of `forelog.jobs.client.requests`."""
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
        """Lease a job, if there is one."""
        return self.call(requests.lease(names))

    def complete(self, job_id: UUID | str, result: bytes = b"") -> Pending[None]:
        """Complete a job."""
        return self.call(requests.complete(job_id, result))

    def fail(self, job_id: UUID | str, result: bytes = b"") -> Pending[None]:
        """Fail a job."""
        return self.call(requests.fail(job_id, result))

    def delete(self, job_id: UUID | str) -> Pending[None]:
        """Delete a job."""
        return self.call(requests.delete(job_id))

    def result(self, job_id: UUID | str) -> Pending[Result]:
        """The result of a job, if it has one."""
        return self.call(requests.result(job_id))
