"""Connections that have not shown the token yet: how many, for how long, and what guessing costs.

Such a connection may take a few kilobytes and a few seconds from when it was accepted. There is a limit on their
number, apart from that of clients, so they keep no client out: with one too many, the address that has the most of
them loses its oldest. A wrong token is refused after a delay, which grows with each wrong one from the same
address. A right one is accepted at once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from forelog.serving.shares import Shares

STRANGERS_MAX = 1000
STRANGER_SECONDS = 10.0
ADDRESSES_MAX = 10_000  # whose wrong tokens are counted
REFUSAL_SECONDS = (0.1, 5.0)  # delay of a refusal, at first and at most
FORGET_SECONDS = 600.0  # after the last wrong token

T = TypeVar("T")


class Door(Generic[T]):
    """The connections without a token."""

    def __init__(self, strangers_max: int = STRANGERS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[T, float] = {}
        """When each one came."""
        self._places: Shares[T] = Shares(strangers_max)
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """For each address, how many wrong tokens came, and when the last one did."""

    def __len__(self) -> int:
        return len(self._since)

    def enter(self, connection: T, address: str) -> T | None:
        """Note a new connection. Returns the connection that must be closed to make room, if any."""
        self._since[connection] = self._clock()
        self._places.set(connection, address, 1)
        return self._places.surplus()

    def leave(self, connection: T) -> bool:
        """Note that a connection has shown the token, or is gone. Returns whether it was at the door."""
        self._places.drop(connection)
        return self._since.pop(connection, None) is not None

    def late(self) -> list[T]:
        """The connections that have been here for too long."""
        now = self._clock()
        found = []
        for connection, since in self._since.items():  # oldest first
            if now - since <= STRANGER_SECONDS:
                break
            found.append(connection)
        return found

    def delay(self, address: str) -> float:
        """Count a wrong token from an address. Returns how many seconds to delay its refusal."""
        now = self._clock()
        count, last = self._wrong.pop(address, (0, now))
        count = 1 if now - last > FORGET_SECONDS else count + 1
        self._wrong[address] = count, now
        if len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        return min(REFUSAL_SECONDS[0] * 2.0 ** min(count - 1, 10), REFUSAL_SECONDS[1])
