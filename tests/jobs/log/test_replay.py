"""From commands to jobs, beside what the original program answers after a restart."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog import Stream, kernel
from forelog.errors import BadCommand
from forelog.formats.commands.commands import (
    MAGIC,
    VERSION,
    Add,
    Complete,
    Delete,
    Expire,
    Fail,
    Schedule,
    StartAttempt,
    TimeoutAttempt,
    decode,
    encode,
    format_id,
    parse_id,
)
from forelog.jobs.log.replay import CONFLICTS_MAX, LoggedJob, Replay
from forelog.jobs.machine.states import JobState
from forelog.times import format_time, parse_time
from tests.jobs.log import vectors
from tests.jobs.log.logged import expires_ns, is_processed, is_ready, lease_ends_ns, refuse_job, replay
from tests.jobs.strategies import COMMANDS, outcome

CASES = vectors.load("replay_cases.json")
NOW_2090 = parse_time("2026-11-15T18:40:00Z")
ID, OTHER = (parse_id(f"61000000-0001-4000-8000-00000000000{i}") for i in (1, 2))
MINUTE_NS = 60 * 10**9


def fold(path, now_ns: int, **options) -> tuple[Replay, list[str], bool]:
    """The log's jobs, why records of it are no commands, and whether a torn tail was cut."""
    stream = Stream.open(path)
    state, bad = Replay(now_ns, **options), []
    with stream.appender() as log:
        torn = log.recovery.torn is not None
    with stream.cursor() as cursor:
        for record in cursor:
            command = outcome(record.payload)
            if isinstance(command, BadCommand):
                bad.append(command.reason)
            else:
                state.apply(command, record.time_ns)
    return state, bad, torn


def inspected(job: LoggedJob) -> str:
    """The job as `inspect job` shows it. The original stores fails and never counts them."""
    lines = [
        f"{format_id(job.id)} {12 if job.scheduled_ns is None else 13}",
        f"name {job.name}",
        f"ttr {job.ttr_ms}",
        f"ttl {job.ttl_ms}",
        f"payload-size {len(job.payload)}",
        f"payload {job.payload.decode('latin-1')}",
        f"max-attempts {job.max_attempts}",
        f"attempts {job.attempts}",
        f"max-fails {job.max_fails}",
        "fails 0",
        f"priority {job.priority}",
        f"state {job.state}",
        f"created {second(job.created_ns)}",
    ]
    if job.scheduled_ns is not None:
        lines.append(f"time {second(job.scheduled_ns)}")
    return "".join(f"{line}\r\n" for line in lines)


def second(time_ns: int) -> str:
    return format_time(time_ns // 10**9 * 10**9)


def answer(jobs: dict[bytes, LoggedJob], send: str, now_ns: int) -> str:
    """What a server with these jobs answers."""
    command, *words = send.split()
    if command == "result":
        job = jobs.get(parse_id(words[0]))
        if job is None:
            return "-NOT-FOUND\r\n"
        if job.result is None:
            return "-TIMEOUT\r\n"
        success = int(job.state == JobState.COMPLETED)
        return f"+OK 1\r\n{words[0]} {success} {len(job.result)}\r\n{job.result.decode('latin-1')}\r\n"
    if words[0] == "job":
        job = jobs.get(parse_id(words[1]))
        return "-NOT-FOUND\r\n" if job is None else f"+OK 1\r\n{inspected(job)}"
    ready = [job for job in jobs.values() if is_ready(job, now_ns)]
    waiting = [job for job in jobs.values() if job.state == JobState.NEW and job not in ready]
    if words[0] in ("jobs", "scheduled-jobs"):
        chosen = [job for job in (ready if words[0] == "jobs" else waiting) if job.name == words[1]]
        chosen.sort(key=lambda job: (-job.priority, job.created_ns))
        return f"+OK {len(chosen)}\r\n" + "".join(map(inspected, chosen))
    names = sorted({job.name for job in jobs.values()})
    chosen_names = names if words[0] == "queues" else [name for name in names if name == words[1]]
    if not chosen_names:
        return "-NOT-FOUND\r\n"
    counts = [
        (name, *(sum(job.name == name for job in some) for some in (ready, waiting))) for name in chosen_names
    ]
    text = "".join(f"{name} 2\r\nready-len {r}\r\nscheduled-len {s}\r\n" for name, r, s in counts)
    return f"+OK {len(counts)}\r\n{text}"


@pytest.mark.parametrize(
    ("log", "answers"), [("cmdlog", "after_restart.json"), ("cmdlog-2090", "after_restart-2090.json")]
)
def test_a_restart_knows_what_the_original_knows(log, answers, tmp_path):
    shutil.copytree(vectors.FOLDER / log, tmp_path / "log")
    told = vectors.load(answers)
    now_ns = parse_time(told.get("restarted_at", "2026-11-15T18:40:00Z"))
    state, bad, _ = fold(tmp_path / "log", now_ns, fails_are_final=True)
    assert (bad, state.conflicts) == ([], [])
    probes = [probe for probe in told["after_restart"] if not probe["send"].startswith("inspect server")]
    for probe in probes:
        assert answer(state.jobs, probe["send"], now_ns) == probe["recv"], probe["send"]
    assert len(probes) > 20


def test_by_the_document_a_fail_before_the_last_one_requeues(tmp_path):
    shutil.copytree(vectors.FOLDER / "cmdlog", tmp_path / "log")
    state, _, _ = fold(tmp_path / "log", parse_time("2026-11-15T18:31:17Z"))
    job = state.jobs[parse_id("00000006-0000-4000-8000-000000000006")]
    assert (job.state, job.fails, job.max_fails, job.result) == (JobState.PENDING, 1, 3, None)


# Why the original refuses to start, and what we make of the record instead of refusing: a reason for which it
# is no command, a contradiction, or None for what is read all the same.
REFUSALS = {
    "unknown type 9 + id": "type",
    "unknown type 9 alone": "type",
    "type 0 alone": "type",
    "empty record payload": "empty",
    "delete + 1 trailing byte": "trailing",
    "complete, result length 5 but 2 bytes": "truncated",
    "add cut by 1 byte": "truncated",
    "id cut to 15 bytes": "truncated",
    "complete, no result length": None,
    "last segment cut by 1 byte": None,
    "last segment cut to 0 bytes": None,
    "last segment cut to 5 bytes": None,
}


def test_there_are_31_cases():
    assert len(CASES) == 31


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_every_case_is_accepted_or_told_where_the_original_refuses_to_start(case, tmp_path):
    vectors.edited(case, tmp_path / "log")
    state, bad, torn = fold(tmp_path / "log", NOW_2090, fails_are_final=True)
    assert torn == ("unexpected EOF" in (case["server_message"] or "") and case["edit"] != "append")
    found = bad + [conflict.reason for conflict in state.conflicts]
    if case["server_starts"]:
        assert found == []
    elif case["case"] in REFUSALS:
        told = REFUSALS[case["case"]]
        assert found == ([] if told is None else [told])
    else:
        assert found == [case["server_message"].removeprefix("Replay error, ")]
    if found:
        untouched = tmp_path / "control"
        shutil.copytree(vectors.FOLDER / case["base"], untouched)
        assert state.jobs == fold(untouched, NOW_2090, fails_are_final=True)[0].jobs


@pytest.mark.parametrize(
    ("name", "number", "state"),
    [
        ("control", 0x1, JobState.LEASED),
        ("complete ok", 0x2, JobState.COMPLETED),
        ("complete, no result length", 0x2, JobState.COMPLETED),
        ("timeout-attempt on new job 2", 0x2, JobState.PENDING),
        ("add of new job 50", 50, JobState.NEW),
        ("add with zone offset 0 in both times", 52, JobState.NEW),
        ("schedule of new job 53", 53, JobState.NEW),
        ("last segment cut to header", 0xB, None),
        ("last segment cut by 1 byte", 0xB, None),
    ],
)
def test_what_an_edit_changes(name, number, state, tmp_path):
    case = next(case for case in CASES if case["case"] == name)
    vectors.edited(case, tmp_path / "log")
    jobs = fold(tmp_path / "log", NOW_2090)[0].jobs
    found = [job.state for job in jobs.values() if int(format_id(job.id)[9:13], 16) == number]
    assert found == ([] if state is None else [state])


def add(job_id: bytes = ID, **fields) -> Add:
    return Add(job_id, "q", **{"ttr_ms": 1000, "ttl_ms": 60_000, "created_ns": 0, **fields})


def states(*commands, now_ns: int = 0) -> list[tuple[JobState, int, int, bytes | None]]:
    jobs = replay([(command, 5) for command in commands], now_ns)
    return [(job.state, job.attempts, job.fails, job.result) for job in jobs.values()]


def test_a_job_lives_to_the_last_nanosecond_of_its_ttl():
    assert states(add(), now_ns=MINUTE_NS) == [(JobState.NEW, 0, 0, None)]
    assert states(add(), now_ns=MINUTE_NS + 1) == []
    scheduled = Schedule(ID, "q", 1000, 60_000, time_ns=MINUTE_NS, created_ns=0)
    assert states(scheduled, now_ns=2 * MINUTE_NS) == [(JobState.NEW, 0, 0, None)]
    assert states(scheduled, now_ns=2 * MINUTE_NS + 1) == []
    job = replay([(scheduled, 5)], 0)[ID]
    assert (is_ready(job, MINUTE_NS - 1), is_ready(job, MINUTE_NS)) == (False, True)


def test_commands_about_jobs_that_are_not_there_are_counted_and_nothing_else():
    state = Replay(0)
    for kind in (Complete, Fail, Delete, Expire, StartAttempt, TimeoutAttempt):
        state.apply(kind(ID), 5)
    assert (state.jobs, state.conflicts, state.machine.unknown) == ({}, [], 6)


def test_attempts_that_time_out_requeue_until_there_are_no_more():
    once = [StartAttempt(ID), TimeoutAttempt(ID)]
    assert states(add(max_attempts=2), *once) == [(JobState.PENDING, 1, 0, None)]
    assert states(add(max_attempts=2), *once, *once) == [(JobState.FAILED, 2, 0, b"")]
    assert states(add(), *once * 300) == [(JobState.FAILED, 255, 0, b"")]


def test_fails_requeue_until_the_last_and_while_there_are_attempts():
    fails = [StartAttempt(ID), Fail(ID, b"why")]
    assert states(add(), *fails) == [(JobState.FAILED, 1, 1, b"why")]
    assert states(add(max_fails=2), *fails) == [(JobState.PENDING, 1, 1, None)]
    assert states(add(max_fails=2), *fails, *fails) == [(JobState.FAILED, 2, 2, b"why")]
    assert states(add(max_fails=9, max_attempts=1), *fails) == [(JobState.FAILED, 1, 1, b"why")]
    assert states(add(max_fails=2), *fails, StartAttempt(ID), Complete(ID, b"ok")) == [
        (JobState.COMPLETED, 2, 1, b"ok")
    ]


def test_a_lease_ends_by_the_time_of_its_record():
    jobs = replay([(add(), 5), (StartAttempt(ID), 7), (add(OTHER), 8)], 0)
    assert lease_ends_ns(jobs[ID]) == 7 + 10**9
    assert lease_ends_ns(jobs[OTHER]) is None


def test_an_id_may_be_used_again_after_its_job_is_gone():
    for end in (Delete(ID), Expire(ID)):
        assert states(add(), Complete(ID), end, add()) == [(JobState.NEW, 0, 0, None)]


def test_contradictions_are_told_and_their_number_is_bounded(caplog):
    state = Replay(0)
    state.apply(add(), 5)
    state.apply(Complete(ID), 6)
    for _ in range(CONFLICTS_MAX + 10):
        state.apply(Fail(ID), 7)
    assert (len(state.conflicts), state.conflict_count) == (CONFLICTS_MAX, CONFLICTS_MAX + 10)
    assert str(state.conflicts[0]).endswith(f"fail {format_id(ID)}: Duplicate result")
    assert state.jobs[ID].state == JobState.COMPLETED
    assert state.report_conflicts() == CONFLICTS_MAX + 10
    assert caplog.text.count("Duplicate result") == CONFLICTS_MAX


def test_contradictions_about_a_job_that_is_gone_are_not_told(caplog):
    """Cleaning takes a dead job's commands segment by segment, and what is left of them makes no sense."""
    state = Replay(0)
    state.apply(add(), 5)
    for command in (StartAttempt(ID), StartAttempt(ID), Delete(ID)):
        state.apply(command, 6)
    assert [conflict.reason for conflict in state.conflicts] == ["Job already leased"]
    assert (state.report_conflicts(), caplog.text) == (0, "")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, None),
        ({"job_id": bytes(16)}, "Invalid ID"),
        ({"job_id": bytes.fromhex("61000000000110008000000000000001")}, "Invalid ID"),
        ({"job_id": bytes.fromhex("6100000000014000c000000000000001")}, "Invalid ID"),
        ({"ttr_ms": 0}, "Invalid TTR"),
        ({"ttr_ms": 86_400_001}, "Invalid TTR"),
        ({"ttl_ms": 0}, "Invalid TTL"),
        ({"ttl_ms": 2_592_000_001}, "Invalid TTL"),
        ({"payload": bytes(2**20)}, None),
        ({"payload": bytes(2**20 + 1)}, "Invalid Payload"),
    ],
)
def test_the_limits_are_those_of_the_original(fields, why):
    assert refuse_job(add(**fields)) == why


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ä", "x" * 256])
def test_a_name_is_of_few_characters(name):
    assert refuse_job(Add(ID, name, 1, 1, 0)) == "Invalid Name"
    assert refuse_job(Add(ID, "x" * 255, 1, 1, 0)) is None


def test_a_result_over_its_limit_is_passed_over():
    state = Replay(0)
    state.apply(add(), 5)
    state.apply(Complete(ID, bytes(2**20 + 1)), 6)
    assert (state.conflicts[0].reason, state.jobs[ID].state) == ("Invalid Result", JobState.NEW)


@given(st.lists(COMMANDS), st.integers(0, 2**62))
def test_any_commands_at_all_are_replayed(commands, now_ns):
    state = Replay(now_ns)
    for command in commands:
        state.apply(command, 0)
    assert all(expires_ns(job) >= now_ns for job in state.jobs.values())


CHANGES = st.sampled_from([Complete, Fail, Delete, Expire, StartAttempt, TimeoutAttempt, add])


@given(
    st.lists(st.tuples(CHANGES, st.sampled_from([ID, OTHER])), max_size=30), st.integers(0, 3), st.integers(0, 3)
)
def test_a_job_is_always_in_a_state_that_makes_sense(steps, max_attempts, max_fails):
    state = Replay(0)
    for step, job_id in steps:
        limits = {"max_attempts": max_attempts, "max_fails": max_fails} if step is add else {}
        state.apply(step(job_id, **limits), 1)
    for job in state.jobs.values():
        assert (job.result is not None) == is_processed(job)
        assert not max_attempts or job.attempts <= max_attempts
        assert job.fails <= max(max_fails, 1)
        assert (lease_ends_ns(job) is not None) == (job.state == JobState.LEASED)


def test_decoding_and_replaying_fit_together():
    records = vectors.records("cmdlog-2090")
    commands = [(decode(vectors.payload(record)), parse_time(record["time"])) for record in records]
    jobs = replay(commands, NOW_2090)
    assert len(jobs) == 9
    assert replay(commands, parse_time("2100-01-01")) == {}


def test_commands_that_contradict_each_other_do_not_make_a_block_be_cut_up_again(tmp_path, monkeypatch):
    """The work for a block grows with its rows, however many of them can't be replayed."""
    stream = Stream(tmp_path / "log", magic=MAGIC, version=VERSION)
    add = encode(Add(ID, "q", 1000, 60_000, 5))
    with stream.appender() as log:
        log.append_many([add] * 500)
    cut_up = []
    pieces = kernel.pieces

    def counted(buffer, starts, ends):
        cut_up.append(len(starts))
        return pieces(buffer, starts, ends)

    monkeypatch.setattr(kernel, "pieces", counted)
    state = Replay(10)
    for block in stream.blocks():
        state.apply_block(block)
    assert state.conflict_count == 499
    assert sum(cut_up) <= 2 * 500
