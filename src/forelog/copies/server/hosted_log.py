"""One log on a replica server: its copies, and the connections to it."""

from __future__ import annotations

import threading

from forelog.copies.shipping import View
from forelog.copies.slots import Slots
from forelog.copies.wire import Link
from forelog.errors import LockTimeout, ReplicaError
from forelog.files import Files

__all__ = ["HostedLog"]


class HostedLog:
    """One log, its copies, and who is connected for it."""

    def __init__(self, name: str, path: str, files: Files) -> None:
        self.name = name
        try:
            self.slots = Slots(path, files)
        except LockTimeout:
            raise ReplicaError(f"another process has the copy of {name}") from None
        self.lock = threading.RLock()
        self.primary: Link | None = None
        self._lineage = 0
        self._followers: dict[Link, threading.Event] = {}

    def view(self) -> View | None:
        """The whole copy, for followers."""
        with self.lock:
            whole = self.slots.whole
            if whole is None or whole.snapshot is None:
                return None
            return View(whole.stream(), whole.snapshot, self._lineage, whole.before)

    def renewed(self) -> None:
        """Another copy is the whole one now."""
        self._lineage += 1

    def changed(self) -> None:
        """There is more of it."""
        for woken in list(self._followers.values()):
            woken.set()

    def follow(self, link: Link) -> threading.Event:
        """Somebody wants to know when there is."""
        return self._followers.setdefault(link, threading.Event())

    def leave(self, link: Link) -> None:
        """And doesn't any more."""
        self._followers.pop(link, None)

    def take_over(self, link: Link) -> None:
        """A primary is here: whoever was, isn't any more."""
        if self.primary is not None and self.primary is not link:
            self.primary.close()
        self.primary = link

    def is_gone(self) -> bool:
        """Whether the directory isn't the one any more that was opened."""
        with self.lock:
            return self.slots.is_gone()

    def close(self) -> None:
        """Sync, and let go of the copies. Who is connected for them is cut off."""
        for link in [*self._followers, *([] if self.primary is None else [self.primary])]:
            link.close()
        with self.lock:
            self.slots.close()
