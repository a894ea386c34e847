"""Whether a primary may write to a copy.

A copy only grows. Within a term, a history never replaces records that it lacks. So of two primaries of one log,
at most one gets acknowledgements, and what was acknowledged stays.

- An older epoch is refused. So is the same epoch with another word: another opening writes this copy. The side
  that keeps the copy checks this (`refuse_other`).
- A younger epoch of the same term must continue the opening that wrote the copy last: the log knows that opening,
  and had everything that the copy has when the next opening began (lineage.py). Otherwise the log is a backup or a
  copied directory, and lacks what the copy has.
- The same opening, when it connects again, must have what the copy has, or have sent it. Otherwise the machine was
  cloned, and its twin writes the copy.
- A younger term is always accepted. It was promoted: somebody decided to keep this log.

The last bytes of the copy are compared with those of the log, if the log still has them.
"""

from __future__ import annotations

from typing import NamedTuple

from forelog.copies.identity import Identity
from forelog.copies.shipping import Owner, holds
from forelog.copies.snapshot import Resume
from forelog.copies.transfers import Transfer
from forelog.errors import ReplicaError, Superseded
from forelog.log.directory.place import if_there
from forelog.log.directory.segment import SegmentReader
from forelog.log.stream import Stream

_TO_KEEP = (
    "Keep the copy by promoting it, or keep this log by opening it with promote=True, which replaces the copy; "
    "`forelog state diff` shows how they differ"
)


class Known(NamedTuple):
    """What a primary must continue to be allowed to write to a copy."""

    identity: Identity | None
    """The last opening that was accepted; None if there was none."""
    end: Resume | None = None
    """Where the whole copy ends; None if there is none."""
    term: int = 0
    """The term whose history the copy has. After a promotion it is the old term until everything was sent."""


def refuse_other(where: str, identity: Identity, known: Identity | None) -> None:
    """Raise if a copy is of another log, or was written by another opening that isn't older than this one."""
    if known is None:
        return
    if known.id != identity.id:
        raise ReplicaError(
            f"{where} is a copy of log {known.id.hex()[:8]}, not of {identity.id.hex()[:8]}: "
            "choose another place for it, or remove the copy"
        )
    if identity.epoch < known.epoch:
        raise Superseded(
            f"epoch {identity.term}.{identity.run} is over: {known.term}.{known.run} has written to {where}. The "
            f"primary is {known.opening}, not {identity.opening}. The copy lacks what this one wrote since"
        )
    if identity.epoch == known.epoch and identity.word != known.word:
        raise Superseded(
            f"{where} is written by another primary of epoch {known.term}.{known.run}: it is {known.opening}, not "
            f"{identity.opening}. The log was copied or restored, and opened twice. {_TO_KEEP}"
        )


class Claim:
    """A log's claim to continue a copy."""

    def __init__(self, owner: Owner, where: str, sent: Transfer) -> None:
        self._owner = owner
        self._where = where
        self._sent = sent

    def check(self, known: Known) -> bool:
        """Raise Superseded or ReplicaError if this log must not write to a copy.

        Returns whether the log has what the copy has. A promoted log may lack it: it replaces the copy.
        """
        mine, writer, end = self._owner.identity, known.identity, known.end
        refuse_other(self._where, mine, writer)
        bound = end if known.term == mine.term else None
        if writer is not None and writer == mine:
            self._check_same(bound)
        elif writer is not None and writer.term == mine.term:
            self._check_continued(writer, bound)
        continues = end is None or bound is not None or bool(self._holds(end))
        self._sent.found(end if continues else None)
        return continues

    def _check_continued(self, known: Identity, end: Resume | None) -> None:
        mine, lineage = self._owner.identity, self._owner.lineage
        opening = lineage.find(known)
        if opening is None:
            forgotten = bool(lineage.openings) and known.run < lineage.openings[0].run
            why = "which this log has forgotten" if forgotten else "which isn't in this log's history"
            raise Superseded(
                f"{self._where} was last written by {known.opening}, {why}. This is {mine.opening}: another "
                f"primary, of a backup or a copied directory. {_TO_KEEP}"
            )
        if end is not None and (opening.end < end.position or self._holds(end) is False):
            raise ReplicaError(
                f"{self._where} has what this log lacks: {known.opening} has written the copy up to "
                f"{end.position}, and the log that was opened as {mine.opening} up to "
                f"{min(opening.end, end.position)}. The log was restored, copied or cut, or lost with the power "
                f"what it hadn't synced. {_TO_KEEP}"
            )

    def _check_same(self, end: Resume | None) -> None:
        if end is None or self._owner.transfers.knows(end):
            return
        held, mine = self._holds(end), self._owner.identity
        if held or (held is None and self._may_have_sent(end)):
            return
        raise ReplicaError(
            f"{self._where} has what {mine.opening} hasn't written, up to {end.position}: two processes are the "
            f"primary {mine.opening}. Was the machine cloned, or the log cut? {_TO_KEEP}"
        )

    def _may_have_sent(self, end: Resume) -> bool:
        """Whether this opening may have sent the copy its last records, which the log has dropped since."""
        view = self._owner.view()
        if view is None or end.position >= view.snapshot.begin:
            return False
        # A copy that ends before what it has acknowledged has lost records: its disk or its power has failed.
        acknowledged = self._owner.transfers.acknowledged(self._where)
        return end.position <= max(acknowledged, self._owner.lineage.began)

    def _holds(self, end: Resume) -> bool | None:
        """Whether the log has the copy's last bytes; None if that is unknown."""
        view = self._owner.view()
        if view is None:
            return None
        held = holds(view.stream, end)
        return None if held is False and _is_rewritten(view.stream, end.position.segment) else held


def _is_rewritten(stream: Stream, number: int) -> bool:
    """Whether a segment was cleaned by hand, so that its bytes have moved."""
    with if_there(SegmentReader, stream.directory, number) as reader:
        return reader is None or reader.rewritten
