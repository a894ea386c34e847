"""The annex: the log beside a command log, in its folder `annex`, for what workq's commands have no word for.

A turn may write to both. First go its notes, behind a note that says where the command log ended, then its
commands. Each note goes with one of the commands. A crash between the two writes, or a power loss that tears the
second, leaves notes without their commands. These don't count: the next opening finds how many commands there
are behind that place, and says so in the annex. The same holds for a turn whose commands were refused, by a full
disk for example: that is said before any other command is written. So a note counts together with its command,
or not at all.

There is no annex until the first note is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from forelog.errors import ForelogError, LogNotFound
from forelog.files import Files
from forelog.formats.commands.notes import MAGIC, VERSION, Note, Turn, Verdict, decode, encode, numbers
from forelog.kernel import varint
from forelog.log.appender import Appender
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import OnCorruption

FOLDER = "annex"

Apply = Callable[[Note], None]
Count = Callable[[Position, int], int]


class _Held:
    """The notes of the last turn of an annex that is read, until it is known which of them count."""

    def __init__(self, apply: Apply, dropped: list[tuple[Position, Position]]) -> None:
        self._apply = apply
        self._dropped = dropped
        self._notes: list[tuple[Position, Note]] = []
        self._places: list[int] = []
        self.number = 0
        """The turn's."""
        self.commands = 0
        self.place = Position(0, 0)
        """Where its commands begin."""
        self.is_judged = True
        """Whether the annex says how many of them there are, or there is nothing to say."""
        self._there = 0

    def begin(self, turn: Turn) -> None:
        """The next turn begins: so all commands of the one before it are there."""
        self.number, self.commands = turn.number, turn.commands
        self.place = Position(turn.segment, turn.offset)
        self._places = numbers(turn.places)
        self._there = turn.commands
        self.is_judged = not turn.commands

    def judge(self, verdict: Verdict) -> None:
        """The annex says how many of the turn's commands are there."""
        if verdict.number == self.number:
            self._there = verdict.commands
            self.is_judged = True

    def add(self, position: Position, note: Note) -> None:
        """Hold a note."""
        self._notes.append((position, note))

    def end(self) -> None:
        """Hand out the notes that count. Cleaning may have taken some, but never from a turn that is not
        judged."""
        whole = self._there >= self.commands
        for index, (position, note) in enumerate(self._notes):
            if whole or self._places[index] < self._there:
                self._apply(note)
            else:
                self._dropped.append((position, position))
        self._notes = []


class Annex:
    """The log of notes beside a command log."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: dict[str, Any],
        *,
        files: Files,
        clock: Callable[[], int] | None,
        on_corruption: OnCorruption,
        syncs: bool,
    ) -> None:
        """`options` are the appender's. With `syncs` a write returns when it is synced."""
        place = os.path.join(os.fspath(path), FOLDER)
        self.stream = Stream(place, magic=MAGIC, version=VERSION, files=files, clock=clock)
        self._options = options
        self._on_corruption = on_corruption
        self._syncs = syncs
        self._appender: Appender | None = None
        self._number = 0
        """The last turn's."""
        self._place = (Position(0, 0), Position(0, 0))
        """The first and the last note of that turn."""
        self._open_turn: Turn | None = None
        """A turn whose notes are written, and whose commands are not known to be."""
        self._said = True
        """Whether the annex says of the last turn how many commands it has, or the turn has none."""
        self._last_count = 0
        """How many it has."""
        self.dropped: list[tuple[Position, Position]] = []
        """The first and the last note of turns that don't count."""

    @property
    def is_settled(self) -> bool:
        """Whether the annex says of every turn how many of its commands count."""
        return self._said and self._open_turn is None

    @property
    def number(self) -> int:
        """The last turn's number."""
        return self._number

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        if self._appender is not None:
            return True
        try:
            return bool(self.stream.numbers())
        except LogNotFound:
            return False

    @property
    def failed(self) -> bool:
        """Whether it has to be opened again before anything can be written."""
        return self._appender is not None and self._appender.failed is not None

    def open(self, apply: Apply, count: Count, first: int = 0) -> None:
        """Recover it, if there is one, and hand out the notes that count, of turns from number `first` on.

        `count` says how many commands the command log has from a position on, up to a number.
        """
        if not self.exists:
            return
        self._appender = self._open()
        held = _Held(apply, self.dropped)
        wanted = not first
        for block in self.stream.blocks(on_corruption=self._on_corruption):
            for row in range(block.first, block.last):
                position = Position(block.segment, block.offsets[row])
                note = decode(bytes(block.buffer[block.scan.starts[row] : block.scan.ends[row]]))
                if isinstance(note, Turn):
                    held.end()
                    held.begin(note)
                    wanted = note.number >= first
                elif isinstance(note, Verdict):
                    held.judge(note)
                elif wanted:
                    held.add(position, note)
        self._number = held.number
        self._said = held.is_judged
        if not held.is_judged:
            self._say(count(held.place, held.commands))
            held.judge(Verdict(self._number, self._last_count))
        held.end()

    def _open(self) -> Appender:
        return self.stream.appender(**self._options, timeout=0)

    def _append(self, records: list[bytes]) -> tuple[Position, Position]:
        if self._appender is None:
            self._appender = self._open()
        positions = self._appender.append_many(records)
        if self._syncs:
            self._appender.sync()
        return positions[0], positions[-1]

    def write(self, notes: Sequence[tuple[int, bytes]], end: Position, commands: int) -> None:
        """Write the notes of a turn that has so many commands, each with the number of the command that it goes
        with. The command log ends at `end`."""
        places = b"".join([varint(place) for place, _ in notes])
        turn = Turn(self._number + 1, *end, commands, places)
        if commands:
            self._open_turn = turn  # before the write: its outcome may be unknown
        try:
            place = self._append([encode(turn), *[note for _, note in notes]])
        except BaseException:
            if not self.failed:  # it is undone
                self._open_turn = None
            raise
        self._number = turn.number
        self._said = not commands
        self._last_count = commands
        self._place = place

    def commands_written(self) -> None:
        """The commands of the last turn are in the command log."""
        self._open_turn = None

    def settle(self) -> None:
        """Say that the last turn doesn't count, if its commands could not be written. Comes before other
        commands."""
        if self._open_turn is not None:
            self._say(0)
            self.dropped.append(self._place)
            self._open_turn = None

    def confirm(self) -> None:
        """Say that the last turn counts. Comes before the command log's next segment: from then on a cleaning may
        take its commands."""
        if not self._said and self._open_turn is None:
            self._say(self._last_count)

    def _say(self, commands: int) -> None:
        self._append([encode(Verdict(self._number, commands))])
        self._last_count = commands
        self._said = True

    def reopen(self, apply: Apply, count: Count) -> None:
        """Open it again after a failure. Hands out the notes of the turn that had failed, if they count after
        all."""
        first = self._number + 1 if self._open_turn is None else self._open_turn.number
        self.let_go()
        self._open_turn = None
        self.dropped.clear()
        self.open(apply, count, first)

    def roll(self) -> None:
        """Finish the current segment."""
        if self._appender is not None:
            self._appender.roll()

    def let_go(self) -> None:
        """Close it, even if that fails."""
        appender, self._appender = self._appender, None
        if appender is not None:
            with contextlib.suppress(OSError, ForelogError):
                appender.close()

    def close(self) -> None:
        """Sync and close. Raises if the sync fails."""
        if self._appender is not None:
            appender, self._appender = self._appender, None
            appender.close()
