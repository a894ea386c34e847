"""Unique jobs: which job has a key in its queue, and for how long."""

from __future__ import annotations

from forelog.jobs.machine.queue import Job
from forelog.jobs.machine.states import COMPLETED, FAILED, LEASED

_LOOKED_AT = 1000  # holds that are looked at in one go

Key = tuple[bytes, bytes]
"""The name of a queue, and a key in it."""


class Keys:
    """The keys that are taken."""

    def __init__(self) -> None:
        self._jobs: dict[Key, bytes] = {}
        """The ids of the jobs that have a key by their state."""
        self._holds: dict[Key, tuple[int, bytes]] = {}
        """Keys that are taken for a time, whatever becomes of the job: until when, and its id."""

    def holder(self, name: bytes, key: bytes, now_ns: int) -> bytes | None:
        """The id of the job that has a key, or None."""
        found = self._jobs.get((name, key))
        if found is not None:
            return found
        until_ns, job_id = self._holds.get((name, key), (0, b""))
        return job_id if now_ns < until_ns else None

    def enter(self, job: Job) -> None:
        """A job is in the state that it has now."""
        terms = job.terms
        if terms is None or not terms.key or job.state in (COMPLETED, FAILED):
            return
        if not (terms.unique_waiting and job.state == LEASED):
            self._jobs[job.name, terms.key] = job.id

    def leave(self, job: Job) -> None:
        """A job is about to leave its state."""
        terms = job.terms
        if terms is not None and terms.key and self._jobs.get((job.name, terms.key)) == job.id:
            del self._jobs[job.name, terms.key]

    def hold(self, name: bytes, key: bytes, until_ns: int, job_id: bytes) -> tuple[int, bytes] | None:
        """Take a key for a time. Returns what held it before."""
        before = self._holds.get((name, key))
        self._holds[name, key] = until_ns, job_id
        return before

    def put_back(self, name: bytes, key: bytes, before: tuple[int, bytes] | None) -> None:
        """Undo a hold."""
        if before is None:
            self._holds.pop((name, key), None)
        else:
            self._holds[name, key] = before

    def is_held_by(self, name: bytes, key: bytes, job_id: bytes, now_ns: int) -> bool:
        """Whether a key is still taken for a time by this job."""
        until_ns, holder = self._holds.get((name, key), (0, b""))
        return holder == job_id and now_ns < until_ns

    def forget(self, now_ns: int) -> None:
        """Drop holds that are over, as far as the first thousand go; the others are looked at later."""
        for key in list(self._holds)[:_LOOKED_AT]:
            until_ns, job_id = self._holds.pop(key)
            if now_ns < until_ns:
                self._holds[key] = until_ns, job_id

    def holds(self) -> int:
        """How many keys are taken for a time."""
        return len(self._holds)
