"""What costs a client little costs the job server little: memory and time, whatever multiplies what was sent."""

from __future__ import annotations

import contextlib
import random
import socket
import time

import pytest

from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.ordered import Ordered
from forelog.jobs.machine.queue import Leaser
from forelog.jobs.server import clients
from forelog.jobs.server.inspection import Inspections, inspect
from forelog.jobs.server.local import LocalServer
from tests.jobs.serving import Talk, add, job_id, served

START = 1_700_000_000_000_000_000
RESULT_BYTES = 1_000_000


def numbered(number: int) -> bytes:
    return bytes(6) + b"\x40\x00\x80" + number.to_bytes(7, "big")


# -- time


def test_things_in_order_are_those_of_a_sorted_list():
    chance = random.Random(1)
    ordered, plain = Ordered(int), []
    for _ in range(20_000):
        if plain and chance.random() < 0.4:
            gone = plain.pop(chance.randrange(len(plain)))
            ordered.remove(gone)
        else:
            new = (
                chance.randrange(10**9) if chance.random() < 0.5 else 10**9 + len(plain) + chance.randrange(10**9)
            )
            if new not in plain[-50:] and new not in ordered.some(0, 10**9)[-50:]:
                plain.append(new)
                ordered.add(new)
    plain.sort()
    assert ordered.some(0, len(plain) + 1) == plain
    for offset in (0, 1, 999, 1000, len(plain) - 1, len(plain), len(plain) + 5):
        assert ordered.some(offset, 7) == plain[offset : offset + 7]


def test_inspecting_a_few_looks_at_a_few():
    """With 300,000 scheduled jobs one inspect took up to 1.1 s, a client that sent many kept others out."""
    machine, count = Machine(START), 20_000
    for n in range(count):
        due = START + 10**12 + n * 1000
        machine.add(machine.new_job(numbered(n), b"q", 1000, 10**9, START, b"", n % 3, 0, 0, due), START)
        machine.queue(b"%d" % (n % 5000))
    machine.ledger.take()
    begun = time.perf_counter()
    for offset in range(0, count, 50):
        answer = inspect(machine, None, [b"scheduled-jobs", b"q", b"%d" % offset, b"1"], None)
        assert answer.startswith(b"+OK 1\r\n")
        assert inspect(machine, None, [b"queues", b"%d" % (offset % 5000), b"1"], None).startswith(b"+OK 1\r\n")
    assert time.perf_counter() - begun < 2  # it was 40 s
    jobs = machine.queue(b"q").scheduled_jobs(0, count)
    assert jobs == sorted(jobs, key=lambda job: (-job.priority, job.scheduled_ns))
    for n in range(count):
        machine.delete(numbered(n))
    assert machine.queue(b"q").scheduled_jobs(0, count) == []


def test_ready_jobs_are_shown_in_order_after_some_came_back():
    machine = Machine(START)
    for n in range(50):
        machine.add(machine.new_job(numbered(n), b"q", 1000, 10**9, START, b"", 0, 0, 9), START)
    for n in range(10):
        assert machine.lease(Leaser(None, [b"q"]), START, 0).id == numbered(n)
    for n in (7, 3, 3, 5):
        machine.finish(numbered(n), b"", False, START)
    wanted = [numbered(n) for n in (3, 5, 7, *range(10, 50))]
    assert [job.id for job in machine.queue(b"q").ready_jobs(0, 100)] == wanted
    assert [job.id for job in machine.queue(b"q").ready_jobs(2, 3)] == wanted[2:5]
    assert [machine.lease(Leaser(None, [b"q"]), START, 0).id for _ in wanted] == wanted


def test_who_inspects_again_and_again_lets_others_have_their_turn(tmp_path, monkeypatch):
    looks, wait = [], Inspections.wait
    monkeypatch.setattr(Inspections, "wait", lambda self, *asked: (looks.append(asked), wait(self, *asked))[1])
    with LocalServer(tmp_path / "log") as local:
        port = int(local.address.rpartition(":")[2])
        busy, other = Talk(port), Talk(port)
        for first in range(0, 5000, 1000):
            busy.send(b"".join(add(first + n) for n in range(1000)))
            assert busy.read(5 * 1000) == b"+OK\r\n" * 1000
        busy.send(b"inspect jobs q 4990 1\r\n" * 500 + b"inspect server\r\n")
        assert other.ask(b"inspect queue q\r\n") == b"+OK 1"
        busy.socket.shutdown(socket.SHUT_WR)
        found = busy.read(1 << 30)
        assert found.count(b"\r\nstate ") == 500, "a client that sends no more gets all of its answers"
        assert found.endswith(b"\r\n")
        assert len(looks) == 500, "each in a round of its own"
        busy.close()
        other.close()


def test_a_result_that_many_wait_for_is_handed_out_some_at_a_time(tmp_path):
    """A result of 1 MB for 1,000 clients held up all others for 0.7 s and more."""
    with LocalServer(tmp_path / "log") as local:
        port = int(local.address.rpartition(":")[2])
        worker, other = Talk(port), Talk(port)
        worker.send(add(1, ttr_ms=100_000) + b"lease q 1000\r\n")
        assert worker.line() == b"+OK"
        assert worker.line() == b"+OK 1"
        worker.line(), worker.read(3)
        waiting = [Talk(port) for _ in range(40)]
        for talk in waiting:
            talk.send(b"result %b 60000\r\n" % job_id(1))
        assert other.ask(b"inspect queue q\r\n") == b"+OK 1"
        worker.send(b"complete %b %d\r\n%b\r\n" % (job_id(1), RESULT_BYTES, b"y" * RESULT_BYTES))
        for talk in waiting:
            assert talk.line() == b"+OK 1"
            assert len(talk.read(RESULT_BYTES)) == RESULT_BYTES
        for talk in (worker, other, *waiting):
            talk.close()


def test_a_result_that_leaves_the_memory_meanwhile_is_handed_out_to_all(tmp_path):
    with served("-cmdlog-path", tmp_path / "log", "-max-results", "0") as server:
        good = server.connect()
        assert good.ask(add(1)) == b"+OK"
        waiting = [server.connect() for _ in range(40)]
        for talk in waiting:
            talk.send(b"result %b 60000\r\n" % job_id(1))
        assert good.ask(b"inspect queue q\r\n") == b"+OK 1"
        good.send(b"complete %b %d\r\n%b\r\n" % (job_id(1), RESULT_BYTES, b"y" * RESULT_BYTES))
        for talk in waiting:
            assert talk.line() == b"+OK 1"
            assert talk.line().endswith(b" 1 %d" % RESULT_BYTES)
            assert talk.read(RESULT_BYTES) == b"y" * RESULT_BYTES


# -- memory


def test_commands_that_are_not_whole_share_a_room(tmp_path, monkeypatch):
    """300 jobs whose last byte never came were 313 MB; there may be 10,000 clients."""
    monkeypatch.setattr(clients, "BUFFERS_BYTES_MAX", 3_000_000)
    with LocalServer(tmp_path / "log") as local:
        port = int(local.address.rpartition(":")[2])
        good = Talk(port)
        talks = [Talk(port) for _ in range(10)]
        for n, talk in enumerate(talks):
            talk.send(add(n, payload=b"x" * 500_000)[:-1])
        assert good.ask(add(100)) == b"+OK"
        deadline = time.monotonic() + 20
        while len(local.server.clients) > 7:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert local.server.clients.buffers.total <= 3_000_000
        done = 0
        for talk in talks:
            with contextlib.suppress(ConnectionError):
                talk.send(b"\n")
                done += talk.line() == b"+OK"
        assert 4 <= done <= 6
        for talk in (good, *talks):
            talk.close()
        while len(local.server.clients):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert local.server.clients.buffers.total == 0


def test_names_that_are_waited_for_are_bounded():
    """500 who waited for 256 queues each took 160 MB; 10,000 may."""
    machine = Machine(START)
    leasers = [Leaser(None, [b"%d.%d" % (n, k) for k in range(100)]) for n in range(3)]
    for leaser in leasers:
        assert machine.lease(leaser, START, 1000) is None
    assert machine.waits == 300
    machine.leave(leasers[0])
    machine.leave(leasers[0])
    assert machine.waits == 200
    machine.add(machine.new_job(numbered(1), b"1.7", 1000, 1000, START, b""), START)
    assert machine.waits == 100
    machine.tick(START + 10**12, 100)
    assert machine.waits == 0


@pytest.mark.parametrize("names", [16, 17])
def test_past_the_bound_nobody_waits_for_many_queues(tmp_path, names):
    with LocalServer(tmp_path / "log") as local:
        talk = Talk(int(local.address.rpartition(":")[2]))
        local.server.machine.waits = 250_001
        talk.send(b"lease " + b" ".join(b"q%d" % k for k in range(names)) + b" 10\r\n")
        wanted = b"-TIMEOUT" if names == 16 else b"-SERVER-ERROR Out of memory"
        assert talk.line().startswith(wanted)
        talk.send(add(1) + b"lease " + b" ".join(b"q%d" % k for k in range(names - 1)) + b" q 10\r\n")
        assert (talk.line(), talk.line()) == (b"+OK", b"+OK 1"), "who needn't wait gets a job"
        talk.close()
