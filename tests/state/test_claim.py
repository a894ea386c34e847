"""What a log and its copy compare before one goes on with the other."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="fsspec is not installed")

from forelog.copies import lineage
from forelog.copies.replica import Replica
from forelog.copies.shipping import Target, View, ship
from forelog.copies.slots import Slots
from forelog.copies.snapshot import Resume
from forelog.copies.store import bucket
from forelog.copies.store.target import StoreTarget
from forelog.copies.targets import DirectoryTarget
from forelog.copies.wire import Address, Fields, Kind, connect, identity_fields, resume_fields
from forelog.errors import ReplicaError, Superseded
from forelog.formats.state import FORMAT
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.state import PersistentDict, ReplicaServer
from forelog.testing import CrashDisk
from tests.state import faulty
from tests.state.faulty import faults
from tests.state.keeping import converged, hello, restored, wait_until
from tests.state.test_remote import WHERE, fetched, send
from tests.state.test_slots import catch_up, twin


@pytest.fixture(autouse=True)
def _empty_store():
    faulty.empty()
    yield
    faulty.empty()


# -- a log that changes under the one that ships it


class Rewritten:
    """A log that isn't open, so a test can change its bytes. It is shipped as if it were."""

    def __init__(self, things: PersistentDict, path: Path) -> None:
        self.log = self
        self.identity, self.lineage, self.transfers = things.log.identity, things.log.lineage, things.log.transfers
        self.path = str(path)
        self._snapshot = things.log.view().snapshot

    def view(self) -> View:
        return View(Stream(self.path, format=FORMAT), self._snapshot)


def two_histories(folder: Path) -> tuple[Rewritten, dict[str, bytes], dict[str, bytes]]:
    """A log, and the files of two ways that it may have gone on, with records of the same sizes."""
    ways = []
    with PersistentDict(str(folder / "log"), segment_bytes=600, rotate_bytes=1 << 30) as things:
        things["before"] = 1
        for letter in "ab":
            shutil.copytree(folder / "log", folder / letter)
            log = Stream(str(folder / letter), format=FORMAT)
            (folder / letter / "append.lock").unlink()
            (folder / letter / "append.synced").unlink()
            with log.appender(segment_bytes=600) as appender:
                for number in range(30):
                    appender.append(b"\x01" + things.log._codec.encode([number, letter * 30]))
            ways.append({path.name: path.read_bytes() for path in sorted((folder / letter).glob("*.log"))})
        shipped = Rewritten(things, folder / "shipped")
    Path(shipped.path).mkdir()
    return shipped, ways[0], ways[1]


def put_files(log: Rewritten, files: dict[str, bytes]) -> None:
    for path in Path(log.path).glob("*.log"):
        path.unlink()
    for name, data in files.items():
        (Path(log.path) / name).write_bytes(data)


def cut_and_followed(first: dict[str, bytes], second: dict[str, bytes]) -> dict[str, bytes]:
    name = max(first)
    scan = FORMAT.scan(first[name], FORMAT.header_bytes, len(first[name]), 0, 1000)
    following = FORMAT.segment_name(FORMAT.segment_number(name) + 1)
    return {**first, name: first[name][: scan.offsets[1]], following: second[max(second)]}


CHANGES: dict[str, Callable[[dict, dict], dict]] = {
    "other bytes of the same length": lambda first, second: second,
    "cut, and another segment follows": cut_and_followed,
    "cut, and longer again": lambda first, second: {
        **second, max(second): second[max(second)] + second[min(second)][FORMAT.header_bytes :],
    },
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", ["directory", "store"])
def test_a_log_that_was_rewritten_while_it_is_shipped_is_found_out(tmp_path, caplog, kind, change):
    log, first, second = two_histories(tmp_path)
    put_files(log, first)
    where = str(tmp_path / "copy")
    target: Target = DirectoryTarget(where, log, synced=True) if kind == "directory" else StoreTarget(WHERE, log)
    after = change(first, second)
    send(log, target, lambda: None, lambda: put_files(log, after))
    assert "it was cut, repaired or rewritten. A new copy is made" in caplog.text
    with PersistentDict(log.path) as found:
        expected = dict(found)
    assert (restored(where) if kind == "directory" else fetched(tmp_path / "found")) == expected


def test_a_log_that_was_rewritten_while_its_copy_was_away_is_found_out_by_the_process_that_sent_it(
    tmp_path, caplog
):
    log, first, second = two_histories(tmp_path)
    put_files(log, first)
    target = DirectoryTarget(str(tmp_path / "copy"), log, synced=True)
    send(log, target)
    put_files(log, second)
    with caplog.at_level(logging.WARNING, "forelog"):
        send(log, target)
    assert "lacks what a copy of it has" in caplog.text
    with PersistentDict(log.path) as found:
        assert restored(tmp_path / "copy") == dict(found)


class OtherBytes(DirectoryTarget):
    """A copy that another process has written to in the meantime."""

    def flush(self) -> Resume:
        position, tail = super().flush()
        return Resume(position, tail[:-1] + bytes([tail[-1] ^ 1]) if tail else tail)


class Elsewhere(DirectoryTarget):
    def flush(self) -> Resume:
        position, tail = super().flush()
        return Resume(Position(position.segment, position.offset + 1), tail) if tail else Resume(position, tail)


@pytest.mark.parametrize("kind", [OtherBytes, Elsewhere])
def test_an_acknowledgement_of_something_else_than_was_sent_counts_for_nothing(tmp_path, kind):
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        target, acknowledged = kind(str(tmp_path / "copy"), things.log, synced=True), []
        with contextlib.closing(target), pytest.raises(ReplicaError, match="another primary writes to it"):
            ship(
                things.log,
                target,
                woken=threading.Event(),
                stopped=lambda: False,
                acknowledged=acknowledged.append,
            )
        assert set(acknowledged) == {Position(0, 0)}


# -- openings


def test_a_log_remembers_its_openings_through_rotations_and_restores(tmp_path):
    path, seen = str(tmp_path / "log"), []
    for number in range(5):
        with PersistentDict(path) as things:
            assert [(one.run, one.word) for one in things.log.lineage.openings] == seen
            seen.append((things.log.identity.run, things.log.identity.word))
            things["number"] = number
            if number in (1, 3):
                things.rotate()
    assert [run for run, _ in seen] == [1, 2, 3, 4, 5]
    with PersistentDict(path) as things:
        ends = [one.end for one in things.log.lineage.openings]
        assert ends == sorted(ends)
        assert ends[-1] == things.log.lineage.began
    with PersistentDict(path, promote=True) as things:
        assert things.log.lineage.openings == ()
        assert things.log.identity.epoch == (2, 1)


def test_a_log_that_has_forgotten_the_opening_that_its_copy_knows_is_refused(tmp_path, monkeypatch):
    path, where = str(tmp_path / "log"), str(tmp_path / "copy")
    monkeypatch.setattr(lineage, "OPENINGS_MAX", 3)

    def kept_up() -> None:
        with PersistentDict(path) as things:
            name = things.log.add_destination(where)
            wait_until(lambda: not things.log.health().healthy or converged(things, name))
            assert things.log.health().healthy, things.log.health()

    kept_up()
    for _ in range(2):
        PersistentDict(path).open().close()
    kept_up()
    for _ in range(3):
        PersistentDict(path).open().close()
    with PersistentDict(path) as things:
        name = things.log.add_destination(where)
        wait_until(lambda: things.log.health().destinations[name].state == "superseded")
        assert "which this log has forgotten" in things.log.health().destinations[name].error


def test_no_power_loss_takes_an_opening_that_a_copy_knows_of(tmp_path, crash_count):
    """Or the next one would have its epoch, with another word, and be refused for good."""
    log, copy = CrashDisk(), CrashDisk()
    for number in range(3):
        with PersistentDict("log", files=log, rotate_bytes=1 << 30) as things:
            opened = len(log.events)
            catch_up(things, copy)
            things["number"] = number
    went_on = refused = 0
    for moment in range(opened, len(log.events) + 1):
        for state in log.states(moment, limit=8, seed=moment):
            crash_count(state)
            with PersistentDict("log", files=state.disk, rotate_bytes=1 << 30) as things:
                try:
                    catch_up(things, twin(copy))
                    went_on += 1
                except ReplicaError as error:
                    if isinstance(error, Superseded) or "has what this log lacks" not in str(error):
                        raise
                    refused += 1  # it was under sync="os"
    assert went_on
    assert refused


def test_a_log_that_syncs_always_is_never_behind_its_copy(tmp_path, crash_count):
    log, copy = CrashDisk(), CrashDisk()
    with PersistentDict("log", files=log, sync="always", rotate_bytes=1 << 30) as things:
        things["a"] = 1
        catch_up(things, copy)
        sent = len(log.events)
        things.rotate()
    for moment in range(sent, len(log.events) + 1):
        for state in log.states(moment, limit=8, seed=moment):
            crash_count(state)
            with PersistentDict("log", files=state.disk) as things:
                catch_up(things, twin(copy))


def test_a_copy_is_of_a_younger_term_when_its_log_has_what_the_copy_has(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        disk = CrashDisk()
        catch_up(things, disk)
        for continues in (False, True):
            slots = Slots("copy", disk)
            slots.adopt(things.log.identity._replace(term=2), continues=continues)
            slots.close()
            slots = Slots("copy", disk)
            assert (slots.known().identity.term, slots.known().term) == (2, 2 if continues else 1)
            slots.close()


# -- a replica's questions


def test_a_replica_asks_again_when_its_copy_has_changed_since(tmp_path):
    with ReplicaServer(str(tmp_path / "copies")) as server, PersistentDict(str(tmp_path / "log")) as things:
        address = Address("127.0.0.1", server.address[1], "things")
        name = things.log.add_destination(str(address), ack="synced")
        things["a"] = 1
        link = connect(address, None)
        with contextlib.closing(link):
            who = identity_fields(things.log.identity)
            link.send_fields(Kind.HELLO, version=2, role="primary", log="things", token="", **who)
            first = Fields("replica", link.expect(Kind.KNOWN)).resume()
            things["b"] = 2
            link.send_fields(Kind.CLAIM, continues=True)
            second = Fields("replica", link.expect(Kind.KNOWN)).resume()
            assert second.position > first.position
            things["c"] = 3
            link.send_fields(Kind.CLAIM, continues=False, refused="it lacks c")
            with pytest.raises(ReplicaError, match="it lacks c"):
                link.expect(Kind.WELCOME)
        things["d"] = 4
        assert things.log.health().destinations[name].attempts == 1


def test_a_primary_whose_connection_was_taken_over_gets_no_more_acknowledgements(tmp_path):
    with ReplicaServer(str(tmp_path / "copies")) as server, PersistentDict(str(tmp_path / "log")) as things:
        address = Address("127.0.0.1", server.address[1], "things")
        who = identity_fields(things.log.identity)
        first = hello(address, "primary", **who)
        second = hello(address, "primary", **who)
        with contextlib.closing(first), contextlib.closing(second):
            with pytest.raises(ReplicaError):
                for _ in range(10):
                    first.send(Kind.FLUSH, b"\1")
                    first.expect(Kind.ACK)
            second.send(Kind.FLUSH, b"\1")
            second.expect(Kind.ACK)


def test_a_replica_logs_who_was_refused_and_for_whom(tmp_path, caplog):
    with ReplicaServer(str(tmp_path / "copies")) as server, PersistentDict(str(tmp_path / "log")) as things:
        address = Address("127.0.0.1", server.address[1], "things")
        things.log.add_destination(str(address), ack="synced")
        things["a"] = 1
        mine = things.log.identity
        other = mine._replace(word=b"another1")
        with pytest.raises(Superseded, match=r"another primary of epoch 1\.1"):
            hello(address, "primary", **identity_fields(other))
        wait_until(lambda: "another primary of epoch" in caplog.text)
        assert mine.opening in caplog.text
        assert other.opening in caplog.text
        assert resume_fields(None) == {}
        things["b"] = 2


# -- two that write to one store, at every moment


def beside(folder: Path, kind: str, first: PersistentDict) -> PersistentDict:
    """Another primary of a log that is open."""
    shutil.copytree(first.log.path, folder / "second")
    second = PersistentDict(str(folder / "second"), rotate_bytes=1 << 30)
    if kind != "a younger one":
        mine = first.log.lineage
        word = mine.identity.word if kind == "a clone" else b"another1"
        second.log._next_lineage = lambda found: mine._replace(identity=mine.identity._replace(word=word))
    return second.open()


def acknowledged(things: PersistentDict, target: StoreTarget, key: str) -> set[str]:
    """The key, if it was acknowledged that it is in the copy."""
    position = things.log.update([key, key])
    try:
        return {key} if send(things, target) > position else set()
    except ReplicaError:
        return set()


@pytest.mark.parametrize("creates", [True, False], ids=["conditional writes", "none"])
@pytest.mark.parametrize("kind", ["a clone", "the same epoch", "a younger one"])
@pytest.mark.parametrize("connected", [True, False])
def test_whenever_a_second_primary_comes_to_a_store_nothing_that_was_acknowledged_is_missing(
    tmp_path, monkeypatch, creates, kind, connected
):
    monkeypatch.setattr(bucket, "_CREATES", {"faulty"} if creates else set())

    def run(moment: int) -> tuple[bool, int]:
        """The second one comes before an operation of the first one; whether there was such a one."""
        folder = tmp_path / str(moment)
        faulty.empty()
        faults.creates = creates
        sure: set[str] = set()
        with PersistentDict(str(folder / "first"), rotate_bytes=1 << 30) as first:
            here = StoreTarget(WHERE, first.log)
            if connected:
                sure |= acknowledged(first, here, "before")
            with contextlib.closing(beside(folder, kind, first)) as second:
                there = StoreTarget(WHERE, second.log)
                faults.done.clear()

                def meanwhile(operation: str, name: str) -> None:
                    if len(faults.done) == moment:
                        faults.before = None
                        sure.update(acknowledged(second, there, "second"))

                faults.before = meanwhile
                sure |= acknowledged(first, here, "first")
                met, faults.before = faults.before is None, None
                for number in range(3):
                    if sure:
                        assert sure <= fetched(folder / f"found {number}").keys()
                    sure |= acknowledged(first, here, f"first {number}")
                    sure |= acknowledged(second, there, f"second {number}")
                assert sure <= fetched(folder / "found").keys()
                winners = {key.split()[0] for key in sure} - {"before"}
        shutil.rmtree(folder)
        return met, len(winners)

    moment, wins = 0, []
    while (result := run(moment))[0]:
        wins.append(result[1])
        moment += 1
    assert moment > 8
    assert max(wins) == 1, "there is no moment at which both are acknowledged"
    assert not creates or wins.count(1) > moment // 2


def test_a_store_that_does_not_refuse_to_write_twice_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(bucket, "_CREATES", {"faulty"})
    for creates in (True, False):
        faulty.empty()
        faults.creates = creates
        with PersistentDict(str(tmp_path / f"log-{creates}")) as things:
            target = StoreTarget(WHERE, things.log)
            send(things, target)
            assert target._register.exclusive is creates
            names = [name for name in faulty.objects() if name.startswith("manifest")]
            assert all(name.endswith("-0000000000000000.json") for name in names) is creates


# -- what readers of a copy may see


def test_a_copy_publishes_whole_records_only_and_takes_back_what_a_failed_sync_cut(tmp_path, monkeypatch):
    published: list[tuple[int, int, int]] = []

    def publish(replica: Replica, number: int, size: int) -> None:
        found = replica._directory.files.stat(replica._directory.segment_path(number))
        published.append((number, size, found[0]))

    monkeypatch.setattr(Replica, "_publish", publish)
    disk = CrashDisk()
    with PersistentDict(str(tmp_path / "log"), segment_bytes=300, rotate_bytes=1 << 30) as things:
        for number in range(20):
            things[number] = "x" * 20
        catch_up(things, disk)
        assert len({number for number, _, _ in published}) > 3
        assert all(size == there for _, size, there in published)
        fault = disk.fail(lambda op: op.kind == "sync")
        with pytest.raises((OSError, ReplicaError)):
            catch_up(things, disk)
        fault.stop()
        number, size, there = published[-1]
        assert size <= there
        catch_up(things, disk)
        assert published[-1][1] > size or published[-1][0] > number
