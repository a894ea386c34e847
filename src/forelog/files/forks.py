"""Release locks in forked children.

A child has its parent's descriptors, and with them its locks: `flock` belongs to the open file, which both
share. A child that outlives its killed parent would keep the locks for as long as it lives. So everything that
holds a lock registers with `let_go_in_children`, and is called in every child.

>>> class Held:
...     def _forked(self):
...         print("the child lets go")
>>> held = Held()
>>> let_go_in_children(held)
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """An object with a lock that a child inherits and must not keep."""

    def _forked(self) -> None:
        """Release the lock. Called in a child, before anything else happens there. Must not raise."""


forking = threading.RLock()
"""Held while a fork is under way. Hold it to open something and register it, with no fork in between.

It can be taken twice, because a signal handler may fork.
"""
_inherited: WeakSet[Inherited] = WeakSet()


def let_go_in_children(inherited: Inherited) -> None:
    """Call `inherited._forked()` in every forked child, for as long as the object lives."""
    _inherited.add(inherited)


def _in_child() -> None:
    try:
        for inherited in list(_inherited):
            inherited._forked()
    finally:
        forking.release()


os.register_at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=_in_child)
