"""What went wrong once, or could have: the job server in situations that are hard to come by."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from forelog import Stream
from forelog.formats.commands.commands import MAGIC, VERSION, Add, encode
from forelog.jobs.log.cleaner import CommandCleaner
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Leaser
from forelog.jobs.machine.registry import QUEUES_IDLE_MAX
from forelog.jobs.machine.wheel import Clock
from forelog.jobs.server.local import LocalServer
from forelog.log.position import Positions
from tests.jobs.serving import Talk, add

REFUSED = b"-SERVER-ERROR Read only: the command log can't be written"
START = 1_700_000_000_000_000_000
MS = 1_000_000
SECOND = 1000 * MS
IDS = [bytes(6) + b"\x40\x00\x80" + number.to_bytes(7, "big") for number in range(1000)]


class Disk:
    """What a log is written to, and whether it takes anything."""

    def __init__(self) -> None:
        self.full = threading.Event()
        self.slow = 0.0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    write = CommandLog.write

    def written(
        self: CommandLog, records: list[bytes], notes: Sequence[tuple[int, bytes]] = ()
    ) -> int | Positions:
        time.sleep(disk.slow)
        if disk.full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, records, notes)

    monkeypatch.setattr(CommandLog, "write", written)
    yield disk
    disk.full.clear()


def port_of(server: LocalServer) -> int:
    return int(server.address.rpartition(":")[2])


# -- when the log can't be written


@pytest.mark.parametrize("sync", ["os", "always"])
def test_who_waits_gets_no_job_whose_add_was_refused(tmp_path, disk, sync):
    with LocalServer(tmp_path / "log", sync=sync) as server:
        client, *leasers = [Talk(port_of(server)) for _ in range(4)]
        for leaser in leasers:
            leaser.send(b"lease q 60000\r\n")
            leaser.silence()
        disk.full.set()
        for number in (1, 2, 3):
            assert client.ask(add(number)) == REFUSED
            time.sleep(0.35)  # then one change is tried
        assert [leaser.silence() + leaser._left for leaser in leasers] == [REFUSED + b"\r\n"] * 3
        disk.full.clear()
        for talk in (client, *leasers):
            talk.close()


def test_of_many_who_wait_none_gets_a_job_whose_add_was_refused(tmp_path, disk):
    with LocalServer(tmp_path / "log") as server:
        client, *leasers = [Talk(port_of(server)) for _ in range(31)]
        for leaser in leasers:
            leaser.send(b"lease q 60000\r\n")
        assert client.ask(b"delete 00000000-0000-4000-8000-000000000000\r\n") == b"-NOT-FOUND"
        disk.full.set()
        client.send(b"".join(add(number) for number in range(30)))
        assert [client.line() for _ in range(30)] == [REFUSED] * 30
        assert [leaser.line() for leaser in leasers] == [REFUSED] * 30
        disk.full.clear()
        for talk in (client, *leasers):
            talk.close()


def test_what_was_done_while_a_sync_failed_is_refused_to_all(tmp_path, disk):
    with LocalServer(tmp_path / "log", sync="always") as server:
        first, second, leaser = (Talk(port_of(server)) for _ in range(3))
        disk.slow = 0.3
        leaser.send(b"lease later 60000\r\n")
        for number in (1, 2, 3):
            assert first.ask(add(number)) == b"+OK"
        disk.slow = 1.0
        disk.full.set()
        first.send(add(4))
        time.sleep(0.2)
        second.send(add(5, "later"))  # and so it is leased, on top of what will fail
        assert (first.line(), second.line(), leaser.line()) == (REFUSED, REFUSED, REFUSED)
        disk.full.clear()
        for talk in (first, second, leaser):
            talk.close()


def test_a_job_that_goes_while_its_lease_is_written_may_still_come_back():
    machine = Machine(START)
    machine.add(machine.new_job(IDS[1], b"q", 1000, 60_000, START, b""), START)
    machine.ledger.landed(machine.ledger.take(), 1)
    machine.lease(Leaser(None, [b"q"]), START, 0)
    lease = machine.ledger.take()
    machine.delete(IDS[1])
    machine.ledger.landed(lease, 1)
    assert IDS[1] in machine.ledger.leaving, "so that the cleaner leaves its add in the log"
    machine.rollback(machine.ledger.take(), START)
    assert IDS[1] in machine.jobs
    assert machine.ledger.leaving == set()


# -- what is cleaned away


class Kept:
    """A log and its machine, by hand."""

    def __init__(self, path, clock) -> None:
        self.journal = CommandLog(str(path), sync="os", segment_bytes=2000, clock=clock)
        self.machine = self.journal.open(clock()).machine
        self.clock = clock
        assert self.journal.stream is not None
        self.cleaner = CommandCleaner(self.journal.stream, self.machine)

    def write(self) -> None:
        batch = self.machine.ledger.take()
        self.machine.ledger.landed(batch, self.journal.write(batch[0]))

    def add(self, numbers: range) -> None:
        for number in numbers:
            job = self.machine.new_job(IDS[number], b"q", 1000, 86_400_000, self.clock(), b"x" * 50)
            assert self.machine.add(job, self.clock())
            self.write()

    def delete(self, numbers: range) -> None:
        for number in numbers:
            self.machine.delete(IDS[number])
            self.write()

    def seal(self) -> None:
        assert self.journal._appender is not None
        self.journal._appender.roll()
        self.journal._appender.wait_sealed()

    def jobs_after_a_restart(self) -> set[bytes]:
        self.journal.close()
        journal = CommandLog(self.journal.stream.path)
        found = set(journal.open(self.clock()).machine.jobs)
        journal.close()
        return found


def test_what_was_deleted_stays_so_when_a_segment_could_not_be_rewritten(tmp_path, monkeypatch):
    now = [START]
    log = Kept(tmp_path / "log", lambda: now[0])
    log.add(range(20))
    log.seal()
    log.delete(range(12))
    log.seal()
    log.add(range(20, 22))
    now[0] += 120 * SECOND

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr("forelog.log.cleaner.rewrite_segment", fail)
            log.cleaner.clean()
        now[0] += 120 * SECOND
    assert log.jobs_after_a_restart() == set(IDS[12:22])


def test_what_was_deleted_stays_so_when_the_clock_was_wrong_for_a_while(tmp_path):
    now = [START]
    log = Kept(tmp_path / "log", lambda: now[0])
    log.add(range(20))
    log.seal()
    log.add(range(20, 22))
    now[0] += 3600 * SECOND
    log.cleaner.clean()
    now[0] -= 3600 * SECOND
    log.delete(range(1))
    log.delete(range(20, 22))
    log.seal()
    log.add(range(22, 24))
    for _ in range(3):
        log.cleaner.clean()
    assert log.jobs_after_a_restart() == set(IDS[1:20]) | set(IDS[22:24])


def test_ends_go_when_nothing_is_left_that_they_end(tmp_path):
    now = [START]
    log = Kept(tmp_path / "log", lambda: now[0])
    log.add(range(40))
    log.delete(range(40))
    log.seal()
    log.add(range(40, 41))
    for _ in range(4):
        log.cleaner.clean()
    assert len(log.journal.stream.segments()) == 1
    assert log.jobs_after_a_restart() == {IDS[40]}


# -- who waits


def test_queues_that_someone_waited_for_are_forgotten():
    machine = Machine(START)
    for number in range(QUEUES_IDLE_MAX + 1000):
        leaser = Leaser(None, [b"idle-%d" % number])
        machine.lease(leaser, START, 1000)
        machine.leave(leaser)
    assert len(machine.queues) <= QUEUES_IDLE_MAX + 1


def test_who_waits_for_the_result_of_a_run_hears_when_its_client_leaves():
    machine = Machine(START)
    owner = machine.run(machine.new_job(IDS[0], b"a", 1000, 60_000, START, b""), "me", START)
    other = machine.wait("other", machine.jobs[IDS[0]], START, 60_000)
    machine.leave(owner)
    assert (machine.ended, other.gone) == ([other], True)
    assert machine.wheel.count == 0


# -- clocks, names, and clients who say no more


def test_nobody_waits_for_longer_because_the_clock_was_put_back(tmp_path, monkeypatch):
    with LocalServer(tmp_path / "log") as server:
        client, other = (Talk(port_of(server)) for _ in range(2))
        assert client.ask(add(1, ttr_ms=700)) == b"+OK"
        assert client.lease("q") is not None
        other.send(b"lease other 500\r\n")
        other.silence()
        right = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: right() - 3600 * SECOND)
        assert client.ask(b"lease other 300\r\n") == b"-TIMEOUT"
        assert other.line() == b"-TIMEOUT"
        assert client.lease("q", 8000) is not None, "its ttr is over"
        client.close()
        other.close()


def test_a_clock_that_was_put_back_catches_up(monkeypatch):
    wall = [START]
    monkeypatch.setattr(time, "time_ns", lambda: wall[0])
    clock = Clock()
    assert clock.now() == START
    wall[0] -= 100 * SECOND
    assert clock.now() == START
    wall[0] += 10 * SECOND
    assert clock.now() == START + 9 * SECOND
    wall[0] += 2000 * SECOND
    assert clock.now() == wall[0]


def test_a_name_that_no_queue_can_have_makes_none(tmp_path):
    stream = Stream(tmp_path / "log", magic=MAGIC, version=VERSION)
    with stream.appender() as log:
        for number, name in enumerate(["x\r\n+OK 1", "\udcff", ""]):
            log.append(encode(Add(IDS[number], name, ttr_ms=1000, ttl_ms=86_400_000, created_ns=time.time_ns())))
    journal = CommandLog(str(tmp_path / "log"))
    restored = journal.open(time.time_ns())
    journal.close()
    assert (restored.conflicts, restored.machine.queues) == (3, {})


@pytest.mark.parametrize("sync", ["os", "always"])
def test_who_says_no_more_still_gets_the_answers(tmp_path, disk, sync):
    disk.slow = 0.05
    with LocalServer(tmp_path / "log", sync=sync) as server:
        for first in (1000, 2000, 3000):
            talk = Talk(port_of(server))
            talk.send(b"".join(add(first + number, payload=b"x" * 20_000) for number in range(100)))
            talk.socket.shutdown(socket.SHUT_WR)
            assert talk.read(1000) == b"+OK\r\n" * 100
            talk.close()
        talk = Talk(port_of(server))
        talk.send(b"inspect jobs q 0 50\r\n" * 20)
        talk.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        assert talk.read(1 << 30).count(b"+OK 50\r\n") == 20
        talk.close()
        talk = Talk(port_of(server))
        talk.send(b"lease none 60000\r\n")
        talk.silence()
        talk.socket.shutdown(socket.SHUT_WR)
        assert talk.is_closed(), "who waits and says no more is taken for gone"
        talk.close()


def test_clients_who_send_much_while_a_sync_takes_long_cost_little(tmp_path, disk):
    disk.slow = 0.3
    sizes = []
    write = CommandLog.write

    def measured(self: CommandLog, records: list[bytes], notes: Sequence[tuple[int, bytes]]) -> int | Positions:
        sizes.append(sum(map(len, records)))
        return write(self, records, notes)

    with pytest.MonkeyPatch.context() as patch, LocalServer(tmp_path / "log", sync="always") as server:
        patch.setattr(CommandLog, "write", measured)
        talk = Talk(port_of(server))
        sender = threading.Thread(
            target=talk.send, args=(b"".join(add(number, payload=b"x" * 500_000) for number in range(20)),)
        )
        sender.start()
        assert talk.read(100) == b"+OK\r\n" * 20
        sender.join()
        talk.close()
    assert max(sizes) < 3_000_000


def test_a_run_that_took_the_id_of_a_job_goes_when_that_job_comes_back():
    """Its delete couldn't be written. There were two jobs with one id then, of which one was leased and the other
    completed."""
    machine = Machine(START)
    old = machine.new_job(IDS[1], b"q", 1000, 60_000, START, b"old")
    machine.add(old, START)
    machine.ledger.landed(machine.ledger.take(), 1)
    machine.delete(IDS[1])
    waiter = machine.run(machine.new_job(IDS[1], b"q", 1000, 60_000, START, b"new"), "me", START)
    machine.rollback(machine.ledger.take(), START)
    assert (machine.jobs[IDS[1]] is old, machine.ended, waiter.gone) == (True, [waiter], True)
    assert machine.lease(Leaser(None, [b"q"]), START, 0) is old
    assert machine.lease(Leaser(None, [b"q"]), START, 0) is None


@pytest.mark.parametrize("priority", [-(2**31), 2**31 - 1])
def test_a_job_of_the_first_or_last_priority_that_there_is_has_its_place(priority):
    machine = Machine(START)
    for number, given in enumerate((0, priority, 1, -1)):
        machine.add(machine.new_job(IDS[number], b"q", 1000, 60_000, START, b"", given), START)
    leased = [machine.lease(Leaser(None, [b"q"]), START, 0) for _ in range(4)]
    assert [job.priority for job in leased if job is not None] == sorted((0, priority, 1, -1), reverse=True)
