"""The connections of a `Client`: blocking sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from queue import Empty, SimpleQueue
from time import sleep as sleep
from typing import Any

from forelog.errors import ConnectionLost
from forelog.jobs.client import requests
from forelog.jobs.client.endpoint import Endpoint
from forelog.jobs.client.replies import ReplyReader

_READ_BYTES = 64 << 10


class Connections:
    """Connections to one server, used one at a time and kept for the next command."""

    def __init__(self, endpoint: Endpoint, timeout: float, most: int) -> None:
        self.closed = False
        """Whether no more are made."""
        self._endpoint = endpoint
        self._timeout = timeout
        self._most = most
        self._idle: list[Connection] = []
        self._slots = Slots(most)
        self._process = os.getpid()

    def slot(self) -> Slots:
        """The right to use a connection: there are only so many."""
        if self._process != os.getpid():  # after a fork the connections, and their users, are the parent's
            self._process = os.getpid()
            self._slots = Slots(self._most)
            self._close_idle()
        return self._slots

    def take(self) -> Connection:
        """A connection that is idle, or a new one."""
        if self.closed:
            raise ConnectionLost("the client is closed")
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return Connection(self._endpoint, self._timeout)
            if connection.is_alive():
                return connection
            connection.close()

    def give(self, connection: Connection, whole: bool) -> None:
        """Keep a connection for the next command, if nothing is left over on it."""
        if not whole:
            connection.close()
            return
        self._idle.append(connection)
        if self.closed:
            self._close_idle()

    def close(self) -> None:
        """Close idle connections now, and the others when they are given back."""
        self.closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._idle.pop().close()


class Slots:
    """A number of rights, each of which is held by a `with` block. Quicker than a semaphore, which is Python."""

    def __init__(self, count: int) -> None:
        self._left: SimpleQueue[None] = SimpleQueue()
        self._unmade = count
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        try:
            self._left.get_nowait()
        except Empty:
            with self._lock:
                made = self._unmade > 0
                self._unmade -= made
            if not made:
                self._left.get()

    def __exit__(self, *_: object) -> None:
        self._left.put(None)


class Connection:
    """One connection."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        try:
            found = socket.create_connection((endpoint.host, endpoint.port), timeout)
        except OSError as error:
            raise endpoint.unreachable(error) from error
        self._socket = found
        self._reader = ReplyReader()
        self._looks_for_tls = endpoint.tls is not None
        self._poll = select.poll()
        self._poll.register(found.fileno(), select.POLLIN)
        try:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls is not None:
                self._socket = endpoint.tls.wrap_socket(found, server_hostname=endpoint.host)
            if endpoint.token is not None:
                request = requests.auth(endpoint.token)
                self.send(request.data, timeout)
                request.value(self.reply(request.kind, timeout))
        except OSError as error:
            self.close()
            raise endpoint.unreachable(error) from error
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Whether it still seems connected, and nothing came unasked."""
        if not self._looks_for_tls:
            return not self._poll.poll(0) and self._reader.idle()
        self._socket.settimeout(0)  # under TLS, bytes come that mean nothing
        try:
            self._socket.recv(1)
        except (BlockingIOError, InterruptedError):
            return self._reader.idle()
        except OSError as error:
            return type(error).__name__ == "SSLWantReadError" and self._reader.idle()
        return False

    def send(self, data: bytes, timeout: float) -> None:
        """Send bytes."""
        self._socket.settimeout(timeout)
        self._socket.sendall(data)

    def reply(self, kind: int, timeout: float) -> Any:
        """Read the next reply, which must be of this kind."""
        reader = self._reader
        reader.expect(kind)
        deadline = time.monotonic() + timeout
        while (reply := reader.take()) is None:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            self._socket.settimeout(seconds)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the server has closed it")
            reader.feed(data)
        return reply

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            self._socket.close()
