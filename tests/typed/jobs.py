"""A program that uses the job server. Type checkers must refuse the lines marked `error:`, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type
from uuid import UUID

from forelog import SyncPolicy
from forelog.jobs import (
    AsyncClient,
    Attempt,
    Client,
    JobInfo,
    Leased,
    LocalServer,
    Result,
    Worker,
)


def names_that_are_misspelt() -> None:
    from forelog.jobs import AsyncCleint  # error: AsyncCleint


def clients_are_typed(client: Client) -> None:
    job = client.add("mail", b"payload", ttr_ms=1000, priority=3)
    assert_type(job, UUID)
    assert_type(client.run("mail", wait_ms=10), Result)
    assert_type(client.lease("mail", wait_ms=10), Leased | None)
    assert_type(client.inspect_job(job), JobInfo)
    client.add("mail", "payload")  # error: "payload" | "str"
    client.add("mail", priorty=3)  # error: "priorty"
    client.add("mail", ttr_ms="1 s")  # error: "ttr_ms"
    client.ad("mail")  # error: "ad"


async def tasks_have_the_same(client: AsyncClient) -> None:
    assert_type(await client.add("mail", b"payload"), UUID)
    assert_type(await client.lease("mail"), Leased | None)
    await client.add("mail", priorty=3)  # error: "priorty"


def workers_are_typed() -> None:
    worker = Worker(concurrency=4)

    @worker.job("mail")
    def send(job: Attempt) -> bytes:
        return bytes(job.payload)

    @worker.job("other")  # error: Callable[[int] | "int"
    def wrong(job: int) -> bytes:
        return bytes(job)

    assert_type(send(Attempt.__new__(Attempt)), bytes)
    Worker(concurency=4)  # error: "concurency"


def servers_are_typed() -> None:
    LocalServer(Path("cmdlog"), sync="always")
    LocalServer("cmdlog", sync=SyncPolicy.ALWAYS)
    LocalServer("cmdlog", sync="alwasy")  # error: "sync"
