"""Clocks that are far off, and times that 64 bits of nanoseconds can't hold: exact, or refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog import OlderThan, Stream, TimeOutOfRange, kernel, verify
from forelog.formats import FormatName
from forelog.kernel.types import CLOCK_MAX, CLOCK_MIN
from forelog.log.appender import Sync
from forelog.times import format_time, parse_duration, parse_time

YEAR_1, YEAR_1500, YEAR_1960, YEAR_2026, YEAR_2290, YEAR_2300, YEAR_2350 = (
    parse_time(f"{year:04d}-01-01") for year in (1, 1500, 1960, 2026, 2290, 2300, 2350)
)
FAR_OFF = [YEAR_1, YEAR_2300, -(10**30), 10**30, -(2**63), 2**63 - 1, 2**63, CLOCK_MIN - 1, CLOCK_MAX + 1]
WAYS: dict[str, Callable[[Any, Any], object]] = {
    "append": lambda log, item: log.append(item),
    "append_many": lambda log, item: log.append_many([item, item]),
    "append_async": lambda log, item: asyncio.run(log.append_async(item)),
    "append_many_async": lambda log, item: asyncio.run(log.append_many_async([item])),
}


class Clock:
    """A clock that is put where a test wants it."""

    def __init__(self, now: int = YEAR_2026) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def item_of(fmt: str) -> Any:
    return (b"topic", b"payload", b"\x80") if fmt == "messages" else b"payload"


def times_of(stream: Stream, **options: Any) -> list[int]:
    with stream.cursor(**options) as cursor:
        return [record.time_ns for record in cursor]


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
@pytest.mark.parametrize("fmt", ["captain", "messages"])
def test_a_clock_that_no_record_can_be_of_is_refused_before_anything_is_written(
    tmp_path: Path, fmt: FormatName, sync: Sync
) -> None:
    clock, item = Clock(), item_of(fmt)
    stream = Stream(tmp_path, format=fmt, clock=clock)
    with stream.appender(sync=sync, segment_bytes=60) as log:
        for (name, append), now in itertools.product(WAYS.items(), FAR_OFF):
            before = log.position
            clock.now = now
            with pytest.raises(TimeOutOfRange, match="clock"):
                append(log, item)
            assert log.position == before, name
            clock.now = YEAR_2026
            append(log, item)
        written = len(times_of(stream))
        clock.now = YEAR_2300
        with pytest.raises(TimeOutOfRange):
            log.next_time()
        log.sync()
    assert written == len(FAR_OFF) * 5
    report = verify(stream)
    assert (report.problems(), report.records) == ([], written)


@pytest.mark.parametrize("now", [-1, YEAR_1960, 2**62, YEAR_2300 // 2])
def test_messages_have_times_from_1970_to_2115(tmp_path: Path, now: int) -> None:
    clock = Clock()
    stream = Stream(tmp_path, format="messages", clock=clock)
    with stream.appender() as log:
        log.append(item_of("messages"))
        position = log.position
        clock.now = now
        if now > YEAR_2026:
            with pytest.raises(TimeOutOfRange, match="expected"):
                log.append(item_of("messages"))
            with pytest.raises(TimeOutOfRange, match="expected"):
                log.roll()
            assert log.position == position
        else:
            log.append(item_of("messages"))  # just after the last one, as with any clock that is put back
    assert verify(stream).ok
    numbers = stream.numbers()
    fresh = Stream(tmp_path / "fresh", format="messages", clock=clock)
    with pytest.raises(TimeOutOfRange, match="1970 to 2115"):
        fresh.appender()
    assert not list((tmp_path / "fresh").glob("*.dat"))
    assert stream.numbers() == numbers


@pytest.mark.parametrize("now", [CLOCK_MIN, YEAR_1960, -1, 0, CLOCK_MAX])
@pytest.mark.parametrize("sync", ["os", "always"])
def test_times_at_both_ends_are_kept_to_the_nanosecond(tmp_path: Path, now: int, sync: Sync) -> None:
    stream = Stream(tmp_path, clock=lambda: now)
    with stream.appender(sync=sync) as log:
        log.append(b"one")
        log.append_many([b"two", b"three"])
        log.roll()
        log.append(b"four")
    with stream.appender(sync=sync) as log:
        log.append(b"five")
    assert times_of(stream) == [now] * 5
    assert times_of(stream, since=now) == [now] * 5
    assert times_of(stream, since=now + 1) == times_of(stream, until=now) == []
    assert verify(stream).ok


def test_a_clock_that_tells_no_whole_number_is_refused(tmp_path: Path) -> None:
    for now in (1.5, None, "2026-01-01"):
        stream = Stream(tmp_path, clock=lambda now=now: now)  # type: ignore[misc]
        with stream.appender() as log, pytest.raises(TypeError):
            log.append(b"payload")
    assert times_of(stream) == []


def test_the_systems_clock_past_2262_is_refused(tmp_path: Path) -> None:
    def clock() -> int:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")  # as time.time_ns() does

    stream = Stream(tmp_path, clock=clock)
    with stream.appender() as log, pytest.raises(TimeOutOfRange, match="64 bits"):
        log.append(b"payload")


# -- bounds


@pytest.fixture(params=["one segment", "many"])
def old_and_new(request: pytest.FixtureRequest, tmp_path: Path) -> Stream:
    """A log as another program may have written it, with times before and after what nanoseconds can hold."""
    stream = Stream(tmp_path)
    with stream.appender():
        pass
    times = [YEAR_1, YEAR_1500, YEAR_1960, YEAR_2026, YEAR_2290, YEAR_2300, YEAR_2350]
    if request.param == "many":
        for number, time_ns in enumerate(times, 1):
            data = stream.format.header() + kernel.captain_encode(b"x", time_ns)
            (tmp_path / f"{number:09d}.log").write_bytes(data)
    else:
        with open(tmp_path / "000000001.log", "ab") as file:
            file.writelines(kernel.captain_encode(b"x", time_ns) for time_ns in times)
    return stream


BOUNDS = [
    *(YEAR_1 + nanos for nanos in (-1, 0, 1)),
    *(YEAR_1500 + nanos for nanos in (-1, 0, 1)),
    YEAR_1960,
    *(YEAR_2290 + nanos for nanos in (-1, 0, 1)),
    *(YEAR_2300 + nanos for nanos in (-1, 0, 1)),
    YEAR_2350 + 1,
    CLOCK_MIN,
    CLOCK_MIN - 1,
    CLOCK_MAX,
    CLOCK_MAX + 1,
    -(2**63),
    2**63 - 1,
    2**63,
    -(10**30),
    10**30,
]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_bounds_past_what_nanoseconds_hold_are_exact(old_and_new: Stream, bound: int, reverse: bool) -> None:
    everything = times_of(old_and_new)
    assert len(everything) == 7
    step = -1 if reverse else 1
    assert times_of(old_and_new, since=bound, reverse=reverse) == [t for t in everything if t >= bound][::step]
    assert times_of(old_and_new, until=bound, reverse=reverse) == [t for t in everything if t < bound][::step]


def test_bounds_may_be_texts_of_any_year(old_and_new: Stream) -> None:
    assert len(times_of(old_and_new, since="0001-01-01", until="9999-12-31")) == 7
    assert times_of(old_and_new, since="2300-01-01") == [YEAR_2300, YEAR_2350]
    assert times_of(old_and_new, until="1500-01-01T00:00:00.000000001Z") == [YEAR_1, YEAR_1500]
    assert len(times_of(old_and_new, since="-100000000d")) == 7
    assert times_of(old_and_new, since=format_time(10**25)) == []


def test_arrow_batches_have_the_same_bounds(old_and_new: Stream) -> None:
    pytest.importorskip("pyarrow")
    for bound in BOUNDS:
        rows = sum(batch.num_rows for batch in old_and_new.scan(["position"], since=bound))
        assert rows == len(times_of(old_and_new, since=bound))


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_cleaner_drops_nothing_that_is_later(old_and_new: Stream, bound: int) -> None:
    with old_and_new.appender() as log:
        log.roll()
    everything = times_of(old_and_new)
    with old_and_new.cleaner() as cleaner:
        cleaner.clean(OlderThan(time_ns=bound))
    left = times_of(old_and_new)
    assert {t for t in everything if t >= bound} <= set(left)
    assert not {t for t in left if CLOCK_MIN <= t < bound and bound <= CLOCK_MAX}


def test_ages_that_count_back_past_all_times_drop_nothing_and_a_wrong_clock_is_refused(tmp_path: Path) -> None:
    clock = Clock(YEAR_1960)
    stream = Stream(tmp_path, clock=clock)
    with stream.appender() as log:
        log.append(b"x")
        log.roll()
    with stream.cleaner() as cleaner:
        assert cleaner.clean(OlderThan("24h")).records_dropped == 0
        clock.now = CLOCK_MIN
        assert cleaner.clean(OlderThan("50000d")).records_dropped == 0
        clock.now = YEAR_2300
        with pytest.raises(TimeOutOfRange, match="the clock says"):
            cleaner.clean(OlderThan("24h"))
    assert times_of(stream) == [YEAR_1960]


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("far", [YEAR_2300 // 2, CLOCK_MAX, CLOCK_MIN])
def test_after_a_clock_that_was_far_off_no_recent_record_counts_as_old(
    tmp_path: Path, far: int, rolled: bool
) -> None:
    clock = Clock()
    stream = Stream(tmp_path, clock=clock)
    with stream.appender() as log:
        log.append(b"today")
        clock.now = far
        log.append(b"far off")
        if rolled:
            log.roll()
    clock.now = YEAR_2026
    with stream.appender() as log:
        log.append(b"today as well")
        log.roll()
        log.append(b"last")
    with stream.cleaner() as cleaner:
        assert cleaner.clean(OlderThan("24h")).records_dropped == 0
    assert verify(stream).ok
    times = times_of(stream)
    assert len(times) == 4
    for bound in (far, YEAR_2026, YEAR_2026 + 1):
        assert times_of(stream, since=bound) == [t for t in times if t >= bound]
        assert times_of(stream, until=bound) == [t for t in times if t < bound]


def test_an_index_of_what_was_there_before_ends_where_that_ends(tmp_path: Path) -> None:
    """Not where an earlier segment does, whose times another program, or another clock, has set."""
    stream = Stream(tmp_path)
    with stream.appender():
        pass
    for number, time_ns in enumerate((YEAR_2026 + 100, YEAR_2026), 1):
        data = stream.format.header() + kernel.captain_encode(b"x", time_ns)
        (tmp_path / f"{number:09d}.log").write_bytes(data)
    for _ in range(2):
        with stream.appender() as log:
            log.roll()
        assert verify(stream).ok
    assert stream.segments()[1].last_time_ns == YEAR_2026


def test_an_index_of_times_that_go_back_is_right(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    with stream.appender():
        pass
    with open(tmp_path / "000000001.log", "ab") as file:
        file.writelines(kernel.captain_encode(b"x", YEAR_2026 + after) for after in (5, 9, 3, 7))
    with stream.appender() as log:
        log.roll()
    assert (verify(stream).ok, verify(stream).segments[0].index) == (True, "fits")
    info = stream.segments()[0]
    assert (info.first_time_ns, info.last_time_ns) == (YEAR_2026 + 3, YEAR_2026 + 9)


# -- the faces


def test_a_commit_log_refuses_what_its_clock_says_and_goes_on(tmp_path: Path) -> None:
    from forelog.commitlog import CommitLog

    clock = Clock()
    with CommitLog(tmp_path, clock=clock, on_failure="ignore") as log:
        log.write(b"one")
        clock.now = YEAR_2300
        with pytest.raises(TimeOutOfRange):
            log.write(b"two")
        clock.now = YEAR_2026
        log.write(b"three")
    assert len(times_of(log.stream)) == 2


@pytest.mark.parametrize("now", [YEAR_1, YEAR_2300, 2**62, 10**30])
def test_a_writer_of_messages_refuses_what_its_clock_says_and_goes_on(tmp_path: Path, now: int) -> None:
    from forelog.broker import MessageLogWriter

    clock = Clock()
    with MessageLogWriter(tmp_path, clock=clock, flush_interval_ms=None) as log:
        first = log.write("topic", b"one")
        clock.now = now
        with pytest.raises(TimeOutOfRange):
            log.write("topic", b"two")
        clock.now = YEAR_2026
        last = log.write("topic", b"three")
    assert times_of(log.stream) == [first, last] == [YEAR_2026, YEAR_2026 + 1]


def test_a_job_servers_log_refuses_what_its_clock_says_and_goes_on(tmp_path: Path) -> None:
    from forelog.jobs.log.commandlog import CommandLog

    clock = Clock()
    for sync in ("os", "interval", "always"):
        journal = CommandLog(str(tmp_path / sync), sync=sync, clock=clock)
        journal.open(0)
        clock.now = YEAR_2300
        with pytest.raises(TimeOutOfRange):
            journal.write([b"\1"])
        assert not journal.failed
        clock.now = YEAR_2026
        journal.write([b"\1"])
        journal.close()
        assert journal.stream is not None
        assert times_of(journal.stream) == [YEAR_2026]


def test_datapoints_are_found_by_bounds_of_any_year(tmp_path: Path) -> None:
    from forelog.commitlog import CommitLog, read_entries
    from forelog.formats.m3 import Datapoint, Series

    with CommitLog(tmp_path, format="m3") as log:
        log.write(Series(b"series"), Datapoint(1, 2.0))
    assert len(list(read_entries(log.stream, since="0001-01-01", until="2300-01-01"))) == 1
    assert list(read_entries(log.stream, since="2300-01-01")) == []
    assert list(read_entries(log.stream, until="0001-01-01")) == []


# -- texts


@given(st.integers(-(10**28), 10**28))
def test_every_time_is_a_text_and_back(time_ns: int) -> None:
    assert parse_time(format_time(time_ns)) == time_ns


@pytest.mark.parametrize("text", ["9" * 400 + "d", "9" * 30 + "d"])
def test_a_duration_past_all_times_is_refused(text: str) -> None:
    with pytest.raises(TimeOutOfRange, match="longer than anything"):
        parse_duration(text)
    with pytest.raises(TimeOutOfRange, match="longer than anything"):
        parse_time("-" + text)
