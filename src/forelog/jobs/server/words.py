"""The words of a command line: numbers, names, ids, times and flags, and the replies to invalid ones."""

from __future__ import annotations

from forelog import kernel
from forelog.errors import ForelogError
from forelog.jobs.machine.limits import (
    ATTEMPTS_MAX,
    PAYLOAD_BYTES_MAX,
    TIME_NS_MAX,
    TTL_MS_MAX,
    TTR_MS_MAX,
    is_id,
    is_name,
)
from forelog.jobs.machine.terms import FLAGS
from forelog.jobs.server.replies import (
    ARGS,
    BAD_ATTEMPTS,
    BAD_FAILS,
    BAD_ID,
    BAD_NAME,
    BAD_PRIORITY,
    BAD_TTL,
    BAD_TTR,
    BAD_WAIT,
)
from forelog.times import parse_time

_WAIT_MS_MAX = 24 * 3600 * 1000
_ZERO, _NINE = b"09"
_parse = kernel.uuid_parse


def parse_id(text: bytes) -> bytes | None:
    """The 16 bytes of an id, or None. In any spelling that workq takes: with or without dashes, in braces, as a
    URN, and with anything behind it."""
    job_id = _parse(text)
    return _parse_loosely(text) if job_id is None else job_id


def _parse_loosely(text: bytes) -> bytes | None:
    text = text.removeprefix(b"urn:uuid:") if text[:9] == b"urn:uuid:" else text.removeprefix(b"{")
    groups = []
    for count in (8, 4, 4, 4, 12):
        text = text.removeprefix(b"-")
        groups.append(text[:count])
        text = text[count:]
    return _parse(b"-".join(groups))


def split_flags(words: list[bytes]) -> tuple[list[bytes], dict[bytes, bytes], bool]:
    """Arguments, flags, and whether the flags are well-formed."""
    args: list[bytes] = []
    flags: dict[bytes, bytes] = {}
    sound = True
    for word in words:
        if word[:1] == b"-" and b"=" in word:
            key, value = word.split(b"=")[:2]
            if len(key) < 2 or not value or key in flags:
                sound = False
            flags[key] = value
        elif word:
            args.append(word)
    return args, flags, sound


def number(word: bytes) -> int:
    """An unsigned number of up to 18 digits, not counting leading zeros; or -1."""
    if len(word) > 18:
        word = word.lstrip(b"0")
    if not 0 < len(word) <= 18:
        return -1
    value = 0
    for digit in word:
        if not _ZERO <= digit <= _NINE:
            return -1
        value = 10 * value + digit - _ZERO
    return value


def payload_size(word: bytes) -> int:
    """The size of a payload, or -1."""
    size = number(word[1:] if word[:1] == b"+" else word)
    return size if size <= PAYLOAD_BYTES_MAX else -1


def is_signed(word: bytes) -> bool:
    """Whether this is a signed number of 32 bits."""
    digits = word[1:] if word[:1] in (b"+", b"-") else word
    return len(digits) <= 18 and digits.isdigit() and -(2**31) <= int(word) < 2**31


def moment(word: bytes) -> int | None:
    """A time such as 2016-06-14T06:46:46Z, or None."""
    if len(word) > 40 or word[-1:] != b"Z" or word[10:11] != b"T":
        return None
    try:
        time_ns = parse_time(word.decode("ascii"))
    except (ValueError, ForelogError):
        return None
    return time_ns if abs(time_ns) <= TIME_NS_MAX else None


def refuse_job(
    job_id: bytes | None, name: bytes, ttr_ms: int, ttl_ms: int, flags: dict[bytes, bytes] | None
) -> bytes | None:
    """The reply to an invalid job, or None."""
    if not is_id(job_id):
        return BAD_ID
    if not is_name(name):
        return BAD_NAME
    if not 0 < ttr_ms <= TTR_MS_MAX:
        return BAD_TTR
    if not 0 < ttl_ms <= TTL_MS_MAX:
        return BAD_TTL
    return refuse_flags(flags)


def refuse_flags(flags: dict[bytes, bytes] | None) -> bytes | None:
    """The reply to invalid flags of a job, or None."""
    if not flags:
        return None
    if len(flags) > 3 and len(flags.keys() - FLAGS) > 3:
        return ARGS
    if not is_signed(flags.get(b"-priority", b"0")):
        return BAD_PRIORITY
    if not 0 <= number(flags.get(b"-max-attempts", b"0")) <= ATTEMPTS_MAX:
        return BAD_ATTEMPTS
    if not 0 <= number(flags.get(b"-max-fails", b"0")) <= ATTEMPTS_MAX:
        return BAD_FAILS
    return None


def refuse_run(
    job_id: bytes | None, name: bytes, ttr_ms: int, wait_ms: int, flags: dict[bytes, bytes] | None
) -> bytes | None:
    """The reply to an invalid `run`, or None."""
    if flags and len(flags) > 1:
        return ARGS
    refusal = refuse_job(job_id, name, ttr_ms, 1, None)
    if refusal is not None:
        return refusal
    if not 0 <= wait_ms <= _WAIT_MS_MAX:
        return BAD_WAIT
    if flags and not is_signed(flags.get(b"-priority", b"0")):
        return BAD_PRIORITY
    return None


def refuse_wait(names: list[bytes], wait_ms: int) -> bytes | None:
    """The reply to an invalid wait for these queues, or None."""
    for name in names:
        if not is_name(name):
            return BAD_NAME
    return None if 0 <= wait_ms <= _WAIT_MS_MAX else BAD_WAIT
