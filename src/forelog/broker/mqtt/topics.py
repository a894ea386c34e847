"""Topics and filters: which are valid, and which match.

A topic has levels separated by slashes; a level may be empty. In a filter, `+` stands for one level, and a last
`#` for any number of levels. Two prefixes have a special meaning:

    $share/GROUP/FILTER   each message goes to one subscriber of the group
    $replay/WHEN/FILTER   first all messages since WHEN, from the log, then new ones;
                          WHEN is a time (2026-11-15T18:00:00Z, 2026-11-15), a time ago (-15m), or `all`

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

LEVELS_MAX = 200
"""Levels of a filter: one of 65,535 slashes would be as many nodes in memory."""
REPLAY_ALL = "all"
_TEXT_BYTES_MAX = 0xFFFF


class Filter(NamedTuple):
    """A filter without its prefix, and the meaning of the prefix."""

    filter: str
    group: str | None = None
    """The name of a shared subscription."""
    when: str | None = None
    """When a replay starts, see `replay_since_ns`."""


def has_wildcards(text: str) -> bool:
    """Whether a text contains `+` or `#`."""
    return "+" in text or "#" in text


def is_topic_name(text: str) -> bool:
    """Whether a text is a valid topic, to which messages may be published."""
    return bool(text) and "\0" not in text and not has_wildcards(text) and _fits(text)


def _fits(text: str) -> bool:
    return len(text) <= _TEXT_BYTES_MAX // 4 or len(text.encode("utf-8", "surrogatepass")) <= _TEXT_BYTES_MAX


def parse_filter(text: str) -> Filter:
    """Parse a filter. Raises BadPacket with 0x8F if it is invalid. `when` isn't checked."""
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
    """The time from which `$replay/WHEN/` replays, in nanoseconds; None for all messages."""
    return None if when == REPLAY_ALL else parse_time(when, now_ns=now_ns)


def _checked(text: str, whole: str) -> str:
    if not text:
        raise _invalid(whole, "it is empty")
    if "\0" in text or not _fits(text):
        raise _invalid(whole, "it has a U+0000, or more than 65,535 bytes")
    if text.count("/") >= LEVELS_MAX:
        raise _invalid(whole, f"it has more than {LEVELS_MAX} levels")
    if text is not whole and text.startswith(("$share/", "$replay/")):
        raise _invalid(whole, "it has two prefixes")
    if not has_wildcards(text):
        return text
    *levels, last = text.split("/")
    if [level for level in levels if level != "+" and has_wildcards(level)]:
        raise _invalid(whole, "a wildcard must be a whole level, and # the last one")
    if has_wildcards(last) and last not in ("+", "#"):
        raise _invalid(whole, "a wildcard must be a whole level")
    return text


def _invalid(text: str, why: str) -> BadPacket:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return BadPacket(ReasonCode.TOPIC_FILTER_INVALID, f"the filter {shown!r} can't be used: {why}")


def matches(filter: str, topic: str) -> bool:  # noqa: A002
    """Whether a filter without a prefix matches a topic. Both must be valid."""
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
