"""Attacks that once worked, each as short as it was found."""

from __future__ import annotations

import errno
import os
import random
import threading

import pytest

from forelog import (
    Appender,
    AppenderFailed,
    CorruptRecord,
    HeaderMismatch,
    KeepLatest,
    OlderThan,
    Position,
    RecordTooLarge,
    Stream,
    UnknownFormat,
    verify,
)
from forelog.formats import Captain
from forelog.log.directory import watermark
from forelog.testing import CrashDisk
from tests.notes import noted

CAPTAIN = Captain()


def payloads(stream: Stream, **options) -> list[bytes]:
    with stream.cursor(**options) as cursor:
        return [record.payload for record in cursor]


def let_go(log: Appender) -> None:
    """Leave a log as a process does that is killed."""
    log._lock.release()
    log.active._watermark.close()


def test_a_durable_record_is_not_forgotten_for_one_that_is_not():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="os")
    log.append(b"k=1")
    log.roll()
    log.append(b"k=2")
    with stream.cleaner() as cleaner:
        cleaner.clean(KeepLatest(until=b"="))
    for state in disk.states(limit=200):
        after = Stream("log", files=state.disk)
        after.appender().close()
        assert payloads(after)[-1:] == [b"k=2"]


def test_a_segment_that_is_half_made_ends_the_appender_before_anything_is_appended_behind_it():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="always")
    log.append(b"a")
    fault = disk.fail(lambda op: op.kind in ("sync_dir", "remove"), errno.EIO)
    with pytest.raises(AppenderFailed, match="halfway"):
        log.roll()
    fault.stop()
    with pytest.raises(AppenderFailed):
        log.append(b"b")
    log.close()
    with stream.appender() as log:
        log.append(b"c")
    assert payloads(stream) == [b"a", b"c"]


def test_a_time_that_an_index_cannot_hold_does_not_stop_a_roll(tmp_path):
    (tmp_path / "000000001.log").write_bytes(CAPTAIN.header() + CAPTAIN.encode(b"zero", -62135596800 * 10**9))
    stream = Stream(tmp_path)
    with stream.appender(sync="always") as log:
        log.append(b"one")
        log.roll()
        log.append(b"two")
    assert payloads(stream) == [b"zero", b"one", b"two"]


@pytest.mark.parametrize("batch", [False, True])
def test_an_interrupt_before_a_failed_write_is_undone_leaves_it_to_the_next_append(batch):
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender()
    log.append(b"one")
    short = disk.write_short(lambda op: op.kind == "write" and op.byte_count > 20, 10)
    real = log._core.write

    def interrupted(data):
        if len(data) > 20:
            return real(data)
        raise KeyboardInterrupt

    log._core.write = interrupted
    with pytest.raises(KeyboardInterrupt):
        log.append_many([b"12345678"]) if batch else log.append(b"12345678")
    short.stop()
    log._core.write = real
    position = log.append(b"two")
    log.close()
    with stream.cursor() as cursor:
        assert [(r.position, r.payload) for r in cursor][1:] == [(position, b"two")]


def test_a_flipped_length_does_not_lead_a_search_for_a_time_astray():
    ticks = iter(range(1010, 9999, 10))
    disk = CrashDisk()
    stream = Stream("log", files=disk, clock=lambda: next(ticks))
    with stream.appender() as log:
        for i in range(5):
            log.append(b"r%d" % i)
        log.roll()
        for i in range(5, 10):
            log.append(b"r%d" % i)
    contents = disk.contents()
    path = "log/000000002.log"
    for bit in range(64, len(contents[path]) * 8):
        data = bytearray(contents[path])
        data[bit // 8] ^= 1 << bit % 8
        damaged = Stream("log", files=CrashDisk.of({**contents, path: bytes(data)}))
        try:
            found = payloads(damaged, since=1070)
        except CorruptRecord:
            continue
        assert found == [b"r6", b"r7", b"r8", b"r9"], bit


def test_another_version_is_refused_in_every_state_of_a_crash():
    disk = CrashDisk()
    log = Stream("log", files=disk, version=1).appender(sync="always")
    log.append(b"x")
    log.roll()
    log.append(b"precious")
    for state in disk.states(limit=300):
        with pytest.raises(HeaderMismatch):
            Stream("log", files=state.disk, version=2).appender()


def test_a_record_larger_than_the_search_is_found_after_damage(tmp_path):
    log = Stream(tmp_path / "log").appender(segment_bytes=1 << 30)
    log.append(b"one")
    position = log.append(b"two")
    log.append(bytes(70 << 20))
    let_go(log)
    with open(tmp_path / "log/000000001.log", "r+b") as file:
        file.seek(position.offset + 17)
        file.write(b"X")
    with Stream(tmp_path / "log").appender() as again:
        assert again.recovery.torn is None
        assert again.recovery.damage.position == position


@pytest.mark.parametrize("cut", range(1, 40))
def test_records_inside_of_a_torn_record_are_not_the_logs(tmp_path, cut):
    log = Stream(tmp_path / "log").appender()
    log.append(b"one")
    log.append(b"".join(CAPTAIN.encode(b"inner%d" % i, 5) for i in range(5)))
    let_go(log)
    path = tmp_path / "log/000000001.log"
    os.truncate(path, path.stat().st_size - cut)
    with Stream(tmp_path / "log").appender() as again:
        exactly_between = cut in (4, 30)  # where an inner record ends: no longer to be told apart
        assert (again.recovery.torn is not None) is not exactly_between
        again.append(b"after")
    if not exactly_between:
        assert payloads(Stream(tmp_path / "log"), on_corruption="skip") == [b"one", b"after"]


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_log_gives_the_same_records_backward_as_forward(tmp_path, seed):
    rng = random.Random(seed)
    with Stream(tmp_path / "log").appender() as log:
        for i in range(60):
            log.append_many([b"%d-%d" % (i, j) + b"." * rng.randrange(4000) for j in range(40)])
    path = tmp_path / "log/000000001.log"
    data = bytearray(path.read_bytes())
    for _ in range(6):
        data[rng.randrange(8, len(data))] ^= 1 << rng.randrange(8)
    with Stream(tmp_path / "log").cursor() as cursor:
        heads = [record.position.offset for record in cursor]
    data[heads[rng.randrange(len(heads))] + 16] ^= 0x40  # a length too
    path.write_bytes(data)
    stream = Stream(tmp_path / "log")
    forward = payloads(stream, on_corruption="skip")
    assert payloads(stream, on_corruption="skip", reverse=True) == forward[::-1]


def test_damage_does_not_pass_for_a_torn_tail_because_the_mark_cannot_be_read():
    disk = CrashDisk()
    with Stream("log", files=disk).appender() as log:
        log.append_many([b"a" * 20, b"b" * 20])
    contents = disk.contents()
    data = bytearray(contents["log/000000001.log"])
    data[-10] ^= 1
    disk = CrashDisk.of({**contents, "log/000000001.log": bytes(data)})
    disk.fail(lambda op: op.kind == "open_read" and "synced" in op.path, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        payloads(Stream("log", files=disk))
    assert "log/000000001.torn" not in disk.contents()


def test_nobody_is_refused_for_what_others_append_in_the_same_round(tmp_path):
    refused = []
    with Stream(tmp_path / "log").appender(sync="always", batch_bytes_max=1000) as log:

        def work() -> None:
            for _ in range(20):
                try:
                    log.append(b"x" * 100)
                except RecordTooLarge:
                    refused.append(1)

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not refused


def test_the_directory_is_listed_a_few_times_whatever_the_number_of_segments():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender(segment_bytes=20) as log:
        for i in range(100):
            log.append(b"%d=" % (i % 10) + b"x" * 20)
    listed: list[int] = []
    disk.fail(lambda op: op.kind == "list_dir" and noted(listed, 1))
    assert len(payloads(stream)) == len(payloads(stream, reverse=True)) == 100
    assert verify(stream).ok
    with stream.cleaner() as cleaner:
        cleaner.clean(KeepLatest(until=b"="))
    assert len(listed) < 40


def test_an_age_is_judged_by_the_latest_record_of_a_segment_not_by_the_last(tmp_path):
    times = [(b"drop", 10), (b"t100", 100), (b"t50", 50)]
    (tmp_path / "000000001.log").write_bytes(CAPTAIN.header() + b"".join(CAPTAIN.encode(p, t) for p, t in times))
    (tmp_path / "000000002.log").write_bytes(CAPTAIN.header() + CAPTAIN.encode(b"t200", 200))
    stream = Stream(tmp_path)
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload == b"drop")
        cleaner.clean(OlderThan(time_ns=80))
    assert payloads(stream) == [b"t100", b"t200"]


def test_a_segment_that_leads_nowhere_ends_no_reader_in_a_loop(tmp_path):
    with Stream(tmp_path / "log").appender() as log:
        log.append(b"x")
    os.symlink("nowhere", tmp_path / "log/000000005.log")
    assert payloads(Stream(tmp_path / "log")) == [b"x"]


def test_times_past_what_a_column_holds_are_bounds_like_any_other(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender() as log:
        log.append(b"x")
    assert payloads(stream, since="0001-01-01T00:00:00Z", until="9999-12-31T00:00:00Z") == [b"x"]
    assert payloads(stream, since=2**70) == []


def test_an_index_with_absurd_runs_is_not_believed():
    from array import array

    from forelog.log.directory.index import SegmentIndex, decode_index, encode_index

    for runs in ((8, 2**63 - 1), (8, -100), (50, 8, 40, 20), (60, 20, 150, 40), (60, 20, 70, 40)):
        assert decode_index(encode_index(SegmentIndex(1, 100, 200, runs=array("q", runs)))) is None
    assert decode_index(encode_index(SegmentIndex(1, 100, 200, runs=array("q", (60, 20, 140, 40))))) is not None


def test_closing_in_the_parent_frees_the_lock_that_a_child_inherited(tmp_path):
    stream = Stream(tmp_path / "log")
    log = stream.appender()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    log.close()
    stream.appender(blocking=False).close()
    os.close(writer)
    os.wait()
    assert stream.end() == Position(1, 8)


def test_a_child_of_a_fork_is_refused_and_the_parent_goes_on(tmp_path):
    stream = Stream(tmp_path / "log")
    log = stream.appender()
    log.append(b"one")
    child = os.fork()
    if child == 0:
        try:
            log.append(b"child")
        except AppenderFailed:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log.append(b"two")
    log.close()
    assert payloads(stream) == [b"one", b"two"]


# -- what is no segment, and no mark


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_directory_named_like_a_segment_is_told_with_its_path(tmp_path, number):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        for _ in range(3):
            log.append(b"x")
            log.roll()
    path = tmp_path / f"{number:09d}.log"
    path.unlink()
    path.mkdir()
    message = f"{path} is a directory with the name of a segment"
    for use in (lambda: list(stream.cursor()), lambda: verify(stream), lambda: Stream.open(tmp_path)):
        with pytest.raises(UnknownFormat, match=message):
            use()
    if number == 4:
        with pytest.raises(UnknownFormat, match=message):
            stream.appender()
    path.rmdir()
    with stream.appender() as log:
        assert log.append(b"new").segment >= 4, "its number was not given away"


@pytest.mark.parametrize(
    "far", [{"opening": 2**64 - 1}, {"segment": 2**63}, {"segment": 10**9}, {"offset": 2**63}], ids=str
)
def test_a_mark_that_no_log_can_have_reached_is_ignored_and_told(tmp_path, caplog, far):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        log.append(b"x")
    marks = tmp_path / "append.synced"
    data = bytearray(marks.read_bytes())
    right = watermark._decode(bytes(data[4096:4152]))
    data[4096:4152] = watermark._encode(right._replace(**far))
    marks.write_bytes(data)
    with stream.appender() as log:
        assert log.append(b"y").segment == 1
    assert f"{marks}: the mark at byte 4096 is ignored" in caplog.text
    assert verify(stream).tidy
