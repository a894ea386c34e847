"""One log on a replica server: its copies, and the connections to it."""

from __future__ import annotations

import threading

from forelog.copies.shipping import View
from forelog.copies.slots import Slots
from forelog.copies.wire import Link
from forelog.errors import LockTimeout, ReplicaError
from forelog.files import Files


class HostedLog:
    """One log, its copies, and the connections to it."""

    def __init__(self, name: str, path: str, files: Files) -> None:
        self.name = name
        try:
            self.slots = Slots(path, files)
        except LockTimeout:
            raise ReplicaError(f"another process has the copy of {name} open") from None
        self.lock = threading.RLock()
        self.primary: Link | None = None
        self._lineage = 0
        self._followers: dict[Link, threading.Event] = {}

    def view(self) -> View | None:
        """The whole copy as followers read it; None if there is none."""
        with self.lock:
            whole = self.slots.whole
            if whole is None or whole.snapshot is None:
                return None
            return View(whole.stream(), whole.snapshot, self._lineage, whole.before)

    def renewed(self) -> None:
        """Note that a new copy is the whole one."""
        self._lineage += 1

    def changed(self) -> None:
        """Wake the followers: there are new records, or a new copy."""
        for woken in list(self._followers.values()):
            woken.set()

    def follow(self, link: Link) -> threading.Event:
        """Register a follower. The event is set whenever there is more for it."""
        return self._followers.setdefault(link, threading.Event())

    def leave(self, link: Link) -> None:
        """Remove a follower."""
        self._followers.pop(link, None)

    def take_over(self, link: Link) -> None:
        """Make a connection the primary, and close the one of the primary before it."""
        if self.primary is not None and self.primary is not link:
            self.primary.close()
        self.primary = link

    def is_gone(self) -> bool:
        """Whether the directory was removed, or replaced since it was opened."""
        with self.lock:
            return self.slots.is_gone()

    def close(self) -> None:
        """Close all connections to the log, then sync and close its copies."""
        for link in [*self._followers, *([] if self.primary is None else [self.primary])]:
            link.close()
        with self.lock:
            self.slots.close()
