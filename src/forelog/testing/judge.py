"""Whether what a reader saw is the log.

The kinds of what can be wrong::

    phantom    a record whose append was refused, or that nobody wrote
    twice      a position that has meant two records
    moved      a record at another position than it was given
    order      a record that came before one that was seen already, or again
    gap        a record was passed over that is in the log
    part       of records that were appended in one call, some and not all
    late       a record is missing that had been acknowledged before the reader looked
    vanished   a record that was seen, and is not in the log in the end
    raised     an error that the reader should not have had
    spins      the reader doesn't end
    waits      the reader waits for a lock for ever
    locked     the reader holds a lock while it waits
    wrong      something that a kind of reader checks for itself
"""

from __future__ import annotations

from forelog.errors import BadPosition, ForelogError, LockTimeout, LogNotFound
from forelog.log.position import Position
from forelog.testing.ledger import NEVER, Entry, Ledger
from forelog.testing.sight import Look, Seen, Sight

Problem = tuple[str, str]


class Judge:
    """Compares what readers of one recording see, also with what others saw at the same position."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._at: dict[Position, bytes] = {
            entry.position: entry.payload for entry in ledger.sequence if entry.position is not None
        }

    def problems(self, sight: Sight, error: BaseException | None) -> list[Problem]:
        """Everything that is wrong with what a reader saw, or with how it ended."""
        found = list(sight.problems)
        if error is not None and not self._is_fair(sight, error):
            found.append(("raised", f"{type(error).__name__}: {error}"))
        last = -1
        for look in sight.looks:
            if look.anew:
                last = -1
            last = self._follow(sight, look, last, found)
            if look.whole:
                self._check_end(sight, look, last, found)
        return found

    # -- record by record

    def _follow(self, sight: Sight, look: Look, last: int, found: list[Problem]) -> int:
        """Check the records of a look. Returns the place of the last one in the sequence."""
        for seen in look.records:
            if self._ledger.is_foreign(seen.payload):
                continue
            self._check_position(seen, found)
            entry = self._ledger.find(seen.payload)
            place = self._check_entry(seen, entry, found)
            if place is None or entry is None:
                continue
            if place <= last:
                found.append(("order", f"{_name(entry)} came after {_name(self._ledger.sequence[last])}"))
                continue
            missed = [
                one
                for one in self._ledger.sequence[last + 1 : place]
                if self._is_wanted(sight, one) and not one.may_miss(seen.moment)
            ]
            if missed:
                found.append(("gap", f"{_names(missed)} passed over before {_name(entry)}"))
            last = place
        return last

    def _check_position(self, seen: Seen, found: list[Problem]) -> None:
        written = self._ledger.shape(seen.payload) or b""
        before = self._at.setdefault(seen.position, written)
        if before != written:
            found.append(("twice", f"{seen.position} is {_short(written)} here, and {_short(before)} elsewhere"))

    def _check_entry(self, seen: Seen, entry: Entry | None, found: list[Problem]) -> int | None:
        """The place in the sequence of what was seen, if it has one."""
        if entry is None:
            found.append(("phantom", f"{_short(seen.payload)} at {seen.position}, which nobody wrote"))
            return None
        if entry.outcome == "refused":
            found.append(("phantom", f"{_name(entry)} at {seen.position}, whose append was refused"))
            return None
        place = self._ledger.place(entry)
        if place is None:
            if entry.lost > seen.moment and entry.forgotten == NEVER:
                found.append(("vanished", f"{_name(entry)} at {seen.position} is not in the log in the end"))
            return None
        if seen.position != entry.position:
            found.append(("moved", f"{_name(entry)} at {seen.position}"))
        return place

    # -- at the end of a look

    def _check_end(self, sight: Sight, look: Look, last: int, found: list[Problem]) -> None:
        """Check that nothing required is missing, and that no batch is there in part."""
        late = [
            entry
            for entry in self._ledger.sequence[last + 1 :]
            if entry.readable <= look.begin and not entry.may_miss(look.end) and self._is_wanted(sight, entry)
        ]
        if late:
            found.append(("late", f"{_names(late)} not seen, acknowledged before moment {look.begin}"))
        seen = [entry for one in look.records if (entry := self._ledger.find(one.payload)) is not None]
        numbers = {entry.number for entry in seen}
        for unit in {entry.unit: self._ledger.unit(entry) for entry in seen}.values():
            missing = [
                entry
                for entry in unit
                if entry.number not in numbers
                and not entry.may_miss(look.end)
                and self._is_wanted(sight, entry)
                and not self._was_seen_before(sight, look, entry)
            ]
            if missing:
                here = [entry for entry in unit if entry.number in numbers]
                found.append(("part", f"{_names(here)} without {_names(missing)}, appended in one call"))

    def _was_seen_before(self, sight: Sight, look: Look, entry: Entry) -> bool:
        """Whether an earlier look, which this one continues, had the record."""
        looks = sight.looks[: sight.looks.index(look)]
        return not look.anew and any(
            self._ledger.find(one.payload) is entry for earlier in looks for one in earlier.records
        )

    def _is_wanted(self, sight: Sight, entry: Entry) -> bool:
        """Whether the reader must see a record, given where the reader starts."""
        if sight.from_position is not None and entry.position is not None:
            return entry.position >= sight.from_position
        return entry.number >= sight.from_number

    # -- errors

    def _is_fair(self, sight: Sight, error: BaseException) -> bool:
        """Whether a reader may have this error."""
        if isinstance(error, LockTimeout):
            return True  # the writer has the lock, and the reader didn't wait
        look = sight.looks[-1]
        if isinstance(error, LogNotFound):
            return not self._ledger.readable(look.begin)
        if isinstance(error, BadPosition):
            return any(entry.lost <= sight.moment for entry in self._seen(sight))
        if isinstance(error, ForelogError) and type(error).__name__ == "DataLoss":
            return any(entry.forgotten <= sight.moment for entry in self._ledger.sequence)
        return False

    def _seen(self, sight: Sight) -> list[Entry]:
        found = (self._ledger.find(one.payload) for look in sight.looks for one in look.records)
        return [entry for entry in found if entry is not None]


def _name(entry: Entry) -> str:
    at = "" if entry.position is None else f" ({entry.position})"
    return f"{_short(entry.payload)}{at}"


def _names(entries: list[Entry]) -> str:
    more = f" and {len(entries) - 3} more" if len(entries) > 3 else ""
    return ", ".join(map(_name, entries[:3])) + more


def _short(payload: bytes) -> str:
    return repr(payload if len(payload) <= 16 else payload[:12] + b"...")
