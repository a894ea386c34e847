"""Opening after anything: torn tails, damage, reboots, foreign files."""

from __future__ import annotations

import logging

import pytest

from forelog import CorruptRecord, HeaderMismatch, LogFull, Position, Stream
from forelog.testing import CrashDisk


def payloads(stream: Stream, **options) -> list[bytes]:
    with stream.cursor(**options) as cursor:
        return [record.payload for record in cursor]


def closed_log(*items: bytes) -> dict[str, bytes]:
    disk = CrashDisk()
    with Stream("log", files=disk).appender() as log:
        log.append_many(items)
    return disk.contents()


def killed_log(*items: bytes) -> dict[str, bytes]:
    disk = CrashDisk()
    log = Stream("log", files=disk).appender()
    log.append_many(items)
    return disk.contents()


def test_a_torn_tail_is_kept_beside_the_log_cut_off_counted_and_told(caplog):
    contents = killed_log(b"one", b"two")
    whole = contents["log/000000001.log"]
    contents["log/000000001.log"] = whole[:-5]
    disk = CrashDisk.of(contents)
    stream = Stream("log", files=disk)
    with stream.cursor() as cursor:
        assert [r.payload for r in cursor] == [b"one"]
        assert cursor.torn.position == Position(1, 31)
        assert cursor.torn.byte_count == 18
    with caplog.at_level(logging.WARNING), stream.appender() as log:
        assert log.recovery.torn.byte_count == 18
        assert log.append(b"three") == Position(2, 8), "a new segment: no position is given twice"
    assert disk.contents()["log/000000001.torn"] == whole[31:-5]
    assert disk.contents()["log/000000001.log"] == whole[:31]
    assert "cut a torn tail of 18 bytes" in caplog.text
    assert stream.metrics.snapshot()["torn_bytes"] == 18
    assert payloads(stream) == [b"one", b"three"]


def test_evidence_of_an_earlier_tear_is_never_overwritten():
    contents = killed_log(b"one", b"two")
    contents["log/000000001.torn"] = b"earlier"
    contents["log/000000001.log"] = contents["log/000000001.log"][:-1]
    disk = CrashDisk.of(contents)
    Stream("log", files=disk).appender().close()
    assert disk.contents()["log/000000001.torn"] == b"earlier"
    assert len(disk.contents()["log/000000001.torn.2"]) == 22


@pytest.mark.parametrize("size", range(8))
def test_a_segment_of_a_crash_during_creation_is_used(size):
    contents = killed_log(b"one")
    contents["log/000000002.log"] = contents["log/000000001.log"][:size]
    disk = CrashDisk.of(contents)
    stream = Stream("log", files=disk)
    assert payloads(stream) == [b"one"]
    with stream.appender() as log:
        log.append(b"two")
    assert payloads(stream) == [b"one", b"two"]


def test_damage_to_synced_data_is_never_cut(caplog):
    contents = closed_log(b"one", b"two", b"three")
    damaged = bytearray(contents["log/000000001.log"])
    damaged[-1] ^= 1  # even the very last record
    contents["log/000000001.log"] = bytes(damaged)
    disk = CrashDisk.of(contents)
    stream = Stream("log", files=disk)
    with pytest.raises(CorruptRecord):
        payloads(stream)
    with stream.appender() as log:
        assert log.recovery.damage is not None
        assert log.recovery.torn is None
        log.append(b"four")
    assert disk.contents()["log/000000001.log"] == bytes(damaged)
    assert "synced data is damaged" in caplog.text
    assert payloads(stream, on_corruption="skip") == [b"one", b"two", b"four"]


def test_after_a_kill_appending_goes_on_in_the_same_segment():
    disk = CrashDisk()
    log = Stream("log", files=disk).appender()
    log.append(b"one")
    again = disk.killed()
    with Stream("log", files=again).appender() as log:
        assert log.append(b"two") == Position(1, 31)


def test_after_a_reboot_that_found_the_log_open_a_new_segment_is_started():
    disk = CrashDisk()
    log = Stream("log", files=disk).appender()
    log.append(b"one")
    rebooted = CrashDisk.of(disk.contents(), boot=1)
    with Stream("log", files=rebooted).appender() as log:
        assert log.append(b"two") == Position(2, 8)


def test_after_a_clean_close_appending_goes_on_in_the_same_segment_even_after_a_reboot():
    rebooted = CrashDisk.of(closed_log(b"one"), boot=1)
    with Stream("log", files=rebooted).appender() as log:
        assert log.append(b"two") == Position(1, 31)


def test_a_synced_segment_that_is_gone_is_told_and_its_number_not_used_again(caplog):
    disk = CrashDisk()
    with Stream("log", files=disk).appender() as log:
        log.append(b"one")
        log.roll()
        log.append(b"two")
    disk.remove("log/000000002.log")
    stream = Stream("log", files=disk)
    with stream.appender() as log:
        assert log.append(b"three") == Position(3, 8)
    assert "is gone" in caplog.text
    assert payloads(stream) == [b"one", b"three"]


@pytest.mark.parametrize("wrong", [{"magic": 1}, {"version": 2}])
def test_another_programs_log_is_refused_to_readers_and_writers(wrong):
    disk = CrashDisk.of(closed_log(b"one"))
    before = disk.contents()["log/000000001.log"]
    stream = Stream("log", files=disk, **wrong)
    with pytest.raises(HeaderMismatch, match="expected"):
        payloads(stream)
    with pytest.raises(HeaderMismatch, match="refusing"):
        stream.appender()
    assert disk.contents()["log/000000001.log"] == before
    assert payloads(Stream.open("log", files=disk)) == [b"one"]


def test_open_takes_magic_and_version_from_the_files(tmp_path):
    with Stream(tmp_path / "log", magic=0x77717771, version=3).appender() as log:
        log.append(b"x")
    stream = Stream.open(tmp_path / "log")
    assert stream.format.signature == (0x77717771, 3)
    assert payloads(stream) == [b"x"]


def test_one_damaged_header_does_not_make_strangers_of_the_other_segments(tmp_path):
    with Stream(tmp_path / "log").appender() as log:
        for i in range(4):
            log.append(b"%d" % i)
            log.roll()
    first = tmp_path / "log/000000001.log"
    data = bytearray(first.read_bytes())
    data[2] ^= 1
    first.write_bytes(data)
    stream = Stream.open(tmp_path / "log")
    with pytest.raises(HeaderMismatch, match=r"000000001\.log has magic"):
        payloads(stream)
    assert payloads(stream, on_corruption="skip") == [b"1", b"2", b"3"]


def test_times_never_go_back_even_if_the_clock_does():
    disk = CrashDisk()
    ticks = iter([100, 50, 120, 60])
    stream = Stream("log", files=disk, clock=lambda: next(ticks))
    with stream.appender() as log:
        log.append(b"a")
        log.append(b"b")
        log.roll()
    with stream.appender() as log:
        log.append(b"c")
        log.append(b"d")
    with stream.cursor() as cursor:
        assert [r.time_ns for r in cursor] == [100, 100, 120, 120]


def test_the_last_segment_number_is_the_end():
    contents = closed_log(b"one")
    contents["log/999999999.log"] = contents.pop("log/000000001.log")
    del contents["log/append.synced"]
    disk = CrashDisk.of(contents)
    with Stream("log", files=disk).appender() as log, pytest.raises(LogFull, match="a name can hold"):
        log.roll()


def test_a_segment_that_was_rewritten_is_not_appended_to():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender() as log:
        positions = log.append_many([b"one", b"two", b"three"])
        log.roll()
        log.append(b"four")
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload == b"one")
    disk.remove("log/000000002.log")
    disk.remove("log/append.synced")
    with stream.appender() as log:
        log.append(b"five")
    with stream.cursor(start=positions[2]) as cursor:
        assert [r.payload for r in cursor] == [b"three", b"five"]


@pytest.mark.parametrize("closed", [True, False])
def test_no_flipped_bit_goes_unnoticed(closed):
    """Every bit of every file of a small log: told, or harmless; never a wrong payload."""
    items = [b"first", b"", b"third record", b"x" * 30]
    contents = (closed_log if closed else killed_log)(*items)
    flips = 0
    for path, original in contents.items():
        for bit in range(len(original) * 8):
            if original[bit // 8] == 0 and "synced" in path and 60 < bit // 8 < 4096:
                continue  # the gap between the marks means nothing
            data = bytearray(original)
            data[bit // 8] ^= 1 << bit % 8
            stream = Stream("log", files=CrashDisk.of({**contents, path: bytes(data)}))
            told = False
            with stream.cursor() as cursor:
                found = []
                try:
                    for record in cursor:
                        found.append(record.payload)
                except (CorruptRecord, HeaderMismatch):
                    told = True
                told = told or cursor.torn is not None
            assert found == items[: len(found)], f"a wrong payload after flipping bit {bit} of {path}"
            assert told or found == items, f"flipping bit {bit} of {path} lost a record and nobody told"
            flips += 1
    assert flips > 1000


def test_damage_to_unsynced_data_of_this_boot_is_not_cut_either():
    contents = killed_log(b"one", b"two", b"three")
    damaged = bytearray(contents["log/000000001.log"])
    damaged[40] ^= 1
    disk = CrashDisk.of({**contents, "log/000000001.log": bytes(damaged)})
    stream = Stream("log", files=disk)
    with stream.appender() as log:
        log.append(b"four")
    assert disk.contents()["log/000000001.log"] == bytes(damaged)
    assert payloads(stream, on_corruption="skip") == [b"one", b"three", b"four"]
    rebooted = CrashDisk.of({**contents, "log/000000001.log": bytes(damaged)}, boot=1)
    stream = Stream("log", files=rebooted)
    stream.appender().close()
    assert payloads(stream) == [b"one"], "after a power loss what is there is a prefix of what was written"


def test_a_spare_whose_log_is_gone_is_kept_as_evidence():
    disk = CrashDisk()
    log = Stream("log", files=disk).appender(spare=True)
    log.append(b"one")
    contents = disk.contents()
    content = contents.pop("log/000000001.log")
    contents["log/append.spare"] = content
    broken = CrashDisk.of(contents)
    with Stream("log", files=broken).appender() as again:
        assert again.recovery.spare_bytes == len(content)
        again.append(b"two")
    assert content in [data for path, data in broken.contents().items() if path.endswith(".torn")]
    log.close()
