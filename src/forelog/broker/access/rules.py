"""What users may publish and read, in a file as mosquitto has it::

    topic read announcements/#          # before any user: for clients without a name
    user ann
    topic readwrite sensors/#
    topic deny sensors/secret/#         # ann gets the rest of sensors/#, and nothing of this
    pattern write devices/%c/+          # for everybody: %c is the client's id, %u the user's name

`topic FILTER` alone means readwrite. A word that isn't known is an error, with its line: a rule that was meant to
close something must never open it. What the rules mean for a client is in `rights`.

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
from forelog.broker.mqtt import BadPacket, parse_filter
from forelog.errors import BadAccessFile

__all__ = ["Rule", "Rules", "covers", "overlaps"]

_RIGHTS = {"read": (True, False), "write": (False, True), "readwrite": (True, True), "deny": (False, False)}
_WORDS = "|".join(_RIGHTS)
_LINES = f"user NAME, topic [{_WORDS}] FILTER, or pattern [{_WORDS}] FILTER"
_MARKS = re.compile("%[cu]")


class Rule(NamedTuple):
    """One line."""

    filter: str
    read: bool = True
    write: bool = True
    """Neither of them: it is denied."""

    @property
    def denies(self) -> bool:
        """Whether it takes rights away."""
        return not self.read and not self.write


class Rules:
    """The rules of a file."""

    def __init__(self, users: dict[str, list[Rule]], patterns: list[Rule]) -> None:
        self._users = users
        self._patterns = patterns

    @classmethod
    def read(cls, path: str) -> Rules:
        """Read a file."""
        return cls.parse(read_text(path), path)

    @classmethod
    def parse(cls, text: str, path: str) -> Rules:
        """Parse a file's text. Raises BadAccessFile for a line that makes no sense."""
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
        """The patterns, filled in for a client. None apply to one whose id or name has a wildcard in it."""
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
        raise ValueError(f"{kind} {first}: what? For a topic of that name write {kind} readwrite {first}")
    elif name:
        raise ValueError(
            f"{first!r:.80} is none of {_WORDS}. If it begins the name of a topic with a space in it, "
            f"write {kind} readwrite {text:.80}"
        )
    else:
        rights, name = (True, True), text
    try:
        if parse_filter(name).filter != name:
            raise ValueError(f"{name!r}: rules are for filters without $share or $replay before them")
    except BadPacket as error:
        raise ValueError(error.why) from None
    return Rule(name, *rights)


def _filled(filter: str, user: str | None, client_id: str) -> str | None:  # noqa: A002
    """A pattern for a client; None if it isn't for it, or the client's name would change what it means.

    In one pass: a client whose id is `%u` is called that, and not like its user.
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
    """Whether some topic matches both."""
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
