"""Retries, heartbeats and dead letters, through a server and a client."""

from __future__ import annotations

import time

import pytest

from forelog.errors import ForelogError
from forelog.jobs import Client, LocalServer
from tests.jobs.serving import Talk, job_id, wait_until


@pytest.fixture
def server(tmp_path):
    with LocalServer(tmp_path / "log") as server:
        yield server


@pytest.fixture
def client(server):
    with Client(server.address) as client:
        yield client


@pytest.fixture
def talk(server):
    talk = Talk(int(server.address.rpartition(":")[2]))
    yield talk
    talk.close()


def add(number: int, *flags: str) -> bytes:
    return f"add {job_id(number).decode()} q 60000 600000 2 {' '.join(flags)}".encode() + b"\r\nhi\r\n"


def test_a_job_that_fails_waits_and_is_tried_again_as_often_as_it_may(client):
    job = client.add("q", b"hi", retries=2, backoff="fixed:150:150:0")
    for attempt in (1, 2, 3):
        began = time.monotonic()
        leased = client.lease("q", wait_ms=5000, info=True)
        assert (leased.info.attempt, leased.info.fails) == (attempt, attempt - 1)
        assert leased.info.error == (None if attempt == 1 else b"oops %d" % (attempt - 1))
        if attempt > 1:
            assert time.monotonic() - began > 0.1
        client.fail(job, b"oops %d" % attempt, attempt=attempt)
    (dead,) = client.dead_jobs("q")
    assert (dead.id, dead.reason, dead.error, dead.attempts) == (job, "failed", b"oops 3", 3)


def test_a_job_says_when_it_wants_to_be_tried_again(client):
    job = client.add("q", b"hi")
    client.lease("q")
    client.fail(job, b"busy", retry_after_ms=100)
    assert client.lease("q") is None
    assert client.inspect_queue("q").scheduled == 1
    assert client.lease("q", wait_ms=5000).id == job


@pytest.mark.parametrize(
    "flags",
    [
        ["-retries=x"],
        ["-retries=255"],
        ["-retries=3", "-max-fails=2"],
        ["-backoff=never"],
        ["-backoff=fixed:-1"],
        ["-backoff=fixed:1:2:101"],
        ["-delay=-1"],
        ["-delay=99999999999999999999"],
    ],
)
def test_flags_that_make_no_sense_are_refused(talk, client, flags):
    assert talk.ask(add(1, *flags)).startswith(b"-CLIENT-ERROR Invalid")
    assert client.inspect_queues() == []


def test_a_lease_without_heartbeats_ends_early(client):
    job = client.add("q", b"x", retries=1)
    first = client.lease("q", lease_ms=200, info=True)
    assert (first.id, first.info.attempt) == (job, 1)
    for _ in range(4):
        time.sleep(0.1)
        client.heartbeat(job, attempt=1)
    second = client.lease("q", wait_ms=5000, lease_ms=60_000, info=True)
    assert (second.id, second.info.attempt) == (job, 2)
    with pytest.raises(ForelogError, match="lease"):
        client.heartbeat(job, attempt=1)
    with pytest.raises(ForelogError, match="lease"):
        client.complete(job, b"late", attempt=1)
    client.complete(job, b"done", attempt=2)
    assert client.result(job).result == b"done"


def test_a_job_that_expires_is_a_dead_letter_which_can_be_tried_again(server, client, tmp_path):
    job = client.add("q", b"work", ttl_ms=100)
    wait_until(lambda: len(client.dead_jobs("q")) == 1)
    (letter,) = client.dead_jobs("q")
    assert (letter.id, letter.reason) == (job, "expired")
    client.retry_dead(job)
    assert client.dead_jobs("q") == []
    assert client.lease("q").payload == b"work"
    client.fail(job, b"no", final=True)
    (dead,) = client.dead_jobs()
    assert (dead.id, dead.reason, dead.error) == (job, "failed", b"no")
    client.drop_dead(job)
    assert client.dead_jobs() == []
