"""What a commit log does when its disk fails.

Cassandra calls this the commit failure policy. M3 has only one, `die`.
"""

from __future__ import annotations

import enum
import logging
import os
import sys
from collections.abc import Callable
from typing import Literal

logger = logging.getLogger("forelog")


class FailurePolicy(enum.StrEnum):
    """What a commit log does after a failed write or sync. A producer that waits always gets the error."""

    STOP = "stop"
    """Every later write raises the error, until the log is reopened. Reading still works."""
    DIE = "die"
    """The process ends at once, with exit status 74 (EX_IOERR) and a line on standard error."""
    CALLBACK = "callback"
    """`failure_callback(error)` decides, on the writer's thread: true to continue, anything else to stop."""
    IGNORE = "ignore"
    """Continue with the next write. Failed writes under `behind` are lost, counted and logged."""


OnFailure = FailurePolicy | Literal["stop", "die", "callback", "ignore"]


class Reaction:
    """A failure policy with its callback, checked."""

    def __init__(self, policy: OnFailure, callback: Callable[[Exception], object] | None) -> None:
        try:
            self._policy = FailurePolicy(policy)
        except ValueError:
            names = ", ".join(repr(str(one)) for one in FailurePolicy)
            raise ValueError(f"on_failure is {policy!r}: expected one of {names}") from None
        if (self._policy is FailurePolicy.CALLBACK) != (callback is not None):
            raise ValueError("on_failure='callback' and failure_callback come together or not at all")
        self._callback = callback

    def goes_on(self, path: str, error: Exception) -> bool:
        """Whether the log continues after an error. Under `die` this ends the process and doesn't return."""
        if self._policy is FailurePolicy.DIE:
            _die(path, error)
        logger.error("%s: %s (on_failure=%s)", path, error, self._policy)
        return self._policy is FailurePolicy.IGNORE or self._asked_to_go_on(error)

    def _asked_to_go_on(self, error: Exception) -> bool:
        if self._callback is None:
            return False
        try:
            return bool(self._callback(error))
        except BaseException:  # also what would end a thread: it isn't the callback's
            logger.exception("the failure callback failed itself: stopping")
            return False


def _die(path: str, error: Exception) -> None:
    # Not sys.exit: that ends only this thread. Nothing that could wait for the disk runs any more.
    print(f"forelog: {path}: {error}: ending the process, as on_failure='die' says", file=sys.stderr, flush=True)
    os._exit(os.EX_IOERR)
