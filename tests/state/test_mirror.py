"""A copy on a disk that crashes: what it has acknowledged as synced is there, and what is there was once so."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from chiplog.errors import BadFrame, ChiplogError, Superseded
from chiplog.log.position import Position
from chiplog.state import PersistentDict
from chiplog.state.identity import Identity
from chiplog.state.mirror import Copies, whole_slot
from chiplog.state.shipping import ship
from chiplog.state.targets import DirectoryTarget
from chiplog.testing import CrashDisk


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


def restored(disk: CrashDisk) -> dict:
    """What a copy restores to; {} if there is none that is whole."""
    slot = whole_slot("copy", disk)
    if slot is None:
        return {}
    with PersistentDict(slot, files=disk) as things:
        found = dict(things)
    found.pop("mark", None)
    return found


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
            before = restored(disk)
            things["more"] = nth
            things.rotate()
            things.rotate()
            seen = []
            fault = disk.fail(lambda op: op.kind == kind and (seen.append(op) or len(seen) == nth + 1), number)  # noqa: B023
            try:
                catch_up(things, disk)
            except (OSError, ChiplogError):
                fault.stop()
                assert restored(disk) in (before, dict(things))
            fault.stop()
            catch_up(things, disk)
            assert restored(disk) == dict(things)


def test_what_doesnt_follow_is_refused():
    disk = CrashDisk()
    copies = Copies("copy", disk)
    copies.adopt(Identity(bytes(16), 2, 1))
    with pytest.raises(Superseded):
        copies.adopt(Identity(bytes(16), 1, 9))
    with pytest.raises(Superseded, match="not of"):
        copies.adopt(Identity(b"x" * 16, 3, 1))
    for position, data in (
        (Position(1, 8), b"rubbish"),
        (Position(1, 9), b""),
        (Position(0, 8), b""),
        (Position(10**9, 8), b""),
    ):
        with pytest.raises(BadFrame):
            copies.growing.write(position, data)
    assert copies.growing.position is None
    copies.close()
    with pytest.raises(Superseded):
        Copies("copy", disk).adopt(Identity(bytes(16), 1, 9))


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
