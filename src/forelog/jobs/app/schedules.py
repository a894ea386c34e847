"""Tasks that are called at the times of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from forelog.jobs.app.envelope import Call, encode_call
from forelog.jobs.app.home import Called
from forelog.jobs.app.options import Span, merged, of_client
from forelog.jobs.client import administration
from forelog.jobs.client.administration import Missed
from forelog.jobs.client.requests import Request
from forelog.jobs.client.words import key_of, span_ms

_OF_SCHEDULES = ("retries", "backoff", "max_attempts", "priority", "ttr_ms", "ttl_ms", "group")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A task that is called again and again."""

    name: str
    """The schedule's name at the server; by default that of the task."""
    args: Sequence[Any] = ()
    """The arguments of each call."""
    cron: str | None = None
    """A cron expression, or"""
    every: Span | None = None
    """an interval."""
    zone: str | None = None
    """The zone of the cron expression."""
    missed: Missed | None = None
    """What becomes of times at which the server was away."""
    task: Called | None = None
    """The task."""

    def of(self, task: Called) -> Schedule:
        """This schedule, for a task."""
        task.arguments.check(self.args, {})
        made = replace(self, name=key_of("name", self.name or task.name), task=task)
        made.request()  # raises if anything is wrong with it
        return made

    def request(self) -> Request[None]:
        """The command that registers it."""
        task = self.task
        assert task is not None
        chosen = of_client(merged(task.home.queues.get(task.queue, {}), task.options))
        options: dict[str, Any] = {name: chosen[name] for name in _OF_SCHEDULES if name in chosen}
        if self.every is not None:
            options["every_ms"] = span_ms("every", self.every)
        else:
            options["cron"] = self.cron
        payload = encode_call(Call(task.name, self.args))
        return administration.repeat(self.name, task.queue, payload, zone=self.zone, missed=self.missed, **options)
