"""How long a failed job waits before it is tried again.

>>> exponential("1s", max="1m").word()
'exponential:1000:60000:10'
>>> [backoff.seconds(fails) for backoff in (fixed(5), linear(5), exponential(5)) for fails in (1, 2, 3)]
[5.0, 5.0, 5.0, 5.0, 10.0, 15.0, 5.0, 10.0, 20.0]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from forelog.errors import JobRefused
from forelog.jobs.client.words import ARGS, span_ms

Span = str | float | timedelta
"""A duration: `"5m"`, a number of seconds, or a timedelta."""
_WORD = re.compile(r"(fixed|linear|exponential):\d{1,12}(:\d{1,12}(:\d{1,3})?)?")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before each next attempt of a job. `fixed`, `linear` and `exponential` make one."""

    kind: str
    """`fixed`, `linear` or `exponential`."""
    base_ms: int
    """The first wait."""
    max_ms: int
    """The longest wait."""
    jitter_percent: int
    """How many percent of a wait are random, so that jobs that failed together don't return together."""

    def word(self) -> str:
        """As a command has it."""
        return f"{self.kind}:{self.base_ms}:{self.max_ms}:{self.jitter_percent}"

    def seconds(self, fails: int) -> float:
        """The wait after that many fails, without the random part."""
        factor: float = {"fixed": 1, "linear": fails, "exponential": 2.0 ** min(fails - 1, 64)}[self.kind]
        return min(self.base_ms * factor, self.max_ms) / 1000


def exponential(base: Span = 1, max: Span = 3600, jitter: float = 0.1) -> Backoff:  # noqa: A002
    """Wait twice as long each time, from `base` to `max`. `jitter` is the random share of it, 0 to 1."""
    return _made("exponential", base, max, jitter)


def linear(base: Span = 1, max: Span = 3600, jitter: float = 0.1) -> Backoff:  # noqa: A002
    """Wait `base` longer each time, up to `max`. `jitter` is the random share of it, 0 to 1."""
    return _made("linear", base, max, jitter)


def fixed(wait: Span = 1, jitter: float = 0.0) -> Backoff:
    """Wait equally long each time. `jitter` is the random share of it, 0 to 1."""
    return _made("fixed", wait, wait, jitter)


def _made(kind: str, base: Span, longest: Span, jitter: float) -> Backoff:
    if not 0 <= jitter <= 1:
        raise ValueError(f"jitter is {jitter!r}: expected a share from 0 to 1")
    base_ms, max_ms = span_ms("base", base), span_ms("max", longest)
    return Backoff(kind, base_ms, max(base_ms, max_ms), round(jitter * 100))


def backoff_word(backoff: Backoff | str) -> str:
    """A backoff, or the text of one, as a command has it."""
    word = backoff.word() if isinstance(backoff, Backoff) else backoff
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        raise JobRefused(f"{word!r:.80} isn't a backoff: expected exponential(...) or the like", reason=ARGS)
    return word
