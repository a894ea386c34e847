"""The states of a job, numbered as the protocol and the log show them."""

from __future__ import annotations

from enum import IntEnum


class JobState(IntEnum):
    """The state of a job."""

    NEW = 0
    COMPLETED = 1
    FAILED = 2
    PENDING = 3
    """Waiting to be leased, like NEW, after an attempt that did not end it."""
    LEASED = 4


# Plain numbers for the compiled modules.
NEW, COMPLETED, FAILED, PENDING, LEASED = (int(state) for state in JobState)
