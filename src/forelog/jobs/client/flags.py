"""The options of a new job, and the flags of a command that they become.

>>> flags_of(priority=5, max_attempts=0, max_fails=2)
b' -priority=5 -max-fails=2'
>>> flags_beyond(retries=3, backoff=fixed(2), key="invoice-7")
b' -retries=3 -backoff=fixed:2000:2000:0 -key=invoice-7'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypedDict
from uuid import UUID

from forelog.jobs.client.backoff import Backoff, backoff_word
from forelog.jobs.client.backoff import fixed as fixed
from forelog.jobs.client.words import id_of, key_of, one_of, whole

OnDuplicate = Literal["refuse", "existing", "replace"]
Unique = Literal["unfinished", "waiting"]
OnFailure = Literal["fail", "run"]


class BeyondOptions(TypedDict, total=False):
    """The options of a new job that workq doesn't know."""

    retries: int
    """How often it is tried again after a fail: N is the same as `max_fails` of N+1."""
    backoff: Backoff | str
    """How long it waits before that: `exponential("1s", max="1h")`, or the text of one."""
    delay_ms: int
    """The job is due so long from now, by the server's clock. `schedule` has a time instead."""
    key: str
    """The job is unique by this key, in its queue."""
    unique: Unique
    """How long: `unfinished` (the default) or `waiting`, which ends when it is leased."""
    unique_for_ms: int
    """At least so long from now, whatever becomes of the job."""
    on_duplicate: OnDuplicate
    """What a second job with the key gets: `refuse` , `existing` (the first one's id) or `replace`."""
    group: str
    """Whose job it is: the groups of a queue take turns."""
    after: Iterable[UUID | str]
    """The jobs that have to be completed before this one is leased."""
    on_failure: OnFailure
    """If one of those isn't completed: `fail` (the default: this one fails too) or `run`."""


class JobOptions(BeyondOptions, total=False):
    """The options of a new job."""

    id: UUID | str | None
    """A random UUID, version 4. By default the client makes one."""
    ttr_ms: int
    """Time to run: how long an attempt may take. By default a minute, at most a day."""
    ttl_ms: int
    """Time to live, from when the job is added or due. By default a day, at most 30 days."""
    priority: int
    """Higher comes first."""
    max_attempts: int
    """How often it may be leased; 0 for no limit."""
    max_fails: int
    """How many fails end the job. By default the first one does."""


def flags_of(priority: int, max_attempts: int, max_fails: int) -> bytes:
    """The flags that workq knows."""
    flags = b""
    if priority:
        flags += b" -priority=%d" % priority
    if max_attempts:
        flags += b" -max-attempts=%d" % whole(max_attempts)
    if max_fails:
        flags += b" -max-fails=%d" % whole(max_fails)
    return flags


def flags_beyond(
    *,
    retries: int | None = None,
    backoff: Backoff | str | None = None,
    delay_ms: int = 0,
    key: str | None = None,
    unique: str | None = None,
    unique_for_ms: int = 0,
    on_duplicate: str | None = None,
    group: str | None = None,
    after: Iterable[UUID | str] = (),
    on_failure: str | None = None,
) -> bytes:
    """The flags that workq doesn't know."""
    words = []
    if retries is not None:
        words.append(f"-retries={whole(retries)}")
    if backoff is not None:
        words.append(f"-backoff={backoff_word(backoff)}")
    if delay_ms:
        words.append(f"-delay={whole(delay_ms)}")
    if key is not None:
        words.append(f"-key={key_of('key', key)}")
    if unique is not None:
        words.append(f"-unique={one_of('unique', unique, 'unfinished', 'waiting')}")
    if unique_for_ms:
        words.append(f"-unique-for={whole(unique_for_ms)}")
    if on_duplicate is not None:
        words.append(f"-on-duplicate={one_of('on_duplicate', on_duplicate, 'refuse', 'existing', 'replace')}")
    if group is not None:
        words.append(f"-group={key_of('group', group)}")
    if ids := ",".join(str(id_of(one)) for one in after):
        words.append(f"-after={ids}")
    if on_failure is not None:
        words.append(f"-on-failure={one_of('on_failure', on_failure, 'fail', 'run')}")
    return "".join(f" {word}" for word in words).encode()
