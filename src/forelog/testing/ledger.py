"""What a writer began to write, and what became of it.

Readers are compared with this. A record whose append was *acknowledged* is in the log from then on, at the
position that was handed out. One that was *refused* was never there. Of one that ended in *doubt*, because a sync
failed or the process was killed, the log decides: it counts if it is there in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from forelog.log.position import Position, Record

NEVER = 1 << 60

Outcome = Literal["pending", "acknowledged", "refused", "in doubt"]


@dataclass(slots=True)
class Entry:
    """One record that a writer began to append. Moments are numbers in a timeline."""

    payload: bytes
    """The record's payload, which no other record has."""
    number: int
    """The number of records begun before it."""
    unit: int
    """The number of its call: the log has all records of a call, or none."""
    begun: int
    """The moment at which its append began."""
    since_ns: int
    """The clock when it was begun. Its time is this or later; records before it are earlier."""
    outcome: Outcome = "pending"
    """What became of it."""
    position: Position | None = None
    """The record's position, if known."""
    end: Position | None = None
    """The position after it, if known."""
    readable: int = NEVER
    """From this moment on every reader must find it."""
    forgotten: int = NEVER
    """From this moment on it may be gone, because its cleaning has begun."""
    lost: int = NEVER
    """From this moment on it may be gone, because a failed sync may take it."""

    def may_miss(self, moment: int) -> bool:
        """Whether readers may miss it at a moment."""
        return self.forgotten <= moment or self.lost <= moment


class Ledger:
    """All records that were begun, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.sequence: list[Entry] = []
        """The records of the log at the end, in its order."""
        self._places: dict[int, int] = {}
        self._by_payload: dict[bytes, Entry] = {}
        self._units: dict[int, list[Entry]] = {}
        self._expectations: dict[int, tuple[int, ...]] = {}
        self.ends: dict[int, Position] = {}
        """The end of the last record in each segment at the end."""
        self.shape: Callable[[bytes], bytes | None] = bytes
        """From a record's payload to what was written; None for what isn't the writer's own."""

    # -- while it is written

    def begin(self, payloads: Iterable[bytes], moment: int, since_ns: int) -> list[Entry]:
        """Note that a call is about to append these records."""
        unit = len(self._units)
        entries = self._units[unit] = []
        for payload in payloads:
            if payload in self._by_payload:
                raise ValueError(f"{payload!r} is written a second time: payloads must be unique to be told apart")
            entry = Entry(payload, len(self.entries), unit, moment, since_ns)
            self._by_payload[payload] = entry
            self.entries.append(entry)
            entries.append(entry)
        return entries

    def acknowledge(
        self, entries: Sequence[Entry], positions: Iterable[Position], moment: int, *, readable: bool = True
    ) -> None:
        """Note that they were appended, and their positions returned."""
        for entry, position in zip(entries, positions, strict=True):
            entry.outcome, entry.position = "acknowledged", Position(*position)
            if readable:
                entry.readable = moment

    def expose(self, moment: int) -> None:
        """Note that from now on readers can read what was acknowledged."""
        for entry in self.entries:
            if entry.outcome == "acknowledged":
                entry.readable = min(entry.readable, moment)

    def refuse(self, entries: Sequence[Entry]) -> None:
        """Note that the call was refused: they were not appended."""
        for entry in entries:
            entry.outcome = "refused"

    def doubt(self, entries: Sequence[Entry]) -> None:
        """Note that it is unknown whether they were appended."""
        for entry in entries:
            entry.outcome = "in doubt"

    def forget(self, which: Callable[[bytes], bool], moment: int) -> None:
        """Note that cleaning or retention may remove these records from now on."""
        for entry in self.entries:
            if which(entry.payload):
                entry.forgotten = min(entry.forgotten, moment)

    def lose(self, moment: int) -> None:
        """Note that a sync has failed: records that weren't synced before may be gone."""
        for entry in self.entries:
            entry.lost = min(entry.lost, moment)

    # -- afterwards

    def settle(self, records: Iterable[Record]) -> None:
        """Note the records of the log at the end."""
        for record in records:
            self.ends[record.position.segment] = record.next_position
            entry = self.find(record.payload)
            if entry is None:
                continue
            if entry.outcome in ("in doubt", "pending"):
                entry.position = record.position
            if entry.position == record.position:
                entry.end = record.next_position
        counting = [entry for entry in self.entries if entry.position is not None and entry.outcome != "refused"]
        self.sequence = sorted(counting, key=lambda entry: (entry.position, entry.number))
        self._places = {entry.number: place for place, entry in enumerate(self.sequence)}

    def find(self, payload: bytes) -> Entry | None:
        """The entry with this payload; None if there is none."""
        written = self.shape(payload)
        return None if written is None else self._by_payload.get(written)

    def is_foreign(self, payload: bytes) -> bool:
        """Whether a record isn't the writer's own, such as a marker in a state log."""
        return self.shape(payload) is None

    def place(self, entry: Entry) -> int | None:
        """Where an entry is among all that the log has at the end; None if it isn't there."""
        return self._places.get(entry.number)

    def unit(self, entry: Entry) -> list[Entry]:
        """The entries of the call that wrote this one."""
        return self._units[entry.unit]

    def expectation(self, moment: int) -> tuple[int, ...]:
        """A value that is equal for moments at which readers must find the same records."""
        if moment not in self._expectations:
            self._expectations[moment] = tuple(
                sum(getattr(entry, what) <= moment for entry in self.entries)
                for what in ("begun", "readable", "forgotten", "lost")
            )
        return self._expectations[moment]

    def readable(self, moment: int) -> list[Entry]:
        """The records that every reader must find at a moment."""
        return [entry for entry in self.sequence if entry.readable <= moment and not entry.may_miss(moment)]
