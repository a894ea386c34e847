"""Commands on a running job: heartbeats, progress, steps, cancelling. `requests.py` has the others.

>>> heartbeat("61000000-0001-4000-8000-000000000001", attempt=2, lease_ms=5000).data
b'heartbeat 61000000-0001-4000-8000-000000000001 -attempt=2 -lease=5000\\r\\n'
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from forelog.jobs.client.replies import DONE, PROGRESS, STEPS
from forelog.jobs.client.requests import Request
from forelog.jobs.client.values import Progress, Step
from forelog.jobs.client.words import id_of, key_of, size_of, whole


def heartbeat(job_id: UUID | str, *, attempt: int = 0, lease_ms: int = 0) -> Request[None]:
    """Begin the lease of a job anew."""
    what = f"heartbeat {id_of(job_id)}"
    lease = f" -lease={whole(lease_ms)}" if lease_ms else ""
    return _done(what, f"{what}{_attempt(attempt)}{lease}", repeatable=True)


def extend(job_id: UUID | str, ms: int, *, attempt: int = 0) -> Request[None]:
    """Let an attempt take so long from now, whatever the job's TTR."""
    what = f"extend {id_of(job_id)}"
    return _done(what, f"{what} {whole(ms)}{_attempt(attempt)}", repeatable=True)


def progress(job_id: UUID | str, percent: int, text: bytes = b"", *, attempt: int = 0) -> Request[None]:
    """Report how much of a job is done."""
    what = f"progress {id_of(job_id)}"
    data = b"%b\r\n%b\r\n" % (f"{what} {whole(percent)} {size_of(text)}{_attempt(attempt)}".encode(), text)
    return Request(what, data, DONE, _nothing)


def follow(job_id: UUID | str, after: int = 0, wait_ms: int = 0) -> Request[list[Progress]]:
    """What a job has reported since the report of this number. Empty once the job is finished."""
    what = f"follow {id_of(job_id)}"
    data = f"{what} {whole(after)} {whole(wait_ms)}\r\n".encode()
    return Request(what, data, PROGRESS, _same, wait_seconds=wait_ms / 1000, repeatable=True)


def cancel(job_id: UUID | str) -> Request[None]:
    """Cancel a job."""
    what = f"cancel {id_of(job_id)}"
    return _done(what, what, repeatable=True)


def step(job_id: UUID | str, name: str, result: bytes = b"", *, attempt: int = 0) -> Request[None]:
    """Record the result of a step of a job."""
    what = f"step {id_of(job_id)} {key_of('name', name)}"
    data = b"%b\r\n%b\r\n" % (f"{what} {size_of(result)}{_attempt(attempt)}".encode(), result)
    return Request(what, data, DONE, _nothing, repeatable=True, done_already=("Duplicate step",))


def steps(job_id: UUID | str) -> Request[list[Step]]:
    """The recorded steps of a job, in order."""
    what = f"steps {id_of(job_id)}"
    return Request(what, f"{what}\r\n".encode(), STEPS, _same, repeatable=True)


def _attempt(attempt: int) -> str:
    return f" -attempt={whole(attempt)}" if attempt else ""


def _done(what: str, line: str, *, repeatable: bool) -> Request[None]:
    return Request(what, f"{line}\r\n".encode(), DONE, _nothing, repeatable=repeatable)


def _same(reply: Any) -> Any:
    return reply


def _nothing(_: Any) -> None:
    return None
