"""How the job of a call is added: the options of an app's queues, of its tasks, and of one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from forelog.jobs.client.backoff import Backoff
from forelog.jobs.client.flags import OnDuplicate, OnFailure, Unique
from forelog.jobs.client.words import span_ms

Span = str | float | timedelta
"""A duration: `"5m"`, a number of seconds, or a timedelta."""


class TaskOptions(TypedDict, total=False):
    """Options of a queue, of a task, or of a call. Those of a call come first, and those of the queue last."""

    retries: int
    """How often a job is tried again after a fail."""
    backoff: Backoff
    """How long it waits before that: `exponential("1s", max="1h")`."""
    max_attempts: int
    """How often it may be leased: timeouts and lost workers count too."""
    priority: int
    """Higher comes first."""
    ttr: Span
    """Time to run: how long an attempt may take. By default a minute."""
    ttl: Span
    """Time to live: how long the server knows the job and its result. By default a day."""
    group: str
    """Whose job it is: the groups of a queue take turns."""
    unique: Unique
    """How long a job with a key is unique: `unfinished` (the default) or `waiting`."""
    unique_for: Span
    """The job is unique for at least so long, whatever becomes of the job."""
    on_duplicate: OnDuplicate
    """What a second job with the key gets: `refuse` (the default), `existing` or `replace`."""


class CallOptions(TaskOptions, total=False):
    """Options of a call."""

    queue: str
    """The queue, if it isn't that of the task."""
    eta: datetime | str
    """When it is due: an aware datetime, or RFC 3339."""
    delay: Span
    """The job is due so long from now."""
    key: str
    """The job is unique by this key, in its queue."""
    after: Iterable[UUID | str]
    """Jobs that have to be completed before."""
    on_failure: OnFailure
    """If one of those fails: `fail` (the default) or `run`."""
    headers: Mapping[str, Any]
    """What middleware sends along."""
    id: UUID | str
    """The job's id, a random UUID of version 4."""


_SPANS = {"ttr": "ttr_ms", "ttl": "ttl_ms", "delay": "delay_ms", "unique_for": "unique_for_ms"}
_NOT_SENT = ("queue", "eta", "headers")


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options of which later layers win. None is like an option that isn't given."""
    return {name: value for layer in layers for name, value in layer.items() if value is not None}


def of_client(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the client's commands have them.

    >>> of_client({"queue": "mail", "delay": "5m", "retries": 3})
    {'delay_ms': 300000, 'retries': 3}
    """
    return {
        _SPANS.get(name, name): span_ms(name, value) if name in _SPANS else value
        for name, value in options.items()
        if name not in _NOT_SENT
    }


def check(kind: type, options: Mapping[str, Any], of: str) -> None:
    """Raise TypeError for an option that does not exist."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"{of} has no option {name!r}: expected one of {', '.join(sorted(known))}")
