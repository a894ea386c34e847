"""Chains, groups and schedules, as the commands that they become."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from forelog.errors import JobRefused
from forelog.jobs import App, chain, group
from forelog.jobs.app import workflows
from forelog.jobs.app.workflows import Node, Plan, _Before

app = App()


@app.task(name="fetch", queue="web", retries=2)
def fetch(url: str) -> str:
    return url


@app.task(name="join")
def join(parts: list[str], between: str = "") -> str:
    return between.join(parts)


def planned(node: Node) -> list[dict[str, Any]]:
    """The jobs of a workflow: numbers in place of their ids."""
    plan = Plan(app)
    node.plan(plan, _Before())
    numbers: dict[str, int] = {}
    found = []
    for request in plan.requests:
        line, payload, _ = request.data.decode().split("\r\n")
        words = line.split(" ")
        numbers[words[1]] = len(numbers)
        after = re.search(r" -after=(\S+)", line)
        call = json.loads(payload)
        call["results"] = [numbers[one] for one in call.get("results", [])]
        call["after"] = [numbers[one] for one in after[1].split(",")] if after else []
        found.append({"queue": words[2], **{name: value for name, value in call.items() if value}})
    return found


def test_each_part_of_a_chain_waits_for_the_one_before_and_gets_its_result():
    assert planned(chain(fetch.s("a"), fetch.si("b").set(queue="other"), join.s("-"))) == [
        {"queue": "web", "task": "fetch", "args": ["a"]},
        {"queue": "other", "task": "fetch", "args": ["b"], "after": [0]},
        {"queue": "default", "task": "join", "args": ["-"], "results": [1], "after": [1]},
    ]


def test_what_comes_after_a_group_gets_all_of_its_results_as_a_list():
    parts = group(fetch.s("a"), chain(fetch.s("b"), fetch.s()))
    assert planned(chain(fetch.s("first"), parts, join.s())) == [
        {"queue": "web", "task": "fetch", "args": ["first"]},
        {"queue": "web", "task": "fetch", "args": ["a"], "results": [0], "after": [0]},
        {"queue": "web", "task": "fetch", "args": ["b"], "results": [0], "after": [0]},
        {"queue": "web", "task": "fetch", "results": [2], "after": [2]},
        {"queue": "default", "task": "join", "results": [1, 3], "gather": True, "after": [1, 3]},
    ]


def test_more_jobs_than_one_can_wait_for_are_joined_first(monkeypatch):
    monkeypatch.setattr(workflows, "AFTER_MAX", 2)
    found = planned(chain(group(fetch.s(str(number)) for number in range(5)), join.s()))
    assert [one.get("after", []) for one in found[5:]] == [[0, 1], [2, 3], [4], [5, 6], [7], [8, 9]]
    assert [one["task"] for one in found[5:]] == ["forelog.join"] * 5 + ["join"]
    assert found[-1]["results"] == [0, 1, 2, 3, 4]


def test_a_workflow_without_parts_or_with_unknown_options_is_refused():
    with pytest.raises(ValueError, match="at least one part"):
        chain()
    with pytest.raises(ValueError, match="at least one part"):
        group([])
    with pytest.raises(TypeError, match="no option 'wait'"):
        fetch.s("a").set(wait=5)  # type: ignore[call-arg]  # deliberately


# -- schedules


def test_a_schedule_is_a_command_that_says_all_of_it():
    own = App(ttl="1h", retries=9)
    own.queue("night", ttr="5m")

    @own.cron("30 3 * * 1-5", zone="Europe/Berlin", missed="once")
    @own.task(name="report", queue="night", retries=2)
    def report() -> None: ...

    @own.every("5m", name="often", args=[7])
    def clean(number: int) -> None: ...

    requests = [schedule.request() for schedule in own.schedules.values()]
    assert [request.data.decode() for request in requests] == [
        "repeat report night 300000 3600000 17 -cron=30_3_*_*_1-5 -zone=Europe/Berlin -missed=once -retries=2\r\n"
        '{"task":"report"}\r\n',
        f"repeat often default 60000 3600000 {len(clean.name) + 22} -every=300000 -retries=9\r\n"
        f'{{"task":"{clean.name}","args":[7]}}\r\n',
    ]
    assert clean(7) is None


@pytest.mark.parametrize(
    ("make", "kind", "why"),
    [
        (lambda: app.cron("not cron")(fetch), TypeError, "missing a required argument"),
        (lambda: app.cron("not cron", args=["a"])(fetch), JobRefused, "isn't a cron expression"),
        (lambda: app.every("soon", args=["a"])(fetch), ValueError, "isn't a duration"),
    ],
)
def test_a_schedule_that_could_not_run_is_refused_where_it_is_declared(make, kind, why):
    with pytest.raises(kind, match=why):
        make()
    assert app.schedules == {}
