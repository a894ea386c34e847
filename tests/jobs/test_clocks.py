"""A job server whose clock is wrong, or is set while it serves."""

from __future__ import annotations

import time
from uuid import uuid4

from forelog.jobs import Client, LocalServer
from forelog.jobs.log.cleaner import CommandCleaner
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.machine.states import COMPLETED
from tests.jobs.serving import wait_until


def test_a_completed_job_is_not_to_be_done_again_after_a_start_with_a_clock_that_is_ahead(tmp_path):
    """Its ttl seems to be over then. What cleaning leaves of it must not look like a job that nobody has done."""
    day = 86_400 * 10**9
    journal = CommandLog(str(tmp_path / "log"), sync="os", segment_bytes=4000)
    now = time.time_ns()
    machine = journal.open(now).machine

    def write() -> None:
        batch = machine.ledger.take()
        machine.ledger.landed(batch, journal.write(batch[0]))

    def add_others(count: int, *, forgotten: bool) -> None:
        for _ in range(count):
            other = machine.new_job(uuid4().bytes, b"others", 1000, 20 * 86_400_000, now, bytes(100))
            machine.add(other, now)
            if forgotten:
                machine.delete(other.id)
            write()

    job = machine.new_job(uuid4().bytes, b"q", 60_000, 3_600_000, now, b"pay the invoice")
    machine.add(job, now)
    add_others(40, forgotten=False)  # so that the segment with its add stays
    add_others(40, forgotten=True)
    machine.finish(job.id, b"paid", True, now)
    add_others(40, forgotten=True)  # so that the one with its end doesn't
    journal.close()
    ahead = journal.open(now + day).machine
    assert job.id not in ahead.jobs
    assert CommandCleaner(journal.stream, ahead).clean().records_dropped > 0
    journal.close()
    found = journal.open(now).machine.jobs.get(job.id)
    assert (found.state, found.result) == (COMPLETED, b"paid")
    journal.close()


def test_the_clock_may_be_put_forward_and_waits_end_all_the_same(monkeypatch):
    real, ahead_ns = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead_ns[0])
    with LocalServer() as local, Client(local.address, timeout=10) as client:
        client.add("a", b"x")
        leased = client.add("b", b"x", ttr_ms=60_000)
        assert client.lease("b").id == leased
        assert client.lease("none", wait_ms=10) is None  # so that a timer is set for the day's end
        ahead_ns[0] = 2 * 3600 * 10**9
        assert client.lease("none", wait_ms=300) is None
        wait_until(lambda: client.inspect_queue("b").ready == 1)
