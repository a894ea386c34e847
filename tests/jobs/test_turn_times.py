"""A turn lasts a few milliseconds: clients with many commands go on in the next ones, and others don't wait."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import pytest

from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.server.connection import Round
from forelog.jobs.server.server import Server

ASK = b"inspect server\r\n"
MANY = 2000


@pytest.fixture
def slow_commands(monkeypatch) -> None:
    """The clock by which turns are measured goes on by a tenth of a turn at each look."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) * 0.0005)


async def serving() -> tuple[Server, Callable]:
    server = Server(CommandLog(None))
    ((host, port),) = await server.start("127.0.0.1", 0)
    return server, lambda: asyncio.open_connection(host, port)


async def answered(reader: asyncio.StreamReader, count: int) -> None:
    """Read the answers to so many inspections."""
    for _ in range(count):
        assert await asyncio.wait_for(reader.readline(), 20) == b"+OK 1\r\n"
        for _ in range(4):
            await reader.readline()


def test_a_client_with_one_command_waits_for_a_few_of_those_that_have_many(slow_commands):
    async def scenario() -> None:
        server, connect = await serving()
        busy = [await connect() for _ in range(5)]
        reader, writer = await connect()
        for _, theirs in busy:
            theirs.write(ASK * MANY)
        done = []
        readers = [asyncio.create_task(answered(theirs, MANY)) for theirs, _ in busy]
        for one in readers:
            one.add_done_callback(done.append)
        for _ in range(10):
            writer.write(ASK)
            await answered(reader, 1)
        assert not done
        await asyncio.gather(*readers)
        writer.close()
        for _, theirs in busy:
            theirs.close()
        await server.stop()

    asyncio.run(scenario())


def test_a_client_that_has_sent_all_gets_all_answers(slow_commands):
    async def scenario() -> None:
        server, connect = await serving()
        reader, writer = await connect()
        writer.write(ASK * MANY)
        writer.write_eof()
        await answered(reader, MANY)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        await server.stop()

    asyncio.run(scenario())


def test_clients_that_leave_while_they_are_in_line_are_forgotten(slow_commands):
    async def scenario() -> None:
        server, connect = await serving()
        current = server.turns.round
        for _ in range(3):
            _, writer = await connect()
            writer.write(ASK * MANY)
            while not (current.line or current.later):
                await asyncio.sleep(0.001)
            writer.transport.abort()
        while len(server.clients) or current.line or current.later:
            await asyncio.sleep(0.001)
        await server.stop()

    asyncio.run(scenario())


def test_what_is_written_to_the_log_is_acknowledged_in_order(slow_commands, tmp_path):
    async def scenario() -> None:
        server = Server(CommandLog(tmp_path / "log"))
        ((host, port),) = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        for number in range(500):
            job = b"00000000-0000-4000-8000-%012x" % number
            writer.write(b"add %b q 1000 60000 2\r\nhi\r\n" % job + b"delete %b\r\n" % job * (number % 2))
        for _ in range(750):
            assert await asyncio.wait_for(reader.readline(), 20) == b"+OK\r\n"
        assert len(server.machine.jobs) == 250
        writer.close()
        await server.stop()

    asyncio.run(scenario())


def test_one_turn_is_due_at_a_time():
    """While results were handed out in many turns, each read of sockets added a turn to those that were due."""
    due: list[Callable[[], None]] = []
    ended = []
    current = Round(lambda: ended.append(1), lambda: None, lambda: None)
    current.call_soon = due.append
    current.begin()
    current.begun = False  # a read has ended the turn
    current.begin()
    assert len(due) == 1
    due.pop()()
    assert ended == [1]
    current.begun = False
    current.begin()
    assert len(due) == 1
