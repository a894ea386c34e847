"""`forelog jobs worker`: processes that do an app's jobs, die, are started again, and see a changed program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forelog.cli import codes
from forelog.jobs import Client, LocalServer
from tests.children import child
from tests.jobs.test_worker import until

PROGRAM = """
import os
from forelog.jobs import App

app = App()

@app.task(name="pid")
def pid() -> list:
    return [os.getpid(), "first"]

@app.task(name="slow", queue="slow")
def slow() -> str:
    import time
    print("begun", flush=True)
    time.sleep(0.3)
    return "finished"

@app.task(name="end")
def end() -> None:
    os._exit(3)
"""


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
def start(tmp_path: Path, server: LocalServer, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(PROGRAM)
    monkeypatch.setenv("WORKQ_SERVER", server.address)
    monkeypatch.chdir(tmp_path)

    def start(*words: str):
        command = [sys.executable, "-m", "forelog", "jobs", "worker", "shop.tasks:app", *words]
        return child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return start


def ask(client: Client, task: str, queue: str = "default") -> bytes:
    job = client.add(queue, f'{{"task":"{task}"}}'.encode(), ttr_ms=2000)
    return client.result(job, wait_ms=20_000).result


def test_a_worker_finishes_what_it_has_when_it_is_stopped(start, server):
    with start("--queues", "slow,other") as process, Client(server.address) as client:
        job = client.add("slow", b'{"task":"slow"}')
        left = client.add("default", b'{"task":"pid"}')
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGTERM)
        said = process.communicate(timeout=20)[1]
        assert client.result(job).result == b'"finished"'
        assert client.inspect_job(left).state == "new"
    assert process.returncode == 0
    assert re.search(r"INFO doing jobs of slow, other at 127\.0\.0\.1:\d+, 1 at a time\n", said)


def test_processes_that_end_are_started_again_and_all_stop_together(start, server):
    with start("--processes", "2") as process, Client(server.address) as client:
        first = ask(client, "pid")
        client.add("default", b'{"task":"end"}', max_attempts=1)
        client.add("default", b'{"task":"end"}', max_attempts=1)
        second = ask(client, "pid")
        os.kill(process.pid, signal.SIGINT)
        said = process.communicate(timeout=20)[1]
    assert first != second
    assert process.returncode == 0
    assert said.count("ERROR worker process") == 2
    assert "ended with 3" in said


def test_a_process_ends_with_its_parent(start, server):
    with start("--processes", "2") as process, Client(server.address) as client:
        ask(client, "pid")
        process.kill()
        process.wait()
        until(lambda: client.inspect_server().active_clients == 1, seconds=20)


def test_a_changed_program_is_loaded_again(start, server, tmp_path):
    with start("--reload") as process, Client(server.address) as client:
        assert b"first" in ask(client, "pid")
        (tmp_path / "shop" / "tasks.py").write_text(PROGRAM.replace('"first"', '"second"'))
        until(lambda: b"second" in ask(client, "pid"), seconds=20)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("place", "why", "processes"),
    [
        ("shop.tasks", "isn't an app: expected MODULE:APP", "1"),
        ("shop.nothing:app", "there is no module shop.nothing", "1"),
        ("shop.tasks:nothing", "nothing in shop.tasks isn't an App", "2"),
        ("shop.tasks:app.tasks", "isn't an App", "1"),
    ],
)
def test_what_is_no_app_is_said_in_one_line(place, why, processes, start):
    command = [sys.executable, "-m", "forelog", "jobs", "worker", place, "--processes", processes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == codes.USAGE
    assert why in done.stderr
    assert "Traceback" not in done.stderr
