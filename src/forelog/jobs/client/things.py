"""What a server shows of jobs, queues and schedules: lines KEY VALUE, as a client reads them.

>>> MAKERS[QUEUES](b"mail", {b"ready-len": b"3", b"scheduled-len": b"0"})
QueueInfo(name='mail', ready=3, scheduled=0)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from forelog.errors import BadReply, ForelogError
from forelog.jobs.client.values import (
    DeadJob,
    JobInfo,
    LeaseInfo,
    QueueDetails,
    QueueInfo,
    ScheduleInfo,
    ServerInfo,
)
from forelog.jobs.machine.states import JobState
from forelog.times import parse_time

JOBS, QUEUES, SERVER, DEAD, DETAILS, SCHEDULES = range(20, 26)
STATES = tuple(state.name.lower() for state in JobState)
BINARY = {b"payload-size": b"payload", b"error-size": b"error"}
"""The keys that say how many bytes the next one has."""

Values = dict[bytes, bytes]


def _job(name: bytes, values: Values) -> JobInfo:
    state = number_in(values[b"state"], len(STATES) - 1)
    return JobInfo(
        id=id_in(name),
        name=text_in(values[b"name"]),
        ttr_ms=number_in(values[b"ttr"]),
        ttl_ms=number_in(values[b"ttl"]),
        payload=values[b"payload"],
        priority=_signed(values[b"priority"]),
        state=STATES[state],
        attempts=number_in(values[b"attempts"]),
        max_attempts=number_in(values[b"max-attempts"]),
        fails=number_in(values[b"fails"]),
        max_fails=number_in(values[b"max-fails"]),
        created_ns=time_in(values[b"created"]),
        scheduled_ns=time_in(values[b"time"]) if b"time" in values else None,
    )


def _queue(name: bytes, values: Values) -> QueueInfo:
    return QueueInfo(text_in(name), number_in(values[b"ready-len"]), number_in(values[b"scheduled-len"]))


def _server(_: bytes, values: Values) -> ServerInfo:
    clients, evicted = number_in(values[b"active-clients"]), number_in(values[b"evicted-jobs"])
    return ServerInfo(clients, evicted, time_in(values[b"started"]))


def info_of(values: Values) -> LeaseInfo:
    """What a lease with -info=1 says of a job."""
    try:
        return LeaseInfo(
            attempt=number_in(values[b"attempt"]),
            max_attempts=number_in(values[b"max-attempts"]),
            fails=number_in(values[b"fails"]),
            max_fails=number_in(values[b"max-fails"]),
            created_ns=time_in(values[b"created"]),
            key=_optional(values, b"key"),
            group=_optional(values, b"group"),
            after=tuple(id_in(word) for word in values.get(b"after", b"").split(b",") if word),
            steps=number_in(values.get(b"steps", b"0")),
            error=values.get(b"error"),
        )
    except KeyError as error:
        raise BadReply(f"{shown(error.args[0])} is missing in what the server says of a lease") from None


def _dead(name: bytes, values: Values) -> DeadJob:
    return DeadJob(
        id=id_in(name),
        name=text_in(values[b"name"]),
        reason=text_in(values[b"reason"]),
        died_ns=time_in(values[b"died"]),
        created_ns=time_in(values[b"created"]),
        attempts=number_in(values[b"attempts"]),
        fails=number_in(values[b"fails"]),
        error=values.get(b"error", b""),
        payload=values.get(b"payload"),
    )


def _details(name: bytes, values: Values) -> QueueDetails:
    rest = {text_in(key): text_in(value) for key, value in values.items()}
    oldest = rest.pop("oldest", None)
    return QueueDetails(
        name=text_in(name),
        ready=number_in(rest.pop("ready-len").encode()),
        scheduled=number_in(rest.pop("scheduled-len").encode()),
        running=number_in(rest.pop("running", "0").encode()),
        blocked=number_in(rest.pop("blocked", "0").encode()),
        dead=number_in(rest.pop("dead", "0").encode()),
        paused=rest.pop("paused", "0") == "1",
        draining=rest.pop("draining", "0") == "1",
        oldest_ns=None if oldest is None else time_in(oldest.encode()),
        values=rest,
    )


def _schedule(name: bytes, values: Values) -> ScheduleInfo:
    return ScheduleInfo(
        name=text_in(name),
        queue=text_in(values[b"name"]),
        cron=_optional(values, b"cron"),
        every_ms=number_in(values[b"every"]) if b"every" in values else None,
        zone=_optional(values, b"zone") or "UTC",
        missed=_optional(values, b"missed") or "skip",
        next_ns=time_in(values[b"next"]) if b"next" in values else None,
        runs=number_in(values.get(b"runs", b"0")),
        skipped=number_in(values.get(b"skipped", b"0")),
        last_ns=time_in(values[b"last"]) if b"last" in values else None,
        last_id=id_in(values[b"last-id"]) if b"last-id" in values else None,
        payload=values.get(b"payload", b""),
    )


MAKERS: dict[int, Any] = {
    JOBS: _job,
    QUEUES: _queue,
    SERVER: _server,
    DEAD: _dead,
    DETAILS: _details,
    SCHEDULES: _schedule,
}
"""Makes a thing of its name and its values, by the kind of reply."""


def _optional(values: Values, key: bytes) -> str | None:
    return text_in(values[key]) if key in values else None


def number_in(word: bytes, most: int = 2**63) -> int:
    """A word that is a number."""
    if len(word) > 19 or not word.isdigit() or int(word) > most:
        raise BadReply(f"{shown(word)} isn't a number up to {most}")
    return int(word)


def _signed(word: bytes) -> int:
    return -number_in(word[1:]) if word[:1] == b"-" else number_in(word)


def id_in(word: bytes) -> UUID:
    """A word that is a job's id."""
    try:
        return UUID(word.decode("ascii"))
    except ValueError:
        raise BadReply(f"{shown(word)} isn't an id") from None


@lru_cache(4096)
def time_in(word: bytes) -> int:
    """A word that is a time."""
    try:
        return parse_time(word.decode("ascii"))
    except (ValueError, ForelogError):
        raise BadReply(f"{shown(word)} isn't a time") from None


def text_in(word: bytes) -> str:
    """A word that is a text."""
    return word.decode("utf-8", "backslashreplace")


def shown(data: bytes | bytearray) -> str:
    """The beginning of bytes, for an error."""
    return repr(bytes(data[:60]))
