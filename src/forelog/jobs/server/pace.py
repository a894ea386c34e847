"""How many clients share a write, and who does it: learnt from how long writes take."""

from __future__ import annotations

import time

SLOW_SECONDS = 0.002  # from here on a write with its sync would block the event loop for too long
ALONE = 10  # so many times as long if nobody else is connected: handing over to a thread costs more than it saves
TYPICAL_WRITES = 8  # writes that the average goes over: a single slow one means nothing
PATIENCE_SYNCS = 1.5  # how long to wait for the clients of the last sync, in times of a sync
PATIENCE_SECONDS_MAX = 0.001  # and at most


class Pace:
    """The pace of a server's turns."""

    def __init__(self) -> None:
        self.crowd = 0
        """How many clients shared the last sync, if writes wait for one. Most send again at once: the next sync
        waits a little, to be shared as well."""
        self.slow = False
        """Whether writes, each with a sync, take so long that a thread does them."""
        self._sent = self._typical = 0.0
        self._usual_crowd = 0

    def measure(self, took: float, clients: int, connections: int) -> None:
        """Note that so many clients, of all connections, got their replies after a write with a sync, and how long
        that took."""
        self._sent = time.perf_counter()
        self._typical += (took - self._typical) / TYPICAL_WRITES
        self.crowd = self._usual_crowd = max(clients, self._usual_crowd * 7 // 8)
        limit = SLOW_SECONDS * (1 if connections > 1 else ALONE)
        self.slow = self._typical > (limit / 2 if self.slow else limit)

    def is_early(self) -> bool:
        """Whether to wait a little longer for the clients of the last sync."""
        if time.perf_counter() - self._sent < min(PATIENCE_SYNCS * self._typical, PATIENCE_SECONDS_MAX):
            return True
        self.crowd = 0
        return False
