"""The state as of any position or time equals that of the state machine, and of the engine's own rules."""

from __future__ import annotations

import random
import shutil

import pytest

from forelog import Stream
from forelog.errors import BadCommand
from forelog.formats.commands.commands import format_id, parse_id
from forelog.jobs.log.reader import read_commands
from forelog.jobs.log.replay import LoggedJob
from forelog.jobs.machine.states import JobState
from forelog.log.position import Position
from forelog.spark.pipeline.input import REPLAY_COLUMNS, read_log
from forelog.spark.pipeline.replay import latest, replay
from tests.conftest import VECTORS
from tests.jobs.log.logged import replay as fold_commands
from tests.jobs.log.test_replay import CASES, NOW_2090, fold
from tests.jobs.log.vectors import edited

pytestmark = pytest.mark.filterwarnings("ignore")


def as_job(row) -> LoggedJob:
    return LoggedJob(
        parse_id(row.id), row.name, row.ttr_ms, row.ttl_ms, row.created_ns, bytes(row.job_payload), row.priority,
        row.max_attempts, row.max_fails, row.scheduled_ns, JobState[row.state.upper()], row.attempts, row.fails,
        None if row.result is None else bytes(row.result), row.leased_ns,
    )  # fmt: skip


def commands(spark, path, **options):
    return read_log(spark, str(path), REPLAY_COLUMNS, codec="commands", **options)


def test_every_case_of_the_original_is_replayed_as_the_state_machine_does_it(spark, tmp_path):
    oracles = {}
    for number, case in enumerate(CASES):
        edited(case, tmp_path / "logs" / f"case{number:02d}")
        edited(case, tmp_path / "oracle" / f"case{number:02d}")  # the oracle's appender mends what is torn
        state, _, _ = fold(tmp_path / "oracle" / f"case{number:02d}", NOW_2090, fails_are_final=True)
        oracles[f"case{number:02d}"] = state.jobs
    table = commands(spark, tmp_path / "logs", recursive=True)
    found = {name: {} for name in oracles}
    ordered = replay(table, now=NOW_2090, fails_are_final=True).orderBy("log", "segment", "offset")
    for row in ordered.collect():
        found[row.log][parse_id(row.id)] = as_job(row)
    assert found == oracles
    assert all(list(found[name]) == list(oracles[name]) for name in oracles), "in the order of their adds"
    assert len(found) == 31


def test_the_state_as_of_a_position_or_a_time(spark, tmp_path):
    shutil.copytree(VECTORS / "workq/cmdlog", tmp_path / "log")
    told = list(read_commands(Stream.open(tmp_path / "log")))
    table = commands(spark, tmp_path / "log").cache()
    for count in (1, 13, 30, 44):
        written = told[:count]
        now_ns = written[-1][1]
        commands_of = [(one, time_ns) for _, time_ns, one in written if not isinstance(one, BadCommand)]
        oracle = fold_commands(commands_of, now_ns)
        as_of = told[count][0] if count < len(told) else now_ns
        found = replay(table, as_of).collect()
        assert {row.id: as_job(row) for row in found} == {format_id(job.id): job for job in oracle.values()}


def test_jobs_that_have_expired_by_now_are_left_out(spark, tmp_path):
    shutil.copytree(VECTORS / "workq/cmdlog-2090", tmp_path / "log")
    table = commands(spark, tmp_path / "log")
    found = replay(table, now="2095-06-08").collect()
    assert sorted(row.id[10:13] for row in found) == ["00a", "00b"]
    assert [row.expires.isoformat()[:10] for row in found if row.id[12] == "a"] == ["2095-07-07"]


def test_the_latest_record_of_each_key(spark, tmp_path):
    rng = random.Random(7)
    with Stream(tmp_path / "log").appender(segment_bytes=500) as log:
        for i in range(300):
            log.append(b"%c\xff%d=%d=x" % (rng.choice(b"abc\xe4"), rng.randrange(6), i))
        log.append(b"no delimiter")
    table = read_log(spark, str(tmp_path / "log"), ["segment", "offset", "time", "payload"]).cache()
    with Stream(tmp_path / "log").cursor() as cursor:
        records = list(cursor)
    for as_of, size in ((None, 301), (records[100].position, 100), (Position(1, 0), 0)):
        expected = {r.payload.partition(b"=")[0]: (r.position, r.payload) for r in records[:size]}
        found = latest(table, as_of, until_byte=b"=").collect()
        assert {bytes(r.key): ((r.segment, r.offset), bytes(r.payload)) for r in found} == expected
    found = latest(table, key=slice(1, 5), until_byte=b"=").select("key").collect()
    assert {bytes(row.key) for row in found} == {r.payload[1:5].partition(b"=")[0] for r in records}
    found = latest(table, key=slice(0, 2)).select("key").collect()
    assert {bytes(row.key) for row in found} == {r.payload[:2] for r in records}
