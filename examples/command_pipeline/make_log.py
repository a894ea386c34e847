"""A command log to run the pipeline on: `python -m examples.command_pipeline.make_log commands.log 1000`."""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections.abc import Iterator

from forelog import Stream
from forelog.formats.commands.commands import MAGIC, Add, Command, Complete, Delete, Fail, StartAttempt, encode

QUEUES = ("mail", "resize", "report")


def append_jobs(path: str, count: int, seed: int = 0) -> int:
    """Append what happens to so many jobs to the log at a path; how many commands that were."""
    chance = random.Random(seed)
    with Stream(path, magic=MAGIC).appender(segment_bytes=64 << 10) as log:
        positions = [log.append(encode(command)) for _ in range(count) for command in life(chance)]
    return len(positions)


def life(chance: random.Random) -> Iterator[Command]:
    """A job: added, tried until it is done, and sometimes deleted."""
    job = uuid.UUID(int=chance.getrandbits(128), version=4).bytes
    yield Add(job, chance.choice(QUEUES), ttr_ms=1000, ttl_ms=86_400_000, created_ns=time.time_ns(), max_fails=3)
    for _ in range(3):
        yield StartAttempt(job)
        if chance.random() < 0.8:
            yield Complete(job, b"done")
            break
        yield Fail(job, b"again")
    if chance.random() < 0.1:
        yield Delete(job)


if __name__ == "__main__":
    print(append_jobs(sys.argv[1], int(sys.argv[2])), "commands")
