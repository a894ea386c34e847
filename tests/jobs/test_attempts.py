"""Jobs that are tried again: with a backoff, when a task asks for it, and when their worker is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from forelog.errors import JobFailed, JobNotFound, JobRefused
from forelog.jobs import (
    App,
    Attempt,
    Client,
    Depends,
    Discard,
    LocalServer,
    Retry,
    Worker,
    current_attempt,
    exponential,
    fixed,
)
from tests.children import child
from tests.jobs.test_worker import until, working


@pytest.fixture(params=["threads", "tasks"])
def app(request: pytest.FixtureRequest) -> App:
    """An app whose worker has threads, or an event loop."""
    app = App()
    if request.param == "tasks":

        @app.task(name="coroutine")
        async def coroutine() -> None: ...

    return app


def test_a_task_is_tried_again_until_it_succeeds_and_knows_its_attempt(app: App) -> None:
    seen: list[Any] = []

    @app.task(name="flaky", retries=3, backoff=fixed(0.02))
    def flaky(attempt: Attempt = Depends(current_attempt)) -> int:
        seen.append((attempt.number, attempt.last_error, time.monotonic()))
        if attempt.number < 3:
            raise ValueError(f"no {attempt.number}")
        return attempt.number

    with app.testing():
        assert flaky.delay().get(10) == 3
    assert [one[:2] for one in seen] == [(1, None), (2, "ValueError: no 1"), (3, "ValueError: no 2")]
    assert all(later[2] - earlier[2] >= 0.02 for earlier, later in pairwise(seen))


def test_after_its_last_retry_a_job_is_a_dead_letter_with_its_error(app: App) -> None:
    @app.task(name="hopeless", retries=2, backoff=fixed(0))
    def hopeless() -> None:
        raise ValueError("never")

    with app.testing() as testing:
        job = hopeless.delay()
        with pytest.raises(JobFailed, match="ValueError: never"):
            job.get(10)
        (dead,) = testing.client.dead_jobs("default")
        assert (dead.id, dead.name, dead.reason, dead.attempts, dead.fails) == (job.id, "default", "failed", 3, 3)
        assert b"never" in dead.error
        assert testing.client.dead_job(job.id).payload == b'{"task":"hopeless"}'
        testing.client.retry_dead(job.id)
        with pytest.raises(JobFailed):
            job.get(10)
        assert testing.client.dead_job(job.id).fails == 3
        assert testing.client.drop_all_dead() == 1
        with pytest.raises(JobNotFound):
            testing.client.dead_job(job.id)


def test_a_task_says_when_it_is_tried_again_or_that_it_is_not(app: App) -> None:
    seen: list[Any] = []

    @app.task(name="moody", retries=5, backoff=exponential("1h"))
    def moody(attempt: Attempt = Depends(current_attempt)) -> None:
        seen.append(attempt.last_error)
        if attempt.number == 1:
            raise Retry("busy", after=0.02)
        raise Discard("gone")

    with app.testing() as testing:
        job = moody.delay()
        with pytest.raises(JobFailed, match="Discard: gone"):
            job.get(10)
        assert testing.client.dead_job(job.id).attempts == 2
    assert seen == [None, "Retry: busy"]


def test_a_job_is_due_after_a_delay_by_the_servers_clock(app: App) -> None:
    @app.task(name="now")
    def now() -> float:
        return time.time()

    with app.testing():
        added = time.time()
        assert now.apply_async(delay=0.05).get(10) - added >= 0.05


def test_functions_of_a_plain_worker_can_do_the_same():
    def do(attempt: Attempt) -> bytes:
        if attempt.number == 1:
            raise Retry(after="20ms")
        assert attempt.last_error == "Retry: to be tried again"
        raise Discard

    with LocalServer() as server, Client(server.address) as client:
        job = client.add("q", retries=5)
        with working(Worker({"q": do}, server.address, lease_ms=20)):
            assert client.result(job, wait_ms=10_000).result == b"Discard: discarded"


# -- heartbeats


def test_a_job_that_takes_longer_than_its_lease_keeps_it():
    begun: list[int] = []

    def slow(attempt: Attempt) -> str:
        begun.append(attempt.number)
        time.sleep(0.5)
        return "done"

    with LocalServer() as server, Client(server.address) as client:
        job = client.add("q")
        with working(Worker({"q": slow}, server.address, concurrency=2, lease_ms=20, heartbeat_ms=50)):
            assert client.result(job, wait_ms=10_000).result == b"done"
    assert begun == [1]


def test_a_blocked_event_loop_keeps_its_leases():
    begun: list[int] = []

    async def blocks(attempt: Attempt) -> str:
        begun.append(attempt.number)
        time.sleep(0.5)
        return "done"

    with LocalServer() as server, Client(server.address) as client:
        job = client.add("q")
        with working(Worker({"q": blocks}, server.address, lease_ms=20, heartbeat_ms=50)):
            assert client.result(job, wait_ms=10_000).result == b"done"
    assert begun == [1]


WORKER = """
import sys, time
from forelog.jobs import Worker
def hang(attempt):
    print("begun", flush=True)
    time.sleep(60)
Worker({"q": hang}, sys.argv[1], lease_ms=20, heartbeat_ms=100).run()
"""


def test_the_job_of_a_worker_that_was_killed_is_done_by_another_one_within_three_heartbeats():
    with LocalServer() as server, Client(server.address) as client:
        job = client.add("q", ttr_ms=60_000)
        with child([sys.executable, "-c", WORKER, server.address], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == "begun\n"
            os.kill(process.pid, signal.SIGKILL)
            killed = time.monotonic()
            with working(Worker({"q": lambda attempt: str(attempt.number)}, server.address, lease_ms=20)):
                assert client.result(job, wait_ms=10_000).result == b"2"
            assert time.monotonic() - killed < 5


def test_an_attempt_whose_lease_has_ended_is_told_and_its_result_is_refused():
    told = threading.Event()

    def hang(attempt: Attempt) -> str:
        if attempt.number == 1:
            attempt.deadline += 60  # so it isn't the worker's own clock that refuses the result
            until(lambda: attempt.lost)
            told.set()
            return "too late"
        return "by the second attempt"

    with LocalServer() as server, Client(server.address) as client:
        job = client.add("q", ttr_ms=150)
        worker = Worker({"q": hang}, server.address, concurrency=2, lease_ms=20, heartbeat_ms=20)
        with working(worker):
            assert client.result(job, wait_ms=10_000).result == b"by the second attempt"
            assert told.wait(10)
            until(lambda: worker.counters.lost == 1)
        assert worker.counters.completed == 1


def test_a_coroutine_whose_lease_has_ended_is_cancelled():
    ended: list[str] = []

    async def hang(attempt: Attempt) -> str:
        if attempt.number > 1:
            return "by the second attempt"
        try:
            attempt.deadline += 60  # so it isn't the worker's own clock that ends it
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")
        return "never"

    with (
        LocalServer() as server,
        Client(server.address) as client,
        working(Worker({"q": hang}, server.address, concurrency=2, lease_ms=20, heartbeat_ms=20)),
    ):
        job = client.add("q", ttr_ms=100)
        assert client.result(job, wait_ms=10_000).result == b"by the second attempt"
        until(lambda: ended == ["cancelled"])


def test_an_attempt_can_ask_for_more_time():
    def slow(attempt: Attempt) -> str:
        attempt.extend("30s")
        assert attempt.remaining() > 20
        time.sleep(0.3)
        return str(attempt.number)

    async def slow_async(attempt: Attempt) -> str:
        await attempt.aio.extend(30)
        await asyncio.sleep(0.3)
        return str(attempt.number)

    with LocalServer() as server, Client(server.address) as client:
        for name, function in (("a", slow), ("b", slow_async)):
            job = client.add(name, ttr_ms=150)
            with working(Worker({name: function}, server.address, lease_ms=20)):
                assert client.result(job, wait_ms=10_000).result == b"1"


def test_several_jobs_come_with_one_lease_and_are_done_side_by_side():
    barrier = threading.Barrier(6)

    def meet(attempt: Attempt) -> None:
        barrier.wait(10)

    with LocalServer() as server, Client(server.address) as client:
        jobs = client.add_many("q", [b""] * 12)
        with working(Worker({"q": meet}, server.address, concurrency=6, lease_ms=20)):
            assert all(client.result(job, wait_ms=10_000).success for job in jobs)


def test_a_result_names_its_attempt_so_that_it_never_ends_another_one():
    with LocalServer() as server, Client(server.address) as client:
        job = client.add("q", ttr_ms=50)
        first = client.lease("q", info=True)
        second = client.lease("q", info=True, wait_ms=5000)
        assert (first.info.attempt, second.info.attempt) == (1, 2)
        for late in (client.complete, client.fail):
            with pytest.raises(JobRefused, match="Lost lease"):
                late(job, attempt=1)
        with pytest.raises(JobRefused, match="Lost lease"):
            client.heartbeat(job, attempt=1)
        client.complete(job, b"second", attempt=2)
        assert client.result(job).result == b"second"


def test_only_a_task_that_a_worker_calls_has_an_attempt():
    with pytest.raises(LookupError, match="no task runs here"):
        current_attempt()
