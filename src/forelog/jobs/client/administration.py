"""Commands on dead letters, queues and schedules. `forelog.jobs.client.requests` has those on jobs.

>>> limit("mail", concurrency=5, rate="100/1000").data
b'limit mail -concurrency=5 -rate=100/1000\\r\\n'
>>> repeat("nightly", "report", cron="30 3 * * 1-5", zone="Europe/Berlin").data
b'repeat nightly report 60000 86400000 0 -cron=30_3_*_*_1-5 -zone=Europe/Berlin\\r\\n\\r\\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from uuid import UUID

from forelog.errors import JobNotFound, JobRefused
from forelog.jobs.client.backoff import Backoff, backoff_word
from forelog.jobs.client.flags import flags_of
from forelog.jobs.client.replies import COUNT, DONE
from forelog.jobs.client.requests import TTL_MS, TTR_MS, Request
from forelog.jobs.client.things import DEAD, DETAILS, SCHEDULES
from forelog.jobs.client.values import DeadJob, QueueDetails, ScheduleInfo
from forelog.jobs.client.words import ARGS, any_name, id_of, key_of, name_of, one_of, size_of, whole

if TYPE_CHECKING:
    from typing import Unpack

Missed = Literal["skip", "once", "all"]
_RATE = re.compile(r"0|\d{1,9}/\d{1,12}")
_CRON = re.compile(r"@\w+|\S+( \S+){4}")
_ZONE = re.compile(r"[A-Za-z0-9_+/-]{1,64}")


class Limits(TypedDict, total=False):
    """The limits of a queue. 0 removes one."""

    concurrency: int
    """How many of its jobs are leased at a time."""
    rate: str
    """How many leases in how many milliseconds: `100/1000`."""
    group_concurrency: int
    """`concurrency` for each of its groups."""
    group_rate: str
    """`rate` for each of its groups."""
    weight: int
    """The queue's share of leases of several queues, 1 to 1000."""
    retries: int
    """Retries of jobs that are added without retries and fails of their own."""
    backoff: Backoff | str
    """The backoff of jobs that are added without one of their own."""


class RepeatOptions(TypedDict, total=False):
    """The options of a schedule."""

    cron: str
    """Five fields, as in `30 3 * * 1-5`, or `@daily` and the like."""
    every_ms: int
    """An interval, instead of `cron`."""
    zone: str
    """The zone of `cron`, such as Europe/Berlin. By default UTC."""
    missed: Missed
    """Times that passed while the server was away: `skip` (the default), `once` or `all`."""
    ttr_ms: int
    """The time to run of its jobs; this and the options below are those of `JobOptions`."""
    ttl_ms: int
    priority: int
    max_attempts: int
    max_fails: int
    retries: int
    backoff: Backoff | str
    group: str


# -- dead letters


def dead_jobs(name: str = "*", offset: int = 0, limit: int = 100) -> Request[list[DeadJob]]:
    """Dead jobs of a queue, or of all, latest first."""
    return _shown(f"dead list {any_name(name)} {whole(offset)} {whole(limit)}", DEAD, _same)


def dead_job(job_id: UUID | str) -> Request[DeadJob]:
    """A dead job, with its payload."""
    return _shown(f"dead show {id_of(job_id)}", DEAD, _only)


def retry_dead(job_id: UUID | str) -> Request[None]:
    """Let a dead job wait again, under the same id, as if it had never been tried."""
    return _done(f"dead retry {id_of(job_id)}")


def drop_dead(job_id: UUID | str) -> Request[None]:
    """Forget a dead job."""
    return _done(f"dead drop {id_of(job_id)}")


def retry_all_dead(name: str = "*") -> Request[int]:
    """retry_dead() for up to 1000 jobs of a queue, or of all. Returns how many: 0 once there is none."""
    return _counted(f"dead retry-all {any_name(name)}")


def drop_all_dead(name: str = "*") -> Request[int]:
    """drop_dead() for up to 1000 jobs of a queue, or of all. Returns how many: 0 once there is none."""
    return _counted(f"dead drop-all {any_name(name)}")


# -- queues


def pause(name: str) -> Request[None]:
    """Lease no job of a queue, until it is resumed."""
    return _done(f"pause {name_of(name)}")


def drain(name: str) -> Request[None]:
    """Take no more jobs into a queue, until it is resumed."""
    return _done(f"drain {name_of(name)}")


def resume(name: str) -> Request[None]:
    """End a pause or a drain."""
    return _done(f"resume {name_of(name)}")


def limit(name: str, **limits: Unpack[Limits]) -> Request[None]:
    """Set limits of a queue. Those that aren't named stay as they are."""
    words = []
    for key, value in limits.items():
        if key not in Limits.__annotations__:
            raise TypeError(f"a queue has no limit {key!r}: expected one of {', '.join(Limits.__annotations__)}")
        if key in ("rate", "group_rate"):
            if not isinstance(value, str | int) or not _RATE.fullmatch(str(value)):
                raise JobRefused(f"{key} is {value!r:.80}: expected N/MS, as in 100/1000", reason=ARGS)
        elif key == "backoff":
            value = backoff_word(value) if value != 0 else 0  # type: ignore[arg-type]
        else:
            whole(value)  # type: ignore[arg-type]
        words.append(f" -{key.replace('_', '-')}={value}")
    if not words:
        raise JobRefused("limit takes at least one limit", reason=ARGS)
    what = f"limit {name_of(name)}"
    return Request(what, f"{what}{''.join(words)}\r\n".encode(), DONE, _nothing, repeatable=True)


def queue_details(name: str) -> Request[QueueDetails]:
    """Everything that the server counts of a queue."""
    return _shown(f"inspect queue {name_of(name)}", DETAILS, _only, " -all=1")


def queues_details(offset: int = 0, limit: int = 100) -> Request[list[QueueDetails]]:
    """Everything that the server counts of its queues, ordered by name."""
    return _shown(f"inspect queues {whole(offset)} {whole(limit)}", DETAILS, _same, " -all=1")


# -- schedules


def repeat(
    schedule: str,
    name: str,
    payload: bytes = b"",
    *,
    cron: str | None = None,
    every_ms: int | None = None,
    zone: str | None = None,
    missed: Missed | None = None,
    ttr_ms: int = TTR_MS,
    ttl_ms: int = TTL_MS,
    priority: int = 0,
    max_attempts: int = 0,
    max_fails: int = 0,
    retries: int | None = None,
    backoff: Backoff | str | None = None,
    group: str | None = None,
) -> Request[None]:
    """Add a job at each time of a schedule: by a cron expression, or at an interval."""
    what = f"repeat {key_of('schedule', schedule)}"
    line = f"{what} {name_of(name)} {whole(ttr_ms)} {whole(ttl_ms)} {size_of(payload)}"
    if (cron is None) == (every_ms is None):
        raise JobRefused("a schedule has either a cron expression or an interval", reason=ARGS)
    if cron is not None:
        expression = " ".join(cron.split()) if isinstance(cron, str) else ""
        if not _CRON.fullmatch(expression):
            raise JobRefused(f"{cron!r:.80} isn't a cron expression: expected '30 3 * * 1-5'", reason=ARGS)
        line += f" -cron={expression.replace(' ', '_')}"
    else:
        line += f" -every={whole(every_ms)}"  # type: ignore[arg-type]
    if zone is not None:
        if not _ZONE.fullmatch(zone):
            raise JobRefused(f"{zone!r:.80} isn't a zone: expected one such as Europe/Berlin", reason=ARGS)
        line += f" -zone={zone}"
    line += "" if missed is None else f" -missed={one_of('missed', missed, 'skip', 'once', 'all')}"
    line += flags_of(priority, max_attempts, max_fails).decode()
    line += "" if retries is None else f" -retries={whole(retries)}"
    line += "" if backoff is None else f" -backoff={backoff_word(backoff)}"
    line += "" if group is None else f" -group={key_of('group', group)}"
    return Request(what, b"%b\r\n%b\r\n" % (line.encode(), payload), DONE, _nothing, repeatable=True)


def unrepeat(schedule: str) -> Request[None]:
    """End a schedule. Jobs that it has added stay."""
    what = f"unrepeat {key_of('schedule', schedule)}"
    return Request(what, f"{what}\r\n".encode(), DONE, _nothing, repeatable=True, done_already=("-NOT-FOUND",))


def inspect_schedule(schedule: str) -> Request[ScheduleInfo]:
    """A schedule, and when it ran."""
    return _shown(f"inspect schedule {key_of('schedule', schedule)}", SCHEDULES, _only)


def inspect_schedules(offset: int = 0, limit: int = 100) -> Request[list[ScheduleInfo]]:
    """The schedules, ordered by name."""
    return _shown(f"inspect schedules {whole(offset)} {whole(limit)}", SCHEDULES, _same)


def _shown(what: str, kind: int, make: Callable[[Any], Any], flags: str = "") -> Request[Any]:
    return Request(what, f"{what}{flags}\r\n".encode(), kind, make, repeatable=True)


def _done(what: str) -> Request[None]:
    return Request(what, f"{what}\r\n".encode(), DONE, _nothing, repeatable=True)


def _counted(what: str) -> Request[int]:
    return Request(what, f"{what}\r\n".encode(), COUNT, _same)


def _same(reply: Any) -> Any:
    return reply


def _only(reply: Any) -> Any:
    if len(reply) != 1:
        raise JobNotFound("the server replied with nothing")
    return reply[0]


def _nothing(_: Any) -> None:
    return None
