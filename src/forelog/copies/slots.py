"""A place for the copies of one log: two slots, of which one has the whole copy.

::

    bank/
      identity            whose log it is, and the last opening of it that has written here
      a/                  two slots, each with a copy (mirror.py): one is whole, the other is being made, or empty
      b/

A copy that has missed something begins again in the other slot; the old one stays what a restore reads until the
new one is whole, and only then is emptied, or later if somebody reads it.
"""

from __future__ import annotations

import os
import struct

from forelog.copies.claim import Known, refuse_other
from forelog.copies.identity import Identity, check_term
from forelog.copies.mirror import (
    FORMAT,
    Mirror,
    Resume,
    Snapshot,
    read_file,
    read_snapshot,
    replace_file,
    stamp_snapshot,
)
from forelog.errors import BadFrame, LogNotFound, ReplicaError, UnknownFormat
from forelog.files import Files, OSFiles
from forelog.log.directory.directory import APPEND_LOCK, Directory, segments_elsewhere
from forelog.log.directory.tenants import refuse_others
from forelog.log.position import Position

__all__ = [
    "SLOTS",
    "Copies",
    "copies_around",
    "read_identity",
    "refuse_a_log",
    "take_copies",
    "whole_slot",
]

SLOTS = ("a", "b")
_IDENTITY = "identity"


class Copies:
    """The copies of one log in a directory, of which at most one is whole."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self.path = path
        self._files = files or OSFiles()
        refuse_a_log(path, self._files)
        self._files.make_dir(path)
        self._lock = self._files.lock(f"{path}/{APPEND_LOCK}", exclusive=True, timeout=0)
        self._mirrors: list[Mirror] = []
        self.whole: Mirror | None = None
        try:
            self.identity = read_identity(path, self._files)
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

    def adopt(self, identity: Identity, *, continues: bool = False) -> None:
        """Take what comes from this primary, or raise: Superseded if another one has written that isn't older.

        Whether its log continues what is here is for it to say (claim.py).
        """
        refuse_other(self.path, identity, self.identity)
        check_term(self.path, identity, self.identity)
        if identity != self.identity:
            write_identity(self.path, identity, self._files)
            self.identity = identity
        if continues and self.whole is not None:
            self.whole.stamp(identity.term)

    @property
    def position(self) -> Position:
        """Up to where the log is here: while a copy is being made, that is nothing of what was sent for it."""
        return self.whole_end if self.growing is self.whole else Position(0, 0)

    @property
    def whole_end(self) -> Position:
        """Up to where a restore would get everything, also while another copy is being made; 0:0 without any."""
        position = None if self.whole is None else self.whole.position
        return Position(0, 0) if position is None else position

    def known(self) -> Known:
        """What a primary has to continue: who wrote here last, and the end of the whole copy."""
        if self.whole is None:
            return Known(self.identity)
        return Known(self.identity, self.whole.end(), self.whole.term)

    @property
    def byte_count(self) -> int:
        """What all that is here takes up on the disk, whole or not."""
        return sum(mirror.byte_count for mirror in self._mirrors)

    def flush(self, *, synced: bool) -> Resume:
        """`position`, once what is here has been synced if that is wanted, and is where it will be looked for."""
        if synced:
            self.growing.sync()
        if self.is_gone():
            raise ReplicaError(f"{self.path} was removed or replaced: the copy in it is gone, and is made anew")
        end = self.growing.resume() if self.growing is self.whole else None
        return end or Resume(Position(0, 0), b"")

    def is_gone(self) -> bool:
        """Whether its directory was removed, or another one is in its place: then nobody finds what is written."""
        known = self.identity is None or self._files.stat(f"{self.path}/{_IDENTITY}") is not None
        return not known or any(mirror.is_gone() for mirror in self._mirrors)

    def restart(self) -> None:
        """Begin again, in the other slot if this one is whole."""
        if self.growing is self.whole:
            self.growing = next(mirror for mirror in self._mirrors if mirror is not self.whole)
        self.growing.empty()

    def commit(self, snapshot: Snapshot) -> bool:
        """What is being written has a whole generation: it is the copy from now on. False if it was before."""
        before, growing = self.whole, self.growing
        sequence = growing.sequence if before is None or before is growing else before.sequence + 1
        growing.commit(snapshot, max(sequence, 1), 0 if self.identity is None else self.identity.term)
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
    whole = [(one.sequence, slot) for slot, one in found.items() if one is not None]
    return max(whole)[1] if whole else None


def copies_around(path: str, files: Files) -> str | None:
    """The directory of the copies that a log is opened among: by their path, or by that of a slot; else None."""
    if whole_slot(path, files) is not None:
        return path
    parent, name = os.path.split(path.rstrip("/"))
    among = name in SLOTS and files.stat(f"{parent or '.'}/{_IDENTITY}") is not None
    return (parent or ".") if among else None


def read_identity(path: str, files: Files) -> Identity | None:
    """Whose copies these are, and the last opening that has written them; None while nobody has."""
    place = f"{path}/{_IDENTITY}"
    if files.stat(place) is None:
        return None
    try:
        return Identity.decode(read_file(files, place))
    except struct.error:
        raise BadFrame(f"{place} is damaged: without it there is no telling whose copy this is") from None


def write_identity(path: str, identity: Identity, files: Files) -> None:
    """Take nothing from an older opening from now on. Durable when this returns; hold the lock of the copies."""
    replace_file(files, path, _IDENTITY, identity.encode())


def take_copies(path: str, identity: Identity, files: Files) -> None:
    """The whole copy at a path is open as a log: it is that log's history, and older openings are refused."""
    write_identity(path, identity, files)
    slot = whole_slot(path, files)
    if slot is not None:
        stamp_snapshot(files, slot, identity.term)


def refuse_a_log(path: str, files: Files) -> None:
    """Raise if a directory is that of a log: copies beside its segments would be read in place of them."""
    directory = Directory(files, path, FORMAT)
    try:
        taken = bool(directory.numbers()) or segments_elsewhere(files, path, FORMAT) is not None
    except (LogNotFound, FileNotFoundError, NotADirectoryError):
        return
    if taken:
        raise ReplicaError(f"{path} is a log itself, and no place for copies of another: choose another directory")
    try:
        refuse_others(files, path, "copies of a state log", kind="copies")
    except UnknownFormat as error:
        raise ReplicaError(str(error)) from None
