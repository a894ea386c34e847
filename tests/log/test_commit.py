"""Group commit: everyone is served, once, whatever the others do."""

from __future__ import annotations

import asyncio
import faulthandler
import random
import subprocess
import sys
import threading
import time

import pytest

from forelog.log import aio
from forelog.log.commit import GroupCommit, Request


@pytest.fixture(autouse=True)
def no_hang():
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class Recorder:
    """A commit that remembers its rounds, and that no two of them overlap."""

    def __init__(self, seconds: float = 0.0002) -> None:
        self.rounds: list[list[bytes]] = []
        self.seconds = seconds
        self.busy = threading.Lock()

    def __call__(self, requests: list[Request]) -> None:
        assert self.busy.acquire(blocking=False), "two rounds at once"
        try:
            time.sleep(self.seconds)
            payloads = [payload for request in requests for payload in request.items]
            self.rounds.append(payloads)
            for request in requests:
                request.result = (len(self.rounds), tuple(request.items))
            if b"fail" in payloads:
                raise OSError(5, "broken")
        finally:
            self.busy.release()


def request(items: list[bytes]) -> Request:
    return Request(items, sum(map(len, items)))


def run_threads(count: int, work) -> None:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("pause", [0, 0.0005, 0.003])
def test_every_thread_gets_its_own_result(pause):
    recorder = Recorder()
    commit = GroupCommit(recorder)

    def work(name: int) -> None:
        rng = random.Random(name)
        for i in range(60):
            payload = b"%d-%d" % (name, i)
            assert commit.submit(request([payload]))[1] == (payload,)
            if pause:
                time.sleep(rng.random() * pause)

    run_threads(32, work)
    everything = [payload for payloads in recorder.rounds for payload in payloads]
    assert len(everything) == len(set(everything)) == 32 * 60
    assert len(recorder.rounds) < 32 * 60


def test_a_lone_writer_waits_for_nobody():
    recorder = Recorder(0)
    commit = GroupCommit(recorder)
    results: list = []

    def work(_: int) -> None:
        results.extend(commit.submit(request([b"x"]))[0] for _ in range(5))

    run_threads(1, work)
    assert results == [1, 2, 3, 4, 5]
    assert commit._thread is None, "no thread of its own is needed"


def test_the_main_thread_never_leads_a_round():
    leaders: list[str] = []

    def note(requests: list[Request]) -> None:
        leaders.append(threading.current_thread().name)
        for one in requests:
            one.result = 1

    commit: GroupCommit = GroupCommit(note)
    for _ in range(3):
        commit.submit(request([b"x"]))
    assert leaders == ["forelog-commit"] * 3


def test_no_python_runs_between_finding_no_leader_and_waking_one():
    """An interrupt there would leave a leader that was never woken."""
    recorder = Recorder(0)
    commit = GroupCommit(recorder)
    entry, seen = request([b"x"]), []
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        commit.queue.enter(entry)
        commit.queue.pass_on()
    finally:
        sys.setprofile(None)
    assert seen == []
    commit.queue.take(10, 10)
    commit.queue.pass_on()
    commit.close(ValueError("closed"))


def test_threads_that_never_come_back_leave_nobody_waiting():
    recorder = Recorder()
    commit = GroupCommit(recorder)
    for _ in range(30):
        run_threads(24, lambda name: commit.submit(request([b"%d" % name])))
    assert sum(map(len, recorder.rounds)) == 30 * 24


def test_an_error_reaches_everyone_of_its_round_and_nobody_else():
    commit = GroupCommit(Recorder())
    failed = []

    def work(name: int) -> None:
        for i in range(40):
            try:
                commit.submit(request([b"fail" if (name, i) == (3, 20) else b"fine"]))
            except OSError:
                failed.append(name)

    run_threads(16, work)
    assert 1 <= len(failed) <= 16
    assert commit.submit(request([b"fine"]))


def test_a_round_is_bounded_and_its_leader_served_in_a_later_one():
    recorder = Recorder(0.001)
    commit = GroupCommit(recorder)
    run_threads(12, lambda name: commit.submit(request([bytes([name]) * (6 << 20)])))
    assert max(sum(map(len, payloads)) for payloads in recorder.rounds) <= 16 << 20
    assert sum(map(len, recorder.rounds)) == 12


def test_tasks_and_threads_share_rounds():
    recorder = Recorder()
    commit = GroupCommit(recorder)

    def submit_all() -> None:
        for _ in range(50):
            commit.submit(request([b"t"]))

    threads = [threading.Thread(target=submit_all) for _ in range(4)]

    async def work(name: int) -> None:
        for i in range(20):
            payload = b"%d-%d" % (name, i)
            assert (await aio.submit(commit, request([payload])))[1] == (payload,)

    async def main() -> None:
        await asyncio.gather(*(work(n) for n in range(40)))

    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join()
    assert sum(map(len, recorder.rounds)) == 4 * 50 + 40 * 20
    commit.close(ValueError("closed"))
    assert commit._thread is None or not commit._thread.is_alive()


def test_a_cancelled_task_harms_nobody_and_closing_serves_who_waits():
    recorder = Recorder(0.01)
    commit = GroupCommit(recorder)

    async def main() -> None:
        tasks = [asyncio.create_task(aio.submit(commit, request([b"%d" % i]))) for i in range(10)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        closing = asyncio.create_task(aio.in_thread(commit.close, ValueError("closed")))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await closing
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [i == 3 for i in range(10)]

    asyncio.run(main())


INTERRUPTED = """
import os, signal, sys, threading, time
from forelog import Stream

stream = Stream(sys.argv[1])
log = stream.appender(sync="always", segment_bytes=20_000)
acknowledged = {}
stop = threading.Event()

def work(name):
    i = 0
    while not stop.is_set():
        payload = b"%d-%d" % (name, i)
        acknowledged[payload] = log.append(payload)
        i += 1

threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads:
    thread.start()
interrupts, end, i = 0, time.monotonic() + 2, 0
def alarm():
    while time.monotonic() < end:
        time.sleep(0.003)
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=alarm, daemon=True).start()
while time.monotonic() < end + 0.2:
    try:
        payload = b"main-%d" % i
        i += 1
        acknowledged[payload] = log.append(payload)
    except KeyboardInterrupt:
        interrupts += 1
    except RuntimeError as error:
        assert "interrupted" in str(error)
stop.set()
for thread in threads:
    thread.join()
log.close()
with stream.cursor() as cursor:
    found = {record.payload: record.position for record in cursor}
assert all(found[payload] == position for payload, position in acknowledged.items())
print("interrupts", interrupts > 5, "records", len(acknowledged) > 100)
"""


def test_interrupts_of_a_thread_that_waits_or_leads_harm_nobody(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "log")], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "interrupts True records True", result.stderr[-2000:]


def test_what_is_posted_is_committed_or_refused_and_never_forgotten():
    for _ in range(30):
        recorder = Recorder(0)
        commit = GroupCommit(recorder, queue_max_writes=20)
        posted: list[bytes] = []

        def work(name: int, commit=commit, posted=posted) -> None:
            for i in range(50):
                payload = b"%d-%d" % (name, i)
                try:
                    commit.post(request([payload]))
                except ValueError:
                    return
                posted.append(payload)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(random.random() * 0.004)
        commit.close(ValueError("closed"))
        for thread in threads:
            thread.join()
        assert sorted(posted) == sorted(p for payloads in recorder.rounds for p in payloads)


def test_an_append_from_inside_of_a_commit_is_refused():
    seen: list[str] = []

    def commit_and_append(requests: list[Request]) -> None:
        for call in (commit.submit, commit.post):
            try:
                call(request([b"inner"]))
            except RuntimeError as error:
                seen.append(str(error))
        for one in requests:
            one.result = 1

    commit: GroupCommit = GroupCommit(commit_and_append)
    assert commit.submit(request([b"outer"])) == 1
    assert len(seen) == 2
    assert "from inside of another append" in seen[0]


def test_where_rounds_are_slow_everyone_shares_them():
    recorder = Recorder(0.01)
    commit = GroupCommit(recorder)
    run_threads(16, lambda name: [commit.submit(request([b"%d-%d" % (name, i)])) for i in range(12)])
    sizes = sorted(map(len, recorder.rounds))
    assert sizes[len(sizes) // 2] > 8, "half of the writers wait for the other half"
