"""What one client may do, by the rules at one time.

For a topic, the first of these that matches decides, as in mosquitto: the user's own rules that deny, those that
allow, patterns that deny, patterns that allow. A topic that no rule allows is refused.

A subscription is granted if it may match a readable topic, and each delivery is checked. That costs nothing per
message, because verdicts are cached by topic. When the rules are read again, the rights of every client change at
once, and what was concluded from the old ones counts no more: `edition` says which ones were asked.

>>> from forelog.broker.access.rules import Rules
>>> rules = Rules.parse("topic read sensors/#\\ntopic deny sensors/secret/#", "rules")
>>> ann = Rights(Ruleset(rules.of_user(None)))
>>> ann.may_subscribe("#"), ann.may_read("sensors/attic"), ann.may_read("sensors/secret/key")
(True, True, False)
>>> ann.may_subscribe("sensors/secret/+"), ann.may_publish("sensors/attic")
(False, False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forelog.broker.access.rules import Rule, covers, overlaps
from forelog.broker.mqtt.topics import has_wildcards
from forelog.broker.mqtt.trie import Trie

_READ, _WRITE, _DENY = 1, 2, 4
_CACHE_BYTES_MAX = 4 << 20
_CACHED_CHARS_MAX = 256
_ENTRY_BYTES = 250
"""Memory of a cached verdict, besides its topic."""


class Ruleset:
    """Rules by topic, where denials come first."""

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
        """Whether a topic is allowed; None if no rule matches."""
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
        """Whether one rule denies everything that a filter matches."""
        # A rule that covers a filter also matches the filter's text, taken as a topic.
        return any(covers(rule, filter) for rule, _ in self._denied.match(filter))

    def allows_some_of(self, filter: str) -> bool:  # noqa: A002
        """Whether a filter may match a readable topic."""
        return any(overlaps(rule, filter) for rule in self._readable)


class Rights:
    """What a client may do."""

    edition = 0
    """A number that is another one when the rights have changed."""

    def __init__(self, own: Ruleset | None = None, patterns: Ruleset | None = None, *, free: bool = False) -> None:
        self._sets = [one for one in (own, patterns) if one is not None and len(one)]
        self._free = free
        self._publishes_all = free or self._all(_WRITE)
        self._reads_all = free or self._all(_READ)

    @property
    def publishes_all(self) -> bool:
        """Whether it may publish to every topic, so that no topic has to be checked."""
        return self._publishes_all

    @property
    def reads_all(self) -> bool:
        """Whether it may read all topics to which clients can publish."""
        return self._reads_all

    def _all(self, right: int) -> bool:
        return bool(self._sets) and self._sets[0].allows_all(right)

    def may_publish(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        return self._free or self._verdict(topic, _WRITE)

    def may_read(self, topic: str) -> bool:
        """Whether messages of a topic may be delivered to it."""
        return self._free or self._verdict(topic, _READ)

    def may_subscribe(self, filter: str) -> bool:  # noqa: A002
        """Whether it may subscribe to a filter: whether some topic that matches may be readable."""
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


class CurrentRights(Rights):
    """The rights of a client by the rules of the moment.

    They are looked up when they are needed and the rules have been read again since. So reading the rules takes as
    long with a hundred thousand clients as with one.
    """

    def __init__(self, edition: Callable[[], int], find: Callable[[], Rights]) -> None:
        """`edition` returns the number of the current rules, and `find` the rights by them."""
        self._edition_now = edition
        self._find = find
        self._known: Rights | None = None
        self._known_edition = -1

    @property
    def edition(self) -> int:  # type: ignore[override]
        """The number of the current rules."""
        return self._edition_now()

    @property
    def _now(self) -> Rights:
        edition = self._edition_now()
        if self._known is None or edition != self._known_edition:
            self._known, self._known_edition = self._find(), edition
        return self._known

    @property
    def publishes_all(self) -> bool:
        return self._now.publishes_all

    @property
    def reads_all(self) -> bool:
        return self._now.reads_all

    def may_publish(self, topic: str) -> bool:
        return self._now.may_publish(topic)

    def may_read(self, topic: str) -> bool:
        return self._now.may_read(topic)

    def may_subscribe(self, filter: str) -> bool:  # noqa: A002
        return self._now.may_subscribe(filter)


class Verdicts:
    """A cache of what clients may publish to. It is bounded in bytes, and leaves out long topics."""

    def __init__(self) -> None:
        self._found: dict[Rights, dict[str, bool]] = {}
        self._bytes = 0

    def may_publish_all(self, rights: Rights, topics: list[bytes]) -> bool:
        """Whether a client with these rights may publish to all of these topics."""
        return all(self.may_publish(rights, topic.decode()) for topic in topics)

    def may_publish(self, rights: Rights, topic: str) -> bool:
        """Whether a client with these rights may publish to a topic."""
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
        """Forget what a client could do, because it has disconnected."""
        self._bytes -= sum(map(_bytes_of, self._found.pop(rights, ())))


def _bytes_of(topic: str) -> int:
    return _ENTRY_BYTES + 4 * len(topic)


EVERYTHING = Rights(free=True)
"""The rights of every client without rules."""
NOTHING = Rights()
"""No rights."""
