"""The fields of a command as bytes. `chiplog.jobs.commands` has the commands themselves."""

from __future__ import annotations

import struct

SECOND_NS = 1_000_000_000
UNIX_EPOCH_SECONDS = 62_135_596_800  # from 0001-01-01T00:00:00Z, where the seconds of times start
NOT_SCHEDULED = -(2**63)
_TIME = struct.Struct(">Bqih")
_ZONE_UTC = -1
ZERO_TIME = _TIME.pack(1, 0, 0, _ZONE_UTC)


def varint(number: int) -> bytes:
    """An unsigned number in groups of seven bits."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def time_bytes(time_ns: int) -> bytes:
    """A job's time, with the zone that workq writes."""
    seconds, nanos = divmod(time_ns, SECOND_NS)
    return _TIME.pack(1, seconds + UNIX_EPOCH_SECONDS, nanos, _ZONE_UTC)


def job_head(name: bytes, ttr_ms: int, ttl_ms: int, priority: int, max_attempts: int, max_fails: int) -> bytes:
    """What comes before a job's payload, from its name on."""
    zigzag = (priority << 1) ^ (priority >> 31)
    return varint(len(name)) + name + b"".join(map(varint, (ttr_ms, ttl_ms, zigzag, max_attempts, max_fails)))
