"""What the parts of an app need of it, and of its tasks. `App` and `Task` have all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from forelog.jobs.app.arguments import Arguments
from forelog.jobs.app.injection import Overrides
from forelog.jobs.app.middleware import Chain
from forelog.jobs.client.client import Client
from forelog.jobs.client.requests import Request
from forelog.jobs.client.worker import Worker

if TYPE_CHECKING:
    from forelog.jobs.client.async_client import AsyncClient


class Home(Protocol):
    """An app."""

    queues: dict[str, dict[str, Any]]
    middleware: Chain
    overrides: Overrides

    @property
    def called(self) -> Mapping[str, Called]:
        """The tasks by name."""

    @property
    def joining(self) -> Called:
        """A task that does nothing."""

    @property
    def client(self) -> Client:
        """A client for threads."""

    @property
    def async_client(self) -> AsyncClient:
        """A client for the running event loop."""

    def connected_to(self, server: str) -> AbstractContextManager[None]:
        """Use another server."""

    def worker(self, queues: Iterable[str] | None = None, *, concurrency: int = 1, **options: Any) -> Worker:
        """A worker for its tasks."""


class Called(Protocol):
    """A task."""

    name: str
    queue: str
    options: dict[str, Any]
    arguments: Arguments
    is_coroutine: bool

    @property
    def home(self) -> Home:
        """The app of the task."""

    @property
    def plain(self) -> Callable[..., Any]:
        """The function of the task."""

    def request(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        results: Sequence[UUID] = (),
        gather: bool = False,
    ) -> Request[UUID]:
        """The command that adds the job of a call."""

    def job(self, job_id: UUID | str) -> Any:
        """A job of this task, by its id."""
