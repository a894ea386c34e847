"""Topics and filters: which are valid, what they mean, and which match.

A topic is levels between slashes; any level may be empty. In a filter `+` stands for one level and a last `#` for
the rest, including none. Two prefixes give a filter a meaning of its own:

    $share/GROUP/FILTER   each message goes to one subscriber of the group only
    $replay/WHEN/FILTER   first everything since WHEN, from the log, and then what comes:
                          a time (2026-11-15T18:00:00Z, 2026-11-15), a time ago (-15m), or `all`

>>> matches("sensors/+/temperature", "sensors/attic/temperature"), matches("sensors/#", "sensors")
(True, True)
>>> parse_filter("$share/loggers/sensors/#")
Filter(filter='sensors/#', group='loggers', when=None)
>>> parse_filter("$replay/-15m/sensors/#")
Filter(filter='sensors/#', group=None, when='-15m')
"""

from __future__ import annotations

from typing import NamedTuple

from forelog.broker.mqtt.reasons import ReasonCode
from forelog.errors import BadPacket
from forelog.times import parse_time

__all__ = [
    "LEVELS_MAX",
    "REPLAY_ALL",
    "Filter",
    "has_wildcards",
    "is_topic_name",
    "matches",
    "parse_filter",
    "replay_since_ns",
]

LEVELS_MAX = 200
"""Of a filter: one of 65,535 slashes would be as many nodes in memory."""
REPLAY_ALL = "all"
_TEXT_BYTES_MAX = 0xFFFF


class Filter(NamedTuple):
    """What a client subscribed to: a filter without its prefix, and what the prefix said."""

    filter: str
    group: str | None = None
    """The name of a shared subscription."""
    when: str | None = None
    """From when on messages are to be replayed, see `replay_since_ns`."""


def has_wildcards(text: str) -> bool:
    """Whether there is a `+` or `#` anywhere."""
    return "+" in text or "#" in text


def is_topic_name(text: str) -> bool:
    """Whether a message may be published to it."""
    return bool(text) and "\0" not in text and not has_wildcards(text) and _fits(text)


def _fits(text: str) -> bool:
    return len(text) <= _TEXT_BYTES_MAX // 4 or len(text.encode("utf-8", "surrogatepass")) <= _TEXT_BYTES_MAX


def parse_filter(text: str) -> Filter:
    """The parts of a filter, or BadPacket with 0x8F for one that is none. What `when` says isn't looked at."""
    if not text.startswith("$"):
        return Filter(_checked(text, text))
    prefix, _, rest = text.partition("/")
    if prefix == "$share":
        group, slash, inner = rest.partition("/")
        if not group or not slash or has_wildcards(group):
            raise _invalid(text, "expected $share/GROUP/FILTER, the group without wildcards")
        return Filter(_checked(inner, text), group=group)
    if prefix == "$replay":
        when, slash, inner = rest.partition("/")
        if not slash:
            raise _invalid(text, "expected $replay/WHEN/FILTER")
        return Filter(_checked(inner, text), when=when)
    return Filter(_checked(text, text))


def replay_since_ns(when: str, *, now_ns: int) -> int | None:
    """The first nanosecond that `$replay/WHEN/` asks for; None for all there is."""
    return None if when == REPLAY_ALL else parse_time(when, now_ns=now_ns)


def _checked(text: str, whole: str) -> str:
    if not text:
        raise _invalid(whole, "it is empty")
    if "\0" in text or not _fits(text):
        raise _invalid(whole, "it has a U+0000, or more than 65,535 bytes")
    if text.count("/") >= LEVELS_MAX:
        raise _invalid(whole, f"it has more than {LEVELS_MAX} levels")
    if text is not whole and text.startswith(("$share/", "$replay/")):
        raise _invalid(whole, "one prefix is as much as it may have")
    if not has_wildcards(text):
        return text
    *levels, last = text.split("/")
    if any(has_wildcards(level) and level != "+" for level in levels):
        raise _invalid(whole, "a wildcard takes a whole level, and # the last one")
    if has_wildcards(last) and last not in ("+", "#"):
        raise _invalid(whole, "a wildcard takes a whole level")
    return text


def _invalid(text: str, why: str) -> BadPacket:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return BadPacket(ReasonCode.TOPIC_FILTER_INVALID, f"the filter {shown!r} can't be used: {why}")


def matches(filter: str, topic: str) -> bool:  # noqa: A002 - the word that everybody uses
    """Whether a filter (without a prefix) matches a topic. Both are taken to be valid."""
    if topic.startswith("$") and filter.startswith(("+", "#")):
        return False
    if not has_wildcards(filter):
        return filter == topic
    wanted = filter.split("/")
    levels = topic.split("/", len(wanted))  # however many there are, no more of them matter
    if wanted[-1] == "#":
        del wanted[-1]
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(want in ("+", level) for want, level in zip(wanted, levels, strict=False))
