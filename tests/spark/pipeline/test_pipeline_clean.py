"""What Spark lets go, and what the engine makes of it."""

from __future__ import annotations

import random
import shutil

import pytest

from forelog import KeepLatest, Stream
from forelog.errors import BadOption, CorruptRecord
from forelog.formats.commands.commands import Add, Delete, encode
from forelog.jobs.log.reader import read_commands
from forelog.spark.pipeline.clean import ExpiredJobs, FinishedJobs, SupersededKeys, clean
from tests.jobs.log.logged import replay as fold_commands
from tests.spark.pipeline.test_pipeline_jobs import (
    SCRIPT,
    SECOND,
    START,
    add,
    job_id,
    possible_commands,
    write_commands,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def knows(path, now_ns: int) -> dict:
    """The jobs of a server that starts then."""
    return fold_commands(
        [(c, t) for _, t, c in read_commands(Stream.open(path)) if not isinstance(c, Exception)], now_ns
    )


def count(path) -> int:
    with Stream.open(path).cursor() as cursor:
        return sum(1 for _ in cursor)


def test_a_server_knows_the_same_jobs_after_cleaning(spark, tmp_path):
    """Random commands, of which many are of jobs that are gone, in three logs; and those with every ending."""
    for seed in range(3):
        commands, _ = possible_commands(random.Random(seed + 10), 300)
        write_commands(tmp_path / f"log{seed}", commands, segment_bytes=2000)
    write_commands(tmp_path / "script", SCRIPT)
    now_ns = START + 400 * SECOND
    before = {path.name: (knows(path, now_ns), count(path)) for path in tmp_path.iterdir()}
    lasts = {path.name: sorted(path.glob("*.log"))[-1].read_bytes() for path in tmp_path.iterdir()}
    for found in clean(spark, str(tmp_path), ExpiredJobs(now=now_ns), recursive=True, apply=True):
        path = tmp_path / found.log
        jobs, records = before[found.log]
        assert knows(path, now_ns) == jobs, found.log
        assert count(path) == records - found.report.records_dropped < records
        assert found.report.records_dropped <= found.positions
        assert sorted(path.glob("*.log"))[-1].read_bytes() == lasts[found.log], "the last segment is left alone"


def test_finished_jobs_go_after_an_age_and_without_apply_nothing_does(spark, tmp_path):
    write_commands(tmp_path / "log", SCRIPT)
    now_ns = START + 100 * SECOND
    before = knows(tmp_path / "log", now_ns)
    files = {file.name: file.read_bytes() for file in (tmp_path / "log").glob("*.log")}
    rule = FinishedJobs("70s", now=now_ns)
    (dry,) = clean(spark, str(tmp_path / "log"), rule)
    assert {file.name: file.read_bytes() for file in (tmp_path / "log").glob("*.log")} == files
    (done,) = clean(spark, str(tmp_path / "log"), rule, apply=True)
    assert dry.report.records_dropped == done.report.records_dropped > 0
    left = knows(tmp_path / "log", now_ns)
    assert set(before) - set(left) == {job_id("2")}, "of 1 there is a second life; 3 failed later"


def test_the_latest_of_each_key_is_kept_as_the_engines_rule_keeps_it(spark, tmp_path):
    rng = random.Random(5)
    with Stream(tmp_path / "log").appender(segment_bytes=600) as log:
        for i in range(200):
            log.append(b"key%d=%d" % (rng.randrange(30), i))
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with Stream(tmp_path / "copy").cleaner() as cleaner:
        expected = cleaner.clean(KeepLatest(until=b"="))
    (found,) = clean(spark, str(tmp_path / "log"), SupersededKeys(until=b"="), apply=True)
    assert found.report.records_dropped == expected.records_dropped > 0
    kept = []
    for name in ("log", "copy"):
        with Stream(tmp_path / name).cursor() as cursor:
            kept.append([(record.position, record.payload) for record in cursor])
    assert kept[0] == kept[1]


def test_damage_stops_it_before_anything_is_decided(spark, tmp_path):
    write_commands(tmp_path / "log", [(0, add("1")), (1, Delete(job_id("1"))), (2, add("2"))], segment_bytes=50)
    first = tmp_path / "log/000000001.log"
    data = bytearray(first.read_bytes())
    data[30] ^= 1
    first.write_bytes(data)
    before = {file.name: file.read_bytes() for file in (tmp_path / "log").glob("*.log")}
    with pytest.raises(CorruptRecord, match="damaged record"):
        clean(spark, str(tmp_path / "log"), ExpiredJobs(now=START), apply=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "log").glob("*.log")} == before


def test_a_job_with_a_time_beyond_all_calendars_does_not_expire(spark, tmp_path):
    far = encode(Add(job_id("1"), "mail", 1000, 1000, START)).replace(
        encode(Add(job_id("1"), "mail", 1000, 1000, START))[-12:-6], b"\x7f\xff\xff\xff\xff\xff"
    )
    write_commands(tmp_path / "log", [(0, far), (1, add("2"))], segment_bytes=50)
    (found,) = clean(spark, str(tmp_path / "log"), ExpiredJobs(now=START + 10 * SECOND))
    assert found.positions == 0


def test_a_key_must_be_said(spark):
    with pytest.raises(BadOption, match="which part of a payload"):
        SupersededKeys()
