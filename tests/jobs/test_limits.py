"""What a job server has only so much of: room on its disk, files, patience, names in a lease."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from typing import Any

import pytest

from forelog.errors import JobRefused, ServerReadOnly
from forelog.jobs import Client, LocalServer
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.server.door import STRANGER_SECONDS
from forelog.jobs.server.server import Server
from forelog.testing import CrashDisk
from tests.jobs.serving import SERVING, Talk, add, served, wait_until


def test_a_disk_that_is_full_of_jobs_whose_ttl_is_over_becomes_free_by_itself(monkeypatch):
    disk = CrashDisk(capacity_bytes=200_000)
    monkeypatch.setattr(
        "forelog.jobs.server.local.CommandLog",
        lambda path, sync, **_: CommandLog(path, sync=sync, segment_bytes=8192, files=disk),
    )
    with LocalServer("log") as local, Client(local.address) as client:
        with pytest.raises(ServerReadOnly):
            while True:
                client.add("q", bytes(1000), ttl_ms=500)
        wait_until(lambda: client.inspect_queue("q").ready == 0)
        lasting: list[object] = []
        wait_until(lambda: added(client, lasting), 30)
    with LocalServer("log") as local, Client(local.address) as client:
        assert [job.id for job in client.inspect_jobs("q")] == lasting


def added(client: Client, ids: list[object]) -> bool:
    """Whether a server that was read-only takes a job again."""
    try:
        ids.append(client.add("q", bytes(1000)))
    except ServerReadOnly:
        return False
    return True


def test_a_lease_takes_so_many_names_and_no_more():
    with served() as server:
        talk = server.connect()
        names = b" ".join(b"n%d" % number for number in range(256))
        assert talk.ask(b"lease %b 0\r\n" % names) == b"-TIMEOUT"
        assert talk.ask(b"lease %b more 0\r\n" % names) == b"-CLIENT-ERROR Invalid command args"
        server.stop()
    with pytest.raises(JobRefused, match="up to 256 names, not 257"):
        Client("127.0.0.1:1").lease(*(f"n{number}" for number in range(257)))


def test_who_must_say_a_token_and_says_nothing_is_let_go():
    async def scenario() -> None:
        server = Server(CommandLog(None), token=b"sesame")
        ((host, port),) = await server.start("127.0.0.1", 0)
        silent, known = [await asyncio.open_connection(host, port) for _ in range(2)]
        known[1].write(b"auth sesame\r\n")
        assert await known[0].readline() == b"+OK\r\n"
        door = server.clients.door
        assert door.late() == []
        door._clock = lambda: time.monotonic() + STRANGER_SECONDS + 1
        late: list[Any] = door.late()
        assert [found.session.known for found in late] == [False]
        assert len(server.clients) == 2
        for _, writer in (silent, known):
            writer.close()
        await server.stop()

    asyncio.run(scenario())


def test_there_are_no_more_clients_than_files_for_them(tmp_path):
    """Or whoever connects and stays could take those that the log needs."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    command = [sys.executable, "-m", "forelog.cli.jobs.serve", "-listen", "127.0.0.1:0"]
    flags = ["-cmdlog-path", str(tmp_path / "log"), "-cmdlog-seg-size", "2000"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, preexec_fn=limit)
    try:
        said = b""
        while (found := SERVING.search(said)) is None:
            said += process.stderr.readline()
        assert b"allows 100 files, so there can be 36 clients" in said
        talk = Talk(int(found[2]))
        idle = [Talk(int(found[2])) for _ in range(60)]
        for number in range(50):
            assert talk.ask(add(number, payload=bytes(500))) == b"+OK", "segments roll, which takes files"
        for one in (talk, *idle):
            one.close()
    finally:
        process.terminate()
        process.wait(20)
        process.stderr.close()
