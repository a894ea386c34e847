"""What a test notes of the calls that it looks at."""

from __future__ import annotations

from typing import Literal, TypeVar

T = TypeVar("T")


def noted(notes: list[T], note: T) -> Literal[False]:
    """Add a note, in a lambda: `noted(calls, call) or real(call)`."""
    notes.append(note)
    return False
