"""What a job's function raises to say what becomes of the job.

    raise Retry(after="5m")             # try it again in five minutes, whatever its backoff
    raise Discard("no such customer")   # don't try it again, whatever its retries

Any other exception fails the attempt. The job is tried again if its retries allow that.
"""

from __future__ import annotations

from datetime import timedelta

from forelog.jobs.client.words import span_ms


class Retry(Exception):
    """Raised by a job's function: try the job again, `after` so long. The job's `max_attempts` still count.

    `after` is `"5m"`, a number of seconds, or a timedelta. Without it, the job's backoff says how long.
    """

    def __init__(self, reason: str = "", *, after: str | float | timedelta | None = None) -> None:
        super().__init__(reason or "to be tried again")
        self.after_ms = None if after is None else span_ms("after", after)
        """How long, in milliseconds."""


class Discard(Exception):
    """Raised by a job's function: the job has failed for good, whatever its retries."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "discarded")
