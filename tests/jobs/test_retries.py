"""Retries, heartbeats and dead letters, through a server and a client."""

from __future__ import annotations

import threading
import time

import pytest

from forelog.errors import ForelogError
from forelog.jobs import Client, LocalServer
from forelog.jobs.server import beyond
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
    client.fail(job, b"busy", retry_after_ms=1000)
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
    first = client.lease("q", lease_ms=2000, info=True)
    assert (first.id, first.info.attempt) == (job, 1)
    time.sleep(1)
    beat = time.monotonic()
    client.heartbeat(job, attempt=1)
    second = client.lease("q", wait_ms=5000, lease_ms=60_000, info=True)
    assert (second.id, second.info.attempt) == (job, 2)
    assert time.monotonic() - beat > 1.9
    with pytest.raises(ForelogError, match="lease"):
        client.heartbeat(job, attempt=1)
    with pytest.raises(ForelogError, match="lease"):
        client.complete(job, b"late", attempt=1)
    client.complete(job, b"done", attempt=2)
    assert client.result(job).result == b"done"


def test_a_job_that_expires_is_a_dead_letter_which_can_be_tried_again(server, client, tmp_path):
    job = client.add("q", b"work", ttl_ms=1500)
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


def test_a_key_lets_one_job_in_at_a_time(client):
    first = client.add_unique("q", b"1", key="order-7")
    assert (first.id, first.what) == (first.id, "new")
    with pytest.raises(ForelogError, match=str(first.id)):
        client.add_unique("q", b"2", key="order-7")
    again = client.add_unique("q", b"3", key="order-7", on_duplicate="existing")
    assert (again.id, again.what) == (first.id, "existing")
    other = client.add_unique("q", b"4", key="order-7", on_duplicate="replace")
    assert other.what == "replaced"
    assert client.lease("q").id == other.id
    with pytest.raises(ForelogError, match=str(other.id)):
        client.add_unique("q", b"5", key="order-7", on_duplicate="replace")
    client.complete(other.id)
    assert client.add_unique("q", b"6", key="order-7").what == "new"


def test_a_key_may_be_free_once_its_job_is_leased_or_taken_for_a_time(client):
    client.add_unique("q", b"1", key="a", unique="waiting")
    client.lease("q")
    assert client.add_unique("q", b"2", key="a", unique="waiting").what == "new"
    job = client.add_unique("q", b"3", key="b", unique_for_ms=60_000).id
    client.delete(job)
    with pytest.raises(ForelogError, match=str(job)):
        client.add_unique("q", b"4", key="b")


def test_a_queue_that_is_paused_keeps_its_jobs_until_it_is_resumed(server, client):
    client.add("q", b"1")
    client.pause("q")
    assert client.lease("q") is None
    with Client(server.address) as other:
        leased = []
        waiting = threading.Thread(target=lambda: leased.append(other.lease("q", wait_ms=10_000)))
        waiting.start()
        client.add("q", b"2")
        assert client.inspect_queue("q").ready == 2
        client.resume("q")
        waiting.join(10)
    assert [job.payload for job in leased] == [b"1"]


def test_a_queue_that_drains_takes_no_more(client):
    client.add("q", b"1")
    client.drain("q")
    with pytest.raises(ForelogError, match="draining"):
        client.add("q", b"2")
    assert client.lease("q").payload == b"1"
    client.resume("q")
    client.add("q", b"3")


def test_a_job_is_cancelled_while_it_waits_and_while_it_runs(client):
    waits = client.add("q", b"waits")
    client.cancel(waits)
    assert client.lease("q") is None
    runs = client.add("q", b"runs", retries=5)
    client.lease("q", lease_ms=60_000)
    client.cancel(runs)
    with pytest.raises(ForelogError, match="ancelled"):
        client.heartbeat(runs, attempt=1)
    client.fail(runs, b"stopped")
    (dead,) = client.dead_jobs()
    assert (dead.id, dead.reason) == (runs, "cancelled")


def test_a_lease_takes_as_many_jobs_as_it_is_asked_for(client):
    jobs = client.add_many("q", [b"%d" % number for number in range(7)])
    assert [job.id for job in client.lease_many("q", count=5)] == jobs[:5]
    assert [job.id for job in client.lease_many("q", count=5)] == jobs[5:]


def test_letters_take_no_more_room_than_they_may(server, client):
    dead = server.server.machine.notebook.dead
    dead.bytes_max = 20_000
    for number in range(20):
        client.add("q", b"%05d" % number + bytes(2000), ttl_ms=1)
    wait_until(lambda: client.inspect_server().evicted_jobs == 20)
    assert 3 <= len(client.dead_jobs("q")) < 20
    assert dead.letters_bytes <= 20_000


def test_keys_that_are_taken_for_a_time_are_limited(client, monkeypatch):
    monkeypatch.setattr(beyond, "HOLDS_MAX", 3)
    for number in range(3):
        client.add_unique("q", b"", key=f"k{number}", unique_for_ms=60_000)
    with pytest.raises(ForelogError, match="Out of memory"):
        client.add_unique("q", b"", key="another", unique_for_ms=60_000)
    client.add_unique("q", b"", key="another")


def test_only_so_many_queues_have_settings(client, monkeypatch):
    monkeypatch.setattr(beyond, "RULES_MAX", 2)
    client.pause("a")
    client.drain("b")
    with pytest.raises(ForelogError, match="Out of memory"):
        client.pause("c")
    client.resume("a")
    client.pause("c")


def test_a_dead_job_is_not_tried_again_while_another_one_has_its_key(client):
    dead = client.add_unique("q", b"1", key="a").id
    client.lease("q")
    client.fail(dead, b"no", final=True)
    other = client.add_unique("q", b"2", key="a").id
    with pytest.raises(ForelogError, match="Duplicate"):
        client.retry_dead(dead)
    assert client.retry_all_dead() == 0
    client.delete(other)
    client.retry_dead(dead)
    assert client.lease("q").id == dead
