"""Commands for a job server: the bytes to send, and what the reply means.

Nothing is sent here. `Client` and `AsyncClient` send the same requests, one at a time or many in one write.

>>> add("mail", b"hello", id="61000000-0001-4000-8000-000000000001").data
b'add 61000000-0001-4000-8000-000000000001 mail 60000 86400000 5\\r\\nhello\\r\\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar
from uuid import UUID, uuid4

from forelog.errors import JobNotFound, JobRefused, JobTimeout
from forelog.jobs.client.replies import DONE, JOBS, LEASED, QUEUES, RESULT, SERVER
from forelog.jobs.client.values import JobInfo, Leased, QueueInfo, Result, ServerInfo
from forelog.jobs.machine.limits import LEASE_NAMES_MAX, PAYLOAD_BYTES_MAX, is_name
from forelog.times import format_time, parse_time

if TYPE_CHECKING:
    from typing import Unpack

TTR_MS = 60_000
TTL_MS = 24 * 3600 * 1000

T = TypeVar("T")
_WORD = re.compile(rb"[!-~]+")


class JobOptions(TypedDict, total=False):
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
    done_already: str = ""
    """The refusal of a repeated request that means that the first one was done."""

    def value(self, reply: Any, repeated: bool = False) -> T:
        """The value of a reply. Raises it if it is an error."""
        if isinstance(reply, Exception):
            if repeated and self.done_already and self._is_done(reply):
                return self.make(True)
            if self.kind == LEASED and isinstance(reply, JobTimeout):
                return self.make(None)
            reply.args = (f"{self.what}: {reply}",)
            raise reply
        return self.make(reply)

    def _is_done(self, reply: Exception) -> bool:
        if isinstance(reply, JobNotFound):
            return self.done_already == "-NOT-FOUND"
        return isinstance(reply, JobRefused) and reply.reason == self.done_already


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
) -> Request[UUID]:
    """Add a job."""
    job_id = _new_id(id)
    line = f"add {job_id} {_name(name)} {_whole(ttr_ms)} {_whole(ttl_ms)} {_size(payload)}"
    flags = _flags(priority, max_attempts, max_fails)
    data = b"%b%b\r\n%b\r\n" % (line.encode(), flags, payload)
    return Request(f"add {job_id}", data, DONE, lambda _: job_id, repeatable=True, done_already="Duplicate job")


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
) -> Request[UUID]:
    """Add a job that is due at a time."""
    job_id = _new_id(id)
    due = format_time(parse_time(time))
    line = f"schedule {job_id} {_name(name)} {_whole(ttr_ms)} {_whole(ttl_ms)} {due} {_size(payload)}"
    data = b"%b%b\r\n%b\r\n" % (line.encode(), _flags(priority, max_attempts, max_fails), payload)
    return Request(
        f"schedule {job_id}", data, DONE, lambda _: job_id, repeatable=True, done_already="Duplicate job"
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
    job_id = _new_id(id)
    line = f"run {job_id} {_name(name)} {_whole(ttr_ms)} {_whole(wait_ms)} {_size(payload)}"
    data = b"%b%b\r\n%b\r\n" % (line.encode(), _flags(priority, 0, 0), payload)
    return Request(f"run {job_id}", data, RESULT, _same, wait_seconds=(wait_ms + ttr_ms) / 1000)


def lease(names: Sequence[str], wait_ms: int = 0) -> Request[Leased | None]:
    """Lease the next job of the first of these queues that has one. None if none comes in time."""
    if not names:
        raise JobRefused("lease takes the name of a queue, or of several", reason="Invalid Name")
    if len(names) > LEASE_NAMES_MAX:
        raise JobRefused(
            f"lease takes up to {LEASE_NAMES_MAX} names, not {len(names)}", reason="Invalid command args"
        )
    line = " ".join(map(_name, names))
    data = f"lease {line} {_whole(wait_ms)}\r\n".encode()
    return Request(f"lease {line[:60]}", data, LEASED, _same, wait_seconds=wait_ms / 1000)


def complete(job_id: UUID | str, result: bytes = b"") -> Request[None]:
    """Complete a job."""
    return _finish("complete", _known_id(job_id), result)


def fail(job_id: UUID | str, result: bytes = b"") -> Request[None]:
    """Fail a job."""
    return _finish("fail", _known_id(job_id), result)


def _finish(command: str, job_id: UUID, result: bytes) -> Request[None]:
    data = b"%b %b %d\r\n%b\r\n" % (command.encode(), str(job_id).encode(), _size(result), result)
    return Request(f"{command} {job_id}", data, DONE, _nothing)


def delete(job_id: UUID | str) -> Request[None]:
    """Delete a job."""
    known = _known_id(job_id)
    what = f"delete {known}"
    return Request(what, f"{what}\r\n".encode(), DONE, _nothing, repeatable=True, done_already="-NOT-FOUND")


def result(job_id: UUID | str, wait_ms: int = 0) -> Request[Result]:
    """The result of a job."""
    what = f"result {_known_id(job_id)}"
    data = f"{what} {_whole(wait_ms)}\r\n".encode()
    return Request(what, data, RESULT, _same, wait_seconds=wait_ms / 1000, repeatable=True)


def inspect_job(job_id: UUID | str) -> Request[JobInfo]:
    """Everything that the server reports about a job."""
    return _inspect(f"job {_known_id(job_id)}", JOBS, _only)


def inspect_jobs(name: str, offset: int = 0, limit: int = 100) -> Request[list[JobInfo]]:
    """Jobs that can be leased, in order."""
    return _inspect(f"jobs {_name(name)} {_whole(offset)} {_whole(limit)}", JOBS, _same)


def inspect_scheduled_jobs(name: str, offset: int = 0, limit: int = 100) -> Request[list[JobInfo]]:
    """Jobs that are not due yet."""
    return _inspect(f"scheduled-jobs {_name(name)} {_whole(offset)} {_whole(limit)}", JOBS, _same)


def inspect_queue(name: str) -> Request[QueueInfo]:
    """How many jobs a queue has."""
    return _inspect(f"queue {_name(name)}", QUEUES, _only)


def inspect_queues(offset: int = 0, limit: int = 100) -> Request[list[QueueInfo]]:
    """The queues, ordered by name."""
    return _inspect(f"queues {_whole(offset)} {_whole(limit)}", QUEUES, _same)


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


def _new_id(given: UUID | str | None) -> UUID:
    if given is None:
        return uuid4()
    found = _known_id(given)
    if found.version != 4:
        raise JobRefused(f"{found} isn't a random UUID (version 4): uuid.uuid4() makes one", reason="Invalid ID")
    return found


def _known_id(given: UUID | str) -> UUID:
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise JobRefused(f"{given!r:.80} isn't an id: expected a UUID", reason="Invalid ID") from None


def _name(name: str) -> str:
    if not isinstance(name, str) or not is_name(name.encode("utf-8", "surrogateescape")):
        raise JobRefused(
            f"{name!r:.80} isn't a queue's name: expected up to 255 of A-Z a-z 0-9 _ . -", reason="Invalid Name"
        )
    return name


def _whole(number: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise JobRefused(f"{number!r:.80} isn't a whole number, 0 or more", reason="Invalid command args")
    return number


def _size(payload: bytes) -> int:
    if not isinstance(payload, bytes | bytearray):
        raise JobRefused(f"a payload is bytes, not {type(payload).__name__}", reason="Invalid payload size")
    size = len(payload)
    if size > PAYLOAD_BYTES_MAX:
        raise JobRefused(
            f"{size} bytes are more than the {PAYLOAD_BYTES_MAX} allowed", reason="Invalid payload size"
        )
    return size


def _flags(priority: int, max_attempts: int, max_fails: int) -> bytes:
    flags = b""
    if priority:
        flags += b" -priority=%d" % priority
    if max_attempts:
        flags += b" -max-attempts=%d" % _whole(max_attempts)
    if max_fails:
        flags += b" -max-fails=%d" % _whole(max_fails)
    return flags
