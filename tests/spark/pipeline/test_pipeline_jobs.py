"""The life of jobs, from their commands."""

from __future__ import annotations

import random
from typing import Any

import pytest

from forelog import Stream
from forelog.errors import ForelogError
from forelog.formats.commands.commands import (
    MAGIC,
    Add,
    Command,
    Complete,
    Delete,
    Expire,
    Fail,
    Schedule,
    StartAttempt,
    TimeoutAttempt,
    encode,
    format_id,
    parse_id,
)
from forelog.jobs.log.replay import Replay
from forelog.spark.pipeline.input import JOB_COLUMNS, read_log
from forelog.spark.pipeline.jobs import jobs, named, poisoned, queue_rates, queue_stats, stuck
from forelog.times import parse_time
from tests.jobs.log.logged import is_processed, is_spent, lease_ends_ns

pytestmark = pytest.mark.filterwarnings("ignore")

SECOND = 10**9
START = parse_time("2026-11-15T18:00:00Z")
START_S = START // SECOND


def job_id(letter: str) -> bytes:
    return parse_id(f"6100000{letter}-0001-4000-8000-000000000001")


def write_commands(path, commands, segment_bytes: int = 400) -> None:
    """Commands with the seconds after START at which they are written, in small segments."""
    times = iter([START + second * SECOND for second, _ in commands])
    with Stream(path, magic=MAGIC, clock=lambda: next(times)).appender(segment_bytes=segment_bytes) as log:
        for _, command in commands:
            log.append(command if isinstance(command, bytes) else encode(command))


def add(letter: str, name: str = "mail", at: int = 0, **fields) -> Add:
    values = {"ttr_ms": 1000, "ttl_ms": 86_400_000, "created_ns": START + at * SECOND, **fields}
    return Add(job_id(letter), name, **values)


def schedule(letter: str, at: int, due: int) -> Schedule:
    return Schedule(job_id(letter), "later", 1000, 86_400_000, START + due * SECOND, START + at * SECOND)


def lease(letter: str) -> StartAttempt:
    return StartAttempt(job_id(letter))


def late(letter: str) -> TimeoutAttempt:
    return TimeoutAttempt(job_id(letter))


SCRIPT = [
    (0, add("1", payload=b"12345")),  # completed at once, and its id is used again
    (5, lease("1")),
    (8, Complete(job_id("1"), b"done")),
    (9, Expire(job_id("1"))),
    (10, add("1", at=10)),
    (10, add("2", at=10)),  # a timeout, then completed
    (11, lease("2")),
    (12, late("2")),
    (20, lease("2")),
    (24, Complete(job_id("2"), b"")),
    (30, add("3", "slow", at=30, max_fails=2)),  # two fails
    (31, lease("3")),
    (32, Fail(job_id("3"), b"no")),
    (33, lease("3")),
    (34, Fail(job_id("3"), b"never")),
    (40, add("4", "slow", at=40)),
    (41, Delete(job_id("4"))),
    (42, add("5", "slow", at=42)),
    (43, Expire(job_id("5"))),
    (44, add("6", "slow", at=44)),  # leased for ever
    (45, lease("6")),
    (46, schedule("7", at=46, due=90)),  # waits for its time, then completes
    (46, schedule("8", at=46, due=86_000)),  # still waits
    (50, lease("9")),  # a run
    (51, Complete(job_id("9"), b"ran")),
    (52, Expire(job_id("9"))),
    (60, add("a", at=60, max_attempts=1)),
    (61, lease("a")),
    (62, late("a")),
    (70, add("b", at=70, ttl_ms=5000)),  # expires without a word, and is added again
    (80, add("b", at=80)),
    (81, b"no command at all"),
    *((90 + 2 * i + j, step("c")) for i in range(3) for j, step in enumerate((lease, late))),
    (100, lease("7")),
    (101, Complete(job_id("7"), b"x")),
]


@pytest.fixture(scope="module")
def lives(spark, tmp_path_factory):
    path = tmp_path_factory.mktemp("jobs") / "log"
    script = [*SCRIPT[:-8], (89, add("c", at=89)), *SCRIPT[-8:]]
    write_commands(path, script)
    return jobs(read_log(spark, str(path), JOB_COLUMNS, codec="commands")).cache()


@pytest.fixture(scope="module")
def rows(lives):
    """Rows by the letter of their ids and the order of their lives."""
    found = {}
    for row in lives.orderBy("id", "life").collect():
        found.setdefault(row.id[7], []).append(row)
    return found


def test_what_became_of_every_job(rows):
    outcomes = {letter: [row.outcome for row in lives] for letter, lives in rows.items()}
    assert outcomes == {
        "1": ["completed", "waiting"],
        "2": ["completed"],
        "3": ["failed"],
        "4": ["deleted"],
        "5": ["expired"],
        "6": ["leased"],
        "7": ["completed"],
        "8": ["waiting"],
        "9": ["completed"],
        "a": ["failed"],
        "b": ["waiting", "waiting"],
        "c": ["waiting"],
    }
    kinds = {letter: row[0].kind for letter, row in rows.items()}
    assert (kinds["1"], kinds["7"], kinds["9"], rows["9"][0].name) == ("add", "schedule", "run", None)


def test_times_are_those_of_the_records(rows):
    first, second = rows["1"]
    seconds = [
        None if time is None else time.timestamp() - START_S
        for time in (first.added, first.first_lease, first.finished, first.removed, second.added)
    ]
    assert seconds == [0, 5, 8, 9, 10]
    assert (first.waiting_ms, first.running_ms, first.leased_ms) == (5000, 3000, 3000)
    assert (first.payload_bytes, first.result_bytes, first.removed_by) == (5, 4, "expire")
    assert (second.waiting_ms, second.running_ms, second.finished) == (None, None, None)
    twice = rows["2"][0]
    assert (twice.waiting_ms, twice.running_ms, twice.leased_ms) == (1000, 4000, 5000)
    assert (twice.attempts, twice.timeouts, twice.result_bytes) == (2, 1, 0)
    assert rows["7"][0].waiting_ms == 10_000, "from when it is due, not from when it was added"


def test_queues_are_counted_and_measured(lives):
    found = {row.name: row for row in queue_stats(lives).collect()}
    assert set(found) == {"mail", "slow", "later", None}
    slow = found["slow"]
    assert (slow.jobs, slow.failed, slow.deleted, slow.expired, slow.leased, slow.waiting) == (4, 1, 1, 1, 1, 0)
    mail = found["mail"]
    assert (mail.jobs, mail.completed, mail.failed, mail.waiting) == (7, 2, 1, 4)
    assert (mail.waiting_ms_p50, mail.waiting_ms_max) == (1000, 5000)
    assert (mail.running_ms_p50, mail.running_ms_p99) == (3000, 4000)
    span_minutes = (95 - 0) / 60
    assert mail.added_per_minute == pytest.approx(7 / span_minutes)
    assert slow.added_per_minute == 4, "over at least a minute"


def test_rates_are_per_queue_and_minute(lives):
    rates = {(row.name, row.start.timestamp() - START_S): row for row in queue_rates(lives).collect()}
    assert [rates["mail", 0][what] for what in ("added", "leased", "finished")] == [3, 2, 2]
    assert [rates["mail", 60][what] for what in ("added", "leased", "finished")] == [4, 2, 1]


def test_jobs_are_stuck_that_nobody_gets_on_with(lives):
    def found(second: int, **options):
        return {row.id[7]: row.why for row in stuck(lives, START + second * SECOND, **options).collect()}

    assert found(100, patience="50s") == {"1": "not leased", "6": "lease over"}
    everything = {"1": "not leased", "6": "lease over", "b": "not leased", "c": "not leased"}
    assert found(3600) == everything
    assert found(100_000) == {"8": "not leased"}, "the others' ttl is over"


def test_jobs_are_poisoned_that_workers_choke_on(lives):
    assert {row.id[7]: row.why for row in poisoned(lives).collect()} == {
        "a": "attempts used up",
        "c": "keeps timing out",
    }
    assert {row.id[7] for row in poisoned(lives, attempts=2).collect()} == {"a", "c", "3"}


def test_a_table_without_the_columns_is_told(spark):
    with pytest.raises(ForelogError, match="jobs needs the columns segment, offset"):
        jobs(spark.range(1))


def possible_commands(rng: random.Random, count: int) -> tuple[list, Replay]:
    """Commands that a server could have written, and what the state machine makes of them."""
    replay = Replay(0)
    commands: list[tuple[int, Command]] = []
    while len(commands) < count:
        letter = rng.choice("123456789abcdef")
        kind: Any = rng.choice([add, Complete, Fail, Delete, Expire, *[StartAttempt] * 4, *[TimeoutAttempt] * 3])
        if kind is add:
            command: Command = add(letter, max_attempts=rng.randrange(4), max_fails=rng.randrange(4))
        else:
            command = kind(job_id(letter))
        job = replay.jobs.get(command.id)
        if (job is not None) == (kind is add):
            continue
        if kind is TimeoutAttempt and lease_ends_ns(job) is None:
            continue
        if kind is StartAttempt and (is_spent(job) or job.state not in (0, 3)):
            continue
        if kind in (Complete, Fail) and is_processed(job):
            continue
        replay.apply(command, 0)
        commands.append((len(commands), command))
    assert replay.conflict_count == 0
    return commands, replay


def test_the_state_machine_agrees(spark, tmp_path):
    outcomes = {0: "waiting", 1: "completed", 2: "failed", 3: "waiting", 4: "leased"}
    oracles = {}
    for seed in range(3):
        commands, oracles[f"log{seed}"] = possible_commands(random.Random(seed), 400)
        write_commands(tmp_path / f"log{seed}", commands, segment_bytes=4000)
    table = jobs(read_log(spark, str(tmp_path), JOB_COLUMNS, codec="commands", recursive=True))
    expected = {
        name: {format_id(job.id): (outcomes[job.state], job.attempts, job.fails) for job in oracle.jobs.values()}
        for name, oracle in oracles.items()
    }
    found = {name: {} for name in oracles}
    for row in table.where("removed is null").collect():
        assert row.id not in found[row.log], "one life at a time"
        found[row.log][row.id] = (row.outcome, row.attempts, row.fails)
    assert found == expected


def test_a_fail_that_is_not_the_last_one_is_told_from_a_timeout(spark, tmp_path):
    steps = [lease("1"), late("1"), late("1"), lease("1"), late("1"), late("1"), lease("1"), late("1")]
    write_commands(
        tmp_path / "log", [(0, add("1", max_fails=4)), *((1 + i, step) for i, step in enumerate(steps))]
    )
    (row,) = jobs(read_log(spark, str(tmp_path / "log"), JOB_COLUMNS, codec="commands")).collect()
    assert (row.attempts, row.fails, row.timeouts, row.outcome) == (3, 2, 1, "waiting")


def test_every_command_has_the_name_of_its_queue(spark, tmp_path):
    script = [
        (0, add("1", "mail")),
        (1, lease("1")),
        (2, add("2", "print")),
        (3, Complete(job_id("1"), b"")),
        (4, Delete(job_id("1"))),
        (5, b"?"),
        (6, lease("1")),  # of a run, whose queue the log doesn't have
        (7, Expire(job_id("1"))),
        (8, add("1", "print")),
        (9, lease("1")),
        (9, late("2")),
    ]
    write_commands(tmp_path / "log", script)
    table = named(read_log(spark, str(tmp_path / "log"), JOB_COLUMNS, codec="commands"))
    assert table.columns == list(JOB_COLUMNS)
    names = [row.name for row in table.orderBy("segment", "offset").select("name").collect()]
    expected = ["mail", "mail", "print", "mail", "mail", None, None, None, "print", "print", "print"]
    assert names == expected
