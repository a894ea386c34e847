"""Two slots for the replicas of one log, of which at most one is whole.

::

    bank/
      identity            which log it is, and the last opening that has written here
      a/                  a slot, with a replica (replica.py): whole, or being made, or empty
      b/                  the other slot

If a replica has missed something, a new one is made in the other slot. Until that is whole, a restore reads the
old one. Then the old one is emptied, or later if it is being read.
"""

from __future__ import annotations

import os
import struct

from forelog.copies.claim import Known, refuse_other
from forelog.copies.identity import Identity, check_term
from forelog.copies.replica import Replica
from forelog.copies.snapshot import Resume, Snapshot, read_file, read_snapshot, replace_file, stamp_snapshot
from forelog.errors import BadFrame, LogNotFound, ReplicaError, UnknownFormat
from forelog.files import Files, OSFiles
from forelog.formats.state import FORMAT
from forelog.log.directory.directory import APPEND_LOCK, Directory, segments_elsewhere
from forelog.log.directory.tenants import refuse_others
from forelog.log.position import Position

SLOTS = ("a", "b")
_IDENTITY = "identity"


class Slots:
    """The slots in a directory, open to be written to."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self.path = path
        self._files = files or OSFiles()
        refuse_a_log(path, self._files)
        self._files.make_dir(path)
        self._lock = self._files.lock(f"{path}/{APPEND_LOCK}", exclusive=True, timeout=0)
        self._replicas: list[Replica] = []
        self.whole: Replica | None = None
        try:
            self.identity = read_identity(path, self._files)
            for slot in SLOTS:
                self._replicas.append(Replica(Directory(self._files, f"{path}/{slot}", FORMAT)))
            whole = [replica for replica in self._replicas if replica.snapshot is not None]
            self.whole = max(whole, key=lambda replica: replica.sequence, default=None)
            for replica in whole:
                if replica is not self.whole:
                    replica.try_to_empty()
        except BaseException:
            self._close()
            raise
        self.growing: Replica = self._growing()
        """The replica that is written to: the whole one, unless a new one is being made."""

    def _growing(self) -> Replica:
        for replica in self._replicas:
            if replica is not self.whole and replica.position is not None:
                return replica
        return self.whole or self._replicas[0]

    def adopt(self, identity: Identity, *, continues: bool = False) -> None:
        """Accept a primary, or raise: Superseded if another one that isn't older has written here.

        Whether its log `continues` the copy is its own claim (claim.py).
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
        """The end of the whole replica; 0:0 if there is none, or while a new one is being made."""
        return self.whole_end if self.growing is self.whole else Position(0, 0)

    @property
    def whole_end(self) -> Position:
        """The end of the whole replica, also while a new one is being made; 0:0 without one."""
        position = None if self.whole is None else self.whole.position
        return Position(0, 0) if position is None else position

    def known(self) -> Known:
        """What a primary must continue: the last opening that wrote here, and the end of the whole replica."""
        if self.whole is None:
            return Known(self.identity)
        return Known(self.identity, self.whole.end(), self.whole.term)

    @property
    def byte_count(self) -> int:
        """The disk space that both replicas take."""
        return sum(replica.byte_count for replica in self._replicas)

    def flush(self, *, synced: bool) -> Resume:
        """The acknowledgement: `position`, after a sync if wanted, if the directory is still in its place."""
        if synced:
            self.growing.sync()
        if self.is_gone():
            raise ReplicaError(f"{self.path} was removed or replaced: the copy is gone, and a new one is made")
        end = self.growing.resume() if self.growing is self.whole else None
        return end or Resume(Position(0, 0), b"")

    def is_gone(self) -> bool:
        """Whether the directory was removed or replaced, so that nobody will find what is written."""
        known = self.identity is None or self._files.stat(f"{self.path}/{_IDENTITY}") is not None
        return not known or any(replica.is_gone() for replica in self._replicas)

    def restart(self) -> None:
        """Begin a new replica, in the other slot if this one is whole."""
        if self.growing is self.whole:
            self.growing = next(replica for replica in self._replicas if replica is not self.whole)
        self.growing.empty()

    def commit(self, snapshot: Snapshot) -> bool:
        """Note that the replica being written is whole. Returns whether it has replaced another one."""
        before, growing = self.whole, self.growing
        sequence = growing.sequence if before is None or before is growing else before.sequence + 1
        growing.commit(snapshot, max(sequence, 1), 0 if self.identity is None else self.identity.term)
        self.whole = growing
        for replica in self._replicas:
            if replica is not growing and (replica.position is not None or replica.damaged):
                replica.try_to_empty()  # if that fails now, the new one is whole anyway
        return before is not growing

    def close(self) -> None:
        """Sync, and close."""
        try:
            for replica in self._replicas:
                replica.sync()
        finally:
            self._close()

    def _close(self) -> None:
        for replica in self._replicas:
            replica.close()
        self._lock.release()


def whole_slot(path: str, files: Files | None = None) -> str | None:
    """The directory of the whole replica in the slots at a path; None if there is none."""
    files = files or OSFiles()
    found = {f"{path}/{slot}": read_snapshot(files, f"{path}/{slot}") for slot in SLOTS}
    whole = [(one.sequence, slot) for slot, one in found.items() if one is not None]
    return max(whole)[1] if whole else None


def copies_around(path: str, files: Files) -> str | None:
    """The directory of slots that a path belongs to: itself, or for a slot its parent; None if there is none."""
    if whole_slot(path, files) is not None:
        return path
    parent, name = os.path.split(path.rstrip("/"))
    among = name in SLOTS and files.stat(f"{parent or '.'}/{_IDENTITY}") is not None
    return (parent or ".") if among else None


def read_identity(path: str, files: Files) -> Identity | None:
    """The last opening that was accepted here; None if there was none."""
    place = f"{path}/{_IDENTITY}"
    if files.stat(place) is None:
        return None
    try:
        return Identity.decode(read_file(files, place))
    except struct.error:
        raise BadFrame(f"{place} is damaged: it can't tell which log this is a copy of") from None


def write_identity(path: str, identity: Identity, files: Files) -> None:
    """Accept nothing from older openings any more. Synced when this returns. Hold the lock of the slots."""
    replace_file(files, path, _IDENTITY, identity.encode())


def take_copies(path: str, identity: Identity, files: Files) -> None:
    """Make the whole replica at a path a log: it has that log's history, and older openings are refused."""
    write_identity(path, identity, files)
    slot = whole_slot(path, files)
    if slot is not None:
        stamp_snapshot(files, slot, identity.term)


def refuse_a_log(path: str, files: Files) -> None:
    """Raise if a directory is itself a log: slots beside its segments would be read in place of them."""
    directory = Directory(files, path, FORMAT)
    try:
        taken = bool(directory.numbers()) or segments_elsewhere(files, path, FORMAT) is not None
    except (LogNotFound, FileNotFoundError, NotADirectoryError):
        return
    if taken:
        raise ReplicaError(f"{path} is a log itself, and can't hold copies of another: choose another directory")
    try:
        refuse_others(files, path, "copies of a state log", kind="copies")
    except UnknownFormat as error:
        raise ReplicaError(str(error)) from None


def directory_of(path: str) -> str:
    """The directory of a log: the path itself, or the whole replica in one of its slots."""
    if not all(os.path.isdir(f"{path}/{slot}") for slot in SLOTS):
        return path
    slot = whole_slot(path)
    if slot is None:
        raise ReplicaError(f"{path} has no whole copy of a state log: the first one was never finished")
    return slot
