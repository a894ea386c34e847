"""A copy on a disk that crashes: what it has acknowledged as synced is there, and what is there was once so."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from forelog.copies.identity import Identity
from forelog.copies.server.receiver import Receiver
from forelog.copies.shipping import _chunk, ship
from forelog.copies.slots import Slots, whole_slot
from forelog.copies.snapshot import Resume
from forelog.copies.targets import DirectoryTarget
from forelog.copies.wire import _PLACE, _SNAPSHOT, Frame, Kind
from forelog.errors import BadFrame, ForelogError, ReplicaError, Superseded
from forelog.log.directory.directory import READ_LOCK
from forelog.log.position import Position
from forelog.state import PersistentDict
from forelog.testing import CrashDisk


def catch_up(things: PersistentDict, disk: CrashDisk) -> None:
    """Have a copy on a disk get, and sync, everything that there is."""
    target = DirectoryTarget("copy", things.log, synced=True, files=disk)
    end = things.log.update(["mark", 0])
    caught_up = threading.Event()
    try:
        ship(
            things.log,
            target,
            woken=threading.Event(),
            stopped=caught_up.is_set,
            acknowledged=lambda position: caught_up.set() if position > end else None,
        )
    finally:
        target.close()


def fill(things: PersistentDict) -> None:
    """Forty keys, each in a record of its own: with small segments, they fill several."""
    for key in range(40):
        things[key] = "z" * 30


def restored(disk: CrashDisk) -> dict:
    """What a copy restores to; {} if there is none that is whole."""
    if whole_slot("copy", disk) is None:
        return {}
    with PersistentDict("copy", files=disk) as things:
        found = dict(things)
    found.pop("mark", None)
    return found


def twin(disk: CrashDisk) -> CrashDisk:
    """The same again: who opens a copy is its primary from then on, and the one before is refused."""
    return CrashDisk.of(disk.contents(), boot=disk.boot)


class Shipped:
    """A log whose changes are shipped to a crash disk, with what was sure to be there at each moment."""

    def __init__(self, seed: int, path) -> None:
        self.disk = CrashDisk(sector_bytes=(64, 512)[seed % 2])
        self.history: list[tuple[int, int, dict]] = [(0, 0, {})]
        self.steps: list[dict] = []
        chance = random.Random(seed)
        with PersistentDict(str(path), rotate_bytes=1 << 30) as things:
            for _ in range(7):
                begun = len(self.disk.events)
                for _ in range(chance.randrange(1, 4)):
                    things[chance.randrange(6)] = chance.choice([1, "x" * 300, [2, 3]])
                    self.steps.append(dict(things))
                for _ in range(chance.choice([0, 0, 1, 2])):
                    things.rotate()  # twice, and what the copy needs next is gone
                catch_up(things, self.disk)
                self.history.append((begun, len(self.disk.events), dict(things)))

    def check(self, disk: CrashDisk, moment: int) -> None:
        found = restored(disk)
        sure = max(index for index, (_, durable, _) in enumerate(self.history) if durable <= moment)
        least = self.history[sure][2]
        allowed = [{}, *self.steps] if not sure else self.steps[self.steps.index(least) :]
        assert found in allowed, f"after event {moment}: {found}, but {least} was synced"


@pytest.mark.parametrize("seed", range(4))
def test_what_a_copy_has_synced_is_there_after_a_crash_anywhere(seed, tmp_path, crash_count):
    shipped = Shipped(seed, tmp_path / "log")
    for state in shipped.disk.states_everywhere(limit=4, seed=seed):
        crash_count(state)
        shipped.check(state.disk, state.events)


def test_after_a_crash_anywhere_a_copy_catches_up(tmp_path, crash_count):
    shipped = Shipped(5, tmp_path / "log")
    with PersistentDict(str(tmp_path / "log"), rotate_bytes=1 << 30) as things:
        things.pop("mark")
        things["new"] = "after the crash"
        kept = dict(things)
        for state in shipped.disk.states_everywhere(limit=1, seed=7):
            crash_count(state)
            catch_up(things, state.disk)
            assert restored(state.disk) == kept


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", ["write", "sync", "rename", "sync_dir", "remove", "truncate"])
def test_a_copy_whose_disk_fails_says_so_and_catches_up_once_it_works(kind, number, tmp_path):
    with PersistentDict(str(tmp_path / "log"), rotate_bytes=1 << 30) as things:
        for nth in range(12):
            disk = CrashDisk()
            things.update({key: [nth, "y" * 200] for key in range(5)})
            catch_up(things, disk)
            before = restored(twin(disk))
            things["more"] = nth
            things.rotate()
            things.rotate()
            seen = []
            fault = disk.fail(lambda op: op.kind == kind and (seen.append(op) or len(seen) == nth + 1), number)  # noqa: B023
            try:
                catch_up(things, disk)
            except (OSError, ForelogError):
                fault.stop()
                assert restored(twin(disk)) in (before, dict(things))
            fault.stop()
            catch_up(things, disk)
            assert restored(disk) == dict(things)


def test_what_doesnt_follow_is_refused():
    disk = CrashDisk()
    slots = Slots("copy", disk)
    slots.adopt(Identity(bytes(16), 2, 1, bytes(8)))
    with pytest.raises(Superseded):
        slots.adopt(Identity(bytes(16), 1, 9, bytes(8)))
    with pytest.raises(Superseded, match=r"another primary of epoch 2\.1"):
        slots.adopt(Identity(bytes(16), 2, 1, b"another1"))
    with pytest.raises(ReplicaError, match="not of"):
        slots.adopt(Identity(b"x" * 16, 3, 1, bytes(8)))
    for position, data in (
        (Position(1, 8), b"rubbish"),
        (Position(1, 9), b""),
        (Position(0, 8), b""),
        (Position(10**9, 8), b""),
    ):
        with pytest.raises(BadFrame):
            slots.growing.write(position, data)
    assert slots.growing.position is None
    slots.close()
    with pytest.raises(Superseded):
        Slots("copy", disk).adopt(Identity(bytes(16), 1, 9, bytes(8)))


def test_a_damaged_copy_is_made_anew(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        things.update(dict.fromkeys(range(50), "z" * 100))
        disk = CrashDisk()
        catch_up(things, disk)
        slot = whole_slot("copy", disk)
        contents = disk.contents()
        name = next(path for path in contents if path.startswith(slot) and path.endswith(".log"))
        contents[name] = contents[name][:500] + b"\0" + contents[name][501:]
        damaged = CrashDisk.of(contents)
        catch_up(things, damaged)
        assert restored(damaged) == dict(things)


# -- copies that are replaced


def damage_the_last_segment(disk: CrashDisk) -> CrashDisk:
    """A disk whose copy has to be made anew, and isn't read by anybody."""
    contents = disk.contents()
    name = max(path for path in contents if path.startswith("copy/a/") and path.endswith(".log"))
    contents[name] = contents[name][:-20] + bytes(20)
    return CrashDisk.of(contents)


def segments(disk: CrashDisk, slot: str) -> list[str]:
    return sorted(path for path in disk.contents() if path.startswith(f"copy/{slot}/") and path.endswith(".log"))


def test_after_a_crash_while_a_copy_is_emptied_none_with_a_hole_is_taken_for_whole(tmp_path, crash_count):
    with PersistentDict(str(tmp_path / "log"), segment_bytes=400, rotate_bytes=1 << 30) as things:
        fill(things)
        whole = CrashDisk()
        catch_up(things, whole)
        assert len(segments(whole, "a")) > 4
        disk = damage_the_last_segment(whole)
        catch_up(things, disk)
        assert (len(segments(disk, "a")), len(segments(disk, "b"))) == (0, len(segments(whole, "a")))
        begun = next(n for n in range(len(disk.events)) if "copy/b/snapshot" in disk.killed(n).contents())
        for moment in range(begun, len(disk.events) + 1):
            for state in disk.states(moment, limit=4, seed=moment):
                crash_count(state)
                catch_up(things, state.disk)
                assert restored(state.disk).keys() == set(range(40))


def test_a_copy_without_the_segment_that_its_generation_begins_in_is_refused_and_made_anew(tmp_path):
    with PersistentDict(str(tmp_path / "log"), segment_bytes=400, rotate_bytes=1 << 30) as things:
        fill(things)
        disk = CrashDisk()
        catch_up(things, disk)
        contents = {path: data for path, data in disk.contents().items() if not path.startswith("copy/a/snapshot")}
        for name in segments(disk, "a")[:3]:
            del contents[name]
        holed = CrashDisk.of(contents)
        with pytest.raises(BadFrame, match="begins in segment 1, which copy/a doesn't have"):
            catch_up(things, holed)
        assert whole_slot("copy", holed) is None
        catch_up(things, holed)
        assert restored(holed) == {key: things[key] for key in range(40)}


class Sent:
    """A log, sent frame by frame to copies on a disk, and what that was told as."""

    who = "a test"
    frame_bytes_max = 0

    def __init__(self, things: PersistentDict, slots: Slots) -> None:
        self.things = things
        self.told: list[str] = []
        self.slots = slots
        self._frames: list[Frame] = []
        self._receiver = Receiver(
            self,  # type: ignore[arg-type]
            slots,
            threading.RLock(),
            arrived=lambda *_: self.told.append("arrived"),
            renewed=lambda: self.told.append("renewed"),
        )

    def receive(self) -> Frame | None:
        return self._frames.pop(0) if self._frames else None

    def send_ack(self, end: Resume) -> None:
        pass

    def everything(self) -> None:
        view = self.things.log.view()
        self._frames.append(Frame(Kind.RESTART, b""))
        for block in view.stream.blocks(start=view.snapshot.begin):
            chunk = _chunk(block)
            self._frames.append(Frame(Kind.DATA, _PLACE.pack(*chunk.position) + bytes(chunk.data)))
        self.commit()

    def commit(self) -> None:
        snapshot = self.things.log.view().snapshot
        self._frames.append(Frame(Kind.COMMITTED, _SNAPSHOT.pack(*snapshot.begin, *snapshot.end)))
        self._receiver.run()


def test_a_copy_is_renewed_also_while_somebody_reads_the_old_one_which_goes_later(tmp_path):
    disk = CrashDisk()
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        slots = Slots("copy", disk)
        sent = Sent(things, slots)
        sent.everything()
        assert (sent.told, slots.whole.path) == (["renewed"], "copy/a")
        reader = disk.lock(f"copy/a/{READ_LOCK}", exclusive=False, timeout=0)
        things["a"] = 2
        things.rotate()
        sent.everything()
        assert (sent.told, slots.whole.path) == (["renewed", "renewed"], "copy/b")
        slots.close()

        slots = Slots("copy", disk)  # and still somebody reads
        assert slots.growing is slots.whole, "what is left isn't taken for a copy that is being made"
        assert slots.position > Position(0, 0)
        assert segments(disk, "a")
        sent = Sent(things, slots)
        reader.release()
        sent.commit()
        assert sent.told == []
        assert not segments(disk, "a")
        slots.close()
        assert restored(disk) == {"a": 2}


def test_what_is_left_of_a_copy_that_was_read_when_it_was_replaced_goes_when_copies_are_opened(tmp_path):
    disk = CrashDisk()
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        slots = Slots("copy", disk)
        sent = Sent(things, slots)
        sent.everything()
        reader = disk.lock(f"copy/a/{READ_LOCK}", exclusive=False, timeout=0)
        things.rotate()
        sent.everything()
        slots.close()
        reader.release()
        Slots("copy", disk).close()
        assert not segments(disk, "a")
        assert restored(disk) == {"a": 1}


def test_two_whole_copies_of_which_the_older_is_read_open_all_the_same(tmp_path):
    disk = CrashDisk()
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        slots = Slots("copy", disk)
        sent = Sent(things, slots)
        sent.everything()
        before = disk.contents()
        sent.everything()
        slots.close()
    disk = CrashDisk.of({**disk.contents(), **{path: before[path] for path in before if "/a/" in path}})
    reader = disk.lock(f"copy/a/{READ_LOCK}", exclusive=False, timeout=0)
    slots = Slots("copy", disk)
    assert (slots.whole.path, slots.growing.path) == ("copy/b", "copy/b")
    slots.close()
    reader.release()
    Slots("copy", disk).close()
    assert not segments(disk, "a")
