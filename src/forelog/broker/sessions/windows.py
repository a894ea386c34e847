"""How many messages sessions may have in flight, all together.

Each message that is sent and not acknowledged takes some hundred bytes, and so does each packet id of QoS 2 that
isn't free, and each message of QoS 2 that was received before an earlier one. A session may have a few of them in
any case. For more it needs a larger window. The memory of all windows has a limit, and an owner gets more only
while more than it already has is free (see `Quota`). A subscriber without a larger window isn't refused anything:
it gets its messages a few at a time, and the rest stays in the log.

>>> quota = Quota(1 << 20)
>>> window = Window(quota, "ann")
>>> window.room(held=0, wanted=5), window.room(held=5, wanted=1000), quota.total
(5, 1000, 398800)
>>> window.room(held=1005, wanted=1000), window.size
(0, 1005)
>>> window.settle(held=3)
>>> window.size, quota.total
(8, 0)
"""

from __future__ import annotations

from forelog.bounds import BYTES_MAX
from forelog.serving.shares import Quota

ENTRY_BYTES = 400
"""Memory of a message in flight, or of a packet id."""
WINDOW_MIN = 8
"""Messages that a session may have in flight, in each direction, whatever others have."""


class Window:
    """How many messages a session may have in flight in one direction."""

    __slots__ = ("_owner", "_quota", "size")

    def __init__(self, quota: Quota | None = None, owner: str = "") -> None:
        """A window that counts for an owner's share; without a quota, one without a limit."""
        self._quota = quota or Quota(BYTES_MAX)
        self._owner = owner
        self.size = WINDOW_MIN

    def room(self, held: int, wanted: int = 1) -> int:
        """How many of the wanted messages have room, besides those that are held. The window grows if it may."""
        need = held + wanted
        if need > self.size:
            for size in (max(need, min(2 * self.size, need + wanted)), need):
                if self._quota.take(self._owner, (size - self.size) * ENTRY_BYTES):
                    self.size = size
                    break
        return max(min(wanted, self.size - held), 0)

    def settle(self, held: int) -> None:
        """Make the window as small as what it holds allows, or as large."""
        size = max(held, WINDOW_MIN)
        if size != self.size:
            self._quota.add(self._owner, (size - self.size) * ENTRY_BYTES)
            self.size = size

    def belong(self, owner: str) -> None:
        """Count for another owner from now on."""
        if owner != self._owner:
            size = (self.size - WINDOW_MIN) * ENTRY_BYTES
            self._quota.add(self._owner, -size)
            self._quota.add(owner, size)
            self._owner = owner
