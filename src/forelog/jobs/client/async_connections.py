"""The connections of an `AsyncClient`: streams of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from asyncio import sleep as sleep
from typing import Any

from forelog.errors import ConnectionLost
from forelog.jobs.client import requests
from forelog.jobs.client.endpoint import Endpoint
from forelog.jobs.client.replies import ReplyReader

_READ_BYTES = 64 << 10


class AsyncConnections:
    """Connections to one server, used one at a time and kept for the next command."""

    def __init__(self, endpoint: Endpoint, timeout: float, most: int) -> None:
        self.closed = False
        """Whether no more are made."""
        self._endpoint = endpoint
        self._timeout = timeout
        self._idle: list[AsyncConnection] = []
        self._slots = asyncio.Semaphore(most)

    def slot(self) -> asyncio.Semaphore:
        """The right to use a connection: there are only so many."""
        return self._slots

    async def take(self) -> AsyncConnection:
        """A connection that is idle, or a new one."""
        if self.closed:
            raise ConnectionLost("the client is closed")
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            await connection.close()
        return await AsyncConnection.open(self._endpoint, self._timeout)

    async def give(self, connection: AsyncConnection, whole: bool) -> None:
        """Keep a connection for the next command, if nothing is left over on it."""
        if whole and not self.closed:
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        """Close idle connections now, and the others when they are given back."""
        self.closed = True
        while self._idle:
            await self._idle.pop().close()


class AsyncConnection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stream = reader
        self._writer = writer
        self._reader = ReplyReader()

    @classmethod
    async def open(cls, endpoint: Endpoint, timeout: float) -> AsyncConnection:
        """Make a connection, and send the token."""
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
                request.value(await connection.reply(request.kind, timeout))
        except OSError as error:
            await connection.close()
            raise endpoint.unreachable(error) from error
        except BaseException:
            await connection.close()
            raise
        return connection

    def is_alive(self) -> bool:
        """Whether it still seems connected, and nothing came unasked."""
        if self._stream.at_eof() or self._writer.is_closing() or not self._reader.idle():
            return False
        # The event loop may not have read it yet. Under TLS bytes come that mean nothing.
        found = self._writer.get_extra_info("socket")
        if found is None or self._writer.get_extra_info("ssl_object") is not None:
            return True
        poll = select.poll()
        poll.register(found.fileno(), select.POLLIN)
        return not poll.poll(0)

    async def send(self, data: bytes, timeout: float) -> None:
        """Send bytes."""
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size():  # otherwise the system has all of it
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def reply(self, kind: int, timeout: float) -> Any:
        """Read the next reply, which must be of this kind."""
        reader = self._reader
        reader.expect(kind)
        if (reply := reader.take()) is not None:
            return reply
        async with asyncio.timeout(timeout):
            while (reply := reader.take()) is None:
                data = await self._stream.read(_READ_BYTES)
                if not data:
                    raise ConnectionError("the server has closed it")
                reader.feed(data)
        return reply

    async def close(self) -> None:
        """Close it."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
