"""Which opening of a log writes to an object store: one at a time, although a store has no locks.

Before it writes anything else, an opening announces itself by an object with its name (manifest.py). Then it lists
the objects and loads the last manifest: now it is established. Each flush lists the objects again after its
manifest was written, and before it is acknowledged. So of two openings that write:

- Everything that the older one has acknowledged was written before the younger one announced itself. The younger
  one has loaded it, and continues only if its log has it (claim.py). What the older one writes later is not
  acknowledged, because it sees the younger one's object.
- Two of the same epoch see each other's objects. If one of them was established before, the other one withdraws
  its object. If none was, both do so, and try again after a while.
- Two processes with the same identity, as on a cloned machine, have the same name. If the store refuses to write a
  name twice, only one of them can write the next manifest. Otherwise each sees the other's manifest in its list,
  and removes its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import NamedTuple

from forelog.copies.claim import Claim, Known, refuse_other
from forelog.copies.identity import Identity
from forelog.copies.shipping import Owner
from forelog.copies.snapshot import Resume
from forelog.copies.store.bucket import Bucket
from forelog.copies.store.manifest import (
    FOLDER,
    Manifest,
    Named,
    Part,
    named_manifests,
    named_openings,
    newest,
    opening_name,
)
from forelog.errors import ReplicaError, Superseded
from forelog.log.directory.place import TAIL_BYTES
from forelog.times import format_time

logger = logging.getLogger("forelog")


class Found(NamedTuple):
    """The objects of a log in a store."""

    manifests: dict[Named, int]
    """The manifests, with their sizes."""
    openings: list[Identity]
    """The announced openings."""
    parts: dict[str, int]
    """The parts, with their sizes."""
    newest: list[Manifest]
    """The two newest valid manifests."""


class Register:
    """The openings and manifests in a bucket, as one opening of a log sees them."""

    def __init__(self, bucket: Bucket, owner: Owner, claim: Claim) -> None:
        self._bucket = bucket
        self._owner = owner
        self._claim = claim
        self._established = False
        self.exclusive = False
        """Whether the store refuses to write a name twice."""
        self._found: set[Named] = set()
        """Manifests that were there when this opening was established."""
        self.known: set[Named] = set()
        """Manifests that were there when this opening connected, and its own."""
        self.last: Named | None = None
        """The last manifest that this opening wrote, which nobody else may remove."""

    def enter(self) -> Found:
        """Become the opening that writes here, or raise. Returns the objects that are there."""
        found = self._find()
        self._check(found)
        if not self._established:
            self._announce()
            try:
                found = self._find()
                self._check(found)
            except ReplicaError:
                self._withdraw()
                raise
            self._established = True
            self._found = set(found.manifests)
        self.known |= set(found.manifests)
        self.last = None
        return found

    def look(self) -> None:
        """Raise if another primary that isn't older writes here.

        An older one acknowledges nothing more: it sees the object of this one first.
        """
        sizes, mine = self._bucket.sizes(), self._owner.identity
        listed = named_manifests(sizes)
        self._check_younger(named_openings(sizes, mine.id), listed)
        others = listed.keys() - self.known
        if others and max(others).epoch == mine.epoch:
            raise Twin(self._bucket.where, mine, max(others).name)
        if others:
            logger.warning("%s: an older primary still writes there: %s", self._bucket.where, max(others).name)
            self.known |= others
        if self.last is not None and self.last not in listed:
            raise ReplicaError(f"{self._bucket.where}: {self.last.name} was removed. The copy is checked again")

    # -- other openings

    def _find(self) -> Found:
        sizes, parts = self._bucket.sizes(), self._bucket.sizes(FOLDER)
        listed, mine = named_manifests(sizes), self._owner.identity
        if self._established:  # what an older one wrote since then isn't part of this history
            listed = {one: size for one, size in listed.items() if one.epoch >= mine.epoch or one in self._found}
        openings = named_openings(sizes, mine.id)
        return Found(listed, openings, parts, newest(self._bucket, listed, parts, count=2))

    def _check(self, found: Found) -> None:
        """Raise unless this opening may write here, and its log has what the copy has."""
        mine, where = self._owner.identity, self._bucket.where
        last = found.newest[0] if found.newest else None
        refuse_other(where, mine, None if last is None else last.identity)
        self._check_younger(found.openings, found.manifests)
        for other in found.openings:
            if not self._established and other.epoch == mine.epoch and other.word != mine.word:
                raise ReplicaError(
                    f"{where}: another primary of epoch {mine.term}.{mine.run} is about to write there: "
                    f"{other.opening}, and this one is {mine.opening}. Was the log copied and opened twice?"
                )
        known = [one for one in found.openings if one.epoch < mine.epoch or one.word == mine.word]
        if last is None:
            self._claim.check(Known(max(known, default=None)))
            return
        end = Resume(last.position, self.tail(last.parts[-1]))
        self._claim.check(Known(max([*known, last.identity]), end, last.identity.term))

    def _check_younger(self, openings: list[Identity], manifests: dict[Named, int]) -> None:
        mine, where = self._owner.identity, self._bucket.where
        for named in manifests:
            if named.epoch > mine.epoch:  # valid or not: a younger primary has begun to write
                raise Superseded(
                    f"epoch {mine.term}.{mine.run} is over: {named.term}.{named.run} has written {named.name} to "
                    f"{where}. This primary is {mine.opening}, and what it wrote since isn't there"
                )
        for other in openings:
            if other.term > mine.term:
                raise Superseded(
                    f"epoch {mine.term}.{mine.run} is over: {other.opening} was promoted, and writes to {where}. "
                    f"This primary is {mine.opening}, and what it wrote since isn't there"
                )
            if other.epoch > mine.epoch:  # it may withdraw, if its log doesn't continue the copy
                raise ReplicaError(
                    f"{where}: a younger primary is about to write there: {other.opening}, and this one is "
                    f"{mine.opening}. Nothing is acknowledged meanwhile"
                )

    # -- announcing

    def _announce(self) -> None:
        mine = self._owner.identity
        name = opening_name(mine)
        body = {"id": mine.id.hex(), "opening": mine.opening, "time": format_time(time.time_ns())}
        data = json.dumps(body, sort_keys=True).encode()
        if not self._bucket.may_create:
            self._bucket.write(name, data)
            return
        with contextlib.suppress(FileExistsError):
            self._bucket.create(name, data)
        try:
            self._bucket.create(name, data)  # some stores ignore what they are asked for
        except FileExistsError:
            self.exclusive = True

    def _withdraw(self) -> None:
        try:
            self._bucket.remove(opening_name(self._owner.identity))
        except ReplicaError as error:
            logger.warning("%s: an opening couldn't be taken away again: %s", self._bucket.where, error)

    def tail(self, part: Part) -> bytes:
        """The last bytes of a part; none if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            return self._bucket.read(part.path, max(part.length - TAIL_BYTES, 0), part.length)
        return b""


class Twin(Superseded):
    """Another process writes with the same identity, or with the same epoch."""

    def __init__(self, where: str, identity: Identity, name: str) -> None:
        super().__init__(
            f"{where}: another process writes there as {identity.opening} too ({name}): was the log copied and "
            "opened twice, or the machine cloned?"
        )
