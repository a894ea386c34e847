"""Counts the bytes of all connections."""

from __future__ import annotations


class Traffic:
    """Bytes since the start."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
