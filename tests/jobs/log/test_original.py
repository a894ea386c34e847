"""The original server starts on every log that random use of this one writes, cleaned, cut or restarted.

And the log keeps to its bound, and a restart knows what was known before. The original itself is `original.py`.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.log import cleaner
from forelog.jobs.log.cleaner import CommandCleaner
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Job, Leaser
from forelog.jobs.machine.states import FAILED, PENDING
from tests.jobs.log import original, vectors
from tests.jobs.log.original import Refused, records, segments
from tests.jobs.serving import add, job_id, served

START = 1_700_000_000_000_000_000
MS = 1_000_000
NAMES = [b"a", b"b"]
NOW_2090 = 1_794_768_000_000_000_000  # when the cases were recorded, by their clock


@pytest.mark.parametrize("case", vectors.load("replay_cases.json"), ids=lambda case: case["case"])
def test_the_model_starts_where_the_original_did(case, tmp_path):
    path = tmp_path / "log"
    vectors.edited(case, path)
    if case["server_starts"]:
        original.start(path, NOW_2090)
        return
    with pytest.raises(Refused) as refused:
        original.start(path, NOW_2090)
    assert case["server_message"].endswith(str(refused.value))


def known(machine: Machine, now_ns: int) -> dict[bytes, tuple]:
    """What is left of each job whose ttl isn't over."""
    return {
        job.id: (
            job.name, job.payload, job.state, job.attempts, job.fails, job.result, job.scheduled_ns, job.priority
        )
        for job in machine.jobs.values()
        if not job.volatile and job.expires_ns() > now_ns
    }  # fmt: skip


class Use:
    """A machine and its log, used at random."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.now = START
        self.written = 0
        self.ids = [self.random.randbytes(6) + b"\x4a\x00\x8b" + self.random.randbytes(7) for _ in range(12)]
        self.open()

    def open(self) -> None:
        self.journal = CommandLog(str(self.path), sync="os", segment_bytes=3000, clock=lambda: self.now)
        self.machine = self.journal.open(self.now).machine
        self.cleaner = CommandCleaner(self.journal.stream, self.machine)
        self.open_runs = []

    def write(self) -> None:
        batch = self.machine.ledger.take()
        self.written += sum(map(len, batch[0]))
        if batch[0]:
            self.machine.ledger.landed(batch, self.journal.write(batch[0]))
            self.journal._appender.wait_sealed()  # then the last segment has its name
        self.machine.ended = []

    def step(self) -> None:
        choices = [self.add, self.lease, self.lease, self.finish, self.finish, self.delete, self.run, self.wait]
        for _ in range(self.random.choice([1, 1, 1, 2, 5])):
            self.random.choice(choices)()
        if self.random.random() < 0.05:
            self.machine.rollback(self.machine.ledger.take(), self.now)
            self.machine.ended = []
        self.write()

    def text(self) -> bytes:
        return bytes(self.random.choice([0, 3, 40, 400, 2000]))

    def add(self) -> None:
        chance = self.random
        due_ns = self.now + chance.randrange(-500, 3000) * MS if chance.random() < 0.2 else NOT_SCHEDULED
        ttl_ms = chance.choice([600, 5000, 100_000])
        if due_ns != NOT_SCHEDULED and due_ns + ttl_ms * MS <= self.now:
            return
        number = chance.choice(self.ids)
        limits = (chance.choice([0, 0, 1, 3]), chance.choice([0, 1, 2, 3, 200]))
        job = self.machine.new_job(
            number,
            chance.choice(NAMES),
            900,
            ttl_ms,
            self.now,
            self.text(),
            chance.randrange(-1, 2),
            *limits,
            due_ns,
        )
        assert self.machine.add(job, self.now) == (self.machine.jobs[number] is job)

    def lease(self) -> None:
        self.machine.lease(Leaser(None, [self.random.choice(NAMES)]), self.now, 0)

    def finish(self) -> None:
        success = self.random.random() < 0.25
        self.machine.finish(self.random.choice(self.ids), self.text(), success, self.now)

    def delete(self) -> None:
        if self.random.random() < 0.5:
            self.machine.delete(self.random.choice(self.ids))

    def run(self) -> None:
        number = self.random.choice(self.ids)
        if number not in self.machine.jobs:
            job = self.machine.new_job(number, NAMES[0], 500, 300, self.now, self.text(), 5)
            self.open_runs.append(self.machine.run(job, "me", self.now))
        if self.open_runs and self.random.random() < 0.5:
            self.machine.leave(self.open_runs.pop())

    def wait(self) -> None:
        self.now += self.random.choice([1, 50, 400, 1000]) * MS
        while self.machine.wheel.pending(self.now):
            self.machine.tick(self.now, 100)

    def clean(self) -> None:
        if self.cleaner.wants_next_segment(self.journal.end):
            self.journal.roll()
        self.journal._appender.wait_sealed()
        self.cleaner.clean()

    def restart(self) -> None:
        """End in order, or as a crash does: then a torn tail may be left, which is cut."""
        for waiter in self.open_runs:  # nobody waits after a restart, and the log knows of no run
            self.machine.leave(waiter)
        self.machine.ended = []
        self.write()
        before = self.known()
        self.journal.close()
        self.open()
        assert self.known() == before

    def crash(self) -> None:
        self.journal.close()
        last = segments(self.path)[-1]
        (self.path / "append.synced").unlink(missing_ok=True)
        size = last.stat().st_size
        with last.open("r+b") as file:
            file.truncate(self.random.randrange(8, size + 1))
        self.open()

    def known(self) -> dict[bytes, tuple]:
        """What is left of each job whose ttl isn't over."""
        return known(self.machine, self.now)

    def known_after_a_restart(self) -> dict[bytes, tuple]:
        """By a server that has a copy of the log."""
        copy = self.path.with_name("copy")
        shutil.copytree(self.path, copy)
        (copy / "append.end").unlink(missing_ok=True)
        other = CommandLog(str(copy), sync="os", clock=lambda: self.now)
        found = known(other.open(self.now).machine, self.now)
        other.close()
        shutil.rmtree(copy)
        return found

    def needed_bytes(self) -> int:
        """That the records of all jobs take, by the format: its documentation is the other source of this."""
        return sum(needed_bytes(job) for job in self.machine.jobs.values() if not job.volatile)

    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in segments(self.path))


def needed_bytes(job: Job) -> int:
    frame = 15 + 3 + 4
    size = frame + 1 + 16 + 2 + len(job.name) + 5 + 6 + 5 + 2 + 2 + 3 + len(job.payload) + 30
    size += job.attempts * 2 * (frame + 17) + job.fails * (frame + 17)
    return size + (frame + 17 + 3 + len(job.result) if job.result is not None else 0)


@pytest.mark.parametrize("seed", range(24))
def test_the_original_starts_on_what_random_use_writes(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(cleaner, "SLACK_BYTES", 3000)
    monkeypatch.setattr(cleaner, "ROLL_BYTES", 2000)
    use = Use(tmp_path / "log", seed)
    for number in range(1, 400):
        use.step()
        if number % 40 == 0:
            original.start(use.path, use.now)
            use.clean()
            original.start(use.path, use.now)
            assert use.known_after_a_restart() == use.known()
            assert use.log_bytes() <= 2 * use.needed_bytes() + 5000 + 8 * len(segments(use.path))
        if use.random.random() < 0.02:
            use.restart()
        elif use.random.random() < 0.01:
            use.crash()
            original.start(use.path, use.now)
    assert use.written > 4 * 5000, "or the bound was never in danger"
    known = original.start(use.path, use.now).jobs
    assert {key: job.state for key, job in known.items()} == {
        key: job.state for key, job in use.machine.jobs.items() if not job.volatile
    }


@pytest.mark.parametrize("seed", range(6))
def test_cut_anywhere_the_log_is_one_that_the_original_starts_on(tmp_path, seed):
    use = Use(tmp_path / "log", seed)
    for _ in range(60):
        use.step()
    use.journal.close()
    last = segments(use.path)[-1]
    whole = last.read_bytes()
    at, cuts = 8, [8]
    for payload in records(last):
        at += 15 + (1 if len(payload) < 128 else 2) + len(payload) + 4
        cuts.append(at)
    assert at == len(whole)
    for cut in cuts:
        last.write_bytes(whole[:cut])
        original.start(use.path, use.now)


def test_a_fail_that_is_not_the_last_one_is_a_timeout_to_the_original_and_a_fail_here(tmp_path):
    use = Use(tmp_path / "log", 1)
    job = use.machine.new_job(use.ids[0], b"a", 1000, 60_000, use.now, b"", 0, 0, 4)
    use.machine.add(job, use.now)
    for text in (b"x" * 1000, b"y"):
        assert use.machine.lease(Leaser(None, [b"a"]), use.now, 0) is job
        use.machine.finish(job.id, text, False, use.now)
    use.machine.finish(job.id, b"without a lease", False, use.now)
    use.write()
    kinds = [payload[0] for path in segments(use.path) for payload in records(path)]
    assert kinds == [1, 7, 8, 8, 7, 8, 8, 8]
    found = original.start(use.path, use.now).jobs[job.id]
    assert (found.state, found.attempts) == (PENDING, 2)
    use.restart()
    again = use.machine.jobs[job.id]
    assert (again.state, again.attempts, again.fails, again.result) == (PENDING, 2, 3, None)
    use.machine.finish(job.id, b"the last", False, use.now)
    use.write()
    use.restart()
    again = use.machine.jobs[job.id]
    assert (again.state, again.fails, again.result) == (FAILED, 4, b"the last")
    assert original.start(use.path, use.now).jobs[job.id].state == FAILED


@pytest.mark.parametrize("kept", [1, 2])
def test_a_crash_between_the_two_records_of_a_fail_leaves_a_job_that_can_be_failed_again(tmp_path, kept):
    use = Use(tmp_path / "log", 1)
    job = use.machine.new_job(use.ids[0], b"a", 1000, 60_000, use.now, b"", 0, 0, 2)
    use.machine.add(job, use.now)
    use.machine.lease(Leaser(None, [b"a"]), use.now, 0)
    use.write()
    use.machine.finish(job.id, b"why", False, use.now)
    use.write()
    use.journal.close()
    (last,) = segments(use.path)
    if kept == 1:
        (use.path / "append.synced").unlink(missing_ok=True)
        with last.open("r+b") as file:
            file.truncate(last.stat().st_size - 37)
    use.open()
    found = use.machine.jobs[job.id]
    assert (found.state, found.fails) == (PENDING, kept - 1)


# -- the bound, by real servers


def log_bytes(path: Path) -> int:
    total = 0
    for segment in segments(path):
        try:
            total += segment.stat().st_size
        except FileNotFoundError:
            continue  # it is being cleaned meanwhile
    return total


def until(what, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert what()


def test_one_id_used_again_and_again_costs_no_more_than_its_last_job(tmp_path):
    log = tmp_path / "log"
    flags = ("-cmdlog-path", log, "-cmdlog-clean-int", "100", "-cmdlog-sync", "os")
    with served(*flags) as server:
        talk = server.connect()
        for _ in range(15):
            talk.send((add(1, payload=b"x" * 10_000) + b"delete %b\r\n" % job_id(1)) * 100)
            assert talk.read(100 * 10) == b"+OK\r\n" * 200
        assert talk.ask(add(1, payload=b"x" * 10_000)) == b"+OK"
        until(lambda: log_bytes(log) <= 2 * 10_100 + (2 << 20))
        server.stop()
    with served(*flags) as server:
        assert server.connect().lease("q") == (job_id(1), b"x" * 10_000)


def test_a_cleaning_amid_changes_is_not_the_last_for_an_hour(tmp_path):
    """While an id was being used again, all of its records counted as needed, and then for an hour: 10 MB for one
    job of 10 kB."""
    use = Use(tmp_path / "log", 1)
    use.ids = use.ids[:1]

    def put() -> None:
        job = use.machine.new_job(
            use.ids[0], NAMES[0], 900, 100_000, use.now, bytes(10_000), 0, 0, 0, NOT_SCHEDULED
        )
        assert use.machine.add(job, use.now)

    for _ in range(400):
        put()
        use.write()
        use.machine.delete(use.ids[0])
        use.write()
    put()  # not written yet
    assert use.cleaner.clean() is not None
    use.write()
    for _ in range(3):
        use.cleaner.clean()
    assert log_bytes(tmp_path / "log") <= 2 * 10_100 + (2 << 20)
    use.journal.close()


def test_fails_with_long_texts_take_no_room_until_the_last(tmp_path):
    log = tmp_path / "log"
    with served("-cmdlog-path", log, "-cmdlog-sync", "os") as server:
        talk = server.connect()
        assert talk.ask(add(1).replace(b" 1\r\nx", b" 1 -max-fails=255\r\nx")) == b"+OK"
        for _ in range(60):
            assert talk.lease("q") is not None
            assert talk.ask(b"fail %b %d\r\n" % (job_id(1), 1 << 20) + bytes(1 << 20) + b"\r\n") == b"+OK"
        assert log_bytes(log) < 10_000
        server.kill()
    original.start(log, time.time_ns())
    with served("-cmdlog-path", log) as server:
        talk = server.connect()
        talk.send(b"inspect job %b\r\n" % job_id(1))
        lines = [talk.line() for _ in range(14)]
        assert b"fails 60" in lines
        assert b"attempts 60" in lines


def test_the_ends_of_jobs_do_not_pile_up_behind_a_segment_that_is_not_worth_while(tmp_path):
    """A segment with one old job and a little of no use isn't rewritten for itself. It is for those behind it."""
    log = tmp_path / "log"
    flags = ("-cmdlog-path", log, "-cmdlog-seg-size", "64KiB", "-cmdlog-clean-int", "50", "-cmdlog-sync", "os")
    with served(*flags) as server:
        talk = server.connect()
        assert talk.ask(add(1, payload=b"x" * 50_000)) == b"+OK"
        sent = 0
        for first in range(1000, 81_000, 1000):
            batch = [add(n) + b"delete %b\r\n" % job_id(n) for n in range(first, first + 1000)]
            sent += sum(map(len, batch))
            talk.send(b"".join(batch))
            assert talk.read(10 * 1000) == b"+OK\r\n" * 2000
        until(lambda: log_bytes(log) <= 2 * 50_200 + (2 << 20) + (64 << 10))
        assert sent > 8_000_000
