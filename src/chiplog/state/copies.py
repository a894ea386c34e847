"""A place for the copies of one log: two slots, of which one has the whole copy.

::

    bank/
      identity            whose log it is, and the highest epoch that has written to it
      a/                  two slots, each with a copy (mirror.py): one is whole, the other is being made, or empty
      b/

A copy that has missed something begins again in the other slot; the old one stays what a restore reads until the
new one is whole, and only then is emptied, or later if somebody reads it.
"""

from __future__ import annotations

import struct

from chiplog.errors import BadFrame, Superseded
from chiplog.files import Files, OSFiles
from chiplog.log.position import Position
from chiplog.log.segments import APPEND_LOCK, Directory
from chiplog.state.identity import Identity
from chiplog.state.mirror import FORMAT, Mirror, Snapshot, read_file, read_snapshot, replace_file

__all__ = ["SLOTS", "Copies", "whole_slot"]

SLOTS = ("a", "b")
_IDENTITY = "identity"


class Copies:
    """The copies of one log in a directory, of which at most one is whole."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self.path = path
        self._files = files or OSFiles()
        self._files.make_dir(path)
        self._lock = self._files.lock(f"{path}/{APPEND_LOCK}", exclusive=True, timeout=0)
        self._mirrors: list[Mirror] = []
        self.whole: Mirror | None = None
        try:
            self.identity = self._read_identity()
            for slot in SLOTS:
                self._mirrors.append(Mirror(Directory(self._files, f"{path}/{slot}", FORMAT)))
            whole = [mirror for mirror in self._mirrors if mirror.snapshot is not None]
            self.whole = max(whole, key=lambda mirror: mirror.sequence, default=None)
            for mirror in whole:
                if mirror is not self.whole:
                    mirror.try_to_empty()
        except BaseException:
            self._close()
            raise
        self.growing: Mirror = self._growing()
        """The one that is written to: the whole one, unless another is being made."""

    def _growing(self) -> Mirror:
        for mirror in self._mirrors:
            if mirror is not self.whole and mirror.position is not None:
                return mirror
        return self.whole or self._mirrors[0]

    def _read_identity(self) -> Identity | None:
        path = f"{self.path}/{_IDENTITY}"
        if self._files.stat(path) is None:
            return None
        try:
            return Identity.decode(read_file(self._files, path))
        except struct.error:
            raise BadFrame(f"{path} is damaged: without it there is no telling whose copy this is") from None

    def adopt(self, identity: Identity) -> None:
        """Take what comes from this primary, or raise Superseded if a younger one has written."""
        known = self.identity
        if known is not None and known.id != identity.id:
            raise Superseded(
                f"{self.path} is a copy of log {known.id.hex()[:8]}, not of {identity.id.hex()[:8]}: "
                "choose another name for it, or remove the copy"
            )
        if known is not None and identity.epoch < known.epoch:
            raise Superseded(
                f"epoch {identity.term}.{identity.run} is over: {known.term}.{known.run} has written to "
                f"{self.path}. Another primary was promoted, and what this one wrote since isn't there"
            )
        if identity != known:
            replace_file(self._files, self.path, _IDENTITY, identity.encode())
            self.identity = identity

    @property
    def position(self) -> Position:
        """Up to where a restore would get everything: while there is no whole copy, that is nothing."""
        position = self.growing.position
        return Position(0, 0) if position is None or self.growing is not self.whole else position

    def restart(self) -> None:
        """Begin again, in the other slot if this one is whole."""
        if self.growing is self.whole:
            self.growing = next(mirror for mirror in self._mirrors if mirror is not self.whole)
        self.growing.empty()

    def commit(self, snapshot: Snapshot) -> bool:
        """What is being written has a whole generation: it is the copy from now on. False if it was before."""
        before, growing = self.whole, self.growing
        sequence = growing.sequence if before is None or before is growing else before.sequence + 1
        growing.commit(snapshot, max(sequence, 1))
        self.whole = growing
        for mirror in self._mirrors:
            if mirror is not growing and (mirror.position is not None or mirror.damaged):
                mirror.try_to_empty()  # if it can't be now, the new copy is whole all the same
        return before is not growing

    def close(self) -> None:
        """Sync, and let go."""
        try:
            for mirror in self._mirrors:
                mirror.sync()
        finally:
            self._close()

    def _close(self) -> None:
        for mirror in self._mirrors:
            mirror.close()
        self._lock.release()


def whole_slot(path: str, files: Files | None = None) -> str | None:
    """The directory of the whole copy among those at a path; None if there is none."""
    files = files or OSFiles()
    found = {f"{path}/{slot}": read_snapshot(files, f"{path}/{slot}") for slot in SLOTS}
    whole = [(sequence, slot) for slot, (snapshot, sequence) in found.items() if snapshot is not None]
    return max(whole)[1] if whole else None
