"""Those who have come and have not shown the token yet: how many, for how long, and what guessing costs.

They have a few kilobytes and a few seconds, from the moment when their connection was accepted. There are only so
many of them, apart from the clients that are in, so that they keep nobody out: with one more, the address that
has most of them loses its oldest connection. A wrong token is answered after a while, which grows with every
wrong one from the same address; a right one is answered at once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from forelog.serving.shares import Shares

if TYPE_CHECKING:
    from forelog.jobs.server.turns import Connection

__all__ = ["Door"]

STRANGERS_MAX = 1000
STRANGER_SECONDS = 10.0
ADDRESSES_MAX = 10_000  # whose wrong tokens are remembered
REFUSAL_SECONDS = (0.1, 5.0)  # until a wrong token is answered, at first and at most
FORGET_SECONDS = 600.0  # after the last wrong token


class Door:
    """The connections that are not in."""

    def __init__(self, strangers_max: int = STRANGERS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Connection, float] = {}
        """When each one came."""
        self._places: Shares[Connection] = Shares(strangers_max)
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """For each address, how many wrong tokens have come and when the last one did."""

    def __len__(self) -> int:
        return len(self._since)

    def enter(self, connection: Connection, address: str) -> Connection | None:
        """Someone has come. Returns whoever has to go for that."""
        self._since[connection] = self._clock()
        self._places.set(connection, address, 1)
        return self._places.surplus()

    def leave(self, connection: Connection) -> bool:
        """Someone is in, or gone. Whether they were here."""
        self._places.drop(connection)
        return self._since.pop(connection, None) is not None

    def late(self) -> list[Connection]:
        """Those who have been here for too long."""
        now = self._clock()
        found = []
        for connection, since in self._since.items():  # oldest first
            if now - since <= STRANGER_SECONDS:
                break
            found.append(connection)
        return found

    def delay(self, address: str) -> float:
        """A wrong token has come from an address: how many seconds it waits for its answer."""
        now = self._clock()
        count, last = self._wrong.pop(address, (0, now))
        count = 1 if now - last > FORGET_SECONDS else count + 1
        self._wrong[address] = count, now
        if len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        return min(REFUSAL_SECONDS[0] * 2.0 ** min(count - 1, 10), REFUSAL_SECONDS[1])
