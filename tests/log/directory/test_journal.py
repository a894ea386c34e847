"""The journal: what it is asked for, what it brings back, and what becomes of it when it can't be had.

That no crash loses anything with it is in tests/crash.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import struct

import pytest

from forelog import AppenderFailed, Stream, kernel
from forelog.files import BLOCK_BYTES
from forelog.log.directory.journal import NAME, read_journal
from forelog.log.repair import apply_repairs, plan_repair
from forelog.log.verify import verify
from forelog.testing import CrashDisk

PATH = f"log/{NAME}"
SEGMENT = "log/000000001.log"


def opened(disk: CrashDisk, *, journal_bytes: int = 8 * BLOCK_BYTES, **options):
    return Stream("log", files=disk).appender(sync="always", journal_bytes=journal_bytes, **options)


def payloads(disk: CrashDisk) -> list[bytes]:
    with Stream("log", files=disk).cursor() as cursor:
        return [record.payload for record in cursor]


def after_power_loss(disk: CrashDisk) -> CrashDisk:
    """The disk with nothing on it that wasn't synced."""
    contents = disk.contents()
    for path in contents:
        lost = disk.model_at(len(disk.events)).files[disk._inode(path)]
        content = bytearray(lost.content)
        for number, sector in lost.dirty.items():
            content[number * 512 : (number + 1) * 512] = sector.versions[0]
        contents[path] = bytes(content[: lost.sizes[0]])
    return CrashDisk.of(contents, boot=disk.boot + 1)


def syncs_of(disk: CrashDisk, path: str) -> int:
    return sum(event.kind in ("sync", "sync_range") and event.path == path for event in disk.events)


def test_appends_sync_the_journal_and_not_the_segment():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="always", journal_bytes=10 * BLOCK_BYTES)
    before = syncs_of(disk, SEGMENT)
    for number in range(10):
        log.append(b"%d" % number)
    assert syncs_of(disk, SEGMENT) == before
    assert stream.metrics.snapshot()["journal_syncs"] == 10
    assert stream.metrics.snapshot()["syncs"] == 10
    assert log.unsynced_bytes == 0
    log.close()


def test_a_full_journal_has_the_segment_synced_and_begins_anew():
    disk = CrashDisk()
    log = opened(disk, journal_bytes=3 * BLOCK_BYTES)
    before = syncs_of(disk, SEGMENT)
    for _ in range(12):
        log.append(b"x" * 30)
    assert syncs_of(disk, SEGMENT) - before == 3
    assert len(disk.contents()[PATH]) == 3 * BLOCK_BYTES, "it never grows"
    log.close()


def test_no_block_of_the_journal_has_two_entries():
    disk = CrashDisk()
    log = opened(disk)
    for size in (1, 5000, 30):
        log.append(b"x" * size)
    journal = disk.contents()[PATH]
    heads = [at for at in range(0, len(journal), BLOCK_BYTES) if journal[at : at + 4] == b"CLJR"]
    assert heads == [0, BLOCK_BYTES, 3 * BLOCK_BYTES]
    assert journal.count(b"CLJR") == 3
    log.close()


def test_a_journal_has_whole_blocks_whatever_size_is_asked_for():
    disk = CrashDisk()
    log = opened(disk, journal_bytes=BLOCK_BYTES + 1)
    assert len(disk.contents()[PATH]) == 2 * BLOCK_BYTES
    log.close()


def test_what_is_larger_than_the_journal_is_synced_in_its_segment():
    disk = CrashDisk()
    log = opened(disk, journal_bytes=BLOCK_BYTES)
    before = syncs_of(disk, SEGMENT)
    log.append(b"x" * 5000)
    assert syncs_of(disk, SEGMENT) == before + 1
    assert payloads(after_power_loss(disk)) == [b"x" * 5000]
    log.close()


def test_only_a_log_that_is_open_has_a_journal():
    disk = CrashDisk()
    with opened(disk) as log:
        log.append(b"one")
        assert PATH in disk.contents()
    assert PATH not in disk.contents()
    with Stream("log", files=disk).appender(sync="always") as log:
        log.append(b"two")
        assert PATH not in disk.contents(), "nobody asked for one"
    assert payloads(disk) == [b"one", b"two"]


def test_a_power_loss_takes_what_the_segment_had_and_the_journal_brings_it_back(caplog):
    disk = CrashDisk()
    log = opened(disk)
    positions = [log.append(b"one"), *log.append_many([b"two", b"three"])]
    lost = after_power_loss(disk)
    assert payloads(lost) == []
    stream = Stream("log", files=lost)
    with caplog.at_level(logging.WARNING), stream.appender() as again:
        assert again.recovery.restored_bytes == 71
        assert again.recovery.torn is None
        assert again.append(b"four") > positions[-1]
    assert "71 bytes at the end of segment 1 were lost with the power and are back" in caplog.text
    assert stream.metrics.snapshot()["restored_bytes"] == 71
    assert PATH not in lost.contents()
    with stream.cursor() as cursor:
        assert [record.position for record in cursor][:3] == positions
    assert payloads(lost) == [b"one", b"two", b"three", b"four"]


def packed(disk: CrashDisk) -> bytes:
    """A journal as version 1 has it: the same entries, one right after the other."""
    journal = b""
    for entry in read_journal(Stream("log", files=disk).directory):
        head = struct.pack(">4sIQQQI", b"CLJR", 1, 7, entry.segment, entry.offset, len(entry.data))
        journal += head + entry.data + kernel.crc32c(head + entry.data).to_bytes(4, "big")
    return journal + bytes(500)


def test_a_journal_of_the_first_version_brings_back_as_much():
    disk = CrashDisk()
    log = opened(disk)
    written = [b"one", b"two" * 2000, b"three"]
    for payload in written:
        log.append(payload)
    lost = CrashDisk.of({**after_power_loss(disk).contents(), PATH: packed(disk)}, boot=1)
    assert payloads(lost) == []
    with Stream("log", files=lost).appender():
        pass
    assert payloads(lost) == written


def test_a_killed_process_leaves_a_journal_with_nothing_to_bring_back(caplog):
    disk = CrashDisk()
    log = opened(disk)
    log.append(b"one")
    killed = disk.killed()
    with caplog.at_level(logging.WARNING), Stream("log", files=killed).appender() as again:
        assert again.recovery.restored_bytes == 0
    assert not caplog.records
    assert payloads(killed) == [b"one"]


def test_verify_tells_what_the_journal_has_and_repair_puts_it_back():
    disk = CrashDisk()
    log = opened(disk)
    log.append(b"one")
    assert verify(Stream("log", files=disk)).ok, "a log in use lacks nothing"
    lost = after_power_loss(disk)
    stream = Stream("log", files=lost)
    report = verify(stream)
    assert report.journal_bytes == 23
    assert any("lacks 23 bytes that were lost with the power" in line for line in report.problems())
    (plan,) = plan_repair(stream)
    assert "put them back" in str(plan)
    assert payloads(lost) == [], "nothing was changed"
    done = apply_repairs(stream)
    assert done[0].action == "put them back"
    assert verify(stream).ok
    assert payloads(lost) == [b"one"]


def test_what_was_acknowledged_survives_a_sync_of_the_segment_that_fails():
    """Pages that a sync failed for look written, and may be lost: what the journal has of them isn't."""
    disk = CrashDisk()
    log = opened(disk, journal_bytes=3 * BLOCK_BYTES)
    acknowledged = []
    disk.fail(lambda op: op.kind == "sync" and op.path == SEGMENT)
    with pytest.raises(AppenderFailed, match="sync failed"):
        for number in range(100):
            log.append(b"%d" % number)
            acknowledged.append(b"%d" % number)
    log.close()
    assert len(acknowledged) == 3
    disk._faults.clear()
    with opened(disk) as again:
        assert again.recovery.restored_bytes > 0
    assert payloads(disk)[:3] == acknowledged


def test_a_failed_sync_of_the_journal_is_final():
    disk = CrashDisk()
    log = opened(disk)
    log.append(b"one")
    fault = disk.fail(lambda op: op.kind == "sync" and op.path == PATH)
    for _ in range(2):
        with pytest.raises(AppenderFailed, match="sync failed"):
            log.append(b"two")
    fault.stop()
    log.close()
    assert PATH in disk.contents(), "it may still be needed"
    with opened(disk) as again:
        again.append(b"three")
    assert payloads(disk)[0] == b"one"
    assert payloads(disk)[-1] == b"three"


def test_a_journal_that_cannot_be_written_is_done_without():
    disk = CrashDisk()
    log = opened(disk)
    disk.fail(lambda op: op.kind == "write_at" and op.path == PATH, errno.ENOSPC)
    log.append(b"one")
    log.append(b"two")
    assert payloads(after_power_loss(disk)) == [b"one", b"two"]
    log.close()


def test_a_journal_that_cannot_be_made_is_done_without_and_told(caplog):
    disk = CrashDisk()
    disk.fail(lambda op: op.kind == "write_at" and op.path == PATH, errno.ENOSPC)
    with caplog.at_level(logging.WARNING), opened(disk) as log:
        log.append(b"one")
        assert payloads(after_power_loss(disk)) == [b"one"]
    assert "going on without a journal" in caplog.text
    assert PATH not in disk.contents()


def test_a_journal_that_does_not_reach_to_its_segment_is_kept_as_evidence(caplog):
    disk = CrashDisk()
    with Stream("log", files=disk).appender(sync="always") as log:
        log.append(b"synced")
    log = opened(disk)
    log.append(b"acknowledged")
    contents = after_power_loss(disk).contents()
    contents[SEGMENT] = contents[SEGMENT][:20]
    disk = CrashDisk.of(contents, boot=2)
    with caplog.at_level(logging.ERROR), Stream("log", files=disk).appender() as log:
        assert log.recovery.journal_path == "log/000000001.torn"
    assert "ends before what its journal has of it begins" in caplog.text
    assert b"acknowledged" in disk.contents()["log/000000001.torn"]


def test_a_journal_whose_segment_is_gone_is_kept_as_evidence(caplog):
    disk = CrashDisk()
    log = opened(disk)
    log.append(b"acknowledged")
    contents = after_power_loss(disk).contents()
    del contents[SEGMENT]
    disk = CrashDisk.of(contents, boot=2)
    with caplog.at_level(logging.ERROR), Stream("log", files=disk).appender() as log:
        assert log.recovery.journal_path == "log/000000001.torn"
    assert "or is gone; the journal is kept in" in caplog.text
    assert b"acknowledged" in disk.contents()["log/000000001.torn"]


def test_a_journal_of_a_sealed_segment_is_forgotten():
    disk = CrashDisk()
    log = opened(disk)
    log.append(b"one")
    log.roll()
    killed = disk.killed()
    assert [entry.segment for entry in read_journal(Stream("log", files=killed).directory)] == [1]
    contents = killed.contents()
    contents[SEGMENT] = contents[SEGMENT][:8]  # as cleaning may have left it
    killed = CrashDisk.of(contents)
    with Stream("log", files=killed).appender() as again:
        assert again.recovery.restored_bytes == 0
    assert payloads(killed) == []
    log.close()


def test_whatever_is_in_a_journal_opening_the_log_works_and_no_record_is_wrong():
    disk = CrashDisk()
    log = opened(disk)
    for number in range(5):
        log.append(b"record %d" % number)
    good = after_power_loss(disk).contents()
    written = payloads(disk)
    rng = random.Random(7)
    for round_number in range(300):
        journal = bytearray(good[PATH])
        entry = rng.randrange(5) * BLOCK_BYTES
        if round_number % 3 == 0:
            journal[entry + rng.randrange(80)] ^= 1 << rng.randrange(8)
        elif round_number % 3 == 1:
            struct.pack_into(">I", journal, entry + 32, rng.choice([2**32 - 1, 2**31, 0, 999, 4000, 5000]))
        else:
            journal = bytearray(rng.randbytes(rng.randrange(3 * BLOCK_BYTES)))
        hostile = CrashDisk.of({**good, PATH: bytes(journal)}, boot=5)
        with Stream("log", files=hostile).appender():
            pass
        found = payloads(hostile)
        assert found == written[: len(found)]


def test_a_child_of_a_fork_leaves_its_parents_journal_alone(tmp_path):
    log = Stream(tmp_path / "log").appender(sync="always", journal_bytes=4096)
    log.append(b"one")
    child = os.fork()
    if child == 0:
        try:
            log.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "log" / NAME).exists()
    log.append(b"two")
    log.close()
    assert not (tmp_path / "log" / NAME).exists()
    with Stream(tmp_path / "log").cursor() as cursor:
        assert [record.payload for record in cursor] == [b"one", b"two"]


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="there is no way past the page cache here")
@pytest.mark.parametrize("refused", [None, "open", "write"])
def test_on_a_real_disk_the_journal_goes_past_the_page_cache_or_does_without(tmp_path, monkeypatch, refused):
    """Some filesystems don't let files be opened so, others do and then refuse to write."""
    write, direct = os.pwritev, []

    def pwritev(fd, buffers, offset, flags=0):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            if refused == "write":
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            direct.append(offset)
        return write(fd, buffers, offset, flags)

    def refuse(path, flags, mode=0o777):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return really_open(path, flags, mode)

    really_open = os.open
    monkeypatch.setattr(os, "pwritev", pwritev)
    if refused == "open":
        monkeypatch.setattr(os, "open", refuse)
    stream = Stream(tmp_path / "log")
    log = stream.appender(sync="always", journal_bytes=4 * BLOCK_BYTES)
    for number in range(3):
        log.append(b"record %d" % number)
    assert stream.metrics.snapshot()["journal_syncs"] == 3
    entries = read_journal(stream.directory)
    assert [entry.data.count(b"record") for entry in entries] == [1, 1, 1]
    if refused is not None:
        assert not direct
    elif direct:  # a filesystem in memory may have none
        assert direct == [0, BLOCK_BYTES, 2 * BLOCK_BYTES]
    log.close()
    assert not [fd for fd in os.listdir("/proc/self/fd") if is_journal(f"/proc/self/fd/{fd}")]


def is_journal(path: str) -> bool:
    try:
        return NAME in os.readlink(path)
    except OSError:
        return False


def test_a_size_that_no_journal_can_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="journal_bytes is -1"):
        Stream(tmp_path).appender(journal_bytes=-1)
    with pytest.raises(ValueError, match="expected at most 1073741824"):
        Stream(tmp_path).appender(journal_bytes=(1 << 30) + 1)  # more than recovery would read
    with pytest.raises(TypeError, match="journal_bytes is '1 MiB'"):
        Stream(tmp_path).appender(journal_bytes="1 MiB")  # type: ignore[arg-type]
