"""Whatever is written beside a segment, and couldn't be finished, is gone or does no harm."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from forelog import Stream
from forelog.log.directory.index import decode_index, encode_index
from forelog.log.repair import apply_repairs, plan_repair
from forelog.log.verify import verify
from forelog.testing import CrashDisk
from forelog.testing.disk import Fault, Operation
from tests.log.test_verify import flip, make_log


def fill_up(disk: CrashDisk, suffix: str, *, kept: bool = False) -> list[Fault]:
    """Have the first write to files with this suffix go in by half, and nothing after it; `kept` files stay."""

    def writes(operation: Operation) -> bool:
        return operation.kind == "write" and operation.path.endswith(suffix)

    half = disk.write_short(lambda operation: writes(operation) and not half.hits, 10)
    full = disk.fail(lambda operation: writes(operation) and half.hits > 0, errno.ENOSPC)
    removal = disk.fail(lambda operation: kept and operation.kind == "remove" and operation.path.endswith(suffix))
    return [half, full, removal]


def append(stream: Stream, count: int = 20) -> list[bytes]:
    payloads = [b"%020d" % number for number in range(count)]
    with stream.appender(segment_bytes=200) as log:
        for payload in payloads:
            log.append(payload)
    return payloads


def names(disk: CrashDisk, suffix: str) -> list[str]:
    return [path for path in disk.contents() if path.endswith(suffix)]


def payloads_of(stream: Stream) -> list[bytes]:
    with stream.cursor() as cursor:
        return [record.payload for record in cursor]


def test_an_index_whose_write_failed_is_gone() -> None:
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    fill_up(disk, ".idx")
    payloads = append(stream)
    assert names(disk, ".idx") == []
    report = verify(stream)
    assert (report.ok, report.problems()) == (True, [])
    assert {segment.index for segment in report.segments[:-1]} == {"missing"}
    assert payloads_of(stream) == payloads


def test_an_index_whose_write_failed_and_that_stays_is_a_note_and_no_damage() -> None:
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    faults = fill_up(disk, ".idx", kept=True)
    payloads = append(stream)
    for fault in faults:
        fault.stop()
    sizes = {len(data) for path, data in disk.contents().items() if path.endswith(".idx")}
    assert sizes == {0, 10}, "one is torn, the others are empty"
    report = verify(stream)
    assert report.ok
    assert not report.tidy
    assert "the index of log/000000001.log can't be used: searching is slower" in report.notes()
    assert payloads_of(stream) == payloads
    assert not any(repair.damage for repair in plan_repair(stream))
    apply_repairs(stream)
    assert verify(stream).tidy


@pytest.mark.parametrize(
    "content", [b"", b"CLIX", bytes(100), b"\xff" * 300], ids=["empty", "torn", "zeros", "ones"]
)
def test_an_index_that_cannot_be_used_is_no_damage(tmp_path: Path, content: bytes) -> None:
    stream = make_log(tmp_path)
    next(tmp_path.glob("000000002.*.idx")).write_bytes(content)
    report = verify(stream)
    assert (report.ok, report.tidy, report.segments[1].index) == (True, False, "unusable")


def test_an_index_that_the_disk_cannot_read_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    payloads = append(stream)
    disk.fail(lambda operation: operation.kind in ("open_read", "read") and operation.path.endswith(".idx"))
    with caplog.at_level(logging.WARNING):
        assert payloads_of(stream) == payloads
    assert "can't be read, and is done without" in caplog.text
    assert verify(stream).ok


def test_a_map_in_an_old_index_that_is_damaged_stays_damage(tmp_path: Path) -> None:
    """Maps had the names of indexes at first: without one, positions would lead to other records."""
    stream = make_log(tmp_path)
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload.endswith(b"1"))
    path = next(tmp_path.glob("000000001.*.map"))
    index = decode_index(path.read_bytes())
    assert index is not None
    assert index.runs
    old = path.with_suffix(".idx")
    path.unlink()
    old.write_bytes(encode_index(index))
    assert verify(stream).ok
    flip(old, 100)
    report = verify(stream)
    assert (report.ok, report.segments[0].index) == (False, "damaged")


def test_a_map_whose_write_failed_is_gone_and_the_segment_is_as_before() -> None:
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    payloads = append(stream)
    for suffix in (".map", ".log.rw"):
        faults = fill_up(disk, suffix)
        with stream.cleaner() as cleaner, pytest.raises(OSError, match="No space left"):
            cleaner.clean(lambda _, record: record.payload.endswith(b"3"))
        for fault in faults:
            fault.stop()
        assert names(disk, ".map") == names(disk, ".rw") == []
        assert payloads_of(stream) == payloads
        assert verify(stream).ok
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload.endswith(b"3"))
    assert verify(stream).tidy


def damaged() -> tuple[CrashDisk, Stream]:
    """A log with a flipped byte in its first segment."""
    disk = CrashDisk()
    append(Stream("log", files=disk))
    contents = disk.contents()
    data = bytearray(contents["log/000000001.log"])
    data[40] ^= 1
    contents["log/000000001.log"] = bytes(data)
    disk = CrashDisk.of(contents)
    return disk, Stream("log", files=disk)


def test_a_repair_on_a_full_disk_leaves_no_half_copies() -> None:
    disk, stream = damaged()
    faults = fill_up(disk, ".part")
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            apply_repairs(stream)
    assert names(disk, ".part") == names(disk, ".broken") == []
    for fault in faults:
        fault.stop()
    apply_repairs(stream)
    assert verify(stream).tidy


def test_opening_again_and_again_on_a_full_disk_leaves_no_pieces_of_evidence() -> None:
    disk = CrashDisk()
    append(Stream("log", files=disk), 2)
    contents = disk.contents()
    contents["log/000000001.log"] += bytes(30)
    disk = CrashDisk.of(contents)
    stream = Stream("log", files=disk)
    faults = fill_up(disk, ".torn")
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            stream.appender()
    assert not any(".torn" in path for path in disk.contents())
    for fault in faults:
        fault.stop()
    with stream.appender() as log:
        assert log.recovery.torn_path == "log/000000001.torn"
    assert len(disk.contents()["log/000000001.torn"]) == 30


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_small_file_that_could_not_be_replaced_is_as_before(operation: str) -> None:
    from forelog.copies.snapshot import read_file, replace_file

    disk = CrashDisk()
    disk.make_dir("copy")
    replace_file(disk, "copy", "identity", b"before")
    fault = disk.fail(lambda call: call.kind == operation and call.path.endswith(".new"), errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        replace_file(disk, "copy", "identity", b"after")
    assert fault.hits == 1
    assert read_file(disk, "copy/identity") == b"before"
    assert names(disk, ".new") == []


def test_a_list_of_topics_that_could_not_be_written_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from forelog.broker.log.history import History

    disk = CrashDisk()
    stream = Stream("log", format="messages", files=disk)
    disk.make_dir("log")
    with ThreadPoolExecutor() as executor:
        history = History(stream, 0, executor, files=disk)
        fill_up(disk, ".new")
        history._write_list(1_700_000_000 * 10**9, [b"a", b"b"])
        assert disk.contents() == {}
        assert "no list of topics" in caplog.text
        path = history._list_path(1_700_000_000 * 10**9)
        disk.open_append(f"{path}.new").close()  # as a killed broker leaves it
        history.forget_file(f"{path.removesuffix('.topics')}.dat")
        assert disk.contents() == {}


def test_a_conversion_or_restore_that_could_not_begin_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forelog.conversion import convert
    from forelog.formats import Captain
    from forelog.log.directory import segment
    from forelog.state import PersistentDict
    from forelog.state.restoration import restore

    with PersistentDict(f"{tmp_path}/source") as source:
        source["a"] = 1
    attempts: list[Callable[[], object]] = [
        lambda: convert(Stream.open(f"{tmp_path}/source"), f"{tmp_path}/target", Captain()),
        lambda: restore(f"{tmp_path}/source", f"{tmp_path}/restored"),
    ]
    for attempt in attempts:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(segment, "write_all", full)
            for _ in range(2):
                with pytest.raises(OSError, match="No space left"):
                    attempt()
        assert not list(tmp_path.glob("*.part"))
        attempt()
