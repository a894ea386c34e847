"""The crash disk does what a real disk may do, and what it was told to."""

from __future__ import annotations

import errno

import pytest

from forelog.files import built_beside, in_the_way, replace_file, write_all
from forelog.testing import CrashDisk


def contents(disk: CrashDisk, path: str = "d/f", **options) -> set[bytes | None]:
    return {state.disk.contents().get(path) for state in disk.states(**options)}


@pytest.fixture
def disk():
    disk = CrashDisk(sector_bytes=4)
    disk.make_dir("d")
    return disk


def synced(disk: CrashDisk, data: bytes):
    file = disk.open_append("d/f")
    file.write(data)
    file.sync()
    disk.sync_dir("d")
    return file


def test_what_was_synced_is_there_whatever_happens(disk):
    synced(disk, b"12345678")
    assert contents(disk) == {b"12345678"}


def test_a_file_is_gone_until_its_directory_is_synced(disk):
    file = disk.open_append("d/f")
    file.write(b"data")
    file.sync()
    assert contents(disk) == {None, b"data"}
    disk.sync_dir("d")
    assert contents(disk) == {b"data"}


def test_unsynced_sectors_are_kept_dropped_and_reordered(disk):
    file = synced(disk, b"")
    file.write(b"aaaabbbb")
    found = contents(disk)
    assert {b"", b"aaaabbbb", b"aaaa\0\0\0\0", b"\0\0\0\0bbbb", bytes(8)} <= found
    garbage = [c for c in found if c and c[:4] not in (b"aaaa", bytes(4))]
    assert garbage


def test_a_torn_write_harms_no_byte_beside_it(disk):
    file = synced(disk, b"12")
    file.write(b"34")
    assert all(content.startswith(b"12") for content in contents(disk))
    assert len(contents(disk)) >= 4


def test_overwritten_bytes_are_of_any_version_since_the_sync(disk):
    file = synced(disk, b"....")
    update = disk.open_update("d/f")
    update.write_at(b"1111", 0)
    update.write_at(b"2222", 0)
    assert {b"....", b"1111", b"2222"} <= contents(disk)
    file.sync()
    assert contents(disk) == {b"2222"}


def test_truncation_is_lost_until_a_sync(disk):
    file = synced(disk, b"12345678")
    file.truncate(2)
    assert {b"12345678", b"12"} <= contents(disk)
    file.sync()
    assert contents(disk) == {b"12"}


def test_renames_and_removals_are_lost_until_the_directory_is_synced(disk):
    synced(disk, b"old")
    new = disk.open_append("d/n")
    new.write(b"new")
    new.sync()
    disk.sync_dir("d")
    disk.rename("d/n", "d/f")
    assert contents(disk) == {b"old", b"new"}
    disk.sync_dir("d")
    assert contents(disk) == {b"new"}
    disk.remove("d/f")
    assert contents(disk) == {b"new", None}


def test_states_are_of_any_moment_and_the_same_for_the_same_seed(disk):
    file = synced(disk, b"")
    for i in range(20):
        file.write(b"%04d" % i)
    moments = {state.events for state in disk.states_everywhere(limit=5)}
    assert moments == set(range(len(disk.events) + 1))
    first, second = ([s.disk.digest() for s in disk.states(limit=30, seed=7)] for _ in range(2))
    assert first == second
    assert [s.disk.digest() for s in disk.states(limit=30, seed=8)] != first


def test_a_killed_process_leaves_everything_it_wrote(disk):
    file = disk.open_append("d/f")
    file.write(b"unsynced")
    lock = disk.lock("d/lock", exclusive=True, timeout=0)
    after = disk.killed()
    assert after.contents() == {"d/f": b"unsynced"}
    after.make_dir("d")
    after.lock("d/lock", exclusive=True, timeout=0).release()
    lock.release()


def test_a_failed_sync_is_not_made_good_by_a_later_one(disk):
    file = synced(disk, b"")
    file.write(b"lost")
    fault = disk.fail(lambda op: op.kind == "sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    fault.stop()
    file.write(b"next")
    file.sync()
    found = contents(disk)
    assert {b"lostnext", b"\0\0\0\0next"} <= found
    buffer = bytearray(8)
    file.drop_cache()
    file.read_into(memoryview(buffer), 0)
    assert bytes(buffer) == b"\0\0\0\0next"


def test_faults_hit_what_they_were_meant_for(disk):
    file = synced(disk, b"")
    fault = disk.fail(lambda op: op.kind == "write" and op.byte_count > 2, errno.ENOSPC)
    file.write(b"ok")
    with pytest.raises(OSError, match="No space"):
        file.write(b"too much")
    fault.stop()
    short = disk.write_short(lambda op: op.kind == "write", 3)
    assert file.write(b"12345") == 3
    short.stop()
    lie = disk.lie(lambda op: op.kind == "sync")
    file.sync()
    assert b"" in contents(disk)
    assert (fault.hits, short.hits, lie.hits) == (1, 1, 1)


def test_a_disk_can_be_full():
    disk = CrashDisk(capacity_bytes=10)
    file = disk.open_append("d/f")
    assert file.write(b"12345678") == 8
    assert file.write(b"90abc") == 2
    with pytest.raises(OSError, match="No space"):
        file.write(b"d")
    disk.remove("d/f")
    assert disk.open_append("d/g").write(b"room") == 4


def test_a_directory_that_gets_another_name_has_one_of_the_two_until_it_is_synced():
    disk = CrashDisk()
    disk.make_dir("logs")
    with built_beside(disk, "logs/new", "logs/new.part"):
        file = disk.open_append("logs/new.part/inside")
        write_all(file, b"whole")
        file.sync()
        disk.sync_dir("logs/new.part")
    assert disk.contents() == {"logs/new/inside": b"whole"}
    moved = next(number for number, event in enumerate(disk.events) if event.kind == "move_dir") + 1
    assert {tuple(state.disk.contents().items()) for state in disk.states(moved)} == {
        (("logs/new.part/inside", b"whole"),),
        (("logs/new/inside", b"whole"),),
    }
    assert [state.disk.contents() for state in disk.states()] == [{"logs/new/inside": b"whole"}]
    with pytest.raises(OSError, match="not empty"):
        disk.move_dir("logs/new", "logs/new")


def test_what_could_not_be_built_leaves_nothing():
    disk = CrashDisk()
    disk.make_dir("logs")
    with pytest.raises(KeyError), built_beside(disk, "logs/new", "logs/new.part"):
        disk.open_append("logs/new.part/inside")
        raise KeyError
    assert disk.contents() == {}
    assert not in_the_way(disk, "logs/new.part", or_empty=True)


def test_a_file_that_is_replaced_is_the_old_or_the_new_one_whole():
    disk = CrashDisk.of({"etc/users": b"old"})
    replace_file(disk, "etc/users", b"new", 0o600)
    seen = set()
    for moment in range(len(disk.events) + 1):
        for state in disk.states(moment):
            seen.add(state.disk.contents()["etc/users"])
    assert seen == {b"old", b"new"}
    assert {state.disk.contents()["etc/users"] for state in disk.states()} == {b"new"}
    with pytest.raises(FileExistsError):
        disk.open_new("etc/users", 0o600)
