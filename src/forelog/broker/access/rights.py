"""What one client may do, by the rules of one moment.

A topic is looked up in this order, as mosquitto does it, and the first rule that matches decides: what the user's
own rules deny, what they allow, what patterns deny, what patterns allow. What nothing allows is refused.

A subscription is granted if there may be something that it gets, and each delivery is looked at by itself. That
costs nothing per message: a verdict belongs to a topic, and whoever sends messages remembers verdicts by topic.
They count until the rules are read again: then every client gets new rights, and what was remembered is dropped.

>>> from forelog.broker.access.rules import Rules
>>> rules = Rules.parse("topic read sensors/#\\ntopic deny sensors/secret/#", "rules")
>>> ann = Rights(Ruleset(rules.of_user(None)))
>>> ann.may_subscribe("#"), ann.may_read("sensors/attic"), ann.may_read("sensors/secret/key")
(True, True, False)
>>> ann.may_subscribe("sensors/secret/+"), ann.may_publish("sensors/attic")
(False, False)
"""

from __future__ import annotations

from collections.abc import Iterable

from forelog.broker.access.rules import Rule, covers, overlaps
from forelog.broker.mqtt import Trie
from forelog.broker.mqtt.topics import has_wildcards

__all__ = ["EVERYTHING", "NOTHING", "Rights", "Ruleset"]

_READ, _WRITE, _DENY = 1, 2, 4
_CACHE_BYTES_MAX = 4 << 20
_CACHED_CHARS_MAX = 256
_ENTRY_BYTES = 250
"""About what a verdict costs, besides the characters of its topic."""


class Ruleset:
    """Rules of which a denial comes first, found by topic."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = list(rules)
        bits: dict[str, int] = {}
        for rule in self._rules:
            found = _DENY if rule.denies else _READ * rule.read | _WRITE * rule.write
            bits[rule.filter] = bits.get(rule.filter, 0) | found
        self._trie: Trie[str, int] = Trie()
        for name, found in bits.items():
            self._trie.add(name, name, found)
        self._denied: Trie[str, None] = Trie()
        for rule in self._rules:
            if rule.denies:
                self._denied.add(rule.filter, rule.filter, None)
        readable = dict.fromkeys(rule.filter for rule in self._rules if rule.read)
        self._readable = [name for name in readable if not self.denies_all_of(name)]

    def __len__(self) -> int:
        return len(self._rules)

    def verdict(self, topic: str, right: int) -> bool | None:
        """Whether a topic is allowed; None if no rule says anything."""
        found = 0
        for _, bits in self._trie.match(topic):
            found |= bits
        if found & _DENY:
            return False
        return True if found & right else None

    def allows_all(self, right: int) -> bool:
        """Whether a rule allows every topic, and none is denied."""
        if self._denied:
            return False
        wanted = "read" if right == _READ else "write"
        return any(rule.filter == "#" and getattr(rule, wanted) for rule in self._rules)

    def denies_all_of(self, filter: str) -> bool:  # noqa: A002
        """Whether everything that a filter matches is denied, by one rule."""
        # A rule that covers a filter matches its text too, as if that were a topic.
        return any(covers(rule, filter) for rule, _ in self._denied.match(filter))

    def allows_some_of(self, filter: str) -> bool:  # noqa: A002
        """Whether something that a filter matches may be readable."""
        return any(overlaps(rule, filter) for rule in self._readable)


class Rights:
    """What a client may do."""

    def __init__(self, own: Ruleset | None = None, patterns: Ruleset | None = None, *, free: bool = False) -> None:
        self._sets = [one for one in (own, patterns) if one is not None and len(one)]
        self._free = free
        self.publishes_all = free or self._all(_WRITE)
        """Whether it may publish to every topic: then none has to be looked at."""
        self.reads_all = free or self._all(_READ)
        """Whether it may read every topic that clients can publish to."""

    def _all(self, right: int) -> bool:
        return bool(self._sets) and self._sets[0].allows_all(right)

    def may_publish(self, topic: str) -> bool:
        """Whether a message may go to a topic."""
        return self._free or self._verdict(topic, _WRITE)

    def may_read(self, topic: str) -> bool:
        """Whether a message of a topic may be delivered."""
        return self._free or self._verdict(topic, _READ)

    def may_subscribe(self, filter: str) -> bool:  # noqa: A002
        """Whether there may be something that a subscription gets."""
        if self._free:
            return True
        if not has_wildcards(filter):
            return self._verdict(filter, _READ)
        for rules in self._sets:
            if rules.denies_all_of(filter):
                return False
            if rules.allows_some_of(filter):
                return True
        return False

    def _verdict(self, topic: str, right: int) -> bool:
        for rules in self._sets:
            found = rules.verdict(topic, right)
            if found is not None:
                return found
        return False


class Verdicts:
    """What clients may publish to, remembered. Bounded in bytes; long topics aren't remembered at all."""

    def __init__(self) -> None:
        self._found: dict[Rights, dict[str, bool]] = {}
        self._bytes = 0

    def may_publish(self, rights: Rights, topic: str) -> bool:
        """As the rights say."""
        own = self._found.get(rights)
        found = None if own is None else own.get(topic)
        if found is None:
            found = rights.may_publish(topic)
            if len(topic) <= _CACHED_CHARS_MAX:
                self._bytes += _bytes_of(topic)
                if self._bytes > _CACHE_BYTES_MAX:
                    self._found.clear()
                    self._bytes = _bytes_of(topic)
                self._found.setdefault(rights, {})[topic] = found
        return found

    def forget(self, rights: Rights) -> None:
        """A client is gone: what it could do, with all the rules that were made for it, needn't be kept."""
        self._bytes -= sum(map(_bytes_of, self._found.pop(rights, ())))


def _bytes_of(topic: str) -> int:
    return _ENTRY_BYTES + 4 * len(topic)


EVERYTHING = Rights(free=True)
"""Where there are no rules."""
NOTHING = Rights()
"""For a session whose client isn't here."""
