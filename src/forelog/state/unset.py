"""What means "no value" and "no argument" where None is a value."""

from __future__ import annotations

from enum import Enum


class Absent(Enum):
    """The value of a key that isn't there, for `compare_and_set`."""

    ABSENT = "absent"


class Unset(Enum):
    """An argument that isn't given."""

    UNSET = "unset"


ABSENT = Absent.ABSENT
UNSET = Unset.UNSET

Ttl = float | Unset | None
"""Seconds until a key expires; None for never."""
