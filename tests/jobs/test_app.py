"""Tasks against a real server inside the process: arguments, results, exceptions, middleware, dependencies."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest

from forelog.errors import JobFailed, JobTimeout, MissingExtra
from forelog.jobs import App, Attempt, Depends, Discard, Job, Middleware, Retry
from forelog.jobs.app import arguments, envelope
from forelog.jobs.app.envelope import Call, decode_call, encode_call


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclass
class Line:
    item: str
    count: int


class Money(pydantic.BaseModel):
    cents: int


app = App()


@app.task
def add(left: int, right: int = 1) -> int:
    return left + right


@app.task
def echo(*values: Any, **named: Any) -> Any:
    return [list(values), named]


@app.task
def typed(
    number: UUID, day: date, at: Point, lines: list[Line], money: Money, *rest: date, **named: Point
) -> Point:
    assert isinstance(number, UUID)
    assert (day, at, lines, money) == (date(2026, 1, 2), Point(1), [Line("chips", 3)], Money(cents=5))
    assert all(isinstance(one, date) for one in rest)
    return named["other"]


@app.task
def fail(text: str) -> None:
    raise ValueError(text)


@app.task
def discard() -> None:
    raise Discard("no such customer")


@app.task
async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@app.task(queue="elsewhere")
def where(attempt: Attempt, more: str = "") -> str:
    return attempt.name + more


@pytest.fixture(scope="module", autouse=True)
def works() -> Iterator[None]:
    with app.testing(concurrency=2):
        yield


def test_a_task_is_done_by_a_worker_and_can_be_called_as_it_is():
    job = add.delay(2, right=3)
    assert isinstance(job, Job)
    assert job.get(timeout=10) == 5
    assert job.is_done()
    assert add(2) == 3
    assert add.job(job.id).get("10s") == 5


def test_arguments_and_results_have_their_types_on_both_sides():
    day = date(2026, 1, 2)
    job = typed.delay(uuid4(), day, Point(1), [Line("chips", 3)], Money(cents=5), day, other=Point(7, 8))
    assert job.get(timeout=10) == Point(7, 8)


def test_values_without_types_are_those_of_json():
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert echo.delay(1, "two", [3], now, nothing=None).get(10) == [
        [1, "two", [3], "2026-01-02T00:00:00Z"],
        {"nothing": None},
    ]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'left'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        (("1",), {}, "argument 1: Expected `int`, got `str`"),
        ((1,), {"right": 1.5}, "right: Expected `int`, got `float`"),
        ((object(),), {}, "neither a type that msgspec knows nor a model"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_the_task_is_called(args, kwargs, why):
    with pytest.raises(TypeError, match=why):
        add.delay(*args, **kwargs)


def test_arguments_that_another_program_got_wrong_fail_the_job():
    job = add.job(app.client.add("default", b'{"task":"tests.jobs.test_app.add","args":["1"]}'))
    with pytest.raises(JobFailed, match="TypeError: add: argument 1: Expected `int`, got `str`"):
        job.get(10)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"not json", "the payload isn't JSON"),
        (b"[1]", "isn't a call of a task"),
        (b'{"task": "x", "args": 5}', "args or kwargs of a wrong type"),
        (b'{"task": "no.such"}', "this worker has no task 'no.such'"),
    ],
)
def test_a_payload_that_is_no_call_fails_the_job_and_says_why(payload, why):
    with pytest.raises(JobFailed, match=why):
        add.job(app.client.add("default", payload)).get(10)


def test_an_exception_travels_with_its_traceback_and_is_logged(caplog):
    job = fail.delay("not today")
    with pytest.raises(JobFailed, match=f"{job.id} failed: ValueError: not today") as raised:
        job.get(10)
    error = raised.value
    assert (error.job_id, error.type, error.reason) == (job.id, "ValueError", "not today")
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.rstrip().endswith("ValueError: not today")
    assert "runner.py" not in error.traceback
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info[1].args == ("not today",)


def test_the_result_of_a_failed_job_is_json_that_other_programs_can_read():
    job = fail.delay("why")
    with pytest.raises(JobFailed):
        job.get(10)
    found = json.loads(app.client.result(job.id).result)
    assert set(found["error"]) == {"type", "message", "traceback"}
    assert found["error"]["message"] == "why"


def test_a_failure_of_a_worker_without_an_app_is_told_as_it_is():
    other = app.client.add("plain")
    leased = app.client.lease("plain")
    app.client.fail(leased.id, b"OSError: no disk")
    with pytest.raises(JobFailed, match="failed: OSError: no disk") as raised:
        add.job(other).get(10)
    assert (raised.value.type, raised.value.reason) == ("OSError", "no disk")


def test_a_discarded_job_has_its_reason_and_no_traceback():
    with pytest.raises(JobFailed) as raised:
        discard.delay().get(10)
    assert (raised.value.type, raised.value.reason, raised.value.traceback) == ("Discard", "no such customer", "")


def test_coroutines_and_functions_are_done_by_the_same_worker():
    assert double.delay(4).get(10) == 8  # type: ignore[comparison-overlap]
    assert where.delay().get(10) == "elsewhere"  # type: ignore[call-arg]
    assert asyncio.run(double(3)) == 6


def test_all_of_it_can_be_awaited():
    async def work() -> list[int]:
        jobs = [await add.aio.delay(number) for number in range(3)]
        try:
            return [await job.aio.get(10) for job in jobs]
        finally:
            await app.close_async()

    assert asyncio.run(work()) == [1, 2, 3]


def test_options_of_a_call_come_before_those_of_its_task_and_its_queue():
    own = App(app.server, priority=1, ttl="1h")
    own.queue("slow", priority=2, ttr="5m", max_attempts=7)
    task = own.task(queue="slow", priority=3)(add.function)
    ids = [
        task.apply_async((1,)).id,
        task.apply_async((1,), priority=4, ttr=10, delay="0s").id,
        own.task(name="other")(add.function).apply_async((1,), queue="nobody").id,
    ]
    found = [own.client.inspect_job(one) for one in ids]
    assert [(job.name, job.priority, job.ttr_ms, job.ttl_ms, job.max_attempts) for job in found] == [
        ("slow", 3, 300_000, 3_600_000, 7),
        ("slow", 4, 10_000, 3_600_000, 7),
        ("nobody", 1, 60_000, 3_600_000, 0),
    ]
    own.close()


def test_a_job_can_be_due_later():
    due = datetime.now(UTC) + timedelta(hours=1)
    job = add.apply_async((1,), eta=due, queue="later")
    assert job.info().scheduled_ns == int(due.timestamp()) * 10**9
    with pytest.raises(JobTimeout):
        job.get(timeout=0.01)
    assert not job.is_done()


@pytest.mark.parametrize(
    "make",
    [
        lambda: App(retrys=5),  # type: ignore[call-arg]
        lambda: app.task(name="x", retrys=5),  # type: ignore[call-overload]
        lambda: app.queue("q", queue="q"),  # type: ignore[call-arg]
        lambda: add.apply_async((1,), until="noon"),  # type: ignore[call-arg]
    ],
)
def test_an_option_that_does_not_exist_is_a_type_error(make):
    with pytest.raises(TypeError, match="has no option"):
        make()


def test_two_tasks_of_one_name_are_refused():
    with pytest.raises(ValueError, match="there is a task"):
        app.task(add.function)


def test_what_a_task_raises_to_be_tried_again_says_after_how_long():
    assert Retry(after="5m").after_ms == 300_000
    assert Retry("busy").after_ms is None
    with pytest.raises(ValueError, match="expected a duration"):
        Retry(after="soon" if False else -1)


def test_a_call_is_the_same_after_it_was_on_the_wire():
    call = Call("a.b", [1, "x"], {"k": [None]}, {"trace": "t"}, [str(uuid4())], gather=True)
    assert decode_call(encode_call(call)) == Call(
        "a.b", (1, "x"), {"k": [None]}, {"trace": "t"}, tuple(call.results), gather=True
    )


# -- around tasks


def test_middleware_is_called_around_every_call_and_sends_headers_along():
    own = App()
    seen: list[Any] = []

    class Notes(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def enqueue(self, call: Call) -> None:
            call.headers[self.name] = 1

        def before(self, attempt: Attempt, call: Call) -> None:
            seen.append((self.name, "before", dict(call.headers)))

        def after(self, attempt: Attempt, call: Call, value: Any) -> None:
            seen.append((self.name, "after", value))

        def on_error(self, attempt: Attempt, call: Call, error: BaseException) -> None:
            seen.append((self.name, "error", str(error)))

    own.use(Notes("a"))
    own.use(Notes("b"))

    @own.task(name="halve")
    def halve(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number // 2

    with own.testing():
        assert halve.delay(4).get(10) == 2
        with pytest.raises(JobFailed):
            halve.delay(3).get(10)
    headers = {"a": 1, "b": 1}
    assert seen == [
        ("a", "before", headers), ("b", "before", headers), ("b", "after", 2), ("a", "after", 2),
        ("a", "before", headers), ("b", "before", headers), ("b", "error", "odd"), ("a", "error", "odd"),
    ]  # fmt: skip


def test_hooks_are_called_when_a_worker_starts_and_ends():
    own = App()
    seen = []
    own.on_start(lambda: seen.append("start"))
    own.on_stop(lambda: seen.append("stop"))

    @own.on_start
    async def connect() -> None:
        seen.append("connected")

    with own.started():
        seen.append("work")
    assert seen == ["start", "connected", "work", "stop"]


def test_dependencies_are_made_once_for_a_call_closed_after_it_and_replaced_in_tests():
    own = App()
    seen = []

    def settings() -> str:
        seen.append("settings")
        return "real"

    def database(name: str = Depends(settings)) -> Iterator[str]:
        seen.append("open")
        yield f"{name} database"
        seen.append("close")

    @own.task(name="read")
    def read(key: str, db: str = Depends(database), name: str = Depends(settings)) -> str:
        seen.append("read")
        return f"{key} of {db}, {name}"

    with own.testing():
        assert read.delay("x").get(10) == "x of real database, real"
        assert seen == ["settings", "open", "read", "close"]
        with own.override(settings, lambda: "false"):
            assert read("y") == "y of false database, false"
        assert read("z", db="given") == "z of given, real"
    with pytest.raises(TypeError, match="unexpected keyword"):
        read.delay("x", db="not on the wire")


def test_dependencies_of_coroutines_may_be_coroutines():
    own = App()
    closed = []

    async def pool() -> Any:
        yield "pool"
        closed.append("pool")

    async def user(db: str = Depends(pool)) -> str:
        return f"user of {db}"

    @own.task(name="greet")
    async def greet(name: str = Depends(user)) -> str:
        return f"hello, {name}"

    with own.testing():
        assert greet.delay().get(10) == "hello, user of pool"  # type: ignore[comparison-overlap]
    assert closed == ["pool"]
    assert asyncio.run(greet()) == "hello, user of pool"


def test_a_task_knows_its_attempt_and_can_be_asked_to_end_it():
    own = App()

    @own.task(name="info")
    def info(attempt: Attempt) -> list[Any]:
        return [attempt.name, attempt.remaining() > 5, attempt.cancelled, threading.current_thread().name]

    with own.testing():
        found = info.delay().get(10)  # type: ignore[call-arg]
    assert found[:3] == ["default", True, False]
    assert found[3].startswith("forelog-worker-")


def test_without_msgspec_tasks_have_the_types_of_json(monkeypatch):
    monkeypatch.setattr(envelope, "msgspec", None)
    monkeypatch.setattr(arguments, "msgspec", None)
    own = App()

    @own.task(name="plain")
    def plain(numbers: list[int], name: str) -> dict[str, int]:
        return {name: sum(numbers)}

    with own.testing():
        assert plain.delay([1, 2], "größe").get(10) == {"größe": 3}
    with pytest.raises(MissingExtra, match="msgspec is not installed"):
        own.task(typed.function)
