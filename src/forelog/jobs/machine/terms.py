"""The terms of a job: what it has beyond workq, such as a backoff, a key, a group, and the jobs that it waits for.

Most jobs have none. Terms are made from the flags of a command. The same words are in the annex, so a restart
makes the same terms.

>>> terms = parse_terms({b"-backoff": b"exponential:1000:60000:0", b"-group": b"acme"}, 0)
>>> terms.group, terms.backoff.wait_ms(1, b""), terms.backoff.wait_ms(3, b""), terms.backoff.wait_ms(30, b"")
(b'acme', 1000, 4000, 60000)
>>> parse_terms({b"-backoff": b"sometimes"}, 0)
'Invalid Backoff'
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forelog import kernel
from forelog.formats.commands import notes
from forelog.jobs.machine.limits import TTL_MS_MAX, is_id

Flags = dict[bytes, bytes]

PARENTS_MAX = 100
RETRIES_MAX = 254
ERROR_BYTES_MAX = 64 << 10
"""The longest error that is kept of a fail that is not the last; what is longer is cut."""
TERMS_BYTES = 512  # memory of the terms of a job, besides their words
_MS_NS = 1_000_000
_KEY = re.compile(rb"[!-+\--~]{1,255}")
_UNIQUE = (b"unfinished", b"waiting")
_ON_DUPLICATE = (b"refuse", b"existing", b"replace")
_ON_FAILURE = (b"fail", b"run")
KEPT_WORDS = (b"-backoff", b"-key", b"-unique", b"-unique-for", b"-group", b"-after", b"-on-failure")
"""The flags that make terms, in the order in which the annex has them."""
FLAGS = frozenset((*KEPT_WORDS, b"-retries", b"-delay", b"-on-duplicate"))
"""The flags of a job beyond workq's."""


class Backoff(NamedTuple):
    """How long a job waits after a fail."""

    kind: bytes
    first_ms: int
    most_ms: int
    jitter: int
    """Percent of the wait that are up to chance."""

    def wait_ms(self, fails: int, seed: bytes) -> int:
        """The wait after so many fails. The same seed gives the same wait."""
        wait = self.first_ms
        if self.kind == b"linear":
            wait *= fails
        elif self.kind == b"exponential":
            wait <<= min(fails - 1, 48)
        wait = min(wait, self.most_ms)
        chance = zlib.crc32(b"%b %d" % (seed, fails)) % 1001
        return wait - wait * self.jitter * chance // 100_000

    def word(self) -> bytes:
        """As a flag has it."""
        return b"%b:%d:%d:%d" % self


RETRY_BACKOFF = Backoff(b"exponential", 1000, 3_600_000, 10)
"""The backoff of a job with retries that says nothing else."""


def parse_backoff(word: bytes) -> Backoff | None:
    """A backoff such as `exponential:1000:60000:10`, or None."""
    parts = word.split(b":")
    if not 2 <= len(parts) <= 4 or parts[0] not in (b"fixed", b"linear", b"exponential"):
        return None
    numbers = [whole(part, TTL_MS_MAX) for part in parts[1:]]
    first = numbers[0]
    most = numbers[1] if len(numbers) > 1 else 3_600_000
    jitter = numbers[2] if len(numbers) > 2 else 10
    if first < 0 or most < 0 or not 0 <= jitter <= 100:
        return None
    return Backoff(parts[0], first, max(first, most), jitter)


def whole(word: bytes, most: int) -> int:
    """An unsigned number up to `most`, or -1."""
    if not word.isdigit() or len(word) > 18:
        return -1
    value = int(word)
    return value if value <= most else -1


def is_key(word: bytes) -> bool:
    """Whether this is a valid key: printable characters without spaces and commas."""
    return _KEY.fullmatch(word) is not None


@dataclass(slots=True, eq=False)
class Terms:
    """What a job has beyond workq."""

    words: bytes = b""
    """The flags that it was added with."""
    backoff: Backoff | None = None
    key: bytes = b""
    """The job is unique by this key in its queue."""
    unique_waiting: bool = False
    """Whether it is unique only until it is leased."""
    unique_until_ns: int = 0
    """Until when it is unique, whatever becomes of it."""
    group: bytes = b""
    parents: dict[bytes, None] = field(default_factory=dict)
    """The jobs that it still waits for."""
    runs_anyway: bool = False
    """Whether it runs although a parent failed."""
    attempts: int = -1
    """How many attempts it had had when it failed last; -1 if it hasn't."""
    attempts_before: int = -1
    """The same of the fail before that."""
    fails: int = 0
    """How often it had failed then."""
    due_ns: int = 0
    """When it may be leased again after that."""
    error: bytes = b""
    """The error of that fail."""
    reason: bytes = b""
    """Why it failed for good; empty if it has not, or failed as jobs of workq do."""
    steps: dict[bytes, bytes] = field(default_factory=dict)
    """The results of its steps."""
    steps_bytes: int = 0
    cancelled: bool = False
    """Whether it is to be stopped."""
    extended: int = -1
    """The attempt whose time was extended."""
    until_ns: int = 0
    """Until when."""

    def saved(self, due_ns: int) -> tuple[Any, ...]:
        """What a change of a job that is due then may change in them, for `restored`."""
        return self.attempts, self.fails, self.due_ns, self.error, self.reason, self.cancelled, due_ns

    def restored(self, saved: tuple[Any, ...]) -> int:
        """Undo a change. Returns when the job was due."""
        self.attempts, self.fails, self.due_ns, self.error, self.reason, self.cancelled, due_ns = saved
        return int(due_ns)

    def memory_bytes(self) -> int:
        """About how many bytes they take in memory."""
        return TERMS_BYTES + len(self.words) + len(self.error) + self.steps_bytes + 100 * len(self.parents)

    def flags(self) -> list[bytes]:
        """The terms as flags, one word each."""
        return self.words.split(b" ") if self.words else []


def parse_terms(flags: Flags, created_ns: int) -> Terms | str:
    """The terms in the flags of a job that is added now, or why they are invalid. Flags of workq are ignored."""
    if b"-retries" in flags and b"-backoff" not in flags:
        flags = {**flags, b"-backoff": RETRY_BACKOFF.word()}
    words = [name + b"=" + flags[name] for name in KEPT_WORDS if name in flags]
    terms = Terms(b" ".join(words))
    if (word := flags.get(b"-backoff")) is not None:
        terms.backoff = parse_backoff(word)
        if terms.backoff is None:
            return "Invalid Backoff"
    terms.key = flags.get(b"-key", b"")
    terms.group = flags.get(b"-group", b"")
    if (b"-key" in flags and not is_key(terms.key)) or (b"-group" in flags and not is_key(terms.group)):
        return "Invalid Key"
    refusal = _parse_unique(terms, flags, created_ns)
    if refusal is None and b"-after" in flags:
        refusal = _parse_parents(terms, flags[b"-after"])
    if flags.get(b"-on-failure", b"fail") not in _ON_FAILURE or (
        b"-on-failure" in flags and b"-after" not in flags
    ):
        refusal = "Invalid command args"
    terms.runs_anyway = flags.get(b"-on-failure") == b"run"
    return refusal or terms


def _parse_unique(terms: Terms, flags: Flags, created_ns: int) -> str | None:
    of_key = [name for name in (b"-unique", b"-unique-for", b"-on-duplicate") if name in flags]
    if of_key and not terms.key:
        return "Invalid command args"
    if flags.get(b"-unique", b"unfinished") not in _UNIQUE:
        return "Invalid command args"
    if flags.get(b"-on-duplicate", b"refuse") not in _ON_DUPLICATE:
        return "Invalid command args"
    terms.unique_waiting = flags.get(b"-unique") == b"waiting"
    if b"-unique-for" in flags:
        for_ms = whole(flags[b"-unique-for"], TTL_MS_MAX)
        if for_ms < 0:
            return "Invalid command args"
        terms.unique_until_ns = created_ns + for_ms * _MS_NS
    return None


def _parse_parents(terms: Terms, word: bytes) -> str | None:
    for text in word.split(b","):
        parent = kernel.uuid_parse(text)
        if not is_id(parent) or parent is None:
            return "Invalid ID"
        terms.parents[parent] = None
    return "Invalid command args" if len(terms.parents) > PARENTS_MAX else None


def terms_of(note: notes.Terms) -> Terms:
    """The terms that a note says a job has."""
    flags = dict(word.split(b"=", 1) for word in note.words.split(b" ") if b"=" in word)
    found = parse_terms(flags, note.created_ns)
    return Terms(note.words) if isinstance(found, str) else found
