# Made from async_client.py by `python -m tests.jobs.unasync`: edit that file.
"""A client of a job server, for threads.

    from forelog.jobs import Client

    with Client("127.0.0.1:9922") as client:
        job = client.add("mail", b"to: you")
        leased = client.lease("mail")
        client.complete(leased.id, b"sent")
        print(client.result(job).result)

Threads can share a client, and so can processes that were forked. A command that waits has a connection to
itself; other commands use other connections, up to `connections` of them. After a connection broke, the next
command makes a new one. `forelog.jobs.client.exchange` says which commands are sent again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from forelog.bounds import COUNT_MAX, check_number, check_whole
from forelog.errors import JobError
from forelog.jobs.client import requests
from forelog.jobs.client.connections import Connections, sleep
from forelog.jobs.client.endpoint import Endpoint
from forelog.jobs.client.exchange import CONNECT_SECONDS, REPLY_SECONDS, RETRY_SECONDS, Exchange, Pending
from forelog.jobs.client.flags import JobOptions
from forelog.jobs.client.management import Management
from forelog.jobs.client.pipeline import Pipeline
from forelog.jobs.client.requests import Request
from forelog.jobs.client.values import Added, JobInfo, Leased, QueueInfo, Result, ServerInfo

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

T = TypeVar("T")


class Client(Management):
    """A client of a job server, for threads.

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
        self._connections = Connections(self._endpoint, connect_timeout, connections)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Commands that are under way still end normally."""
        self._connections.close()

    # -- commands

    def add(self, name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> UUID:
        """Add a job. Returns its id. The options are those of `JobOptions`."""
        return self.call(requests.add(name, payload, **options))

    def add_unique(self, name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> Added:
        """Add a job with a key. Returns what became of it: `new`, `existing` or `replaced`, and its id."""
        return self.call(requests.add_unique(name, payload, **options))

    def schedule(
        self, name: str, payload: bytes, time: str | datetime | int, **options: Unpack[JobOptions]
    ) -> UUID:
        """Add a job that is due at a time: in RFC 3339, an aware datetime, or nanoseconds since 1970."""
        return self.call(requests.schedule(name, payload, time, **options))

    def run(
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
        return self.call(requests.run(name, payload, wait_ms=wait_ms, id=id, ttr_ms=ttr_ms, priority=priority))

    def lease(self, *names: str, wait_ms: int = 0, lease_ms: int = 0, info: bool = False) -> Leased | None:
        """Lease the next job of the first of these queues that has one. None if none comes within `wait_ms`.

        With `lease_ms` the lease ends after so long without a heartbeat. With `info` the job has its attempt's
        number, its last error and more.
        """
        if not lease_ms and not info:
            return self.call(requests.lease(names, wait_ms))
        found = self.call(requests.leases(names, wait_ms, lease_ms=lease_ms, info=info))
        return found[0] if found else None

    def lease_many(
        self, *names: str, count: int, wait_ms: int = 0, lease_ms: int = 0, info: bool = False
    ) -> list[Leased]:
        """Lease up to `count` jobs, at most 100. Waits only if there is none. The options are those of `lease`."""
        return self.call(requests.leases(names, wait_ms, count=count, lease_ms=lease_ms, info=info))

    def complete(self, job_id: UUID | str, result: bytes = b"", *, attempt: int = 0) -> None:
        """Complete a job. Raises JobNotFound if there is no such job, JobRefused if it already has a result.

        With `attempt`, only if the job is at this one.
        """
        self.call(requests.complete(job_id, result, attempt=attempt))

    def fail(
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
        self.call(requests.fail(job_id, result, attempt=attempt, retry_after_ms=retry_after_ms, final=final))

    def delete(self, job_id: UUID | str) -> None:
        """Delete a job, in any state."""
        self.call(requests.delete(job_id))

    def result(self, job_id: UUID | str, wait_ms: int = 0) -> Result:
        """The result of a job. Raises JobTimeout if none comes within `wait_ms`, JobNotFound if there is no
        job."""
        return self.call(requests.result(job_id, wait_ms))

    def inspect_job(self, job_id: UUID | str) -> JobInfo:
        """Everything that the server reports about a job."""
        return self.call(requests.inspect_job(job_id))

    def inspect_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that can be leased, in order. Fewer than `limit` if their payloads are large."""
        return self.call(requests.inspect_jobs(name, offset, limit))

    def inspect_scheduled_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that are not due yet."""
        return self.call(requests.inspect_scheduled_jobs(name, offset, limit))

    def inspect_queue(self, name: str) -> QueueInfo:
        """How many jobs a queue has, ready and scheduled."""
        return self.call(requests.inspect_queue(name))

    def inspect_queues(self, offset: int = 0, limit: int = 100) -> list[QueueInfo]:
        """The queues, ordered by name."""
        return self.call(requests.inspect_queues(offset, limit))

    def inspect_server(self) -> ServerInfo:
        """How many clients the server has, and when it started."""
        return self.call(requests.inspect_server())

    # -- many at once

    def add_many(
        self, name: str, payloads: Mapping[UUID | str, bytes] | Iterable[bytes], **options: Unpack[JobOptions]
    ) -> list[UUID]:
        """Add a job for each payload, under the ids of a mapping or new ones.

        Raises BatchFailed, with the outcome of each, if one was not added.
        """
        return self.call_many(requests.adds(name, payloads, **options))

    def complete_many(self, results: Mapping[UUID | str, bytes] | Iterable[tuple[UUID | str, bytes]]) -> None:
        """Complete jobs, each with its result. Raises BatchFailed if one was not completed."""
        self.call_many(requests.results_of(results))

    def delete_many(self, job_ids: Iterable[UUID | str]) -> None:
        """Delete jobs. Raises BatchFailed if one was not deleted."""
        self.call_many([requests.delete(job_id) for job_id in job_ids])

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Collect commands, which are sent together at the end of the `with` block. Each has its own outcome."""
        pipeline = Pipeline()
        yield pipeline
        self._exchange(pipeline.pending)

    def call(self, request: Request[T]) -> T:
        """Send one request of `forelog.jobs.client.requests`."""
        pending = Pending(request)
        self._exchange([pending])
        return pending.value()

    def call_many(self, many: Sequence[Request[T]]) -> list[T]:
        """Send requests of `forelog.jobs.client.requests` together."""
        return (self._exchange([Pending(request) for request in many])).values()

    # -- exchanges

    def _exchange(self, pending: Sequence[Pending[Any]]) -> Exchange:
        exchange = Exchange(pending, self._endpoint, self._retry_seconds)
        with self._connections.slot():
            while not exchange.is_done():
                try:
                    pause = self._attempt(exchange)
                except (OSError, JobError) as error:
                    pause = exchange.lost(error, time.monotonic(), final=self._connections.closed)
                if pause:
                    sleep(pause)
        return exchange

    def _attempt(self, exchange: Exchange) -> float:
        """Send what is to be sent. Returns how long to wait before some of it is sent again, if any is."""
        connection = self._connections.take()
        whole = False
        try:
            for data, lot in exchange.lots():
                try:
                    connection.send(data, self._timeout)
                    for pending in lot:
                        seconds = self._timeout + pending.request.wait_seconds
                        exchange.replied(pending, connection.reply(pending.request.kind, seconds))
                finally:
                    exchange.sent(lot)
            whole = True
            return exchange.finished(time.monotonic())
        finally:
            self._connections.give(connection, whole)
