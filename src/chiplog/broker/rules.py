"""What users may publish and subscribe to, in a file as other brokers have it::

    topic read announcements/#          # before any user: for those who come without a name
    user ann
    topic readwrite sensors/#
    topic deny sensors/secret/#         # whatever else allows it
    pattern write devices/%c/+          # for everybody: %c is the client's id, %u the user's name

`topic FILTER` alone means readwrite. A subscription is allowed if one rule covers all that it can match, and it
can match nothing that is denied: afterwards no message has to be looked at.

>>> covers("sensors/#", "sensors/+/temperature"), covers("sensors/+", "sensors/#"), covers("#", "$SYS/#")
(True, False, False)
>>> overlaps("sensors/+/temperature", "sensors/attic/#"), overlaps("a/+", "b/#")
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from chiplog.broker.mqtt import BadPacket, matches, parse_filter
from chiplog.broker.passwords import ANONYMOUS, read_text
from chiplog.errors import BadAccessFile

__all__ = ["Rule", "Rules", "covers", "overlaps"]

_LINES = "topic [read|write|readwrite|deny] FILTER, or pattern with the same"
_RIGHTS = {"read": (True, False), "write": (False, True), "readwrite": (True, True), "deny": (False, False)}


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
        """From a file."""
        return cls.parse(read_text(path), path)

    @classmethod
    def parse(cls, text: str, path: str) -> Rules:
        """From a file's text."""
        users: dict[str, list[Rule]] = {}
        patterns: list[Rule] = []
        user = ANONYMOUS
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split(None, 1)
            if not words or line.lstrip().startswith("#"):
                continue
            rest = words[1].strip() if len(words) > 1 else ""
            try:
                if words[0] == "user" and rest:
                    user = rest
                    users.setdefault(user, [])
                elif words[0] == "topic" and rest:
                    users.setdefault(user, []).append(_rule(rest))
                elif words[0] == "pattern" and rest:
                    patterns.append(_rule(rest))
                else:
                    raise ValueError(f"{line.strip()!r:.80}: expected user NAME, {_LINES}")
            except ValueError as error:
                raise BadAccessFile(f"{path}, line {number}: {error}") from None
        return cls(users, patterns)

    def names(self) -> set[str]:
        """The users that have rules."""
        return set(self._users)

    def of(self, user: str | None, client_id: str) -> list[Rule]:
        """All that count for a client."""
        found = list(self._users.get(ANONYMOUS if user is None else user, ()))
        for rule in self._patterns:
            filled = _filled(rule.filter, user, client_id)
            if filled is not None:
                found.append(rule._replace(filter=filled))
        return found


def may_publish(rules: Iterable[Rule], topic: str) -> bool:
    """Whether a message may go to a topic."""
    found = [rule for rule in rules if (rule.write or rule.denies) and matches(rule.filter, topic)]
    return bool(found) and not any(rule.denies for rule in found)


def may_publish_all(rules: Iterable[Rule]) -> bool:
    """Whether messages may go everywhere, and nothing has to be looked at."""
    rules = list(rules)
    return any(rule.write and rule.filter == "#" for rule in rules) and not any(rule.denies for rule in rules)


def may_subscribe(rules: Iterable[Rule], filter: str) -> bool:  # noqa: A002
    """Whether everything that a filter matches may be read."""
    rules = list(rules)
    if any(rule.denies and overlaps(rule.filter, filter) for rule in rules):
        return False
    return any(rule.read and covers(rule.filter, filter) for rule in rules)


def _rule(text: str) -> Rule:
    first, _, rest = text.partition(" ")
    rights, name = (_RIGHTS[first], rest.strip()) if first in _RIGHTS and rest.strip() else ((True, True), text)
    try:
        if parse_filter(name).filter != name:
            raise ValueError(f"{name!r}: rules are for filters without $share or $replay before them")
    except BadPacket as error:
        raise ValueError(error.why) from None
    return Rule(name, *rights)


def _filled(filter: str, user: str | None, client_id: str) -> str | None:  # noqa: A002
    """A pattern for a client; None if it isn't for it, or the client's name would change what it means."""
    for mark, value in (("%c", client_id), ("%u", user)):
        if mark in filter:
            if value is None or not value or any(c in "+#/" for c in value):
                return None
            filter = filter.replace(mark, value)  # noqa: A001
    return filter


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
