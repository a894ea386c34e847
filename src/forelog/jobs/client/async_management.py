"""The commands of a client beyond workq: on running jobs, dead letters, queues and schedules.

They are methods of `AsyncClient`. `docs/jobs-protocol.md` says what each does, and which a server knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from forelog.jobs.client import administration, lifecycle
from forelog.jobs.client.administration import Limits, RepeatOptions
from forelog.jobs.client.requests import Request
from forelog.jobs.client.values import DeadJob, Progress, QueueDetails, ScheduleInfo, Step

if TYPE_CHECKING:
    from typing import Unpack

T = TypeVar("T")


class AsyncManagement:
    """What `AsyncClient` can do beyond workq."""

    async def call(self, request: Request[T]) -> T:
        """Send one request."""
        raise NotImplementedError

    # -- a running job

    async def heartbeat(self, job_id: UUID | str, *, attempt: int = 0, lease_ms: int = 0) -> None:
        """Begin the lease of a job anew. Raises JobRefused with the reason `Cancelled` or `Lost lease`."""
        await self.call(lifecycle.heartbeat(job_id, attempt=attempt, lease_ms=lease_ms))

    async def extend(self, job_id: UUID | str, ms: int, *, attempt: int = 0) -> None:
        """Let the attempt take so long from now, whatever the job's TTR."""
        await self.call(lifecycle.extend(job_id, ms, attempt=attempt))

    async def progress(self, job_id: UUID | str, percent: int, text: bytes = b"", *, attempt: int = 0) -> None:
        """Report how much of a job is done."""
        await self.call(lifecycle.progress(job_id, percent, text, attempt=attempt))

    async def follow(self, job_id: UUID | str, after: int = 0, wait_ms: int = 0) -> list[Progress]:
        """What a job has reported since the report of this number. Empty once the job is finished.

        Raises JobTimeout if it reports nothing within `wait_ms`.
        """
        return await self.call(lifecycle.follow(job_id, after, wait_ms))

    async def cancel(self, job_id: UUID | str) -> None:
        """Cancel a job. One that waits is deleted. One that runs fails for good, unless it completes in time."""
        await self.call(lifecycle.cancel(job_id))

    async def step(self, job_id: UUID | str, name: str, result: bytes = b"", *, attempt: int = 0) -> None:
        """Record the result of a step of a job. Raises JobRefused if it was already."""
        await self.call(lifecycle.step(job_id, name, result, attempt=attempt))

    async def steps(self, job_id: UUID | str) -> list[Step]:
        """The recorded steps of a job, in order."""
        return await self.call(lifecycle.steps(job_id))

    # -- dead letters

    async def dead_jobs(self, name: str = "*", offset: int = 0, limit: int = 100) -> list[DeadJob]:
        """Dead jobs of a queue, or of all, latest first."""
        return await self.call(administration.dead_jobs(name, offset, limit))

    async def dead_job(self, job_id: UUID | str) -> DeadJob:
        """A dead job, with its payload."""
        return await self.call(administration.dead_job(job_id))

    async def retry_dead(self, job_id: UUID | str) -> None:
        """Let a dead job wait again, under the same id, as if it had never been tried."""
        await self.call(administration.retry_dead(job_id))

    async def drop_dead(self, job_id: UUID | str) -> None:
        """Forget a dead job."""
        await self.call(administration.drop_dead(job_id))

    async def retry_all_dead(self, name: str = "*") -> int:
        """Let all dead jobs of a queue, or of all queues, wait again. Returns how many there were."""
        return await self._until_none(administration.retry_all_dead(name))

    async def drop_all_dead(self, name: str = "*") -> int:
        """Forget all dead jobs of a queue, or of all queues. Returns how many there were."""
        return await self._until_none(administration.drop_all_dead(name))

    async def _until_none(self, request: Request[int]) -> int:
        total = 0
        while count := await self.call(request):
            total += count
        return total

    # -- queues

    async def pause(self, name: str) -> None:
        """Lease no job of a queue, until it is resumed."""
        await self.call(administration.pause(name))

    async def drain(self, name: str) -> None:
        """Take no more jobs into a queue, until it is resumed."""
        await self.call(administration.drain(name))

    async def resume(self, name: str) -> None:
        """End a pause or a drain."""
        await self.call(administration.resume(name))

    async def limit(self, name: str, **limits: Unpack[Limits]) -> None:
        """Set limits of a queue. Those that aren't named stay as they are, and 0 removes one."""
        await self.call(administration.limit(name, **limits))

    async def queue_details(self, name: str) -> QueueDetails:
        """Everything that the server counts of a queue."""
        return await self.call(administration.queue_details(name))

    async def queues_details(self, offset: int = 0, limit: int = 100) -> list[QueueDetails]:
        """Everything that the server counts of its queues, ordered by name."""
        return await self.call(administration.queues_details(offset, limit))

    # -- schedules

    async def repeat(
        self, schedule: str, name: str, payload: bytes = b"", **options: Unpack[RepeatOptions]
    ) -> None:
        """Add a job at each time of a schedule. The options are those of `RepeatOptions`."""
        await self.call(administration.repeat(schedule, name, payload, **options))

    async def unrepeat(self, schedule: str) -> None:
        """End a schedule. Jobs that it has added stay."""
        await self.call(administration.unrepeat(schedule))

    async def inspect_schedule(self, schedule: str) -> ScheduleInfo:
        """A schedule, and when it ran."""
        return await self.call(administration.inspect_schedule(schedule))

    async def inspect_schedules(self, offset: int = 0, limit: int = 100) -> list[ScheduleInfo]:
        """The schedules, ordered by name."""
        return await self.call(administration.inspect_schedules(offset, limit))
