"""Under `always`, on the event loop and on a thread: what is acknowledged is synced, and what fails is undone."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence

import pytest

from forelog.errors import AppenderClosed, CorruptRecord, ServerFailed, ServerReadOnly
from forelog.jobs import Client, LocalServer
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.log.reader import read_commands
from forelog.jobs.server import pace
from forelog.log.position import Positions
from forelog.testing import CrashDisk
from tests.jobs.serving import wait_until


@pytest.fixture(params=["on the event loop", "on a thread"])
def disk(request, monkeypatch):
    """A disk whose syncs count as quick, or as slow."""
    monkeypatch.setattr(pace, "SLOW_SECONDS", 60.0 if request.param == "on the event loop" else 0.0)
    disk = CrashDisk()
    monkeypatch.setattr(
        "forelog.jobs.server.local.CommandLog",
        lambda path, sync, **_: CommandLog("log" if path else None, sync=sync, files=disk),
    )
    return disk


def names_after_power_loss(disk: CrashDisk) -> set[bytes]:
    """The payloads of the jobs that a start finds on what is certainly on disk."""
    journal = CommandLog("log", sync="always", files=disk)
    try:
        return {job.payload for job in journal.open(0).machine.jobs.values()}
    finally:
        journal.close()


def takes_it(client: Client, payload: bytes) -> bool:
    """Whether a server that was read-only takes a job again."""
    try:
        client.add("q", payload)
    except ServerReadOnly:
        return False
    return True


def test_what_was_acknowledged_survives_a_power_loss(disk):
    acknowledged: list[bytes] = []
    moments: list[tuple[int, int]] = []

    def add(name: int) -> None:
        with Client(local.address) as client:
            for number in range(5):
                payload = b"%d.%d" % (name, number)
                client.add("q", payload)
                acknowledged.append(payload)
                moments.append((len(disk.events), len(acknowledged)))

    with LocalServer("log", sync="always") as local:
        threads = [threading.Thread(target=add, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(acknowledged) == 20
    for events, count in moments[::3]:
        for state in disk.states(events, limit=4):
            assert names_after_power_loss(state.disk) >= set(acknowledged[:count])


def fail_syncs(disk: CrashDisk):
    return disk.fail(
        lambda operation: operation.kind == "sync" and operation.path.endswith((".log", ".journal")), errno.EIO
    )


def test_a_sync_that_fails_refuses_what_it_was_for_and_the_log_is_opened_again(disk):
    with LocalServer("log", sync="always") as local, Client(local.address, retry_seconds=0) as client:
        for number in range(3):
            client.add("q", b"before %d" % number)
        fault = fail_syncs(disk)
        with pytest.raises(ServerFailed, match="unknown") as refused:
            client.add("q", b"who knows")
        assert refused.value.unknown, "it may be in the log"
        with pytest.raises(ServerReadOnly):
            client.add("q", b"refused")
        assert client.inspect_queue("q").ready == 3, "what changes nothing is answered"
        fault.stop()
        wait_until(lambda: takes_it(client, b"after"))
        there = {job.payload for job in client.inspect_jobs("q")}
        assert there >= {b"before 0", b"before 1", b"before 2", b"after"}
        assert b"refused" not in there
    assert names_after_power_loss(CrashDisk.of(disk.contents())) == there, "the log says what the server said"


def test_what_a_failed_sync_leaves_unknown_is_done_once(disk):
    with LocalServer("log", sync="always") as local, Client(local.address) as client:
        client.add("q", b"before")
        fault = fail_syncs(disk)
        added: list[object] = []
        adding = threading.Thread(target=lambda: added.append(client.add("q", b"once")))
        adding.start()
        wait_until(lambda: fault.hits > 0)
        fault.stop()
        adding.join(20)
        jobs = client.inspect_jobs("q")
        assert [job.payload for job in jobs] == [b"before", b"once"]
        assert added == [jobs[1].id]


def test_what_is_in_the_log_after_all_counts_also_when_it_could_not_be_read_at_first(disk, monkeypatch):
    reads: list[int] = []

    def reading(*arguments, **options):
        reads.append(len(reads))
        if len(reads) == 1:
            raise OSError(errno.EIO, "the disk is still bad")
        return read_commands(*arguments, **options)

    monkeypatch.setattr("forelog.jobs.log.commandlog.read_commands", reading)
    with LocalServer("log", sync="always") as local, Client(local.address, retry_seconds=0) as client:
        client.add("q", b"before")
        syncs = fail_syncs(disk)
        with pytest.raises(ServerFailed, match="unknown"):
            client.add("q", b"in the log")
        syncs.stop()
        wait_until(lambda: takes_it(client, b"after"))
        assert len(reads) == 2
        assert {job.payload for job in client.inspect_jobs("q")} >= {b"before", b"in the log"}


def test_no_batch_is_larger_than_it_may_be_and_whoever_sends_more_waits(disk):
    payload = bytes(100_000)

    def add_some(name: str) -> None:
        with Client(local.address) as client:
            client.add_many(name, [payload] * 20)

    with LocalServer("log", sync="always") as local, Client(local.address) as client:
        sizes = note_sizes(local)
        threads = [threading.Thread(target=add_some, args=(f"q{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [queue.ready for queue in client.inspect_queues()] == [20] * 8
    assert max(sizes) < 150_000 + 2 * len(payload)


def note_sizes(local: LocalServer) -> list[int]:
    """How large the batches of a server are, which are to be small."""
    sizes: list[int] = []
    server = local.server
    server.machine.ledger.record_bytes_max = 150_000
    write = server.log.write

    def noting(records: list[bytes], notes: Sequence[tuple[int, bytes]] = ()) -> int | Positions:
        sizes.append(sum(map(len, records)))
        return write(records, notes)

    server.log.write = noting
    return sizes


def test_a_log_that_cannot_be_replayed_is_let_go_of(disk):
    with LocalServer("log", sync="always") as local, Client(local.address) as client:
        for number in range(50):
            client.add("q", b"%d" % number)
    contents = disk.contents()
    name = next(path for path in contents if path.endswith(".log"))
    damaged = bytearray(contents[name])
    damaged[500] ^= 1
    broken = CrashDisk.of({**contents, name: bytes(damaged)})
    journal = CommandLog("log", sync="always", files=broken)
    for _ in range(2):
        with pytest.raises(CorruptRecord):  # and not LockTimeout, the second time
            journal.open(0)
    assert journal.failed
    with pytest.raises(AppenderClosed, match="nothing was written"):
        journal.write([b"a command"])


def test_an_error_that_nobody_thought_of_refuses_too_and_is_told_with_its_trace(disk, monkeypatch, caplog):
    write = CommandLog.write
    with LocalServer("log", sync="always") as local, Client(local.address) as client:
        client.add("q", b"before")

        def broken(
            journal: CommandLog, records: list[bytes], notes: Sequence[tuple[int, bytes]]
        ) -> int | Positions:
            raise MemoryError("not even room for this")

        monkeypatch.setattr(CommandLog, "write", broken)
        with pytest.raises(ServerReadOnly):
            client.add("q", b"refused")
        monkeypatch.setattr(CommandLog, "write", write)
        wait_until(lambda: takes_it(client, b"after"))
        assert {job.payload for job in client.inspect_jobs("q")} == {b"before", b"after"}
    assert "not even room for this" in caplog.text
    assert "Traceback" in caplog.text


def test_a_batch_of_commands_is_written_and_synced_in_one_call(tmp_path):
    log = CommandLog(tmp_path / "log", sync="always")
    log.open(0)
    places = [log.write([b"1"] * 3), log.write([b"2"])]
    found = log.stream.metrics.snapshot()
    log.close()
    assert (found["journal_syncs"], found["timings"]["append_many"]["count"]) == (2, 2)
    assert [len(place) for place in places if isinstance(place, Positions)] == [3, 1]


@pytest.mark.parametrize(
    ("seconds", "connections", "slow"), [(0.005, 1, False), (0.005, 2, True), (0.05, 1, True)]
)
def test_a_thread_writes_where_syncs_hold_up_others(seconds: float, connections: int, slow: bool) -> None:
    found = pace.Pace()
    for _ in range(100):
        found.measure(seconds, 1, connections)
    assert found.slow == slow
    found.measure(seconds, 1, 2)
    assert found.slow, "as soon as there is company"
