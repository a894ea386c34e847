"""How much each client holds of what all clients share, and which one gives something back when it is too much.

There are two ways to share. What a client can lose without losing a message, such as a connection or half a
packet, is taken from the owner that has most (`Shares`). What was promised to a client, such as a subscription, is
never taken back: an owner that has much gets no more (`Quota`). Either way, a client that takes all it can harms
no other.

An owner is a user, or an address where clients have no user.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class Shares(Generic[H]):
    """A limit on the sum of what holders have. Beyond it, the owner that has most gives up its oldest holder.

    >>> shares: Shares[str] = Shares(10)
    >>> for holder, owner, size in (("a", "ann", 3), ("b", "bob", 4), ("c", "bob", 2), ("d", "ann", 2)):
    ...     shares.set(holder, owner, size)
    >>> shares.total, shares.surplus()
    (11, 'b')
    >>> shares.drop("b")
    >>> shares.total, shares.surplus()
    (7, None)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: dict[H, tuple[str, int]] = {}
        self._of: dict[str, dict[H, None]] = {}
        self._sums: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, holder: H) -> bool:
        return holder in self._held

    def set(self, holder: H, owner: str, size: int) -> None:
        """Note that a holder has so much now. A holder that has nothing isn't one."""
        before = self._held.get(holder)
        if before is not None and before[0] == owner and size:
            self._held[holder] = (owner, size)
            self._sums[owner] += size - before[1]
            self.total += size - before[1]
            return
        self.drop(holder)
        if size:
            self._held[holder] = (owner, size)
            self._of.setdefault(owner, {})[holder] = None
            self._sums[owner] = self._sums.get(owner, 0) + size
            self.total += size

    def drop(self, holder: H) -> None:
        """Forget a holder: it has nothing any more."""
        found = self._held.pop(holder, None)
        if found is None:
            return
        owner, size = found
        self.total -= size
        self._sums[owner] -= size
        del self._of[owner][holder]
        if not self._of[owner]:
            del self._of[owner], self._sums[owner]

    def sum_of(self, owner: str) -> int:
        """How much an owner's holders have together."""
        return self._sums.get(owner, 0)

    def oldest_of(self, owner: str, spared: Callable[[H], bool] | None = None) -> H | None:
        """The first of an owner's holders that isn't spared."""
        return next((one for one in self._of.get(owner, ()) if spared is None or not spared(one)), None)

    def surplus(self, spared: Callable[[H], bool] | None = None) -> H | None:
        """The holder that is to give up what it has; None if none needs to, or all are spared."""
        if self.total <= self.most:
            return None
        for owner in sorted(self._sums, key=self._sums.__getitem__, reverse=True):
            found = self.oldest_of(owner, spared)
            if found is not None:
                return found
        return None

    def holders(self) -> list[H]:
        """Every holder that has something."""
        return list(self._held)


class Quota:
    """A limit on what all owners hold together. An owner gets more only while more than it has itself is free.

    So one owner gets half of everything, two get a third each, and there is always something left for the next.

    >>> quota = Quota(100)
    >>> quota.take("ann", 50), quota.take("ann", 1), quota.take("bob", 20), quota.take("bob", 10)
    (True, False, True, False)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._sums: dict[str, int] = {}

    def has_room(self, owner: str, size: int) -> bool:
        """Whether an owner may have so much more."""
        return self._sums.get(owner, 0) + size <= self.most - self.total - size

    def take(self, owner: str, size: int) -> bool:
        """Note that an owner has so much more; False if it may not."""
        if not self.has_room(owner, size):
            return False
        self.add(owner, size)
        return True

    def add(self, owner: str, size: int) -> None:
        """Count what an owner has more, or less, without asking whether it may."""
        left = self._sums.get(owner, 0) + size
        self.total += size
        if left:
            self._sums[owner] = left
        else:
            self._sums.pop(owner, None)
