"""The settings of a queue beyond workq, as flags have them.

>>> rules = Rules.of(b"-paused=1")
>>> rules.paused, rules.draining, rules.words()
(True, False, b'-paused=1')
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Rules:
    """The settings of a queue."""

    paused: bool = False
    """Whether none of its jobs may be leased."""
    draining: bool = False
    """Whether it takes no more jobs."""

    @classmethod
    def of(cls, words: bytes) -> Rules:
        """The settings that a note has."""
        found = words.split(b" ")
        return cls(b"-paused=1" in found, b"-draining=1" in found)

    def words(self) -> bytes:
        """The same, for a note. Empty if nothing is set."""
        set_ = [b"-paused=1"] * self.paused + [b"-draining=1"] * self.draining
        return b" ".join(set_)
