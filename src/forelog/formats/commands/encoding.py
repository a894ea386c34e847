"""The fields of a command as bytes. `forelog.formats.commands.commands` has the commands themselves."""

from __future__ import annotations

from forelog.kernel.plain.commands import SECOND_NS, UNIX_EPOCH_SECONDS, ZERO_TIME, time_bytes
from forelog.kernel.types import varint

__all__ = ["NOT_SCHEDULED", "SECOND_NS", "UNIX_EPOCH_SECONDS", "ZERO_TIME", "job_head", "time_bytes", "varint"]

NOT_SCHEDULED = -(2**63)


def job_head(name: bytes, ttr_ms: int, ttl_ms: int, priority: int, max_attempts: int, max_fails: int) -> bytes:
    """What comes before a job's payload, from its name on."""
    zigzag = (priority << 1) ^ (priority >> 31)
    return varint(len(name)) + name + b"".join(map(varint, (ttr_ms, ttl_ms, zigzag, max_attempts, max_fails)))
