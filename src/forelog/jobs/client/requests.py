"""Commands for a job server: the bytes to send, and what the reply means.

Nothing is sent here. `Client` and `AsyncClient` send the same requests, one at a time or many in one write.

>>> add("mail", b"hello", id="61000000-0001-4000-8000-000000000001").data
b'add 61000000-0001-4000-8000-000000000001 mail 60000 86400000 5\\r\\nhello\\r\\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from forelog.errors import JobNotFound, JobRefused, JobTimeout
from forelog.jobs.client.flags import BeyondOptions, JobOptions, flags_beyond, flags_of
from forelog.jobs.client.replies import ADDED, DONE, LEASED, LEASES, LEASES_WITH_INFO, RESULT
from forelog.jobs.client.things import JOBS, QUEUES, SERVER
from forelog.jobs.client.values import Added, JobInfo, Leased, QueueInfo, Result, ServerInfo
from forelog.jobs.client.words import ARGS, id_of, name_of, new_id, size_of, whole
from forelog.jobs.machine.limits import LEASE_NAMES_MAX
from forelog.times import format_time, parse_time

if TYPE_CHECKING:
    from typing import Unpack

TTR_MS = 60_000
TTL_MS = 24 * 3600 * 1000

T = TypeVar("T")
_WORD = re.compile(rb"[!-~]+")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A command to be sent."""

    what: str
    """The command in error messages: `add 61000000-...`."""
    data: bytes
    """The bytes to send."""
    kind: int
    """The kind of reply to expect."""
    make: Callable[[Any], T]
    """Makes the value of a reply that isn't an error."""
    wait_seconds: float = 0.0
    """How long the server may wait with its reply."""
    repeatable: bool = False
    """Whether it may be sent again when its outcome is unknown."""
    done_already: tuple[str, ...] = ()
    """The refusals of a repeated request that mean that the first one was done."""

    def value(self, reply: Any, repeated: bool = False) -> T:
        """The value of a reply. Raises it if it is an error."""
        if isinstance(reply, Exception):
            if repeated and self.done_already and self._is_done(reply):
                return self.make(True)
            if self.kind in (LEASED, LEASES, LEASES_WITH_INFO) and isinstance(reply, JobTimeout):
                return self.make(None)
            reply.args = (f"{self.what}: {reply}",)
            raise reply
        return self.make(reply)

    def _is_done(self, reply: Exception) -> bool:
        if isinstance(reply, JobNotFound):
            return "-NOT-FOUND" in self.done_already
        return isinstance(reply, JobRefused) and reply.reason in self.done_already


def add(
    name: str,
    payload: bytes = b"",
    *,
    id: UUID | str | None = None,  # noqa: A002
    ttr_ms: int = TTR_MS,
    ttl_ms: int = TTL_MS,
    priority: int = 0,
    max_attempts: int = 0,
    max_fails: int = 0,
    **beyond: Unpack[BeyondOptions],
) -> Request[UUID]:
    """Add a job."""
    job_id = new_id(id)
    what = f"add {job_id}"
    line = f"{what} {name_of(name)} {whole(ttr_ms)} {whole(ttl_ms)} {size_of(payload)}"
    flags = flags_of(priority, max_attempts, max_fails)
    return _added(what, job_id, line, flags, payload, beyond)


def add_unique(name: str, payload: bytes = b"", **options: Unpack[JobOptions]) -> Request[Added]:
    """Add a job with a key. The value says what became of it."""
    if options.get("key") is None:
        raise JobRefused("a unique job has a key: key=...", reason=ARGS)
    request = add(name, payload, **options)
    job_id = UUID(request.what.split()[1])
    return replace(request, make=lambda reply: Added(job_id, "new") if reply is True else reply)  # type: ignore[arg-type,return-value]


def schedule(
    name: str,
    payload: bytes,
    time: str | datetime | int,
    *,
    id: UUID | str | None = None,  # noqa: A002
    ttr_ms: int = TTR_MS,
    ttl_ms: int = TTL_MS,
    priority: int = 0,
    max_attempts: int = 0,
    max_fails: int = 0,
    **beyond: Unpack[BeyondOptions],
) -> Request[UUID]:
    """Add a job that is due at a time."""
    if "delay_ms" in beyond:
        raise JobRefused("schedule has the time itself, and takes no delay", reason=ARGS)
    job_id = new_id(id)
    due = format_time(parse_time(time))
    what = f"schedule {job_id}"
    line = f"{what} {name_of(name)} {whole(ttr_ms)} {whole(ttl_ms)} {due} {size_of(payload)}"
    flags = flags_of(priority, max_attempts, max_fails)
    return _added(what, job_id, line, flags, payload, beyond)


def _added(
    what: str, job_id: UUID, line: str, flags: bytes, payload: bytes, beyond: BeyondOptions
) -> Request[UUID]:
    if not beyond:
        data = b"%b%b\r\n%b\r\n" % (line.encode(), flags, payload)
        return Request(what, data, DONE, lambda _: job_id, repeatable=True, done_already=("Duplicate job",))
    data = b"%b%b%b\r\n%b\r\n" % (line.encode(), flags, flags_beyond(**beyond), payload)
    if beyond.get("key") is None:
        return Request(what, data, DONE, lambda _: job_id, repeatable=True, done_already=("Duplicate job",))
    already = ("Duplicate job", f"Duplicate key {job_id}")
    return Request(
        what,
        data,
        ADDED,
        lambda reply: job_id if reply is True else reply.id,
        repeatable=True,
        done_already=already,
    )


def run(
    name: str,
    payload: bytes = b"",
    *,
    wait_ms: int,
    id: UUID | str | None = None,  # noqa: A002
    ttr_ms: int = TTR_MS,
    priority: int = 0,
) -> Request[Result]:
    """Have a job done now. It may wait for a worker for `wait_ms`, and then run for `ttr_ms`."""
    job_id = new_id(id)
    line = f"run {job_id} {name_of(name)} {whole(ttr_ms)} {whole(wait_ms)} {size_of(payload)}"
    data = b"%b%b\r\n%b\r\n" % (line.encode(), flags_of(priority, 0, 0), payload)
    return Request(f"run {job_id}", data, RESULT, _same, wait_seconds=(wait_ms + ttr_ms) / 1000)


def lease(names: Sequence[str], wait_ms: int = 0) -> Request[Leased | None]:
    """Lease the next job of the first of these queues that has one. None if none comes in time."""
    line = _names(names)
    data = f"lease {line} {whole(wait_ms)}\r\n".encode()
    return Request(f"lease {line[:60]}", data, LEASED, _same, wait_seconds=wait_ms / 1000)


def leases(
    names: Sequence[str], wait_ms: int = 0, *, count: int = 1, lease_ms: int = 0, info: bool = False
) -> Request[list[Leased]]:
    """Lease up to `count` jobs. Empty if none comes in time.

    With `lease_ms` a lease ends after so long without a heartbeat. With `info` the jobs have the attempt's number
    and what else the server knows.
    """
    line = _names(names)
    flags = f" -count={whole(count)}" if count != 1 else ""
    flags += f" -lease={whole(lease_ms)}" if lease_ms else ""
    flags += " -info=1" if info else ""
    return Request(
        f"lease {line[:60]}",
        f"lease {line} {whole(wait_ms)}{flags}\r\n".encode(),
        LEASES_WITH_INFO if info else LEASES,
        lambda reply: reply or [],
        wait_seconds=wait_ms / 1000,
    )


def _names(names: Sequence[str]) -> str:
    if not names:
        raise JobRefused("lease takes the name of a queue, or of several", reason="Invalid Name")
    if len(names) > LEASE_NAMES_MAX:
        raise JobRefused(f"lease takes up to {LEASE_NAMES_MAX} names, not {len(names)}", reason=ARGS)
    return " ".join(map(name_of, names))


def complete(job_id: UUID | str, result: bytes = b"", *, attempt: int = 0) -> Request[None]:
    """Complete a job. With `attempt`, only if it is at this one."""
    return _finish("complete", id_of(job_id), result, b" -attempt=%d" % attempt if attempt else b"")


def fail(
    job_id: UUID | str,
    result: bytes = b"",
    *,
    attempt: int = 0,
    retry_after_ms: int | None = None,
    final: bool = False,
) -> Request[None]:
    """Fail a job. With `attempt`, only if it is at this one. It is tried again if its retries or `max_fails` allow
    that; after `retry_after_ms` in any case, and with `final` not at all."""
    if final and retry_after_ms is not None:
        raise JobRefused("a job is either tried again or not: retry_after_ms or final", reason=ARGS)
    flags = b" -attempt=%d" % attempt if attempt else b""
    if retry_after_ms is not None:
        flags += b" -retry-after=%d" % whole(retry_after_ms)
    return _finish("fail", id_of(job_id), result, flags + b" -final=1" if final else flags)


def _finish(command: str, job_id: UUID, result: bytes, flags: bytes) -> Request[None]:
    data = b"%b %b %d%b\r\n%b\r\n" % (command.encode(), str(job_id).encode(), size_of(result), flags, result)
    return Request(f"{command} {job_id}", data, DONE, _nothing)


def delete(job_id: UUID | str) -> Request[None]:
    """Delete a job."""
    known = id_of(job_id)
    what = f"delete {known}"
    return Request(what, f"{what}\r\n".encode(), DONE, _nothing, repeatable=True, done_already=("-NOT-FOUND",))


def result(job_id: UUID | str, wait_ms: int = 0) -> Request[Result]:
    """The result of a job."""
    what = f"result {id_of(job_id)}"
    data = f"{what} {whole(wait_ms)}\r\n".encode()
    return Request(what, data, RESULT, _same, wait_seconds=wait_ms / 1000, repeatable=True)


def inspect_job(job_id: UUID | str) -> Request[JobInfo]:
    """Everything that the server reports about a job."""
    return _inspect(f"job {id_of(job_id)}", JOBS, _only)


def inspect_jobs(name: str, offset: int = 0, limit: int = 100) -> Request[list[JobInfo]]:
    """Jobs that can be leased, in order."""
    return _inspect(f"jobs {name_of(name)} {whole(offset)} {whole(limit)}", JOBS, _same)


def inspect_scheduled_jobs(name: str, offset: int = 0, limit: int = 100) -> Request[list[JobInfo]]:
    """Jobs that are not due yet."""
    return _inspect(f"scheduled-jobs {name_of(name)} {whole(offset)} {whole(limit)}", JOBS, _same)


def inspect_queue(name: str) -> Request[QueueInfo]:
    """How many jobs a queue has."""
    return _inspect(f"queue {name_of(name)}", QUEUES, _only)


def inspect_queues(offset: int = 0, limit: int = 100) -> Request[list[QueueInfo]]:
    """The queues, ordered by name."""
    return _inspect(f"queues {whole(offset)} {whole(limit)}", QUEUES, _same)


def inspect_server() -> Request[ServerInfo]:
    """How many clients the server has, and when it started."""
    return _inspect("server", SERVER, _only)


def _inspect(what: str, kind: int, make: Callable[[Any], Any]) -> Request[Any]:
    return Request(f"inspect {what}", f"inspect {what}\r\n".encode(), kind, make, repeatable=True)


def auth(token: str | bytes) -> Request[None]:
    """Send the token."""
    word = token.encode() if isinstance(token, str) else token
    if not _WORD.fullmatch(word):
        raise JobRefused("a token is one word of printable characters", reason="Unauthorized")
    return Request("auth", b"auth " + word + b"\r\n", DONE, _nothing)


def windows(requests: Sequence[Request[Any]]) -> Iterable[list[Request[Any]]]:
    """Requests in lots, each of which is written as a whole before its first reply is read.

    A server that can't send its replies stops reading, and then both sides would block. So a lot is small if its
    replies may be large.
    """
    lot: list[Request[Any]] = []
    size, most = 0, _LOT_BYTES
    for request in requests:
        limit = min(most, _LOT_BYTES if request.kind == DONE else _LOT_BYTES_WITH_REPLIES)
        if lot and (size + len(request.data) > limit or len(lot) >= _LOT_COUNT):
            yield lot
            lot, size, limit = [], 0, _LOT_BYTES if request.kind == DONE else _LOT_BYTES_WITH_REPLIES
        lot.append(request)
        size += len(request.data)
        most = limit
    if lot:
        yield lot


_LOT_BYTES = 256 << 10
_LOT_BYTES_WITH_REPLIES = 8 << 10
_LOT_COUNT = 1000


def adds(
    name: str, payloads: Mapping[UUID | str, bytes] | Iterable[bytes], **options: Unpack[JobOptions]
) -> list[Request[UUID]]:
    """Add a job for each payload."""
    if options.pop("id", None) is not None:
        raise JobRefused("jobs can't share an id: pass a mapping from ids to payloads", reason="Invalid ID")
    if isinstance(payloads, Mapping):
        one = partial(add, name, **options)
        return [one(payload, id=job_id) for job_id, payload in payloads.items()]
    return [add(name, payload, **options) for payload in payloads]


def results_of(results: Mapping[UUID | str, bytes] | Iterable[tuple[UUID | str, bytes]]) -> list[Request[None]]:
    """Complete a job with each result."""
    pairs = results.items() if isinstance(results, Mapping) else results
    return [complete(job_id, data) for job_id, data in pairs]


def _same(reply: Any) -> Any:
    return reply


def _only(reply: Any) -> Any:
    if len(reply) != 1:
        raise JobNotFound("the server replied with nothing")
    return reply[0]


def _nothing(_: Any) -> None:
    return None
