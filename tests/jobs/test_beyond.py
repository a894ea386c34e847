"""Commands beyond workq: the bytes that are sent, and how replies are read, by docs/jobs-protocol.md."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import pytest

from forelog.errors import BadReply, JobRefused
from forelog.jobs import Added, LeaseInfo, Progress, Step, exponential, fixed, linear
from forelog.jobs.client import administration, lifecycle, requests
from forelog.jobs.client.flags import BeyondOptions
from forelog.jobs.client.replies import ReplyReader
from forelog.jobs.client.requests import Request

TABLE = (Path(__file__).parents[2] / "docs" / "jobs-protocol.md").read_text()
ID = "61000000-0001-4000-8000-000000000001"
OTHER = "61000000-0001-4000-8000-000000000002"


def read(request: Request, data: bytes, repeated: bool = False):
    """The value of a reply, which arrives byte by byte."""
    reader = ReplyReader()
    reader.expect(request.kind)
    for number in range(len(data)):
        assert reader.take() is None
        reader.feed(data[number : number + 1])
    assert reader.idle()
    return request.value(reader.take(), repeated)


# -- what is sent


@pytest.mark.parametrize(
    ("request_", "sent"),
    [
        (
            requests.add(
                "q", b"x", id=ID, max_fails=2, retries=3, backoff=exponential("1s", max="1m", jitter=0), delay_ms=9
            ),
            f"add {ID} q 60000 86400000 1 -max-fails=2 -retries=3 -backoff=exponential:1000:60000:0 -delay=9\r\nx",
        ),
        (
            requests.add(
                "q", id=ID, key="k", unique="waiting", unique_for_ms=7, on_duplicate="replace", group="g"
            ),
            f"add {ID} q 60000 86400000 0 -key=k -unique=waiting -unique-for=7 -on-duplicate=replace -group=g\r\n",
        ),
        (
            requests.schedule("q", b"", 0, id=ID, after=[ID, UUID(OTHER)], on_failure="run"),
            f"schedule {ID} q 60000 86400000 1970-01-01T00:00:00Z 0 -after={ID},{OTHER} -on-failure=run\r\n",
        ),
        (requests.complete(ID, b"r", attempt=2), f"complete {ID} 1 -attempt=2\r\nr"),
        (requests.fail(ID, b"r", attempt=2, retry_after_ms=0), f"fail {ID} 1 -attempt=2 -retry-after=0\r\nr"),
        (requests.fail(ID, final=True), f"fail {ID} 0 -final=1\r\n"),
        (lifecycle.extend(ID, 500, attempt=1), f"extend {ID} 500 -attempt=1"),
        (lifecycle.progress(ID, 50, b"half"), f"progress {ID} 50 4\r\nhalf"),
        (lifecycle.follow(ID, 3, 1000), f"follow {ID} 3 1000"),
        (lifecycle.cancel(ID), f"cancel {ID}"),
        (lifecycle.step(ID, "paid", b"7", attempt=1), f"step {ID} paid 1 -attempt=1\r\n7"),
        (lifecycle.steps(ID), f"steps {ID}"),
        (administration.dead_jobs(), "dead list * 0 100"),
        (administration.dead_job(ID), f"dead show {ID}"),
        (administration.retry_all_dead("q"), "dead retry-all q"),
        (administration.pause("q"), "pause q"),
        (administration.limit("q", group_rate="1/1000", weight=3), "limit q -group-rate=1/1000 -weight=3"),
        (administration.limit("q", rate=0, backoff=fixed("2s")), "limit q -rate=0 -backoff=fixed:2000:2000:0"),  # type: ignore[arg-type]
        (administration.queue_details("q"), "inspect queue q -all=1"),
        (
            administration.repeat(
                "s", "q", b"p", every_ms=5000, missed="once", retries=1, backoff=linear(1), group="g"
            ),
            "repeat s q 60000 86400000 1 -every=5000 -missed=once -retries=1 -backoff=linear:1000:3600000:10"
            " -group=g\r\np",
        ),
        (administration.repeat("s", "q", cron="@daily"), "repeat s q 60000 86400000 0 -cron=@daily\r\n"),
        (administration.unrepeat("s"), "unrepeat s"),
        (administration.inspect_schedules(5, 10), "inspect schedules 5 10"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_is_sent_as_the_table_has_it(request_, sent):
    assert request_.data == f"{sent}\r\n".encode()


def test_a_lease_has_flags_only_for_what_is_asked():
    assert requests.leases(["a", "b"], 5).data == b"lease a b 5\r\n"
    assert requests.leases(["a"], 0, count=8, lease_ms=5000, info=True).data == (
        b"lease a 0 -count=8 -lease=5000 -info=1\r\n"
    )


def test_every_option_of_a_job_is_a_flag_of_the_table():
    rows = set(re.findall(r"^\| `-([a-z-]+)=", TABLE, re.MULTILINE))
    options = {name.removesuffix("_ms").replace("_", "-") for name in BeyondOptions.__annotations__}
    assert options <= rows


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: requests.add("q", key="two words"), "key is 'two words'"),
        (lambda: requests.add("q", key="a,b"), "without spaces or commas"),
        (lambda: requests.add("q", retries=-1), "whole number"),
        (lambda: requests.add("q", backoff="soon"), "isn't a backoff"),
        (lambda: requests.add("q", on_duplicate="ignore"), "expected one of refuse, existing, replace"),  # type: ignore[arg-type]
        (lambda: requests.schedule("q", b"", 0, delay_ms=5), "takes no delay"),
        (lambda: requests.fail(ID, final=True, retry_after_ms=5), "retry_after_ms or final"),
        (lambda: requests.add_unique("q"), "a unique job has a key"),
        (lambda: administration.limit("q"), "at least one limit"),
        (lambda: administration.limit("q", rate="fast"), "expected N/MS"),
        (lambda: administration.repeat("s", "q"), "either a cron expression or an interval"),
        (lambda: administration.repeat("s", "q", cron="1 2 3"), "isn't a cron expression"),
        (lambda: administration.repeat("s", "q", cron="@daily", zone="here\r\n"), "isn't a zone"),
        (lambda: lifecycle.step(ID, "no\r\nname"), "name is"),
    ],
)
def test_what_no_server_would_take_is_refused_before_it_is_sent(make, why):
    with pytest.raises(JobRefused, match=why):
        make()


def test_an_option_that_does_not_exist_is_a_type_error():
    with pytest.raises(TypeError, match="retrys"):
        requests.add("q", retrys=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no limit 'speed'"):
        administration.limit("q", speed=5)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="a share from 0 to 1"):
        exponential(jitter=10)
    with pytest.raises(ValueError, match="expected a duration"):
        exponential(base=-1)


# -- what comes back


def test_a_job_with_a_key_says_what_became_of_it():
    request = requests.add_unique("q", id=ID, key="k", on_duplicate="existing")
    assert read(request, b"+OK 1\r\n%b existing\r\n" % OTHER.encode()) == Added(UUID(OTHER), "existing")
    assert read(requests.add("q", id=ID, key="k"), b"+OK 1\r\n%b new\r\n" % ID.encode()) == UUID(ID)


@pytest.mark.parametrize("refusal", ["Duplicate job", f"Duplicate key {ID}"])
def test_a_job_with_a_key_that_was_sent_twice_is_there(refusal):
    request = requests.add("q", id=ID, key="k")
    assert read(request, f"-CLIENT-ERROR {refusal}\r\n".encode(), repeated=True) == UUID(ID)
    assert read(requests.add_unique("q", id=ID, key="k"), f"-CLIENT-ERROR {refusal}\r\n".encode(), True) == Added(
        UUID(ID), "new"
    )
    with pytest.raises(JobRefused, match="Duplicate"):
        read(request, f"-CLIENT-ERROR {refusal}\r\n".encode())
    with pytest.raises(JobRefused, match="Duplicate key"):
        read(request, f"-CLIENT-ERROR Duplicate key {OTHER}\r\n".encode(), repeated=True)


def test_several_jobs_come_with_one_lease():
    request = requests.leases(["q"], count=3)
    jobs = read(request, f"+OK 2\r\n{ID} q 60000 2\r\nhi\r\n{OTHER} q 500 0\r\n\r\n".encode())
    assert [(str(job.id), job.ttr_ms, job.payload, job.info) for job in jobs] == [
        (ID, 60_000, b"hi", None),
        (OTHER, 500, b"", None),
    ]
    assert read(request, b"-TIMEOUT\r\n") == []


def test_a_lease_with_info_has_the_attempt_and_the_last_error():
    keys = (
        "attempt 2\r\nmax-attempts 5\r\nfails 1\r\nmax-fails 4\r\ncreated 2026-01-01T00:00:00Z\r\nkey k\r\n"
        "group g\r\n"
        f"after {ID},{OTHER}\r\nsteps 3\r\nerror-size 6\r\nerror b\r\nd!!\r\n"
    )
    data = f"+OK 1\r\n{ID} q 60000 2 11\r\nhi\r\n{keys}".encode()
    (job,) = read(requests.leases(["q"], info=True), data)
    assert job.info == LeaseInfo(
        attempt=2,
        max_attempts=5,
        fails=1,
        max_fails=4,
        created_ns=1767225600 * 10**9,
        key="k",
        group="g",
        after=(UUID(ID), UUID(OTHER)),
        steps=3,
        error=b"b\r\nd!!",
    )


def test_reports_steps_and_counts_are_read():
    assert read(lifecycle.follow(ID), b"+OK 2\r\n1 50 4\r\nhalf\r\n2 100 0\r\n\r\n") == [
        Progress(1, 50, b"half"),
        Progress(2, 100, b""),
    ]
    assert read(lifecycle.follow(ID), b"+OK 0\r\n") == []
    assert read(lifecycle.steps(ID), b"+OK 1\r\npaid 1\r\n7\r\n") == [Step("paid", b"7")]
    assert read(administration.drop_all_dead(), b"+OK 1000\r\n") == 1000


def test_a_dead_job_is_read_with_its_error():
    keys = (
        "name q\r\nttr 1\r\nttl 1\r\nattempts 3\r\nfails 3\r\ncreated 2026-01-01T00:00:00Z\r\n"
        "died 2026-01-01T00:01:00Z\r\nreason failed\r\nerror-size 2\r\nerror no\r\n"
    )
    (job,) = read(administration.dead_jobs("q"), f"+OK 1\r\n{ID} 10\r\n{keys}".encode())
    assert (str(job.id), job.name, job.reason, job.attempts, job.fails) == (ID, "q", "failed", 3, 3)
    assert (job.died_ns - job.created_ns, job.error, job.payload) == (60 * 10**9, b"no", None)


def test_details_of_a_queue_and_a_schedule_are_read():
    keys = "ready-len 1\r\nscheduled-len 2\r\nrunning 3\r\npaused 1\r\nconcurrency 5\r\n"
    keys += "oldest 1970-01-01T00:00:01Z\r\n"
    found = read(administration.queue_details("q"), f"+OK 1\r\nq 6\r\n{keys}".encode())
    assert (found.name, found.ready, found.scheduled, found.running, found.paused) == ("q", 1, 2, 3, True)
    assert (found.oldest_ns, found.values) == (10**9, {"concurrency": "5"})
    keys = (
        "name q\r\nttr 1\r\nttl 1\r\npayload-size 1\r\npayload p\r\ncron 30 3 * * *\r\nzone Europe/Berlin\r\n"
        f"missed once\r\nnext 1970-01-01T00:00:02Z\r\nruns 1\r\nskipped 0\r\nlast 1970-01-01T00:00:01Z\r\n"
        f"last-id {ID}\r\n"
    )
    (found,) = read(administration.inspect_schedules(), f"+OK 1\r\ns 13\r\n{keys}".encode())
    assert (found.name, found.queue, found.cron, found.every_ms) == ("s", "q", "30 3 * * *", None)
    assert (found.zone, found.missed, found.next_ns, found.last_ns) == ("Europe/Berlin", "once", 2 * 10**9, 10**9)
    assert (str(found.last_id), found.payload) == (ID, b"p")


@pytest.mark.parametrize(
    ("request_", "data"),
    [
        (requests.leases(["q"], info=True), f"+OK 1\r\n{ID} q 1 0 1\r\n\r\nattempt 1\r\n"),
        (requests.leases(["q"], info=True), f"+OK 1\r\n{ID} q 1 0\r\n\r\n"),
        (requests.add("q", key="k"), "+OK 2\r\n"),
        (administration.drop_all_dead(), "+OK 1001\r\n"),
        (lifecycle.steps(ID), "+OK 1\r\npaid 2000000\r\n"),
        (lifecycle.cancel(ID), "+OK 1\r\n"),
    ],
)
def test_a_reply_that_is_not_one_of_a_job_server_is_refused(request_, data):
    with pytest.raises(BadReply):
        read(request_, data.encode())
