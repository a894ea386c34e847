"""A client of a job server, for threads.

    from forelog.jobs import Client

    with Client("127.0.0.1:9922") as client:
        job = client.add("mail", b"to: you")
        leased = client.lease("mail")
        client.complete(leased.id, b"sent")
        print(client.result(job).result)

Threads can share a client, and so can processes that were forked. A command that waits takes a connection for
itself, and others go on on another one, up to `connections` of them. After a connection broke the next command
makes a new one; forelog/jobs/exchange.py tells which commands are sent again by themselves.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

__all__ = ["Client"]

T = TypeVar("T")
_READ_BYTES = 64 << 10


class Client:
    """Speaks to a job server.

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
        self._connections = connections
        self._slots = threading.BoundedSemaphore(connections)
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Commands that are under way end as they would have."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._idle.pop().close()

    # -- commands

    def add(self, name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> UUID:
        """Add a job. Returns its id; see `JobOptions` for what may be said of it."""
        return self.call(requests.add(name, payload, **options))

    def schedule(
        self, name: str, payload: bytes, time: str | datetime | int, **options: Unpack[JobOptions]
    ) -> UUID:
        """Add a job that is due at a time: RFC 3339, an aware datetime, or nanoseconds since 1970."""
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
        """Have a job done now. Raises JobTimeout if nobody takes it within `wait_ms`, or finishes it in time.

        It is not in the log, and gone when its client is.
        """
        return self.call(requests.run(name, payload, wait_ms=wait_ms, id=id, ttr_ms=ttr_ms, priority=priority))

    def lease(self, *names: str, wait_ms: int = 0) -> Leased | None:
        """Take the next job of the first of these queues that has one. None if none comes within `wait_ms`."""
        return self.call(requests.lease(names, wait_ms))

    def complete(self, job_id: UUID | str, result: bytes = b"") -> None:
        """A job is done. Raises JobNotFound if there is none such, JobRefused if it has a result already."""
        self.call(requests.complete(job_id, result))

    def fail(self, job_id: UUID | str, result: bytes = b"") -> None:
        """A job couldn't be done. It is tried again if its `max_fails` allows it."""
        self.call(requests.fail(job_id, result))

    def delete(self, job_id: UUID | str) -> None:
        """Forget a job, whatever its state."""
        self.call(requests.delete(job_id))

    def result(self, job_id: UUID | str, wait_ms: int = 0) -> Result:
        """A job's result. Raises JobTimeout if none comes within `wait_ms`, JobNotFound if there is no job."""
        return self.call(requests.result(job_id, wait_ms))

    def inspect_job(self, job_id: UUID | str) -> JobInfo:
        """All that the server knows of a job."""
        return self.call(requests.inspect_job(job_id))

    def inspect_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that can be leased, in their order; fewer than `limit` if their payloads are large."""
        return self.call(requests.inspect_jobs(name, offset, limit))

    def inspect_scheduled_jobs(self, name: str, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """Jobs that aren't due yet."""
        return self.call(requests.inspect_scheduled_jobs(name, offset, limit))

    def inspect_queue(self, name: str) -> QueueInfo:
        """How many jobs a queue has."""
        return self.call(requests.inspect_queue(name))

    def inspect_queues(self, offset: int = 0, limit: int = 100) -> list[QueueInfo]:
        """Queues, by name."""
        return self.call(requests.inspect_queues(offset, limit))

    def inspect_server(self) -> ServerInfo:
        """How many clients the server has, and since when it runs."""
        return self.call(requests.inspect_server())

    # -- many at once

    def add_many(
        self, name: str, payloads: Mapping[UUID | str, bytes] | Iterable[bytes], **options: Unpack[JobOptions]
    ) -> list[UUID]:
        """Add a job for each payload, under the ids of a mapping or new ones.

        Raises BatchFailed, which tells of each, if one wasn't added.
        """
        return self.call_many(requests.adds(name, payloads, **options))

    def complete_many(self, results: Mapping[UUID | str, bytes] | Iterable[tuple[UUID | str, bytes]]) -> None:
        """Complete jobs, each with its result. Raises BatchFailed if one couldn't be."""
        self.call_many(requests.results_of(results))

    def delete_many(self, job_ids: Iterable[UUID | str]) -> None:
        """Delete jobs. Raises BatchFailed if one couldn't be."""
        self.call_many([requests.delete(job_id) for job_id in job_ids])

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[Batch]:
        """Commands that are sent together at the end of the `with` block; one that fails hides no other."""
        batch = Batch()
        yield batch
        self._exchange(batch.pending)

    def call(self, request: Request[T]) -> T:
        """Send one request of `forelog.jobs.client.requests`."""
        pending = Pending(request)
        self._exchange([pending])
        return pending.value()

    def call_many(self, many: Sequence[Request[T]]) -> list[T]:
        """Send requests of `forelog.jobs.client.requests` together."""
        return self._exchange([Pending(request) for request in many]).values()

    # -- connections

    def _exchange(self, pending: Sequence[Pending[Any]]) -> Exchange:
        if self._process != os.getpid():
            self._start_anew()
        exchange = Exchange(pending, self._endpoint, self._retry_seconds)
        with self._slots:
            while not exchange.is_done():
                try:
                    pause = self._attempt(exchange)
                except (OSError, JobError) as error:
                    pause = exchange.lost(error, time.monotonic(), final=self._closed)
                if pause:
                    time.sleep(pause)
        return exchange

    def _start_anew(self) -> None:
        """After a fork: the connections are the parent's, and so is whoever holds a slot."""
        self._process = os.getpid()
        self._slots = threading.BoundedSemaphore(self._connections)
        while self._idle:
            self._idle.pop().close()

    def _attempt(self, exchange: Exchange) -> float:
        """Send what is to be sent. Returns how long to wait before some of it is sent again, if any is."""
        connection = self._connection()
        kept = False
        try:
            for data, lot in exchange.lots():
                try:
                    connection.send(data, self._timeout)
                    for pending in lot:
                        seconds = self._timeout + pending.request.wait_seconds
                        exchange.answered(pending, connection.answer(pending.request.kind, seconds))
                finally:
                    exchange.sent(lot)
            kept = True
            return exchange.finished(time.monotonic())
        finally:
            if kept:
                self._idle.append(connection)
                if self._closed:
                    self.close()
            else:
                connection.close()

    def _connection(self) -> _Connection:
        if self._closed:
            raise ConnectionLost("the client is closed")
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return _Connection(self._endpoint, self._connect_timeout)
            if connection.is_alive():
                return connection
            connection.close()


class _Connection:
    """One connection, blocking."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        try:
            found = socket.create_connection((endpoint.host, endpoint.port), timeout)
        except OSError as error:
            raise endpoint.unreachable(error) from error
        self._socket = found
        self._reader = AnswerReader()
        try:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls is not None:
                self._socket = endpoint.tls.wrap_socket(found, server_hostname=endpoint.host)
            if endpoint.token is not None:
                request = requests.auth(endpoint.token)
                self.send(request.data, timeout)
                request.value(self.answer(request.kind, timeout))
        except OSError as error:
            self.close()
            raise endpoint.unreachable(error) from error
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Whether it is still connected, as far as can be told, and nothing came unasked."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except (BlockingIOError, InterruptedError):
            return self._reader.idle()
        except OSError as error:
            return type(error).__name__ == "SSLWantReadError" and self._reader.idle()
        return False

    def send(self, data: bytes, timeout: float) -> None:
        self._socket.settimeout(timeout)
        self._socket.sendall(data)

    def answer(self, kind: int, timeout: float) -> Any:
        """The next answer, which is of this kind."""
        reader = self._reader
        reader.expect(kind)
        deadline = time.monotonic() + timeout
        while (answer := reader.take()) is None:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            self._socket.settimeout(seconds)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the server has closed it")
            reader.feed(data)
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
