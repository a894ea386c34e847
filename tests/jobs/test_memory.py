"""What jobs take in memory, and what happens at the limits."""

from __future__ import annotations

import contextlib
import random
import time

import pytest

from forelog.jobs.machine.ledger import JOB_BYTES
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Leaser
from forelog.jobs.machine.registry import QUEUE_BYTES
from tests.jobs.serving import Talk, add, job_id, served

START = 1_700_000_000_000_000_000
MIB = 1 << 20


def finish(number: int, result: bytes, word: bytes = b"complete") -> bytes:
    return b"%b %b %d\r\n%b\r\n" % (word, job_id(number), len(result), result)


def result(talk: Talk, number: int, wait_ms: int = 0) -> bytes:
    reply = talk.ask(b"result %b %d\r\n" % (job_id(number), wait_ms))
    if reply != b"+OK 1":
        return reply
    size = int(talk.line().split(b" ")[2])
    return talk.read(size + 2)[:-2]


def test_results_of_many_jobs_are_in_the_log_and_not_in_memory(tmp_path):
    flags = ("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", "os", "-max-results", "16MiB")
    with served(*flags) as server:
        talk, waiting = server.connect(), server.connect()
        before = server.rss_bytes()
        for number in range(150):
            assert talk.ask(add(number, payload=b"p" * 1000)) == b"+OK"
            waiting.send(b"result %b 60000\r\n" % job_id(number))
            assert talk.ask(finish(number, b"%d" % number + bytes(MIB - 10))) == b"+OK"
            assert waiting.line() == b"+OK 1"
            size = int(waiting.line().split(b" ")[2])
            assert waiting.read(size + 2).startswith(b"%d\0" % number), "whoever waits gets it"
        assert server.rss_bytes() - before < 90 * MIB
        for number in (0, 75, 149):
            assert result(talk, number) == b"%d" % number + bytes(MIB - 10)
        talk.send(b"inspect job %b\r\ninspect server\r\n" % job_id(0))
        assert talk.line() == b"+OK 1"
        assert b"payload " + b"p" * 1000 in [talk.line() for _ in range(13)]
        assert talk.line() == b"+OK 1", "and what was asked for after it comes after it"
        server.kill()
    with served(*flags) as server:
        talk = server.connect()
        assert server.rss_bytes() - before < 90 * MIB
        for number in (0, 75, 149):
            assert result(talk, number) == b"%d" % number + bytes(MIB - 10)
        assert talk.ask(b"delete %b\r\n" % job_id(0)) == b"+OK"
        assert result(talk, 0) == b"-NOT-FOUND"


def active_clients(talk: Talk) -> int:
    assert talk.ask(b"inspect server\r\n") == b"+OK 1"
    return int([talk.line() for _ in range(4)][1].split(b" ")[1])


def test_commands_that_are_not_whole_are_bounded_together(tmp_path):
    """A thousand clients with a payload of 1 MiB whose last byte doesn't come took 1 GiB."""
    with served("-cmdlog-path", tmp_path / "log") as server:
        before = server.rss_bytes()
        good = server.connect()
        some = [server.connect() for _ in range(600)]
        deadline = time.monotonic() + 30
        while active_clients(good) <= 600:  # all of them are accepted
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for talk in some:
            with contextlib.suppress(OSError):
                talk.send(add(1, payload=bytes(MIB))[:-10])
        while active_clients(good) > 258:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert server.rss_bytes() - before < 450 * MIB, "256 MiB of bytes, and what buffers have to spare"
        assert good.ask(add(2)) == b"+OK"
        assert "too many bytes wait" in server.stop()


def test_a_result_that_many_wait_for_and_do_not_read_is_there_once(tmp_path):
    """Each of them had a copy: 3,000 clients and a result of 1 MiB ended a server that had 3 GiB."""
    with served("-cmdlog-path", tmp_path / "log") as server:
        before = server.rss_bytes()
        good = server.connect()
        assert good.ask(add(1)) == b"+OK"
        some = [server.connect() for _ in range(500)]
        for talk in some:
            talk.send(b"result %b 60000\r\n" % job_id(1))
        assert good.lease("q") is not None
        assert good.ask(finish(1, bytes(MIB))) == b"+OK"
        assert good.ask(add(2)) == b"+OK"
        assert server.rss_bytes() - before < 100 * MIB


def test_results_are_read_while_the_log_is_cleaned(tmp_path):
    flags = ("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", "os", "-max-results", "0")
    with served(*flags, "-cmdlog-seg-size", "64KiB", "-cmdlog-clean-int", "20") as server:
        talk = server.connect()
        for number in range(40):
            text = b"%d " % number * 1000
            talk.send(add(number, payload=text) + finish(number, text))
            talk.send(b"".join(add(n) + b"delete %b\r\n" % job_id(n) for n in range(1000, 1100)))
            assert talk.read(5 * 202) == b"+OK\r\n" * 202
            for other in {0, number // 2, number}:
                assert result(talk, other) == b"%d " % other * 1000


def test_without_a_log_the_oldest_results_are_forgotten():
    with served("-max-results", "100KiB") as server:
        talk = server.connect()
        for number in range(30):
            talk.send(add(number) + finish(number, b"x" * 10_000))
            assert (talk.line(), talk.line()) == (b"+OK", b"+OK")
        assert result(talk, 29) == b"x" * 10_000
        assert result(talk, 0) == b"-NOT-FOUND"


def test_with_too_many_jobs_no_more_are_added_until_some_are_gone(tmp_path):
    with served("-cmdlog-path", tmp_path / "log", "-max-memory", "3MiB") as server:
        talk = server.connect()
        replies = [talk.ask(add(number, payload=bytes(100_000))) for number in range(40)]
        assert set(replies[:25]) == {b"+OK"}
        assert replies[-1].startswith(b"-SERVER-ERROR Out of memory")
        assert talk.lease("q") is not None, "what is there is served"
        assert talk.ask(finish(0, b"done")) == b"+OK"
        for number in range(5):
            assert talk.ask(b"delete %b\r\n" % job_id(number)) == b"+OK"
        assert talk.ask(add(100)) == b"+OK"


@pytest.mark.parametrize("seed", range(5))
def test_what_jobs_take_is_counted_right(seed):
    chance = random.Random(seed)
    ids = [bytes(6) + b"\x40\x00\x80" + number.to_bytes(7, "big") for number in range(20)]
    machine = Machine(START)
    machine.ledger.kept_bytes_max = 5000
    now = START
    for _ in range(1500):
        number = chance.choice(ids)
        step = chance.randrange(6)
        text = bytes(chance.choice([0, 10, 2000]))
        if step == 0 and number not in machine.jobs:
            job = machine.new_job(number, chance.choice([b"a", b"b"]), 500, 4000, now, text, 0, 2, 3)
            machine.add(job, now)
        elif step == 1:
            machine.lease(Leaser(None, [b"a", b"b"]), now, 0)
        elif step == 2:
            machine.finish(number, text, chance.random() < 0.5, now)
        elif step == 3:
            machine.delete(number)
        elif step == 4:
            now += chance.choice([1, 300]) * 1_000_000
            machine.tick(now, 100)
        if chance.random() < 0.2:
            machine.rollback(machine.ledger.take(), now)
        else:
            machine.ledger.landed(machine.ledger.take(), 1)
            machine.ledger.unload()
        jobs = machine.jobs.values()
        held = sum(JOB_BYTES + len(job.payload) + len(job.result or b"") for job in jobs)
        assert machine.ledger.memory_bytes == held + QUEUE_BYTES * len(machine.queues)
        kept = [job for job in jobs if job.is_processed() and len(job.payload) + len(job.result or b"") >= 1024]
        assert set(machine.ledger.kept) == {job.id for job in kept}
        assert machine.ledger.kept_bytes == sum(job.kept_bytes for job in kept) <= 5000
