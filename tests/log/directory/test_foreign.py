"""Logs that another program writes to as well: its cleaner moves records, and its clock may go back."""

from __future__ import annotations

import os

import pytest

from forelog import BadPosition, Stream
from forelog.formats import Captain

CAPTAIN = Captain()
SECOND = 10**9
START = 1_700_000_000 * SECOND


def clean_as_the_original(folder, number, keep):
    """Rewrite a segment as Captain's Log does: the records that stay, one after the other, and no map."""
    path = folder / f"{number:09d}.log"
    data = path.read_bytes()
    scan = CAPTAIN.scan(data, CAPTAIN.header_bytes, len(data), 0, 1 << 20)
    ends = [*scan.offsets[1:], scan.end]
    kept = b"".join(
        data[at:end] for row, (at, end) in enumerate(zip(scan.offsets, ends, strict=True)) if keep(row)
    )
    (folder / f"{path.name}.rw").write_bytes(CAPTAIN.header() + kept)
    os.rename(folder / f"{path.name}.rw", path)


def written(folder, count=200, per_segment=100):
    positions = {}
    with Stream(folder).appender() as log:
        for number in range(count):
            payload = b"record %05d" % number + b"." * (number % 7)
            positions[log.append(payload)] = payload
            if number % per_segment == per_segment - 1:
                log.roll()
    return positions


def record_at(folder, position):
    with Stream(folder).cursor(start=position) as cursor:
        return next(cursor)


def test_positions_in_a_segment_that_another_program_has_rewritten_are_refused_and_never_wrong(tmp_path):
    positions = written(tmp_path)
    clean_as_the_original(tmp_path, 1, lambda row: row % 3)
    refused = 0
    for position, payload in positions.items():
        if position.segment == 1 and position.offset > CAPTAIN.header_bytes:
            with pytest.raises(BadPosition, match="another program has rewritten"):
                record_at(tmp_path, position)
            refused += 1
        else:
            # The first record's position is where a segment starts: what is left of it follows.
            assert record_at(tmp_path, position).payload == payload or position.segment == 1
    assert refused == 99


def test_what_is_left_is_read_and_resumed_until_it_is_rewritten_again(tmp_path):
    positions = written(tmp_path)
    before = list(positions)
    clean_as_the_original(tmp_path, 1, lambda row: row % 3)
    with Stream(tmp_path).cursor() as cursor:
        found = list(cursor)
    assert [record.payload for record in found] == [
        payload for number, payload in enumerate(positions.values()) if number >= 100 or number % 3
    ]
    new = [record.position for record in found]
    assert len(set(new) | set(before[:100])) == len(new) + 100, "no position has meant two records"
    assert new == sorted(new)
    for record in found:
        assert record_at(tmp_path, record.position) == record
    clean_as_the_original(tmp_path, 1, lambda row: row % 2)
    for record in found[1:60]:
        with pytest.raises(BadPosition, match="another program"):
            record_at(tmp_path, record.position)


def test_our_cleaner_goes_on_with_such_a_segment_and_its_positions_stay(tmp_path):
    written(tmp_path)
    clean_as_the_original(tmp_path, 1, lambda row: row % 3)
    with Stream(tmp_path).cursor() as cursor:
        found = list(cursor)
    with Stream(tmp_path).cleaner() as cleaner:
        assert cleaner.clean(lambda _, record: record.payload.endswith(b".")).records_dropped
    for record in found:
        if not record.payload.endswith(b"."):
            assert record_at(tmp_path, record.position).payload == record.payload


def test_a_segment_that_was_the_last_when_we_closed_the_log_is_noticed_too(tmp_path):
    positions = written(tmp_path, 50)
    (tmp_path / "000000002.log").write_bytes(CAPTAIN.header() + CAPTAIN.encode(b"theirs", START))
    clean_as_the_original(tmp_path, 1, lambda row: row != 3)
    with pytest.raises(BadPosition, match="another program"):
        record_at(tmp_path, list(positions)[10])
    with Stream(tmp_path).cursor() as cursor:
        assert len(list(cursor)) == 50


def test_a_follower_that_had_read_all_of_it_goes_on_behind_it(tmp_path):
    written(tmp_path, 100)
    with Stream(tmp_path).cursor(follow=True) as cursor:
        assert len([cursor.read(0) for _ in range(100)]) == 100
        assert cursor.read(0) is None
        clean_as_the_original(tmp_path, 1, lambda row: row % 3)
        with Stream(tmp_path).appender() as log:
            log.append(b"next")
        assert cursor.read(0).payload == b"next"
        assert cursor.read(0) is None


# -- times that go back


def mixed(folder):
    """Our segments, another program's with a clock that is an hour behind, and ours again."""
    now = [START]
    stream = Stream(folder, clock=lambda: now[0])

    def write(times):
        with stream.appender() as log:
            for time_ns in times:
                now[0] = time_ns
                log.append(b"%d" % time_ns)
            log.roll()

    write(START + second * SECOND for second in range(100))
    theirs = [START + (second - 3600) * SECOND for second in range(50)] + [START + 500 * SECOND]
    last = max(stream.numbers())
    for number, part in ((last, theirs[:25]), (last + 1, theirs[25:])):
        encoded = b"".join(CAPTAIN.encode(b"%d" % time_ns, time_ns) for time_ns in part)
        (folder / f"{number:09d}.log").write_bytes(CAPTAIN.header() + encoded)
    write(START + second * SECOND for second in range(600, 700))
    return stream


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize(
    ("since", "until"),
    [(START, None), (START + 50 * SECOND, START + 650 * SECOND), (None, START), (START + 499 * SECOND, None)],
)
def test_a_time_is_not_searched_for_as_if_times_ascended(tmp_path, since, until, reopened):
    stream = mixed(tmp_path)
    if reopened:
        stream.appender().close()
    with stream.cursor() as cursor:
        everything = [int(record.payload) for record in cursor]
    expected = [
        time for time in everything if (since is None or time >= since) and (until is None or time < until)
    ]
    with stream.cursor(since=since, until=until) as cursor:
        assert [int(record.payload) for record in cursor] == expected
    with stream.cursor(since=since, until=until, reverse=True) as cursor:
        assert [int(record.payload) for record in cursor] == expected[::-1]
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_batches(
        stream.scan(["payload"], since=since, until=until), stream.scan_schema(["payload"])
    )
    assert [int(payload) for payload in table["payload"].to_pylist()] == expected


def test_in_a_log_of_ours_a_time_is_found_by_halving(tmp_path):
    now = [START]
    stream = Stream(tmp_path, clock=lambda: now[0])
    with stream.appender() as log:
        for second in range(256):
            now[0] = START + second * SECOND
            log.append(b"%d" % second)
            log.roll()
    for _ in range(2):
        before = stream.metrics.snapshot()["segments_opened"]
        with stream.cursor(since=START + 200 * SECOND, until=START + 203 * SECOND) as cursor:
            assert [record.payload for record in cursor] == [b"200", b"201", b"202"]
        assert stream.metrics.snapshot()["segments_opened"] - before <= 6
        (tmp_path / "append.end").unlink(missing_ok=True)  # the marks of a closed log tell as much
