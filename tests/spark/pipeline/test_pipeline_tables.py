"""Fleets of logs: verified, and measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from forelog import Stream
from forelog.errors import BadOption, CorruptRecord, LogNotFound, SparkFailure, UnknownFormat
from forelog.log.verify import verify as engine_verify
from forelog.spark.pipeline.failures import find_failure
from forelog.spark.pipeline.input import STATS_COLUMNS, read_log
from forelog.spark.pipeline.stats import duplicates, gaps, sizes, stats, windows
from forelog.spark.pipeline.verify import verify
from forelog.times import parse_time

pytestmark = pytest.mark.filterwarnings("ignore")

SECOND = 10**9
START = parse_time("2026-11-15T18:00:00Z")


def write(path: Path, payloads: list[bytes], seconds: list[int], segment_bytes: int = 300) -> None:
    ticks = iter([START + second * SECOND for second in seconds])
    with Stream(path, clock=lambda: next(ticks)).appender(segment_bytes=segment_bytes) as log:
        for payload in payloads:
            log.append(payload)


def flip(path: Path, offset: int = 40) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Path:
    """Three logs: one that is fine, one with a flipped bit, one with a torn tail."""
    root = tmp_path_factory.mktemp("fleet")
    for name in ("fine", "deep/flipped", "torn"):
        write(root / name, [b"payload %d" % i for i in range(40)], list(range(40)))
    flip(root / "deep/flipped/000000002.log")
    last = sorted((root / "torn").glob("*.log"))[-1]
    last.write_bytes(last.read_bytes() + b"\x01half of a record")
    return root


def test_a_fleet_is_verified_as_the_engine_does_it(spark, fleet):
    found = verify(spark, str(fleet), recursive=True, task_bytes=1000)
    assert set(found.reports) == {"fine", "deep/flipped", "torn"}
    for name, report in found.reports.items():
        assert report == engine_verify(Stream.open(fleet / name)), name
    assert not found.ok
    logs = {row.log: row for row in found.logs(spark).collect()}
    assert [logs[name].ok for name in ("fine", "deep/flipped", "torn")] == [True, False, False]
    assert (logs["fine"].records, logs["deep/flipped"].records, logs["torn"].records) == (40, 39, 40)
    assert logs["fine"].segments > 3
    assert logs["fine"].bytes == sum(file.stat().st_size for file in (fleet / "fine").glob("*.log"))
    defects = [(row.log, row.segment, row.reason, row.torn) for row in found.defects(spark).collect()]
    assert ("deep/flipped", 2, "crc", False) in defects
    assert {(log, torn) for log, _, _, torn in defects} == {("deep/flipped", False), ("torn", True)}


def test_a_log_that_is_appended_to_has_no_torn_tail(spark, tmp_path):
    with Stream(tmp_path / "log").appender() as log:
        log.append(b"one")
        with open(tmp_path / "log/000000001.log", "ab") as file:
            file.write(b"\x01half of a record")
        found = verify(spark, str(tmp_path / "log"))
        assert found.ok
        assert found.reports["log"].live
        assert found.defects(spark).isEmpty()


@pytest.fixture(scope="module")
def records(spark, tmp_path_factory):
    """Two logs, one of them three times as large, with a pause of an hour and a payload that comes back."""
    root = tmp_path_factory.mktemp("stats")
    seconds = [*range(0, 60, 2), *range(3600, 3660, 2)]
    write(root / "large", [b"%060d" % (i % 50) for i in range(60)], seconds)
    write(root / "small", [b"%d" % i for i in range(20)], list(range(0, 200, 10)))
    columns = (*STATS_COLUMNS, "payload")
    return read_log(spark, str(root), columns, recursive=True).cache()


def test_logs_are_measured(records):
    found = {row.log: row for row in stats(records).collect()}
    large, small = found["large"], found["small"]
    assert (large.records, large.bytes, large.length_min, large.length_max) == (60, 3600, 60, 60)
    assert (large.first_time.timestamp(), large.last_time.timestamp()) == (START // SECOND, START // SECOND + 3658)
    assert large.records_per_second == pytest.approx(60 / 3658)
    assert large.peak_per_second == pytest.approx(0.5)
    assert (large.share, large.skew) == (pytest.approx(3600 / 3630), 1.5)
    assert small.length_mean == 1.5
    assert small.segments == records.where("log = 'small'").select("segment").distinct().count()
    lengths = {row.log: (row.length_p50, row.length_p99) for row in sizes(records).collect()}
    assert lengths == {"large": (60, 60), "small": (1, 2)}


def test_windows_have_what_was_written_in_them(records):
    found = {(row.log, row.start.timestamp() - START // SECOND): row for row in windows(records).collect()}
    assert {key: row.records for key, row in found.items() if key[0] == "large"} == {
        ("large", 0): 30,
        ("large", 3600): 30,
    }
    assert [found["small", start].records for start in (0, 60, 120, 180)] == [6, 6, 6, 2]
    assert found["large", 0].records_per_second == 0.5


@pytest.mark.parametrize(
    ("longer_than", "expected"),
    [("10s", 1 + 19), ("1h", 0), ("2s", 29 + 1 + 29 + 19)],
)
def test_every_gap_is_found(records, longer_than, expected):
    found = gaps(records, longer_than).collect()
    assert len(found) == expected
    if expected:
        assert (found[0].log, found[0].seconds) == ("large", 3542)


def test_payloads_that_come_again_are_counted(records):
    found = duplicates(records).collect()
    assert [(row.log, row.copies, row.length) for row in found] == [("large", 2, 60)] * 10
    assert found[0].first < found[0].last


# -- what goes wrong


def failure(action) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - what it is, is the question
        action()
    return find_failure(caught.value)


def test_the_error_behind_one_of_spark_is_found(spark, fleet, tmp_path):
    (tmp_path / "foreign").write_bytes(b"This is no log at all.")
    found = failure(lambda: read_log(spark, str(tmp_path / "nowhere"), ["offset"]).count())
    assert isinstance(found, LogNotFound)
    assert str(found).startswith(f"there is no log at {tmp_path / 'nowhere'}")
    found = failure(lambda: read_log(spark, str(tmp_path / "foreign"), ["offset"]).count())
    assert isinstance(found, LogNotFound | UnknownFormat), found
    found = failure(lambda: read_log(spark, str(fleet / "deep/flipped"), ["offset"]).collect())
    assert isinstance(found, CorruptRecord)
    assert "000000002.log" in str(found)
    reader = spark.read.format("forelog").option("cod", "x")
    found = failure(lambda: reader.load(str(fleet / "fine")).count())
    assert isinstance(found, BadOption)
    assert str(found) == "forelog has no option 'cod': did you mean codec?"
    found = failure(lambda: spark.sql("select nothing from nowhere"))
    assert isinstance(found, SparkFailure)
    assert "nowhere" in str(found)
    assert "\n" not in str(found)
