"""What a writer has begun to write, and what it was told about it.

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
    """One record that a writer wanted in the log. Moments are numbers of a timeline's."""

    payload: bytes
    number: int
    """How many were begun before it."""
    unit: int
    """Equal for those that were handed over in one call: all of them are in the log, or none."""
    begun: int
    since_ns: int
    """What the clock showed: its time is this or later, that of records before it is earlier."""
    outcome: Outcome = "pending"
    position: Position | None = None
    end: Position | None = None
    """The position after it, where that is known."""
    readable: int = NEVER
    """From this moment on every reader must find it."""
    forgotten: int = NEVER
    """From this moment on it may be gone, because cleaning it has begun."""
    lost: int = NEVER
    """From this moment on it may be gone, because a failed sync may take it."""

    def may_miss(self, moment: int) -> bool:
        """Whether a reader need not have it at a moment."""
        return self.forgotten <= moment or self.lost <= moment


class Ledger:
    """Everything that was begun, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.sequence: list[Entry] = []
        """What counts in the end, in the order of the log."""
        self._places: dict[int, int] = {}
        self._by_payload: dict[bytes, Entry] = {}
        self._units: dict[int, list[Entry]] = {}
        self._expectations: dict[int, tuple[int, ...]] = {}
        self.ends: dict[int, Position] = {}
        """Where each segment that is there in the end has its last record's end."""
        self.shape: Callable[[bytes], bytes | None] = bytes
        """From a record's payload to what was written; None for what isn't the writer's own."""

    # -- while it is written

    def begin(self, payloads: Iterable[bytes], moment: int, since_ns: int) -> list[Entry]:
        """A writer is about to hand these over in one call."""
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
        """They were appended, and their positions handed out."""
        for entry, position in zip(entries, positions, strict=True):
            entry.outcome, entry.position = "acknowledged", Position(*position)
            if readable:
                entry.readable = moment

    def expose(self, moment: int) -> None:
        """Whatever was acknowledged can be read from now on."""
        for entry in self.entries:
            if entry.outcome == "acknowledged":
                entry.readable = min(entry.readable, moment)

    def refuse(self, entries: Sequence[Entry]) -> None:
        """They were not appended, and whoever wanted that knows."""
        for entry in entries:
            entry.outcome = "refused"

    def doubt(self, entries: Sequence[Entry]) -> None:
        """Nobody knows whether they were appended."""
        for entry in entries:
            entry.outcome = "in doubt"

    def forget(self, which: Callable[[bytes], bool], moment: int) -> None:
        """From now on some may be gone: cleaning or retention takes them."""
        for entry in self.entries:
            if which(entry.payload):
                entry.forgotten = min(entry.forgotten, moment)

    def lose(self, moment: int) -> None:
        """From now on whatever wasn't known to be synced may be gone: a sync has failed."""
        for entry in self.entries:
            entry.lost = min(entry.lost, moment)

    # -- afterwards

    def settle(self, records: Iterable[Record]) -> None:
        """The log is as these records say in the end."""
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
        """What was written with this payload, if anything was."""
        written = self.shape(payload)
        return None if written is None else self._by_payload.get(written)

    def is_foreign(self, payload: bytes) -> bool:
        """Whether a record isn't the writer's own, as the markers in a state log."""
        return self.shape(payload) is None

    def place(self, entry: Entry) -> int | None:
        """Its place among all that count; None if it doesn't."""
        return self._places.get(entry.number)

    def unit(self, entry: Entry) -> list[Entry]:
        """All that were handed over with it."""
        return self._units[entry.unit]

    def expectation(self, moment: int) -> tuple[int, ...]:
        """Equal for moments at which readers must find the same."""
        if moment not in self._expectations:
            self._expectations[moment] = tuple(
                sum(getattr(entry, what) <= moment for entry in self.entries)
                for what in ("begun", "readable", "forgotten", "lost")
            )
        return self._expectations[moment]

    def readable(self, moment: int) -> list[Entry]:
        """What every reader must find at a moment."""
        return [entry for entry in self.sequence if entry.readable <= moment and not entry.may_miss(moment)]
