"""What a job may be: the limits of workq, with its error texts.

>>> from forelog.formats.commands.commands import parse_id
>>> refuse(parse_id("61000000-0001-4000-8000-000000000001"), b"mail", 0, 1, 0)
'Invalid TTR'
"""

from __future__ import annotations

import re

PAYLOAD_BYTES_MAX = 1 << 20
RESULT_BYTES_MAX = 1 << 20
TTR_MS_MAX = 24 * 3600 * 1000
TTL_MS_MAX = 30 * 24 * 3600 * 1000
TIME_NS_MAX = 9 * 10**18
"""A time in the year 2255. Nothing is scheduled later, so any time fits into 64 bits of nanoseconds."""
ATTEMPTS_MAX = 255
"""The most attempts of any job, also of one that sets no limit."""
LEASE_NAMES_MAX = 256

_NAME = re.compile(rb"[A-Za-z0-9_.-]{1,255}")
_NAMES_MAX = 4096
_TTR_MS_MAX, _TTL_MS_MAX, _PAYLOAD_BYTES_MAX = TTR_MS_MAX, TTL_MS_MAX, PAYLOAD_BYTES_MAX

_names: set[bytes] = set()


def refuse(job_id: bytes, name: bytes, ttr_ms: int, ttl_ms: int, payload_bytes: int) -> str | None:
    """Why a job with these values is invalid, or None."""
    if not is_id(job_id):
        return "Invalid ID"
    if not is_name(name):
        return "Invalid Name"
    if not 0 < ttr_ms <= _TTR_MS_MAX:
        return "Invalid TTR"
    if not 0 < ttl_ms <= _TTL_MS_MAX:
        return "Invalid TTL"
    if payload_bytes > _PAYLOAD_BYTES_MAX:
        return "Invalid Payload"
    return None


def is_name(name: bytes) -> bool:
    """Whether this is a valid name of a queue. Names that are valid are cached."""
    if name in _names:
        return True
    if _NAME.fullmatch(name) is None:
        return False
    if len(_names) >= _NAMES_MAX:
        _names.clear()
    _names.add(name)
    return True


def is_id(job_id: bytes | None) -> bool:
    """Whether this is a random UUID: version 4, variant RFC 4122."""
    return job_id is not None and len(job_id) == 16 and job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2
