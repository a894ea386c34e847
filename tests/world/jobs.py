"""The job server in a world: producers, workers and faults, and what has to hold in spite of them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from uuid import UUID

from forelog.errors import JobError, JobNotFound
from forelog.jobs import AsyncClient, Leased
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.machine.ledger import Notes
from forelog.jobs.server.server import Server
from forelog.jobs.server.writer import Done
from forelog.log.appender import Sync
from forelog.testing.world import Process, World

__all__ = ["KINDS_OF_FAULTS", "Jobs"]

KINDS_OF_FAULTS = (
    *("kill", "crash", "pause", "cut", "cut one way", "slow", "reset", "step", "drift"),
    *("full", "sync error", "write error"),
)
PORT = 9922
QUEUES = ("q", "p")
TTR_MS = 3_000
SEGMENT_BYTES = 4_096
CATCH_UP_SECONDS = 120.0


@dataclass(eq=False)
class Known:
    """What is known of a job, from outside."""

    payload: bytes
    is_added: bool = False
    """Whether its add was acknowledged."""
    completed_at: float = 0.0
    """When a complete was acknowledged."""
    attempts: int = 0


class AsideWriter:
    """Writes beside the event loop, where a server has a thread for it."""

    def __init__(self, log: CommandLog) -> None:
        self._log = log

    def write(self, records: list[bytes], notes: Notes, done: Done) -> None:
        future = asyncio.get_running_loop().run_in_executor(None, self._log.write, records, notes)
        future.add_done_callback(
            lambda written: done(0, error) if (error := written.exception()) else done(written.result(), None)
        )

    def close(self) -> None:
        pass


@dataclass
class Jobs:
    """A job server, with clients."""

    world: World
    sync: Sync = "always"
    known: dict[UUID, Known] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    is_over: bool = False
    handled: int = 0

    def begin(self) -> None:
        """Start everything: the server on the machine `a`, clients on two others."""
        for name in ("a", "b", "c"):
            self.world.machine(name)
        self.world.machines["a"].keep("server", self.serve)
        for name in ("b", "c"):
            self.world.machines[name].keep("producer", self.produce)
            self.world.machines[name].keep("worker", self.work)

    async def serve(self, process: Process) -> None:
        log = CommandLog(
            "jobs", sync=self.sync, segment_bytes=SEGMENT_BYTES, files=process.files, clock=process.wall_ns
        )
        server = Server(log, clean_interval_ms=1_000, writer=AsideWriter(log))
        await server.start("0.0.0.0", PORT)
        await asyncio.Event().wait()

    async def produce(self, process: Process) -> None:
        rng = process.random
        async with self._client() as client:
            while not self.is_over:
                await asyncio.sleep(rng.expovariate(5))
                await self._add(client, rng)

    def _client(self) -> AsyncClient:
        return AsyncClient(f"a:{PORT}", timeout=2.0, connect_timeout=1.0, retry_seconds=3.0)

    async def _add(self, client: AsyncClient, rng: random.Random) -> None:
        job_id = UUID(bytes=rng.randbytes(16), version=4)
        found = self.known[job_id] = Known(rng.randbytes(rng.choice((1, 20, 300))))
        try:
            await client.add(
                rng.choice(QUEUES), found.payload, id=job_id, ttr_ms=TTR_MS, ttl_ms=10**8, max_fails=255
            )
        except (JobError, OSError) as error:
            self.world.note("refused", f"{job_id} {error}")
        else:
            self.world.note("added", str(job_id))
            found.is_added = True

    async def work(self, process: Process) -> None:
        rng = process.random
        async with self._client() as client:
            while True:
                asked_at = self.world.now
                try:
                    leased = await client.lease(*QUEUES, wait_ms=1_000)
                    if leased is not None:
                        await self._handle(client, leased, asked_at, rng)
                except (JobError, OSError) as error:
                    self.world.note("trouble", f"{process.label} {error}")
                    await asyncio.sleep(rng.uniform(0, 1))

    async def _handle(self, client: AsyncClient, leased: Leased, asked_at: float, rng: random.Random) -> None:
        found = self.known.get(leased.id)
        self.world.note("leased", str(leased.id))
        if found is None or found.payload != leased.payload:
            self.violations.append(f"{leased.id} is leased, and was never added like that")
            return
        if found.completed_at and asked_at > found.completed_at:
            self.violations.append(f"{leased.id} was completed at {found.completed_at:.6f}, and is leased again")
        found.attempts += 1
        self.handled += 1
        await asyncio.sleep(rng.choice((0.0, 0.01, 0.3)))
        if rng.random() < 0.1 and not self.is_over:
            await client.fail(leased.id, b"no")
            return
        if rng.random() < 0.05 and not self.is_over:
            await asyncio.sleep(TTR_MS / 1000 + 1)
            return
        try:
            await client.complete(leased.id, leased.payload)
        except JobNotFound:
            return
        self.world.note("completed", str(leased.id))
        found.completed_at = found.completed_at or self.world.now

    async def finish(self) -> None:
        """Nothing goes wrong any more: everything that was acknowledged has to be done soon."""
        self.is_over = True
        machine = self.world.machines["a"]
        machine.boot()
        deadline = self.world.now + CATCH_UP_SECONDS
        async with self._client() as client:
            while (left := await self._left(client)) and self.world.now < deadline:
                await asyncio.sleep(2.0)
        for job_id, state in left.items():
            self.violations.append(
                f"{job_id} was acknowledged, and is {state} {CATCH_UP_SECONDS:g} s after the end"
            )

    async def _left(self, client: AsyncClient) -> dict[UUID, str]:
        """Acknowledged jobs that aren't done, with their states. Who completed one may not know it."""
        left = {}
        for job_id, found in list(self.known.items()):
            if found.is_added and not found.completed_at:
                try:
                    state = (await client.inspect_job(job_id)).state
                except (JobError, OSError) as error:
                    state = str(error)
                if state == "completed":
                    found.completed_at = self.world.now
                else:
                    left[job_id] = state
        return left
