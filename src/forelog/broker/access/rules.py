"""The file of rules, in the format of mosquitto::

    topic read announcements/#          # before any user: for clients without a name
    user ann
    topic readwrite sensors/#
    topic deny sensors/secret/#         # ann gets the rest of sensors/#
    pattern write devices/%c/+          # for all clients: %c is the client id, %u the user name

`topic FILTER` without a word means readwrite. An unknown word is an error, because a rule that was meant to deny
something must never allow it.

>>> covers("sensors/#", "sensors/+/temperature"), covers("sensors/+", "sensors/#"), covers("#", "$SYS/#")
(True, False, False)
>>> overlaps("sensors/+/temperature", "sensors/attic/#"), overlaps("a/+", "b/#")
(True, False)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from forelog.broker.access.passwords import ANONYMOUS, read_text
from forelog.broker.mqtt.topics import parse_filter
from forelog.errors import BadAccessFile, BadPacket

_RIGHTS = {"read": (True, False), "write": (False, True), "readwrite": (True, True), "deny": (False, False)}
_WORDS = "|".join(_RIGHTS)
_LINES = f"user NAME, topic [{_WORDS}] FILTER, or pattern [{_WORDS}] FILTER"
_MARKS = re.compile("%[cu]")


class Rule(NamedTuple):
    """One rule."""

    filter: str
    read: bool = True
    write: bool = True
    """With neither `read` nor `write` the filter is denied."""

    @property
    def denies(self) -> bool:
        """Whether the rule denies."""
        return not self.read and not self.write


class Rules:
    """The rules of a file."""

    def __init__(self, users: dict[str, list[Rule]], patterns: list[Rule]) -> None:
        self._users = users
        self._patterns = patterns

    @classmethod
    def read(cls, path: str) -> Rules:
        """Read a file. Raises BadAccessFile for an invalid line."""
        return cls.parse(read_text(path), path)

    @classmethod
    def parse(cls, text: str, path: str) -> Rules:
        """Parse a file's text. Raises BadAccessFile for an invalid line."""
        users: dict[str, list[Rule]] = {}
        patterns: list[Rule] = []
        user = ANONYMOUS
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split(None, 1)
            if not words or words[0].startswith("#"):
                continue
            rest = words[1].strip() if len(words) > 1 else ""
            try:
                if words[0] == "user" and rest:
                    user = rest
                    users.setdefault(user, [])
                elif words[0] == "topic" and rest:
                    users.setdefault(user, []).append(_rule("topic", rest))
                elif words[0] == "pattern" and rest:
                    patterns.append(_rule("pattern", rest))
                else:
                    raise ValueError(f"{line.strip()!r:.80}: expected {_LINES}")
            except ValueError as error:
                raise BadAccessFile(f"{path}, line {number}: {error}") from None
        return cls(users, patterns)

    def names(self) -> set[str]:
        """The users that have rules."""
        return set(self._users)

    def of_user(self, user: str | None) -> list[Rule]:
        """A user's own rules; for None those of clients without a name."""
        return self._users.get(ANONYMOUS if user is None else user, [])

    def of_patterns(self, user: str | None, client_id: str) -> Iterator[Rule]:
        """The patterns with a client's id and name filled in; none if either contains a wildcard."""
        if any(char in "+#" for char in (user or "") + client_id):
            return
        for rule in self._patterns:
            filled = _filled(rule.filter, user, client_id)
            if filled is not None:
                yield rule._replace(filter=filled)


def _rule(kind: str, text: str) -> Rule:
    first, *rest = text.split(None, 1)
    name = rest[0] if rest else ""
    if first in _RIGHTS and name:
        rights = _RIGHTS[first]
    elif first in _RIGHTS:
        raise ValueError(f"{kind} {first} has no filter. For a topic of that name: {kind} readwrite {first}")
    elif name:
        raise ValueError(
            f"{first!r:.80} isn't one of {_WORDS}. For a filter with a space in it "
            f"write {kind} readwrite {text:.80}"
        )
    else:
        rights, name = (True, True), text
    try:
        if parse_filter(name).filter != name:
            raise ValueError(f"{name!r}: the filter of a rule has no $share or $replay prefix")
    except BadPacket as error:
        raise ValueError(error.why) from None
    return Rule(name, *rights)


def _filled(filter: str, user: str | None, client_id: str) -> str | None:  # noqa: A002
    """A pattern filled in for a client; None if it lacks a value, or a value would change the filter's meaning.

    Filled in one pass, so that a client id of `%u` isn't replaced by the user's name.
    """
    values = {"%c": client_id, "%u": user}
    for mark in set(_MARKS.findall(filter)):
        value = values[mark]
        if not value or any(char in "+#/" for char in value):
            return None
    return _MARKS.sub(lambda found: values[found[0]] or "", filter)


def covers(rule: str, filter: str) -> bool:  # noqa: A002
    """Whether a rule's filter matches every topic that another filter matches."""
    ours, theirs = rule.split("/"), filter.split("/")
    if filter.startswith("$") and ours[0] in ("+", "#"):
        return False
    for number, level in enumerate(ours):
        if level == "#":
            return True
        if number >= len(theirs) or theirs[number] == "#":
            return False
        if level not in ("+", theirs[number]):
            return False
    return len(theirs) == len(ours)


def overlaps(one: str, other: str) -> bool:
    """Whether some topic matches both filters."""
    ours, theirs = one.split("/"), other.split("/")
    if one.startswith("$") != other.startswith("$") and (ours[0] in ("+", "#") or theirs[0] in ("+", "#")):
        return False
    for number in range(max(len(ours), len(theirs))):
        mine = ours[number] if number < len(ours) else None
        yours = theirs[number] if number < len(theirs) else None
        if "#" in (mine, yours):
            return True
        if mine is None or yours is None or (mine != yours and "+" not in (mine, yours)):
            return False
    return True
