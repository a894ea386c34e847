"""Readers whose file gets shorter, is replaced, or changes between two looks: they end, or say what happened."""

from __future__ import annotations

import os

import pytest

from forelog import BadPosition, Stream
from forelog.formats import Captain
from forelog.testing import CrashDisk

CAPTAIN = Captain()
NOW = 1_900_000_000 * 10**9


def foreign(folder, *payloads: bytes, torn: bytes = b"") -> None:
    """A log that another program wrote, with half a record at its end."""
    folder.mkdir(exist_ok=True)
    data = CAPTAIN.header() + b"".join(CAPTAIN.encode(payload, NOW) for payload in payloads)
    (folder / "000000001.log").write_bytes(data + torn)


def take(cursor) -> list[bytes]:
    got = []
    while (record := cursor.read(0)) is not None:
        got.append(record.payload)
    return got


@pytest.mark.parametrize("torn", [b"\x01", CAPTAIN.encode(b"half of it", NOW)[:-3]])
def test_a_follower_goes_on_after_a_torn_tail_that_it_has_seen_is_cut(tmp_path, torn):
    foreign(tmp_path / "log", b"one", b"two", torn=torn)
    stream = Stream(tmp_path / "log")
    with stream.cursor(follow=True) as cursor:
        assert take(cursor) == [b"one", b"two"]
        assert cursor.torn is not None
        with stream.appender() as log:
            assert log.recovery.torn is not None
            assert take(cursor) == []
            log.append(b"three")
            assert take(cursor) == [b"three"]
        with stream.cleaner(timeout=0):
            pass


def test_a_file_that_is_cut_below_where_a_follower_stands_is_told(tmp_path):
    foreign(tmp_path / "log", b"one", b"two", b"three")
    with Stream(tmp_path / "log").cursor(follow=True) as cursor:
        assert len(take(cursor)) == 3
        foreign(tmp_path / "log", b"one")
        with pytest.raises(BadPosition, match="different by now"):
            cursor.read(0)
    with Stream(tmp_path / "log").cleaner(timeout=0):
        pass


@pytest.mark.parametrize("replace", [False, True])
def test_a_log_that_is_written_anew_behind_a_follower_is_told(tmp_path, replace):
    """In place, and under the same name: with records of the same size nothing else would tell."""
    foreign(tmp_path / "log", b"one", b"two")
    with Stream(tmp_path / "log").cursor(follow=True) as cursor:
        assert take(cursor) == [b"one", b"two"]
        if replace:
            foreign(tmp_path / "other", b"uno", b"due", b"tre")
            os.replace(tmp_path / "other" / "000000001.log", tmp_path / "log" / "000000001.log")
        else:
            foreign(tmp_path / "log", b"uno", b"due", b"tre")
        with pytest.raises(BadPosition, match="different by now"):
            cursor.read(0)


def test_a_cut_and_a_longer_log_in_the_middle_of_a_scan_end_it(tmp_path):
    foreign(tmp_path / "log", *(b"x" * 1000 for _ in range(3000)))
    path = tmp_path / "log" / "000000001.log"
    for size in (8, 9, 500_000, 1_500_000, 2_000_001):
        foreign(tmp_path / "log", *(b"x" * 1000 for _ in range(3000)))
        with Stream(tmp_path / "log").cursor() as cursor:
            next(cursor)
            os.truncate(path, size)
            got = 1
            try:
                for _ in cursor:
                    got += 1
            except BadPosition:
                pass
            assert got <= 3000


def test_a_record_that_is_finished_between_two_looks_is_no_damage(tmp_path):
    """The mark of what was synced is read after the record was: it may be newer."""
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender()
    log.append(b"one")
    log.close()
    whole = CAPTAIN.encode(b"two", NOW)
    contents = disk.contents()
    contents["log/000000001.log"] += whole[:10]
    disk = CrashDisk.of(contents)
    stream = Stream("log", files=disk)

    def finish(operation) -> bool:
        if operation.kind == "open_read" and operation.path.endswith("synced") and reading:
            reading.clear()
            segment = disk.open_append("log/000000001.log")
            segment.write(whole[10:])
            with stream.appender() as log:  # which notes that it is synced
                assert log.recovery.torn is None
        return False

    reading: list[bool] = []
    disk.fail(finish)
    with stream.cursor(follow=True) as cursor:
        assert cursor.read(0).payload == b"one"
        reading.append(True)
        assert take(cursor) == [b"two"]
    assert not reading
