"""The words of a command, checked before they are sent.

>>> name_of("mail"), whole(5), size_of(b"hello")
('mail', 5, 5)
>>> name_of("two words")
Traceback (most recent call last):
forelog.errors.JobRefused: 'two words' isn't a queue's name: expected up to 255 of A-Z a-z 0-9 _ . -
"""

from __future__ import annotations

import re
from uuid import UUID, uuid4

from forelog.errors import JobRefused
from forelog.jobs.machine.limits import PAYLOAD_BYTES_MAX, is_name

ARGS = "Invalid command args"
_KEY = re.compile(r"[^\s,\x00-\x1f\x7f]{1,255}")


def new_id(given: UUID | str | None) -> UUID:
    """The id of a new job: the one that is given, or a random one."""
    if given is None:
        return uuid4()
    found = id_of(given)
    if found.version != 4:
        raise JobRefused(f"{found} isn't a random UUID (version 4): uuid.uuid4() makes one", reason="Invalid ID")
    return found


def id_of(given: UUID | str) -> UUID:
    """The id of a job that is there."""
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise JobRefused(f"{given!r:.80} isn't an id: expected a UUID", reason="Invalid ID") from None


def name_of(name: str) -> str:
    """The name of a queue."""
    if not isinstance(name, str) or not is_name(name.encode("utf-8", "surrogateescape")):
        raise JobRefused(
            f"{name!r:.80} isn't a queue's name: expected up to 255 of A-Z a-z 0-9 _ . -", reason="Invalid Name"
        )
    return name


def any_name(name: str) -> str:
    """The name of a queue, or `*` for all of them."""
    return name if name == "*" else name_of(name)


def key_of(what: str, key: str) -> str:
    """A key: of a unique job, of a group, the name of a schedule or of a step."""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or len(key.encode("utf-8", "replace")) > 255:
        raise JobRefused(
            f"{what} is {key!r:.80}: expected 1 to 255 printable characters without spaces or commas", reason=ARGS
        )
    return key


def one_of(what: str, value: str, *choices: str) -> str:
    """One of a few words."""
    if value not in choices:
        raise JobRefused(f"{what} is {value!r:.80}: expected one of {', '.join(choices)}", reason=ARGS)
    return value


def whole(number: int) -> int:
    """A whole number."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise JobRefused(f"{number!r:.80} isn't a whole number, 0 or more", reason=ARGS)
    return number


def size_of(payload: bytes) -> int:
    """The size of a payload or a result."""
    if not isinstance(payload, bytes | bytearray):
        raise JobRefused(f"a payload is bytes, not {type(payload).__name__}", reason="Invalid payload size")
    size = len(payload)
    if size > PAYLOAD_BYTES_MAX:
        raise JobRefused(
            f"{size} bytes are more than the {PAYLOAD_BYTES_MAX} allowed", reason="Invalid payload size"
        )
    return size


def span_ms(what: str, span: object) -> int:
    """Milliseconds of a duration: `"5m"`, a number of seconds, or a timedelta.

    >>> span_ms("delay", "1.5s"), span_ms("delay", 2), span_ms("delay", 0.25)
    (1500, 2000, 250)
    """
    from datetime import timedelta

    from forelog.times import parse_duration

    if isinstance(span, str):
        return parse_duration(span) // 10**6
    if isinstance(span, timedelta):
        span = span.total_seconds()
    if not isinstance(span, int | float) or isinstance(span, bool) or not 0 <= span < 10**9:
        raise ValueError(f"{what} is {span!r:.80}: expected a duration such as '5m', seconds, or a timedelta")
    return round(span * 1000)
