"""Appending: positions, segments, policies, failures."""

from __future__ import annotations

import errno
import threading

import pytest

from forelog import AppenderClosed, AppenderFailed, Position, RecordTooLarge, Stream, WriteFailed, kernel, verify
from forelog.log.appender import Sync
from forelog.testing import CrashDisk


def payloads(stream: Stream) -> list[bytes]:
    with stream.cursor() as cursor:
        return [record.payload for record in cursor]


def test_append_returns_the_position_of_the_record(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender() as log:
        positions = [
            log.append(b"one"),
            *log.append_many([b"two", bytearray(b"three")]),
            log.append(memoryview(b"4")),
        ]
    with stream.cursor() as cursor:
        assert [(r.position, r.payload) for r in cursor] == list(
            zip(positions, [b"one", b"two", b"three", b"4"], strict=True)
        )


def test_positions_of_a_batch_are_a_sequence(tmp_path):
    with Stream(tmp_path / "log").appender() as log:
        positions = log.append_many([b"a", b"b", b"c"])
        assert len(positions) == 3
        assert positions[-1] == Position(1, 50)
        assert list(positions[1:]) == [Position(1, 29), Position(1, 50)]
        assert positions == [Position(1, 8), Position(1, 29), Position(1, 50)]
        assert list(log.append_many([])) == []
        assert list(log.append_many(b"%d" % i for i in range(2))) == [Position(1, 71), Position(1, 92)]
        with pytest.raises(IndexError):
            positions[3]


def test_a_segment_is_sealed_by_the_append_that_finds_it_full(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender(segment_bytes=60) as log:
        assert [log.append(b"x" * 20).segment for _ in range(5)] == [1, 1, 2, 2, 3]
    assert payloads(stream) == [b"x" * 20] * 5


def test_roll_starts_a_segment_unless_the_current_one_is_empty(tmp_path):
    with Stream(tmp_path / "log").appender() as log:
        assert log.roll() == Position(1, 8)
        log.append(b"x")
        assert log.roll() == log.roll() == log.position == Position(2, 8)


@pytest.mark.parametrize("policy", ["os", "interval", "always"])
def test_every_policy_keeps_what_was_closed(tmp_path, policy):
    stream = Stream(tmp_path / "log")
    with stream.appender(sync=policy) as log:
        log.append(b"one")
        log.append_many([b"two"])
    with stream.appender(sync=policy) as log:
        log.append(b"three")
    assert payloads(stream) == [b"one", b"two", b"three"]


def test_always_syncs_before_append_returns_and_os_does_not():
    synced: dict[Sync, bool] = {"always": True, "os": False}
    for policy, expected in synced.items():
        disk = CrashDisk()
        log = Stream("log", files=disk).appender(sync=policy)
        log.append(b"x")
        segment = [event.kind for event in disk.events if event.path == "log/000000001.log"]
        assert (segment[-1] == "sync") is expected


def test_interval_syncs_by_itself():
    disk = CrashDisk()
    with Stream("log", files=disk).appender(sync="interval", sync_interval_ms=5) as log:
        log.append(b"x")
        written = len(disk.events)
        with disk._changed:
            assert disk._changed.wait_for(
                lambda: any(e.kind == "sync" and e.path.endswith(".log") for e in disk.events[written:]), 10
            )


def test_a_sync_that_fails_behind_everybodys_back_is_told_by_close():
    disk = CrashDisk()
    log = Stream("log", files=disk).appender(sync="interval", sync_interval_ms=1)
    fault = disk.fail(lambda call: call.kind == "sync" and call.path.endswith(".log"))
    log.append(b"acknowledged")
    log._interval_thread.join(10)
    assert fault.hits
    with pytest.raises(AppenderFailed, match="sync failed"):
        log.close()
    log.close()  # once is enough
    fault.stop()
    Stream("log", files=disk).appender(timeout=0).close()


def test_whatever_goes_wrong_while_a_log_is_opened_it_is_let_go_of(monkeypatch):
    disk = CrashDisk()

    def broken(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("forelog.log.active.Spare", broken)
        with pytest.raises(RuntimeError, match="new thread"):
            Stream("log", files=disk).appender(spare=True)
    Stream("log", files=disk).appender(spare=True, timeout=0).close()


def test_rolling_syncs_the_old_segment_before_the_new_one_exists_and_its_entry_before_it_is_used():
    disk = CrashDisk()
    with Stream("log", files=disk).appender() as log:
        log.append(b"x")
        start = len(disk.events)
        log.roll()
        log.append(b"y")
    kinds = [
        (e.kind, e.path, e.name)
        for e in disk.events[start:]
        if "synced" not in e.path and "idx" not in e.name + e.path
    ]
    first, second = "log/000000001.log", "log/000000002.log"
    new = "log/append.new"
    order = [
        ("sync", first, ""),
        ("create", "log", "append.new"),
        ("write", new, ""),
        ("sync", new, ""),
        ("rename", "log", "append.new"),
        ("sync_dir", "log", ""),
    ]
    assert [kind for kind in kinds if kind in order][:6] == order
    assert kinds.index(("sync_dir", "log", "")) < len(kinds) - 1 - kinds[::-1].index(("write", second, ""))


def test_threads_may_share_an_appender(tmp_path):
    stream = Stream(tmp_path / "log")
    for policy in ("os", "always"):
        with stream.appender(sync=policy, segment_bytes=2000) as log:
            found: dict[int, list[Position]] = {}

            def work(name: int, log=log, found=found) -> None:
                found[name] = [log.append(b"%d-%d" % (name, i)) for i in range(50)]

            threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert all(positions == sorted(positions) for positions in found.values())
        with stream.cursor(start=min(min(found.values()))) as cursor:
            by_position = {record.position: record.payload for record in cursor}
        assert {p: b"%d-%d" % (n, i) for n, ps in found.items() for i, p in enumerate(ps)} == by_position


def test_under_always_threads_share_syncs(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender(sync="always") as log:
        threads = [threading.Thread(target=lambda: [log.append(b"x") for _ in range(20)]) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    snapshot = stream.metrics.snapshot()
    assert snapshot["records_appended"] == 640
    assert snapshot["syncs"] < 640 / 2


def test_a_record_over_the_limit_is_refused_and_changes_nothing(tmp_path):
    stream = Stream(tmp_path / "log")
    for policy in ("os", "always"):
        with stream.appender(sync=policy, batch_bytes_max=100) as log:
            before = log.position
            log.append(b"x")  # past what is special about the first one
            before = log.position
            with pytest.raises(RecordTooLarge, match="batch_bytes_max = 100"):
                log.append_many([b"x" * 60] * 2)
            with pytest.raises(RecordTooLarge, match="batch_bytes_max = 100"):
                log.append(b"x" * 101)
            assert log.position == before


@pytest.mark.parametrize("policy", ["os", "always"])
def test_what_is_no_bytes_is_refused(tmp_path, policy):
    with Stream(tmp_path / "log").appender(sync=policy) as log:
        for wrong in ("text", 5, None):
            with pytest.raises(TypeError):
                log.append(wrong)  # type: ignore[arg-type]
        log.append(b"right")


def test_append_after_close_says_so(tmp_path):
    log = Stream(tmp_path / "log").appender()
    log.close()
    log.close()
    for call in (lambda: log.append(b"x"), lambda: log.append_many([b"x"]), log.roll, log.sync):
        with pytest.raises(AppenderClosed, match="is closed"):
            call()


@pytest.mark.parametrize(
    "options", [{"sync": "never"}, {"segment_bytes": 0}, {"sync_interval_ms": -1}, {"timeout": -1}]
)
def test_wrong_options_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match="expected"):
        Stream(tmp_path / "log").appender(**options)


# -- failures


def test_a_full_disk_undoes_the_append_and_goes_on_when_there_is_room():
    disk = CrashDisk(capacity_bytes=10_000)
    stream = Stream("log", files=disk)
    with stream.appender() as log:
        kept = []
        with pytest.raises(WriteFailed, match="nothing was appended") as caught:
            while True:
                log.append(b"x" * 100)
                kept.append(b"x" * 100)
        assert caught.value.errno == errno.ENOSPC
        assert payloads(stream) == kept
        disk.capacity_bytes = None
        log.append(b"again")
    assert payloads(stream) == [*kept, b"again"]


@pytest.mark.parametrize("policy", ["os", "always"])
def test_a_short_write_is_completed(policy):
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender(sync=policy) as log:
        fault = disk.write_short(lambda op: op.kind == "write" and op.byte_count > 3, 3)
        log.append(b"whole")
        fault.stop()
        assert fault.hits > 3
    assert payloads(stream) == [b"whole"]


@pytest.mark.parametrize("policy", ["os", "always"])
def test_a_write_that_fails_in_the_middle_is_cut_off_again(policy):
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender(sync=policy) as log:
        log.append(b"before")
        size = log.position.offset
        disk.write_short(lambda op: op.kind == "write" and op.byte_count > 20, 10)
        disk.fail(lambda op: op.kind == "write" and op.byte_count <= 20)
        with pytest.raises(WriteFailed):
            log.append(b"12345678")
        for fault in disk._faults:
            fault.stop()
        assert disk.contents()["log/000000001.log"][size:] == b""
        assert log.append(b"after") == Position(2, 8)  # what was cut off had positions that somebody may have seen
    assert payloads(stream) == [b"before", b"after"]


def test_a_write_that_cannot_be_undone_fails_the_appender():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender()
    log.append(b"before")
    disk.write_short(lambda op: op.kind == "write" and op.byte_count > 20, 10)
    disk.fail(lambda op: op.kind in ("write", "truncate"))
    with pytest.raises(AppenderFailed, match="couldn't be undone"):
        log.append(b"12345678")
    for fault in disk._faults:
        fault.stop()
    with pytest.raises(AppenderFailed):
        log.append(b"later")
    log.close()
    with stream.appender() as log:
        log.append(b"reopened")
    assert payloads(stream) == [b"before", b"reopened"]


@pytest.mark.parametrize("policy", ["os", "interval", "always"])
def test_a_failed_sync_is_final(policy):
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync=policy, sync_interval_ms=100_000)
    log.append(b"synced")
    log.sync()
    fault = disk.fail(lambda op: op.kind == "sync" and op.path.endswith(".log"))
    with pytest.raises(AppenderFailed, match="sync failed") as first:
        log.append(b"lost")
        log.sync()
    fault.stop()
    for call in (lambda: log.append(b"x"), lambda: log.append_many([b"x"]), log.sync, log.roll):
        with pytest.raises(AppenderFailed) as later:
            call()
        assert later.value.errno == first.value.errno
        assert "sync failed" in str(later.value)
    assert log.failed is not None
    log.close()
    # What the failed sync left looks written but isn't: reopening must not take it for durable.
    with stream.appender(sync="always") as log:
        log.append(b"after")
    for state in disk.states(limit=50):
        with Stream("log", files=state.disk).appender():
            pass
        assert payloads(Stream("log", files=state.disk)) == [b"synced", b"after"]


def test_a_sync_that_fails_while_another_thread_writes_is_final():
    disk = CrashDisk()
    log = Stream("log", files=disk).appender(sync="interval", sync_interval_ms=100_000)
    log.append(b"one")

    def fail_beside(operation) -> bool:
        if operation.kind == "write":  # what the thread that syncs does, while this one writes
            log._core.fail_sync(OSError(errno.EIO, "Input/output error"))
        return False

    fault = disk.fail(fail_beside)
    log.append_encoded(*kernel.captain_encode_many([b"two"], log.next_time()))
    fault.stop()
    for append in (log.append, lambda payload: log.append_many([payload]), lambda _: log.sync()):
        with pytest.raises(AppenderFailed, match="sync failed"):
            append(b"three")
    log.close()


def test_a_failed_sync_reaches_everyone_who_waits(tmp_path):
    disk = CrashDisk()
    log = Stream("log", files=disk).appender(sync="always")
    disk.fail(lambda op: op.kind == "sync" and op.path.endswith(".log"))
    errors = []

    def work() -> None:
        try:
            log.append(b"x")
        except AppenderFailed as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 16


def test_a_segment_that_cannot_be_started_leaves_the_log_usable():
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender(segment_bytes=30) as log:
        log.append(b"x" * 30)
        fault = disk.fail(lambda op: op.kind == "open_append" and op.path.endswith("append.new"), errno.EMFILE)
        for _ in range(2):
            with pytest.raises(WriteFailed, match="couldn't start a segment"):
                log.append(b"y")
        fault.stop()
        assert log.append(b"y") == Position(2, 8)
    assert payloads(stream) == [b"x" * 30, b"y"]


@pytest.mark.parametrize(
    "kind", ["open_append", "open_update", "sync", "sync_dir", "write_at", "lock", "list_dir", "make_dir"]
)
def test_opening_on_a_failing_disk_raises_and_can_be_tried_again(kind):
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender() as log:
        log.append(b"x")
    fault = disk.fail(lambda op: op.kind == kind)
    with pytest.raises(OSError, match="Input/output"):
        Stream("log" if kind != "sync_dir" else "new", files=disk).appender()
    assert fault.hits
    fault.stop()
    with stream.appender(blocking=False) as log:
        log.append(b"y")
    assert payloads(stream) == [b"x", b"y"]


def test_a_disk_that_lied_about_a_sync_is_found_out(caplog):
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    log = stream.appender(sync="always")
    log.append(b"kept")
    disk.lie(lambda op: op.kind == "sync" and op.path.endswith(".log"))
    log.append(b"not kept")
    log.close()
    lost = CrashDisk.of(
        {p: c[:32] if p.endswith(".log") else c for p, c in disk.contents().items()}, boot=disk.boot + 1
    )
    again = Stream("log", files=lost)
    with again.appender() as log:
        assert log.recovery.missing_bytes == 28
        assert log.position.segment == 2
    assert "synced bytes are missing" in caplog.text
    assert again.metrics.snapshot()["synced_bytes_missing"] == 28
    assert payloads(again) == [b"kept"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("segment_bytes", "64M"),
        ("segment_bytes", 64e6),
        ("sync_interval_ms", None),
        ("batch_bytes_max", b"1"),
        ("timeout", "5s"),
    ],
)
def test_an_option_of_another_type_is_told_by_its_name_and_creates_nothing(tmp_path, option, value):
    with pytest.raises(TypeError, match=f"^{option} is {value!r}: expected "):
        Stream(tmp_path / "log").appender(**{option: value})
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize("spare", [False, True])
def test_segments_may_be_as_small_as_a_record(tmp_path, sync, spare):
    stream = Stream(tmp_path)
    with stream.appender(segment_bytes=1, sync=sync, spare=spare) as log:
        positions = [log.append(b"x"), *log.append_many([b"y", b"y"]), log.append(b"z")]
    assert [position.segment for position in positions] == [1, 2, 2, 3]
    assert verify(stream).ok


def test_no_records_leave_no_time_in_an_index(tmp_path):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        log.append(b"x")
        assert list(log.append_many([])) == []
        log.roll()
    assert verify(stream).segments[0].index == "fits"
