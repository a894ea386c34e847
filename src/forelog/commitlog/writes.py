"""What is in the queue of a commit log, and when a write returns."""

from __future__ import annotations

import enum
from typing import Any

from forelog.log.commit import Request


class Strategy(enum.StrEnum):
    """When a write returns."""

    WAIT = "wait"
    """When it is on stable storage."""
    BEHIND = "behind"
    """When it is queued; it is written at once, and synced by size and by interval."""


class Control(enum.Enum):
    """A request in the queue that isn't a write."""

    ROTATE = enum.auto()
    FLUSH = enum.auto()


class Write(Request[Any]):
    """An entry of the queue: writes, or a control."""

    control: Control | None = None
    synced = False
    """Whether only a sync settles it."""
