"""A worker against a real server: what functions return, raise, and overrun; stopping; a server that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from forelog.errors import ConnectionLost, JobNotFound, JobRefused, ServerFailed, ServerReadOnly
from forelog.jobs import Attempt, Client, Leased, LocalServer, Worker
from forelog.jobs.client.shift import Shift
from tests.children import child
from tests.jobs.conftest import Served


@contextlib.contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    """The worker, on a thread."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            worker.run()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()
    if ended[0] is not None:
        raise ended[0]


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what happens in another thread or process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex}"


Make = Callable[..., Worker]


@pytest.fixture(params=["threads", "tasks"])
def make(request: pytest.FixtureRequest, server: Served) -> Make:
    """A worker whose functions are as given, or the same as coroutines."""

    def wrap(function: Callable[[Attempt], Any]) -> Callable[[Attempt], Any]:
        if request.param == "threads":
            return function

        async def call(attempt: Attempt) -> Any:
            value = function(attempt)
            return await value if asyncio.iscoroutine(value) else value

        return call

    def worker(functions: dict[str, Callable[[Attempt], Any]], address: str = "", **options: Any) -> Worker:
        wrapped = {name: wrap(function) for name, function in functions.items()}
        return Worker(wrapped, address or server.address, **{"lease_ms": 50, **options})

    return worker


@pytest.mark.parametrize(("value", "result"), [(b"bytes", b"bytes"), ("größe", "größe".encode()), (None, b"")])
def test_what_a_function_returns_completes_the_job(make, client, queue, value, result):
    seen = []

    def do(job: Attempt) -> Any:
        seen.append((job.id, job.name, job.payload, job.ttr_ms, 4 < job.remaining() <= 5))
        return value

    with working(make({queue: do})) as worker:
        found = client.run(queue, b"payload", ttr_ms=5000, wait_ms=5000)
        until(lambda: worker.counters.completed == 1)
    assert (found.success, found.result) == (True, result)
    assert seen == [(found.id, queue, b"payload", 5000, True)]


def test_what_a_function_raises_fails_the_job_with_its_text(make, client, queue, caplog):
    def do(job: Attempt) -> None:
        raise ZeroDivisionError("seven by zero")

    with caplog.at_level(logging.INFO, "forelog"), working(make({queue: do})) as worker:
        found = client.run(queue, wait_ms=5000)
        until(lambda: worker.counters.failed == 1)
    assert (found.success, found.result) == (False, b"ZeroDivisionError: seven by zero")
    assert "failed: ZeroDivisionError: seven by zero" in caplog.text


def test_a_result_that_can_not_be_sent_fails_the_job(make, client, queue):
    values = iter([42, bytes(2 << 20)])
    with working(make({queue: lambda job: next(values)})):
        assert client.run(queue, wait_ms=5000).result.startswith(b"TypeError: a job's result is bytes")
        assert client.run(queue, wait_ms=5000).result.startswith(b"ValueError: a result of 2097152 bytes")


def test_a_failed_job_is_tried_again_while_its_fails_allow_it(make, client, queue):
    attempts = []

    def do(job: Attempt) -> bytes:
        attempts.append(job.id)
        if len(attempts) < 3:
            raise RuntimeError("not yet")
        return b"at last"

    with working(make({queue: do})) as worker:
        job = client.add(queue, max_fails=5)
        assert client.result(job, wait_ms=5000).result == b"at last"
        until(lambda: worker.counters.completed == 1)
    assert attempts == [job] * 3
    assert (worker.counters.leased, worker.counters.failed, worker.counters.completed) == (3, 2, 1)


def test_as_many_jobs_as_wanted_are_done_at_a_time(make, client, queue):
    # Each waits for all the others: fewer at a time would never end.
    barrier = threading.Barrier(4)
    met = asyncio.Event()
    waiting = []

    def do(job: Attempt) -> Any:
        if threading.current_thread().name.startswith("forelog-worker-"):
            barrier.wait(5)
            return b"met"
        return meet()

    async def meet() -> bytes:
        waiting.append(1)
        if len(waiting) == 4:
            met.set()
        await asyncio.wait_for(met.wait(), 5)
        return b"met"

    with working(make({queue: do}, concurrency=4)):
        jobs = client.add_many(queue, [b""] * 4)
        assert [client.result(job, wait_ms=5000).result for job in jobs] == [b"met"] * 4


def test_an_attempt_that_took_too_long_does_not_end_the_one_that_follows(server, client, queue, caplog):
    go_on = threading.Event()
    begun: list[Attempt] = []

    def do(job: Attempt) -> bytes:
        begun.append(job)
        go_on.wait(10)
        return b"too late"

    with working(Worker({queue: do}, server.address, lease_ms=50)) as worker:
        job = client.add(queue, ttr_ms=100)
        until(lambda: bool(begun))
        again = client.lease(queue, wait_ms=5000)
        assert again is not None
        assert again.id == job
        worker.stop()
        until(lambda: begun[0].remaining() <= 0)  # the worker's clock begins later than the server's
        go_on.set()
        until(lambda: worker.counters.late == 1)
    assert "took longer than its 100 ms: its result is not sent" in caplog.text
    client.complete(job, b"by the other one")
    assert client.result(job).result == b"by the other one"


def test_a_coroutine_that_takes_too_long_is_cancelled(server, client, queue, caplog):
    ended = []
    worker = Worker(server=server.address, lease_ms=50)

    @worker.job(queue)
    async def do(job: Attempt) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(job.id)
        return b"never"

    with working(worker):
        job = client.add(queue, ttr_ms=100, max_attempts=1)
        assert client.result(job, wait_ms=5000).success is False
        until(lambda: worker.counters.late == 1)
    assert ended == [job]
    assert "it was cancelled" in caplog.text


def test_a_plain_function_beside_coroutines_runs_on_a_thread(server, client, queue):
    worker = Worker(server=server.address, lease_ms=50)
    main = []

    @worker.job(queue + "-tasks")
    async def first(job: Attempt) -> str:
        main.append(threading.current_thread())
        return "task"

    @worker.job(queue + "-threads")
    def second(job: Attempt) -> str:
        main.append(threading.current_thread())
        return "thread"

    with working(worker):
        assert client.run(queue + "-tasks", wait_ms=5000).result == b"task"
        assert client.run(queue + "-threads", wait_ms=5000).result == b"thread"
    assert main[0] is not main[1]


def test_to_stop_finishes_what_was_begun_and_leases_no_more(make, client, queue):
    entered, go_on = threading.Event(), threading.Event()

    def do(job: Attempt) -> Any:
        if threading.current_thread().name.startswith("forelog-worker-"):
            entered.set()
            go_on.wait(10)
            return b"finished"
        return slowly()

    async def slowly() -> bytes:
        entered.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return b"finished"

    with working(make({queue: do})) as worker:
        first, second = client.add_many(queue, [b"", b""])
        assert entered.wait(5)
        worker.stop()
        go_on.set()
    assert client.result(first).result == b"finished"
    assert client.inspect_job(second).state == "new"


@pytest.mark.parametrize("form", ["def", "async def"])
def test_a_signal_stops_it_gracefully(server, client, queue, form):
    code = (
        "import sys, time\n"
        "from forelog.jobs import Worker\n"
        "worker = Worker(server=sys.argv[1], lease_ms=50)\n"
        "@worker.job(sys.argv[2])\n"
        f"{form} do(job):\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(0.3)\n"
        "    return 'finished'\n"
        "worker.run()\n"
        "print('ended', worker.counters.completed)\n"
    )
    command = [sys.executable, "-c", code, server.address, queue]
    with child(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        job = client.add(queue)
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "ended 1\n"
    assert process.returncode == 0
    assert client.result(job).result == b"finished"


def test_it_goes_on_when_the_server_was_away_and_delivers_what_was_ready_meanwhile(make, serve, queue):
    server = serve()
    entered, go_on = threading.Event(), threading.Event()

    def do(job: Attempt) -> bytes:
        if job.payload == b"first":
            entered.set()
            go_on.wait(10)
        return job.payload

    with working(make({queue: do}, server.address)) as worker, Client(server.address) as client:
        first = client.add(queue, b"first")
        assert entered.wait(5)
        server.kill()
        go_on.set()
        time.sleep(0.05)
        server.start()
        assert client.result(first, wait_ms=10_000).result == b"first"
        second = client.add(queue, b"second")
        assert client.result(second, wait_ms=10_000).result == b"second"
        until(lambda: worker.counters.completed == 2)
    assert worker.counters.leased == 2
    server.stop()


def test_an_idle_worker_waits_for_its_server_and_counts_it(make, serve, queue, caplog):
    server = serve()
    with working(make({queue: lambda job: None}, server.address)) as worker:
        with Client(server.address) as client:
            client.run(queue, wait_ms=5000)
        server.kill()
        until(lambda: worker.counters.reconnects >= 2)
        server.start()
        with Client(server.address) as client:
            client.run(queue, wait_ms=10_000)
    assert "no jobs for now" in caplog.text
    server.stop()


def test_a_function_that_ends_the_program_fails_its_job_and_stops_the_worker(server, client, queue):
    with pytest.raises(SystemExit), working(Worker({queue: lambda job: sys.exit()}, server.address, lease_ms=50)):
        found = client.run(queue, wait_ms=5000)
        assert (found.success, found.result[:10]) == (False, b"SystemExit")


def test_a_coroutine_that_ends_the_program_lets_the_others_finish(server, client, queue):
    begun, ended = asyncio.Event(), threading.Event()

    async def end(job: Attempt) -> None:
        await begun.wait()
        sys.exit(3)

    async def other(job: Attempt) -> bytes:
        begun.set()
        await asyncio.to_thread(ended.wait, 10)
        return b"finished"

    functions = {f"{queue}-end": end, queue: other}
    first, second = client.add(f"{queue}-end"), client.add(queue)
    with (
        pytest.raises(SystemExit),
        working(Worker(functions, server.address, concurrency=2, lease_ms=50)) as worker,
    ):
        assert client.result(first, wait_ms=10_000).result == b"SystemExit: 3"
        assert worker._shift.stopping.is_set()
        ended.set()
        assert client.result(second, wait_ms=10_000).result == b"finished"


def test_a_coroutine_that_waits_for_something_cancelled_fails_its_job_and_the_worker_goes_on(
    server, client, queue
):
    async def broken(job: Attempt) -> bytes:
        if job.payload == b"well":
            return b"done"
        nothing = asyncio.get_running_loop().create_future()
        nothing.cancel()
        await nothing
        return b"never"

    with working(Worker({queue: broken}, server.address, lease_ms=50)):
        assert client.run(queue, wait_ms=5000).result == b"CancelledError"
        assert client.run(queue, b"well", wait_ms=5000).result == b"done"


def leased(queue: str) -> Leased:
    return Leased(uuid4(), queue, 60_000, b"")


def test_a_complete_is_sent_again_when_it_is_unknown_and_had_arrived(queue):
    shift = Shift(1000)
    delivery = shift.success(shift.begin(leased(queue))[0], b"")
    assert delivery.refused(ConnectionLost("gone", unknown=True)) > 0
    assert delivery.refused(ServerReadOnly("no room")) > 0
    assert delivery.refused(JobRefused("twice", reason="Duplicate result")) is None
    assert (shift.counters.completed, shift.counters.lost) == (1, 0)


def test_a_result_that_someone_else_has_given_is_lost_and_told(queue, caplog):
    shift = Shift(1000)
    for error in (JobRefused("twice", reason="Duplicate result"), JobNotFound("deleted")):
        assert shift.success(shift.begin(leased(queue))[0], b"").refused(error) is None
    assert (shift.counters.completed, shift.counters.lost) == (0, 2)
    assert "is lost: deleted" in caplog.text


def test_a_fail_is_not_sent_again_when_it_is_unknown_because_it_would_count_twice(queue):
    shift = Shift(1000)
    delivery = shift.failure(shift.begin(leased(queue))[0], ValueError())
    assert delivery.refused(ConnectionLost("not sent", unknown=False)) > 0
    assert delivery.refused(ServerReadOnly("no room")) > 0
    assert delivery.refused(ConnectionLost("gone", unknown=True)) is None
    assert shift.counters.lost == 1


def test_what_the_server_itself_does_not_know_is_sent_again_where_that_does_no_harm(queue):
    shift = Shift(1000)
    complete = shift.success(shift.begin(leased(queue))[0], b"")
    fail = shift.failure(shift.begin(leased(queue))[0], ValueError())
    assert complete.refused(ServerFailed("who knows", unknown=True)) > 0
    assert complete.refused(JobRefused("twice", reason="Duplicate result")) is None
    assert fail.refused(ServerFailed("who knows", unknown=True)) is None
    assert (shift.counters.completed, shift.counters.lost) == (1, 1)


def test_what_can_never_work_ends_the_worker_with_its_error(make, serve, tmp_path, queue):
    (tmp_path / "token").write_text("sesame")
    server = serve("-token-file", str(tmp_path / "token"))
    with pytest.raises(JobRefused, match="Unauthorized"), working(make({queue: print}, server.address)) as worker:
        until(worker._shift.stopping.is_set)


def test_the_example_loses_no_job_when_its_server_is_killed():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "examples.jobs"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=60)
    assert "1000 results, all of them right" in done.stdout, done.stderr


def test_a_worker_is_told_what_is_wrong_with_it_before_it_starts():
    with pytest.raises(ValueError, match="needs a function"):
        Worker().run()
    with pytest.raises(ValueError, match="concurrency is 0: expected at least 1"):
        Worker(concurrency=0)
    with pytest.raises(JobRefused, match="isn't a queue's name"):
        Worker({"no name": print})
    worker = Worker({"a": print})
    with pytest.raises(ValueError, match="a function for a already"):
        worker.job("a")(print)


def test_a_server_that_goes_while_a_worker_stops_is_no_matter(caplog):
    with LocalServer() as local:
        worker = Worker({"q": lambda job: None}, local.address, lease_ms=60_000)
        thread = threading.Thread(target=worker.run)
        thread.start()
        with Client(local.address) as client:
            until(lambda: client.inspect_server().active_clients == 2)
        worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert worker.counters.reconnects == 0
    assert "no jobs for now" not in caplog.text


class OlderServer:
    """In front of a server: refuses the flags that workq doesn't know, as workq does."""

    def __init__(self, address: str) -> None:
        self._behind = address
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                host, port = self._behind.split(":")
                behind = socket.create_connection((host, int(port)))
                threading.Thread(target=self._pass, args=(front, behind, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(behind, front, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, check: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if check and re.search(rb" -(count|lease|info|attempt)=", data):
                    self.refused += 1
                    source.sendall(b"-CLIENT-ERROR Invalid command args\r\n")
                else:
                    target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_worker_speaks_to_a_server_that_knows_no_more_than_workq(make, server, client, queue, concurrency):
    older = OlderServer(server.address)
    try:
        with working(make({queue: lambda job: job.payload}, older.address, concurrency=concurrency)) as worker:
            jobs = client.add_many(queue, [b"%d" % number for number in range(50)])
            assert [client.result(job, wait_ms=10_000).result for job in jobs] == [b"%d" % n for n in range(50)]
            until(lambda: worker.counters.completed == 50)
        assert worker.counters.leased == 50
        assert 1 <= older.refused <= concurrency
    finally:
        older.close()
