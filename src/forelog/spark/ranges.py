"""Which part of a table a query can need, as its filters say.

The part in Java reads it off a query's filters. It holds every row that can pass, and maybe more: Spark applies
the filters again, to each row.

>>> ranges = Ranges.of_json('{"segment": [3, null], "time": [0, 5], "log": ["a"]}')
>>> ranges.segment, ranges.offset
((3, 9223372036854775807), (0, 281474976710656))
>>> ranges.since_ns, ranges.until_ns
(-1000, 6000)
>>> ranges.holds_log("b")
False
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forelog.bounds import BYTES_MAX
from forelog.kernel.types import CLOCK_MAX, CLOCK_MIN

__all__ = ["EVERYTHING", "NOTHING", "Ranges"]

_MICROSECOND_NS = 1000
_NUMBER_MAX = 2**63 - 1
_ANY = [None, None]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Bounds of the columns of a record, both ends included."""

    segment: Range = (0, _NUMBER_MAX)
    """Numbers of segments."""
    offset: Range = (0, BYTES_MAX)
    """Offsets, in each segment."""
    since_ns: int | None = None
    """Only times from this one on."""
    until_ns: int | None = None
    """Only times before this one."""
    logs: frozenset[str] | None = None
    """Names of logs; None for all."""

    @classmethod
    def of_json(cls, text: str) -> Ranges:
        """Read what the part in Java has found in the filters."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Ranges:
        """The ends of each column. Times are in microseconds; an empty list is for no value at all."""
        if [] in found.values():
            return NOTHING
        since, until = found.get("time", _ANY)
        logs = found.get("log")
        return cls(
            segment=_within(found.get("segment", _ANY), _NUMBER_MAX),
            offset=_within(found.get("offset", _ANY), BYTES_MAX),
            # A time in a table is cut to microseconds, toward 1970.
            since_ns=None if since is None else _since((since - 1) * _MICROSECOND_NS),
            until_ns=None if until is None else _until((until + 1) * _MICROSECOND_NS),
            logs=None if logs is None else frozenset(logs),
        )

    @property
    def empty(self) -> bool:
        """Whether no row can pass."""
        return self.segment[0] > self.segment[1] or self.offset[0] > self.offset[1] or self.logs == frozenset()

    def holds_log(self, name: str) -> bool:
        return self.logs is None or name in self.logs


def _since(time_ns: int) -> int | None:
    return None if time_ns < CLOCK_MIN else min(time_ns, CLOCK_MAX)


def _until(time_ns: int) -> int | None:
    return None if time_ns > CLOCK_MAX else max(time_ns, CLOCK_MIN)


def _within(range_: list[int | None], most: int) -> Range:
    low, high = range_
    return max(low or 0, 0), min(most if high is None else high, most)


EVERYTHING = Ranges()
NOTHING = Ranges(segment=(1, 0))
