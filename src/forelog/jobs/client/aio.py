"""A client of a job server, for tasks: `Client` with `await`.

    from forelog.jobs import AsyncClient

    async with AsyncClient("127.0.0.1:9922") as client:
        await asyncio.gather(*(client.add("mail", b"to: %d" % number) for number in range(100)))

Tasks of one event loop can share a client. A command that is cancelled costs its connection, since its answer
would come all the same, and nobody knows whether it was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from forelog.bounds import COUNT_MAX, check_number, check_whole
from forelog.errors import ConnectionLost, JobError
from forelog.jobs.client import requests
from forelog.jobs.client.answers import AnswerReader, JobInfo, Leased, QueueInfo, Result, ServerInfo
from forelog.jobs.client.batch import Batch
from forelog.jobs.client.exchange import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    RETRY_SECONDS,
    Endpoint,
    Exchange,
    Pending,
)
from forelog.jobs.client.requests import JobOptions, Request

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

__all__ = ["AsyncClient"]

T = TypeVar("T")
_READ_BYTES = 64 << 10


class AsyncClient:
    """Speaks to a job server, without holding up the event loop.

    `timeout` is how many seconds an answer may take, beside the time that the command itself says it waits;
    `connect_timeout` how many a connection. For `retry_seconds` what can be sent again is sent again when a
    connection breaks, and a server that isn't there is waited for. `tls` is True, or a context; `token` is sent
    first on each connection.
    """

    def __init__(
        self,
        server: str = "127.0.0.1:9922",
        *,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool = False,
        timeout: float = ANSWER_SECONDS,
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
        self._connect_timeout = connect_timeout
        self._retry_seconds = retry_seconds
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(connections)
        self._closed = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Commands that are under way end as they would have."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

    # -- commands

    async def add(self, name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> UUID:
        """Add a job. Returns its id; see `JobOptions` for what may be said of it."""
        return await self.call(requests.add(name, payload, **options))

    async def schedule(
        self, name: str, payload: bytes, time: str | datetime | int, **options: Unpack[JobOptions]
    ) -> UUID:
        """Add a job that is due at a time: RFC 3339, an aware datetime, or nanoseconds since 1970."""
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
        """Have a job done now. Raises JobTimeout if nobody takes it within `wait_ms`, or finishes it in time.

        It is not in the log, and gone when its client is.
        """
        return await self.call(
            requests.run(name, payload, wait_ms=wait_ms, id=id, ttr_ms=ttr_ms, priority=priority)
        )

    async def lease(self, *names: str, wait_ms: int = 0) -> Leased | None:
        """Take the next job of the first of these queues that has one. None if none comes within `wait_ms`."""
        return await self.call(requests.lease(names, wait_ms))

    async def complete(self, job_id: UUID | str, result: bytes = b"") -> None:
        """A job is done. Raises JobNotFound if there is none such, JobRefused if it has a result already."""
        await self.call(requests.complete(job_id, result))

    async def fail(self, job_id: UUID | str, result: bytes = b"") -> None:
        """A job couldn't be done. It is tried again if its `max_fails` allows it."""
        await self.call(requests.fail(job_id, result))

    async def delete(self, job_id: UUID | str) -> None:
        """Forget a job, whatever its state."""
        await self.call(requests.delete(job_id))

    async def result(self, job_id: UUID | str, wait_ms: int = 0) -> Result:
        """A job's result. Raises JobTimeout if none comes within `wait_ms`, JobNotFound if there is no job."""
        return await self.call(requests.result(job_id, wait_ms))

    async def inspect_job(self, job_id: UUID | str) -> JobInfo:
        """All that the server knows of a job."""
        return await self.call(requests.inspect_job(job_id))

    async def inspect_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that can be leased, in their order; fewer than `limit` if their payloads are large."""
        return await self.call(requests.inspect_jobs(name, offset, limit))

    async def inspect_scheduled_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that aren't due yet."""
        return await self.call(requests.inspect_scheduled_jobs(name, offset, limit))

    async def inspect_queue(self, name: str) -> QueueInfo:
        """How many jobs a queue has."""
        return await self.call(requests.inspect_queue(name))

    async def inspect_queues(self, offset: int = 0, limit: int = 100) -> list[QueueInfo]:
        """Queues, by name."""
        return await self.call(requests.inspect_queues(offset, limit))

    async def inspect_server(self) -> ServerInfo:
        """How many clients the server has, and since when it runs."""
        return await self.call(requests.inspect_server())

    # -- many at once

    async def add_many(
        self, name: str, payloads: Mapping[UUID | str, bytes] | Iterable[bytes], **options: Unpack[JobOptions]
    ) -> list[UUID]:
        """Add a job for each payload, under the ids of a mapping or new ones.

        Raises BatchFailed, which tells of each, if one wasn't added.
        """
        return await self.call_many(requests.adds(name, payloads, **options))

    async def complete_many(
        self, results: Mapping[UUID | str, bytes] | Iterable[tuple[UUID | str, bytes]]
    ) -> None:
        """Complete jobs, each with its result. Raises BatchFailed if one couldn't be."""
        await self.call_many(requests.results_of(results))

    async def delete_many(self, job_ids: Iterable[UUID | str]) -> None:
        """Delete jobs. Raises BatchFailed if one couldn't be."""
        await self.call_many([requests.delete(job_id) for job_id in job_ids])

    @contextlib.asynccontextmanager
    async def pipeline(self) -> AsyncIterator[Batch]:
        """Commands that are sent together at the end of the `with` block; one that fails hides no other."""
        batch = Batch()
        yield batch
        await self._exchange(batch.pending)

    async def call(self, request: Request[T]) -> T:
        """Send one request of `forelog.jobs.client.requests`."""
        pending = Pending(request)
        await self._exchange([pending])
        return pending.value()

    async def call_many(self, many: Sequence[Request[T]]) -> list[T]:
        """Send requests of `forelog.jobs.client.requests` together."""
        return (await self._exchange([Pending(request) for request in many])).values()

    # -- connections

    async def _exchange(self, pending: Sequence[Pending[Any]]) -> Exchange:
        exchange = Exchange(pending, self._endpoint, self._retry_seconds)
        async with self._slots:
            while not exchange.is_done():
                try:
                    pause = await self._attempt(exchange)
                except (OSError, JobError) as error:
                    pause = exchange.lost(error, time.monotonic(), final=self._closed)
                if pause:
                    await asyncio.sleep(pause)
        return exchange

    async def _attempt(self, exchange: Exchange) -> float:
        """Send what is to be sent. Returns how long to wait before some of it is sent again, if any is."""
        connection = await self._connection()
        kept = False
        try:
            for data, lot in exchange.lots():
                try:
                    await connection.send(data, self._timeout)
                    for pending in lot:
                        seconds = self._timeout + pending.request.wait_seconds
                        exchange.answered(pending, await connection.answer(pending.request.kind, seconds))
                finally:
                    exchange.sent(lot)
            kept = True
            return exchange.finished(time.monotonic())
        finally:
            if kept and not self._closed:
                self._idle.append(connection)
            else:
                await connection.close()

    async def _connection(self) -> _Connection:
        if self._closed:
            raise ConnectionLost("the client is closed")
        while True:
            if not self._idle:
                return await _Connection.open(self._endpoint, self._connect_timeout)
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            await connection.close()


class _Connection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stream = reader
        self._writer = writer
        self._reader = AnswerReader()

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout: float) -> _Connection:
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=endpoint.tls)
        except OSError as error:
            raise endpoint.unreachable(error) from error
        connection = cls(reader, writer)
        try:
            found = writer.get_extra_info("socket")
            if found is not None:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.token is not None:
                request = requests.auth(endpoint.token)
                await connection.send(request.data, timeout)
                request.value(await connection.answer(request.kind, timeout))
        except OSError as error:
            await connection.close()
            raise endpoint.unreachable(error) from error
        except BaseException:
            await connection.close()
            raise
        return connection

    def is_alive(self) -> bool:
        """Whether it is still connected, as far as can be told, and nothing came unasked."""
        if self._stream.at_eof() or self._writer.is_closing() or not self._reader.idle():
            return False
        # The loop may not have come to it yet. Under TLS something comes unasked, and tells nothing.
        found = self._writer.get_extra_info("socket")
        if found is None or self._writer.get_extra_info("ssl_object") is not None:
            return True
        poll = select.poll()
        poll.register(found.fileno(), select.POLLIN)
        return not poll.poll(0)

    async def send(self, data: bytes, timeout: float) -> None:
        self._writer.write(data)
        async with asyncio.timeout(timeout):
            await self._writer.drain()

    async def answer(self, kind: int, timeout: float) -> Any:
        """The next answer, which is of this kind."""
        reader = self._reader
        reader.expect(kind)
        if (answer := reader.take()) is not None:
            return answer
        async with asyncio.timeout(timeout):
            while (answer := reader.take()) is None:
                data = await self._stream.read(_READ_BYTES)
                if not data:
                    raise ConnectionError("the server has closed it")
                reader.feed(data)
        return answer

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
