"""Reading: ranges, times, backward, following, damage."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forelog import (
    BadPosition,
    CorruptRecord,
    LogNotFound,
    Position,
    Record,
    Stream,
    TimeOutOfRange,
    UnknownFormat,
)
from forelog.files import OSFiles
from forelog.files.watches import PollWatch
from forelog.log.directory.segment import SegmentWriter
from forelog.testing import CrashDisk
from tests.notes import noted

SECOND = 10**9


def make(
    path, times: list[int], *, per_segment: int = 3, size: int = 10, files=None
) -> tuple[Stream, list[Record]]:
    """A log with a record for each time, and its records."""
    ticks = iter(times)
    stream = Stream(path, clock=lambda: next(ticks), files=files)
    with stream.appender() as log:
        for i in range(len(times)):
            log.append(b"%d" % i + b"." * size)
            if i % per_segment == per_segment - 1:
                log.roll()
    with stream.cursor() as cursor:
        return stream, list(cursor)


def test_a_cursor_starts_at_a_position_and_ends_before_one(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 11)))
    for i in range(10):
        for j in range(i, 10):
            with stream.cursor(start=records[i].position, until=records[j].position) as cursor:
                assert list(cursor) == records[i:j]
    with stream.cursor(start=str(records[4].position)) as cursor:
        assert next(cursor) == records[4]
        assert cursor.position == records[4].next_position
        assert cursor.segment.endswith(f"{records[4].position.segment:09d}.log")


def test_the_position_after_a_record_resumes_at_the_next(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 11)))
    for i, record in enumerate(records):
        with stream.cursor(start=record.next_position) as cursor:
            assert list(cursor) == records[i + 1 :]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_range_of_positions_and_times_in_either_direction_is_what_a_list_would_give(data):
    steps = data.draw(st.lists(st.sampled_from([0, 0, 1, 5]), min_size=1, max_size=25))
    times = [sum(steps[: i + 1]) + 1 for i in range(len(steps))]
    stream, records = make(
        "log",
        times,
        per_segment=data.draw(st.integers(1, 9)),
        size=data.draw(st.integers(0, 40)),
        files=CrashDisk(),
    )
    since = data.draw(st.none() | st.integers(0, max(times) + 2))
    until_time = data.draw(st.none() | st.integers(0, max(times) + 2))
    start = data.draw(st.none() | st.sampled_from([r.position for r in records]))
    expected = [
        r
        for r in records
        if (since is None or r.time_ns >= since)
        and (until_time is None or r.time_ns < until_time)
        and (start is None or r.position >= start)
    ]
    for reverse in (False, True):
        with stream.cursor(since=since, until=until_time, start=start, reverse=reverse) as cursor:
            assert list(cursor) == (expected[::-1] if reverse else expected)
    batches = list(stream.scan(["offset", "payload"], since=since, until=until_time, start=start, batch_rows=3))
    assert [p for b in batches for p in b["payload"].to_pylist()] == [r.payload for r in expected]


class CountingFiles(OSFiles):
    """Counts the bytes read from each segment."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}

    def open_read(self, path):
        file = super().open_read(path)
        real = file.read_into

        class Counted:
            def __getattr__(_, name):
                return getattr(file, name)

            def read_into(_, buffer, offset):
                count = real(buffer, offset)
                self.read[path] = self.read.get(path, 0) + count
                return count

        return Counted()


def test_a_time_is_found_without_reading_what_lies_before_it(tmp_path):
    ticks = iter(range(10**6))
    with Stream(tmp_path / "log", clock=lambda: next(ticks)).appender(segment_bytes=1 << 20) as log:
        for _ in range(20):
            log.append_many([b"x" * 1000] * 500)
            log.append(b"y")
            log.append_many([b"x" * 1000] * 500)
    files = CountingFiles()
    stream = Stream(tmp_path / "log", files=files)
    with stream.cursor() as cursor:
        middle = [r for r in cursor if r.payload == b"y"][10]
    files.read.clear()
    with stream.cursor(since=middle.time_ns) as cursor:
        assert next(cursor).position == middle.position
    name = f"{middle.position.segment:09d}.log"
    before = {p: n for p, n in files.read.items() if p.endswith(".log") and not p.endswith(name)}
    assert max(before.values()) < 70_000, "more than the end of a segment before it was read"
    inside = sum(n for p, n in files.read.items() if p.endswith(name))
    assert inside <= (1 << 20) + 100, "more than one block was read"
    assert len(before) < 8, "segments are looked at by halving, not one by one"


def test_the_place_in_a_segment_without_an_index_is_found_by_scanning_that_one(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 60)), per_segment=100)
    with stream.cursor(since=41) as cursor:
        assert next(cursor) == records[40]
    assert stream.metrics.snapshot()["records_read"] == 59 + 19


def test_reset_starts_again(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 6)))
    for reverse in (False, True):
        with stream.cursor(reverse=reverse, start=records[1].position) as cursor:
            first = list(cursor)
            cursor.reset()
            assert list(cursor) == first != []


def test_a_reversed_cursor_can_be_resumed_too(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 9)))
    with stream.cursor(reverse=True) as cursor:
        assert [next(cursor), next(cursor)] == records[:-3:-1]
        place = cursor.position
    with stream.cursor(until=place, reverse=True) as cursor:
        assert list(cursor) == records[:-2][::-1]


def test_large_records_pass_through_small_blocks(tmp_path):
    stream = Stream(tmp_path / "log")
    payloads = [b"a" * 10, b"b" * (3 << 20), b"", b"c" * (2 << 20), b"d"]
    with stream.appender() as log:
        for payload in payloads:
            log.append(payload)
    for reverse in (False, True):
        with stream.cursor(reverse=reverse) as cursor:
            assert [r.payload for r in cursor] == (payloads[::-1] if reverse else payloads)
    assert [p for b in stream.scan(["payload"]) for p in b["payload"].to_pylist()] == payloads


def test_records_know_their_time(tmp_path):
    stream, records = make(tmp_path / "log", [1_794_765_600_123_456_789])
    assert records[0].time.isoformat() == "2026-11-15T18:00:00.123456+00:00"
    assert str(records[0]).startswith("000000001:8 2026-11-15T18:00:00.123456789Z b'0...")


def test_a_folder_with_logs_in_it_tells_of_them(tmp_path):
    with Stream(tmp_path / "kept" / "messages").appender() as log:
        log.append(b"x")
    (tmp_path / "kept" / "a file").touch()
    (tmp_path / "kept" / "empty").mkdir()
    with pytest.raises(LogNotFound, match=r"no segments in .*kept, but in .*kept/messages: open one of these"):
        Stream.open(tmp_path / "kept")


def test_a_log_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(LogNotFound, match="no log at"):
        Stream(tmp_path / "none").cursor()
    with pytest.raises(LogNotFound, match="no segments"):
        Stream.open(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LogNotFound, match="is a file"):
        Stream(tmp_path / "file").cursor()


def test_a_directory_that_is_no_log_is_told_and_left_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for read in (
        lambda stream: stream.cursor(),
        lambda stream: stream.scan(),
        lambda stream: list(stream.blocks()),
        lambda stream: stream.cleaner(),
    ):
        with pytest.raises(LogNotFound, match=r"no log in the directory .*: an appender would make one"):
            read(Stream(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with Stream(tmp_path).appender(), Stream(tmp_path).cursor() as cursor:
        assert list(cursor) == []


def test_a_log_of_another_format_is_neither_read_nor_begun(tmp_path):
    for name in ("metrics/commitlogs/commitlog-0-0.db", "messages/20261115T183000.123456789Z.dat"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"something")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    for path, name in (("metrics", "m3"), ("metrics/commitlogs", "m3"), ("messages", "messages")):
        for use in (lambda stream: stream.cursor(), lambda stream: stream.appender()):
            with pytest.raises(UnknownFormat, match=f"opened as one of 'captain': pass format='{name}'"):
                use(Stream(tmp_path / path))
        assert Stream.open(tmp_path / path).format.name == name
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_a_position_past_the_end_is_refused_and_one_in_a_missing_segment_goes_on_after_it(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 9)))
    with (
        stream.cursor(start=Position(3, 5000)) as cursor,
        pytest.raises(BadPosition, match="past the end of the log"),
    ):
        next(cursor)
    with stream.cursor(start=Position(9, 8)) as cursor, pytest.raises(BadPosition, match="last segment is 3"):
        next(cursor)
    with pytest.raises(BadPosition, match="last segment is 3"):
        list(stream.scan(start=Position(4, 8)))
    with stream.cursor(start=Position(1, 5000)) as cursor:
        assert next(cursor) == records[3]
    with stream.cursor(start=Position(1, 9)) as cursor, pytest.raises(BadPosition, match="inside of a record"):
        next(cursor)
    with pytest.raises(BadPosition, match="isn't a position"):
        stream.cursor(start=7)  # type: ignore[arg-type]
    (tmp_path / "log/000000002.log").unlink()
    with stream.cursor(start=Position(2, 8)) as cursor:
        assert next(cursor) == records[6]


@pytest.mark.parametrize(
    "options", [{"reverse": True, "follow": True}, {"on_corruption": "ignore"}, {"since": "noon"}]
)
def test_wrong_options_are_refused(tmp_path, options):
    stream, _ = make(tmp_path / "log", [1])
    with pytest.raises(ValueError, match=r"expected|can't follow"):
        stream.cursor(**options)


# -- damage


def damage(path, number: int, offset: int) -> None:
    file = path / f"{number:09d}.log"
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


def test_damage_raises_with_its_place_and_reason(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 9)))
    damage(tmp_path / "log", 1, records[1].position.offset + 20)
    with stream.cursor() as cursor:
        assert next(cursor) == records[0]
        with pytest.raises(CorruptRecord, match="damaged record") as caught:
            next(cursor)
    error = caught.value
    assert (error.position, error.reason, error.physical_offset) == (
        records[1].position,
        "crc",
        records[1].position.offset,
    )
    assert error.path.endswith("000000001.log")
    assert error.data.startswith(b"\x01")


def test_damage_can_end_the_reading_or_be_skipped_and_is_counted(tmp_path, caplog):
    stream, records = make(tmp_path / "log", list(range(1, 9)))
    damage(tmp_path / "log", 2, records[4].position.offset + 15)  # the length, so that framing is lost
    with stream.cursor(on_corruption="stop") as cursor:
        assert list(cursor) == records[:4]
        assert [d.position for d in cursor.defects] == [records[4].position]
    with stream.cursor(on_corruption="skip") as cursor:
        assert list(cursor) == records[:4] + records[5:]
        assert [(d.position, d.byte_count) for d in cursor.defects] == [
            (records[4].position, records[4].frame_bytes)
        ]
    assert "skipped" in caplog.text
    assert stream.metrics.snapshot()["defects_skipped"] == 2


def test_records_inside_a_damaged_payload_are_not_taken_for_the_logs(tmp_path):
    stream = Stream(tmp_path / "log")
    inner = stream.format.encoder(1).encode_many([b"inner", b"secret"], 1)[0]
    with stream.appender() as log:
        position = log.append(b"x" * 50 + inner + b"y" * 50)
        log.append(b"last")
    damage(tmp_path / "log", 1, position.offset + 30)
    with stream.cursor(on_corruption="skip") as cursor:
        assert [r.payload for r in cursor] == [b"last"]


# -- following


@pytest.mark.parametrize("watch", ["inotify", "poll"])
def test_a_follower_sees_what_is_appended_rolled_and_cleaned(tmp_path, watch, monkeypatch):
    if watch == "poll":
        monkeypatch.setattr(OSFiles, "watch", lambda self, path: PollWatch())
    stream = Stream(tmp_path / "log")
    log = stream.appender(segment_bytes=300)
    log.append(b"0")
    seen: list[bytes] = []
    done = threading.Event()

    def follow() -> None:
        with stream.cursor(follow=True) as cursor:
            for record in cursor:
                seen.append(record.payload)
                if record.payload == b"end":
                    done.set()
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    for i in range(1, 200):
        log.append(b"%d" % i)
        if i % 50 == 0:
            with stream.cleaner(timeout=10) as cleaner:
                cleaner.clean(lambda _, record: record.payload.endswith(b"7"))
    log.append(b"end")
    log.close()
    thread.join(20)
    assert done.is_set()
    numbers = [int(p) for p in seen[:-1]]
    assert numbers == sorted(set(numbers))
    assert set(range(200)) - set(numbers) <= {i for i in range(200) if i % 10 == 7}


def test_a_follower_ends_at_its_bound(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 9)))
    with stream.cursor(follow=True, until=records[5].position) as cursor:
        assert list(cursor) == records[:5]


def test_a_follower_can_be_asked_with_a_timeout(tmp_path):
    stream, records = make(tmp_path / "log", list(range(1, 4)))
    with stream.cursor(follow=True) as cursor:
        assert [cursor.read(timeout=0) for _ in range(4)] == [*records, None]
        with Stream(tmp_path / "log").appender() as log:
            position = log.append(b"new")
        assert cursor.read(timeout=10).position == position
        assert cursor.read(timeout=0.01) is None
    with stream.cursor() as cursor:
        assert cursor.read() == records[0]


def test_a_follower_in_step_asks_the_disk_for_little():
    calls: list[str] = []
    disk = CrashDisk()
    stream = Stream("log", files=disk)
    with stream.appender() as log, stream.cursor(follow=True) as cursor:
        for _ in range(3):
            log.append(b"a record")
            calls.clear()
            seen = disk.fail(lambda call: noted(calls, call.kind))
            assert cursor.read(0).payload == b"a record"
            seen.stop()
    assert calls == ["lock", "stat", "open_read", "read", "size", "read", "read"]


def test_a_follower_in_step_gets_every_run_of_wanted_times(tmp_path):
    wanted, stream = [], Stream(tmp_path)
    writer = SegmentWriter(stream.directory)
    stream.directory.files.make_dir(stream.path)
    writer.begin(1)
    with stream.cursor(follow=True, since=3) as cursor:
        for step in range(3):
            payloads = [b"%d-%d" % (step, i) for i in range(9)]
            writer.write(payloads, [1, 5, 5, 1, 5, 1, 1, 5, 1])
            wanted += [payloads[i] for i in (1, 2, 4, 7)]
            for payload in wanted[-4:]:
                assert cursor.read(0).payload == payload
            assert cursor.read(0) is None
    writer.finish()


def test_a_follower_in_another_process_sees_each_record_whole(tmp_path):
    script = (
        "import sys; from forelog import Stream\n"
        "with Stream(sys.argv[1]).cursor(follow=True) as cursor:\n"
        "    for record in cursor:\n"
        "        assert len(set(record.payload)) <= 1, 'half a record'\n"
        "        if record.payload == b'': break\n"
        "        print(len(record.payload), flush=True)\n"
    )
    stream = Stream(tmp_path / "log")
    with stream.appender(segment_bytes=100_000) as log:
        log.append(b"a")
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "log")], stdout=subprocess.PIPE)
        sizes = [(i * 37) % 9000 + 1 for i in range(300)]
        for size in sizes:
            log.append(bytes([size % 256]) * size)
        log.append(b"")
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert [int(line) for line in out.split()] == [1, *sizes]


def test_a_cursor_is_an_async_iterator_too(tmp_path):
    stream = Stream(tmp_path / "log")

    async def follow(count: int) -> list[bytes]:
        seen = []
        async with stream.cursor(follow=True) as cursor:
            async for record in cursor:
                seen.append(record.payload)
                if len(seen) == count:
                    break
        return seen

    async def main() -> list[bytes]:
        async with stream.appender(sync="always") as log:
            await log.append_async(b"0")
            task = asyncio.create_task(follow(40))
            positions = await asyncio.gather(*(log.append_async(b"%d" % i) for i in range(1, 40)))
            assert len(set(positions)) == 39
            return await asyncio.wait_for(task, 20)

    assert sorted(map(int, asyncio.run(main()))) == list(range(40))
    assert stream.metrics.snapshot()["syncs"] < 40


def test_a_task_can_ask_for_the_next_record_with_a_timeout_and_go_on(tmp_path):
    stream, records = make(tmp_path / "log", [1, 2])

    async def main() -> None:
        async with stream.cursor(follow=True) as cursor:
            assert await anext(cursor) == records[0]
            assert await cursor.read_async(timeout=0) == records[1]
            assert await cursor.read_async(timeout=0.01) is None
            with Stream(tmp_path / "log").appender() as log:
                position = log.append(b"new")
            assert (await cursor.read_async(timeout=10)).position == position

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["os", "always"])
def test_tasks_get_errors_and_positions(tmp_path, policy):
    async def main() -> None:
        stream = Stream(tmp_path / "log")
        async with stream.appender(sync=policy, segment_bytes=200) as log:
            for i in range(30):
                position = await log.append_async(b"%d" % i)
            assert position.segment > 1
            assert len(await log.append_many_async([b"a", b"b"])) == 2
            await log.sync_async()
            with pytest.raises(TypeError):
                await log.append_async("text")  # type: ignore[arg-type]
        with stream.cursor() as cursor:
            assert sum(1 for _ in cursor) == 32

    asyncio.run(main())


def test_a_plain_date_is_its_start_in_utc_and_a_time_of_day_needs_a_zone(tmp_path):
    midnight = 1_794_700_800 * 10**9  # 2026-11-15T00:00:00Z
    ticks = iter((midnight - 1, midnight, midnight + 1))
    stream = Stream(tmp_path, clock=lambda: next(ticks))
    with stream.appender() as log:
        for payload in (b"before", b"at", b"after"):
            log.append(payload)
    with stream.cursor(since="2026-11-15") as cursor:
        assert [record.payload for record in cursor] == [b"at", b"after"]
    with stream.cursor(until="2026-11-15") as cursor:
        assert [record.payload for record in cursor] == [b"before"]
    with pytest.raises(TimeOutOfRange, match="has no time zone: end it with Z"):
        stream.cursor(since="2026-11-15T18:00:00")
