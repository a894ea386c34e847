"""A client of a job server, for tasks of an event loop.

    from forelog.jobs import AsyncClient

    async with AsyncClient("127.0.0.1:9922") as client:
        await asyncio.gather(*(client.add("mail", b"to: %d" % number) for number in range(100)))

Tasks of one event loop can share a client. A cancelled command costs its connection, since its reply would still
come; whether the command was done is unknown.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from forelog.bounds import COUNT_MAX, check_number, check_whole
from forelog.errors import JobError
from forelog.jobs.client import requests
from forelog.jobs.client.async_connections import AsyncConnections, sleep
from forelog.jobs.client.async_management import AsyncManagement
from forelog.jobs.client.endpoint import Endpoint
from forelog.jobs.client.exchange import CONNECT_SECONDS, REPLY_SECONDS, RETRY_SECONDS, Exchange, Pending
from forelog.jobs.client.flags import JobOptions
from forelog.jobs.client.pipeline import Pipeline
from forelog.jobs.client.requests import Request
from forelog.jobs.client.values import Added, JobInfo, Leased, QueueInfo, Result, ServerInfo

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

T = TypeVar("T")


class AsyncClient(AsyncManagement):
    """A client of a job server, for tasks of an event loop.

    `timeout` is how many seconds a reply may take, besides the time for which the command itself waits, and
    `connect_timeout` how many a connection may take. When a connection breaks, or the server is away, commands
    that can be sent again are retried for `retry_seconds`. `token` is sent first on each connection. `tls` is
    True or a context. At most `connections` are open at a time.
    """

    def __init__(
        self,
        server: str = "127.0.0.1:9922",
        *,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool = False,
        timeout: float = REPLY_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        connections: int = 64,
    ) -> None:
        check_number("timeout", timeout, above=True)
        check_number("connect_timeout", connect_timeout, above=True)
        check_number("retry_seconds", retry_seconds)
        check_whole("connections", connections, most=COUNT_MAX)
        self._endpoint = Endpoint.of(server, tls, token)
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._connections = AsyncConnections(self._endpoint, connect_timeout, connections)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Commands that are under way still end normally."""
        await self._connections.close()

    # -- commands

    async def add(self, name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> UUID:
        """Add a job. Returns its id. The options are those of `JobOptions`."""
        return await self.call(requests.add(name, payload, **options))

    async def add_unique(self, name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> Added:
        """Add a job with a key. Returns what became of it: `new`, `existing` or `replaced`, and its id."""
        return await self.call(requests.add_unique(name, payload, **options))

    async def schedule(
        self, name: str, payload: bytes, time: str | datetime | int, **options: Unpack[JobOptions]
    ) -> UUID:
        """Add a job that is due at a time: in RFC 3339, an aware datetime, or nanoseconds since 1970."""
        return await self.call(requests.schedule(name, payload, time, **options))

    async def run(
        self,
        name: str,
        payload: bytes = b"",
        *,
        wait_ms: int,
        id: UUID | str | None = None,  # noqa: A002
        ttr_ms: int = requests.TTR_MS,
        priority: int = 0,
    ) -> Result:
        """Have a job done now, and wait for its result.

        Raises JobTimeout if no worker leases it within `wait_ms`, or finishes it within `ttr_ms`. The job is not
        in the log, and ends when its client goes.
        """
        return await self.call(
            requests.run(name, payload, wait_ms=wait_ms, id=id, ttr_ms=ttr_ms, priority=priority)
        )

    async def lease(self, *names: str, wait_ms: int = 0, lease_ms: int = 0, info: bool = False) -> Leased | None:
        """Lease the next job of the first of these queues that has one. None if none comes within `wait_ms`.

        With `lease_ms` the lease ends after so long without a heartbeat. With `info` the job has its attempt's
        number, its last error and more.
        """
        if not lease_ms and not info:
            return await self.call(requests.lease(names, wait_ms))
        found = await self.call(requests.leases(names, wait_ms, lease_ms=lease_ms, info=info))
        return found[0] if found else None

    async def lease_many(
        self, *names: str, count: int, wait_ms: int = 0, lease_ms: int = 0, info: bool = False
    ) -> list[Leased]:
        """Lease up to `count` jobs, at most 100. Waits only if there is none. The options are those of `lease`."""
        return await self.call(requests.leases(names, wait_ms, count=count, lease_ms=lease_ms, info=info))

    async def complete(self, job_id: UUID | str, result: bytes = b"", *, attempt: int = 0) -> None:
        """Complete a job. Raises JobNotFound if there is no such job, JobRefused if it already has a result.

        With `attempt`, only if the job is at this one.
        """
        await self.call(requests.complete(job_id, result, attempt=attempt))

    async def fail(
        self,
        job_id: UUID | str,
        result: bytes = b"",
        *,
        attempt: int = 0,
        retry_after_ms: int | None = None,
        final: bool = False,
    ) -> None:
        """Fail a job. It is tried again if its `max_fails` or `retries` allow that.

        With `retry_after_ms` it is tried again after so long, and with `final` not at all. With `attempt`, it
        fails only if it is at this one.
        """
        await self.call(requests.fail(job_id, result, attempt=attempt, retry_after_ms=retry_after_ms, final=final))

    async def delete(self, job_id: UUID | str) -> None:
        """Delete a job, in any state."""
        await self.call(requests.delete(job_id))

    async def result(self, job_id: UUID | str, wait_ms: int = 0) -> Result:
        """The result of a job. Raises JobTimeout if none comes within `wait_ms`, JobNotFound if there is no
        job."""
        return await self.call(requests.result(job_id, wait_ms))

    async def inspect_job(self, job_id: UUID | str) -> JobInfo:
        """Everything that the server reports about a job."""
        return await self.call(requests.inspect_job(job_id))

    async def inspect_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that can be leased, in order. Fewer than `limit` if their payloads are large."""
        return await self.call(requests.inspect_jobs(name, offset, limit))

    async def inspect_scheduled_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that are not due yet."""
        return await self.call(requests.inspect_scheduled_jobs(name, offset, limit))

    async def inspect_queue(self, name: str) -> QueueInfo:
        """How many jobs a queue has, ready and scheduled."""
        return await self.call(requests.inspect_queue(name))

    async def inspect_queues(self, offset: int = 0, limit: int = 100) -> list[QueueInfo]:
        """The queues, ordered by name."""
        return await self.call(requests.inspect_queues(offset, limit))

    async def inspect_server(self) -> ServerInfo:
        """How many clients the server has, and when it started."""
        return await self.call(requests.inspect_server())

    # -- many at once

    async def add_many(
        self, name: str, payloads: Mapping[UUID | str, bytes] | Iterable[bytes], **options: Unpack[JobOptions]
    ) -> list[UUID]:
        """Add a job for each payload, under the ids of a mapping or new ones.

        Raises BatchFailed, with the outcome of each, if one was not added.
        """
        return await self.call_many(requests.adds(name, payloads, **options))

    async def complete_many(
        self, results: Mapping[UUID | str, bytes] | Iterable[tuple[UUID | str, bytes]]
    ) -> None:
        """Complete jobs, each with its result. Raises BatchFailed if one was not completed."""
        await self.call_many(requests.results_of(results))

    async def delete_many(self, job_ids: Iterable[UUID | str]) -> None:
        """Delete jobs. Raises BatchFailed if one was not deleted."""
        await self.call_many([requests.delete(job_id) for job_id in job_ids])

    @contextlib.asynccontextmanager
    async def pipeline(self) -> AsyncIterator[Pipeline]:
        """Collect commands, which are sent together at the end of the `with` block. Each has its own outcome."""
        pipeline = Pipeline()
        yield pipeline
        await self._exchange(pipeline.pending)

    async def call(self, request: Request[T]) -> T:
        """Send one request of `forelog.jobs.client.requests`."""
        pending = Pending(request)
        await self._exchange([pending])
        return pending.value()

    async def call_many(self, many: Sequence[Request[T]]) -> list[T]:
        """Send requests of `forelog.jobs.client.requests` together."""
        return (await self._exchange([Pending(request) for request in many])).values()

    # -- exchanges

    async def _exchange(self, pending: Sequence[Pending[Any]]) -> Exchange:
        exchange = Exchange(pending, self._endpoint, self._retry_seconds)
        async with self._connections.slot():
            while not exchange.is_done():
                try:
                    pause = await self._attempt(exchange)
                except (OSError, JobError) as error:
                    pause = exchange.lost(error, time.monotonic(), final=self._connections.closed)
                if pause:
                    await sleep(pause)
        return exchange

    async def _attempt(self, exchange: Exchange) -> float:
        """Send what is to be sent. Returns how long to wait before some of it is sent again, if any is."""
        connection = await self._connections.take()
        whole = False
        try:
            for data, lot in exchange.lots():
                try:
                    await connection.send(data, self._timeout)
                    for pending in lot:
                        seconds = self._timeout + pending.request.wait_seconds
                        exchange.replied(pending, await connection.reply(pending.request.kind, seconds))
                finally:
                    exchange.sent(lot)
            whole = True
            return exchange.finished(time.monotonic())
        finally:
            await self._connections.give(connection, whole)
