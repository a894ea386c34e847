"""Packet ids: 1 to 65,535, each used by one message at a time.

>>> ids = PacketIds()
>>> ids.take(), ids.take()
(1, 2)
>>> ids.release(1)
True
>>> ids.release(1)
False
"""

from __future__ import annotations

from collections import deque

PACKET_ID_MAX = 0xFFFF


class PacketIds:
    """The packet ids of one side of a session. `take` and `release` take constant time.

    Released ids are used again, in the order of their release, before new ones. Memory is therefore that of the
    most ids that were in use at once.
    """

    __slots__ = ("_freed", "_highest", "_used")

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._freed: deque[int] = deque()
        """All ids up to the highest that aren't in use."""
        self._highest = 0
        """The highest id that was taken, or skipped because it was reserved."""

    def __len__(self) -> int:
        """The number of ids in use."""
        return len(self._used)

    def __contains__(self, packet_id: int) -> bool:
        """Whether an id is in use."""
        return packet_id in self._used

    def take(self) -> int:
        """Take an id that isn't in use; 0 if there is none."""
        if self._freed:
            packet_id = self._freed.popleft()
        else:
            packet_id = self._highest + 1
            while packet_id in self._used:
                packet_id += 1
            self._highest = min(packet_id, PACKET_ID_MAX)
            if packet_id > PACKET_ID_MAX:
                return 0
        self._used.add(packet_id)
        return packet_id

    def reserve(self, packet_id: int) -> bool:
        """Take a given id, for a session that is restored; False if it is in use."""
        if not 1 <= packet_id <= PACKET_ID_MAX:
            raise ValueError(f"packet id {packet_id}: expected 1 to {PACKET_ID_MAX}")
        if packet_id in self._used:
            return False
        if packet_id <= self._highest:
            self._freed.remove(packet_id)
        self._used.add(packet_id)
        return True

    def release(self, packet_id: int) -> bool:
        """Release an id; False if it wasn't in use."""
        if packet_id not in self._used:
            return False
        self._used.remove(packet_id)
        if packet_id <= self._highest:
            self._freed.append(packet_id)
        return True
