"""How the server's connections are read: together where it can be, by their transports where it can't."""

from __future__ import annotations

import asyncio
import select

import pytest

from forelog import kernel
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.server.server import Server

LONG = b"y" * 300_000


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    return await asyncio.wait_for(reader.readline(), 10)


async def serving() -> tuple[Server, str, int]:
    server = Server(CommandLog(None))
    ((host, port),) = await server.start("127.0.0.1", 0)
    return server, host, port


class Garbling:
    """A set of sockets whose first read gives what no socket does."""

    def __init__(self, sockets) -> None:
        self._sockets = sockets
        self._garbled = False

    def __getattr__(self, name: str):
        return getattr(self._sockets, name)

    def read(self):
        found = self._sockets.read()
        if found and not self._garbled:
            self._garbled = True
            return [(found[0][0], "a text"), *found[1:]]
        return found


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="there are sets of sockets on Linux only")
def test_a_client_whose_command_fails_within_the_server_is_ended_and_no_other(caplog):
    async def scenario() -> None:
        server, host, port = await serving()
        unlucky, lucky = [await asyncio.open_connection(host, port) for _ in range(2)]
        assert await ask(*unlucky, b"inspect server\r\n") == b"+OK 1\r\n"
        turn = server.turns.round
        while len(turn.sockets) < 2:  # each is read by its transport at first
            await asyncio.sleep(0.001)
        turn.sockets = Garbling(turn.sockets)
        assert await ask(*unlucky, b"inspect server\r\n") != b"+OK 1\r\n"
        assert await ask(*lucky, b"add 00000000-0000-4000-8000-000000000001 q 1000 1000 0\r\n\r\n") == b"+OK\r\n"
        unlucky[1].close()
        lucky[1].close()
        await server.stop()

    asyncio.run(scenario())
    assert "a client's command failed" in caplog.text


def none_here():
    raise OSError(38, "Function not implemented")


@pytest.mark.parametrize("together", [True, False])
def test_all_is_the_same_whoever_reads(together, monkeypatch):
    if not together:
        monkeypatch.setattr(kernel, "SocketSet", none_here, raising=True)

    async def scenario() -> None:
        server, host, port = await serving()
        assert (server.turns.round.sockets is not None) == (together and hasattr(select, "epoll"))
        clients = [await asyncio.open_connection(host, port) for _ in range(300)]
        for number, (_, writer) in enumerate(clients):
            writer.write(b"add 00000000-0000-4000-8000-%012x q 1000 60000 2\r\nhi\r\n" % number)
        for reader, _ in clients:
            assert await asyncio.wait_for(reader.readline(), 10) == b"+OK\r\n"
        reader, writer = clients[0]
        # Behind a command that waits: more than is kept, so that it isn't read for a while.
        writer.write(b"lease nothing 200\r\n" + b"inspect nothing\r\n" * 20_000 + b"lease q 0\r\n")
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 20)
        # Who sends no more while it waits is taken for gone.
        assert said in (b"", b"-TIMEOUT\r\n") or said.startswith(b"-TIMEOUT\r\n-CLIENT-ERROR")
        reader, writer = clients[1]
        writer.write(b"add 00000000-0000-4000-8001-000000000000 big 1000 60000 300000\r\n" + LONG + b"\r\n")
        writer.write(b"lease big 0\r\n")
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 20)
        assert said.startswith(b"+OK\r\n+OK 1\r\n"), "answers still come after the client has sent all"
        assert said.endswith(LONG + b"\r\n")
        for _, writer in clients:
            writer.close()
        while len(server.clients):
            await asyncio.sleep(0.001)
        assert not server.turns.round.sockets
        await server.stop()

    asyncio.run(scenario())
