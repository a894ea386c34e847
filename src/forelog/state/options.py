"""The options of a state log, for those that take them too: PersistentDict, and a follower's promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from forelog.copies.identity import Identity
from forelog.files import Files
from forelog.log.appender import Sync


class OpenOptions(TypedDict, total=False):
    """Options that a follower's promotion takes. StateLog says what each is for."""

    sync: Sync
    sync_interval_ms: int
    rotate_bytes: int
    rotate_seconds: float | None
    segment_bytes: int
    journal_bytes: int
    files: Files | None
    mode: int | None


class LogOptions(OpenOptions, total=False):
    """All options of a state log."""

    timeout: float | None
    promote: bool | Identity


class DictOptions(LogOptions, total=False):
    """All options of a PersistentDict except its types."""

    ttl: float | None
    clock: Callable[[], int] | None
    read_only: bool
