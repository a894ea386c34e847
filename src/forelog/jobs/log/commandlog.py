"""The command log of a job server: its jobs come from it at a start, and every change goes to it.

What workq's commands have no word for goes into a log beside it (`annex.py`), in the same write.
`CommandLog(None)` keeps nothing: it is for a server without a log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forelog.errors import AppenderClosed, BadCommand, ForelogError, LogNotFound
from forelog.files import Files, disk
from forelog.formats.commands.commands import (
    MAGIC,
    VERSION,
    Add,
    Command,
    Complete,
    Fail,
    Schedule,
    decode,
    encode,
)
from forelog.formats.commands.notes import Note
from forelog.jobs.log.annex import Annex
from forelog.jobs.log.reader import read_commands
from forelog.jobs.log.replay import Replay
from forelog.jobs.machine.ledger import KEPT_BYTES_MAX, frame_bytes
from forelog.jobs.machine.machine import Machine
from forelog.kernel import BoundedQueue, LoneWriter
from forelog.log.appender import SEGMENT_BYTES, SYNC_INTERVAL_MS, Appender, Sync
from forelog.log.directory.journal import JOURNAL_BYTES
from forelog.log.position import Position, Positions
from forelog.log.stream import Stream
from forelog.log.walk import OnCorruption, Progress, Walk

logger = logging.getLogger("forelog")

Late = tuple[list[tuple[Position, int, Command]], list[Note]]
"""Commands with their positions and times, and notes: found in the log although their write had failed."""

_READ_TRIES = 5
_READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Restored:
    """What a replayed log held."""

    machine: Machine
    """A machine with its jobs."""
    commands: int
    """The number of its commands."""
    expired: int
    """Jobs that were skipped because their ttl is over."""
    conflicts: int
    """Commands that were skipped because they contradict earlier ones."""
    bad: int
    """Records that were skipped because they aren't commands."""
    torn_path: str | None
    """The file with the bytes of a torn tail, if one was cut off."""


class CommandLog:
    """A command log, or none."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        sync: Sync = "interval",
        sync_interval_ms: int = SYNC_INTERVAL_MS,
        segment_bytes: int = SEGMENT_BYTES,
        on_corruption: OnCorruption = "raise",
        files: Files | None = None,
        clock: Callable[[], int] | None = None,
        mode: int | None = None,
    ) -> None:
        place = disk(files, mode)
        self.stream = (
            None if path is None else Stream(path, magic=MAGIC, version=VERSION, files=place, clock=clock)
        )
        self.waits = sync == "always" and path is not None
        """Whether a write takes as long as a sync."""
        # With `always`, `write` syncs: once for all of its commands.
        policy = "os" if sync == "always" else sync
        self._options = {
            "sync": policy,
            "sync_interval_ms": sync_interval_ms,
            "segment_bytes": segment_bytes,
            "journal_bytes": JOURNAL_BYTES if self.waits else 0,
            "visible": "synced" if self.waits else "written",
        }
        self._segment_bytes = segment_bytes
        self._on_corruption = on_corruption
        self.annex = (
            None
            if path is None
            else Annex(
                path, self._options, files=place, clock=clock, on_corruption=on_corruption, syncs=self.waits
            )
        )
        """The log of notes beside it."""
        self._kept_bytes_max = KEPT_BYTES_MAX
        self._appender: Appender | None = None
        self._lone: LoneWriter | None = None
        self._start = Position(0, 0)
        """Where the log ended when it was opened."""
        self._last: Positions | None = None
        """The last records whose write is certain."""

    def open(
        self, now_ns: int, progress: Progress | None = None, *, kept_bytes_max: int = KEPT_BYTES_MAX
    ) -> Restored:
        """Recover the log and replay it. Raises LockTimeout if another server has it open.

        Payloads and results of finished jobs take `kept_bytes_max` in memory at most.
        """
        if self.stream is None:
            machine = Machine(now_ns)
            machine.ledger.kept_bytes_max = kept_bytes_max
            return Restored(machine, 0, 0, 0, 0, None)
        self._kept_bytes_max = kept_bytes_max
        self._appender = self._open()
        self._start = self._appender.position
        try:
            replay, commands = self._replay(self.stream, now_ns, progress)
        except BaseException:
            self._let_go()
            raise
        return Restored(
            replay.machine,
            commands,
            replay.expired_count,
            replay.report_conflicts(),
            replay.bad_count,
            self._appender.recovery.torn_path,
        )

    def _replay(self, stream: Stream, now_ns: int, progress: Progress | None) -> tuple[Replay, int]:
        """Replay all of the log. Returns also how many commands it has."""
        replay = Replay(now_ns)
        replay.machine.ledger.kept_bytes_max = self._kept_bytes_max
        if self.annex is not None:
            self.annex.open(replay.machine.notebook.remember, self._count)
        commands = done = 0
        total = sum(info.byte_count for info in stream.segments()) if progress else 0
        for block in stream.blocks(on_corruption=self._on_corruption):
            replay.apply_block(block)
            replay.machine.ledger.unload()
            commands += block.last - block.first
            if progress is not None:
                done += len(block.buffer)
                progress(min(done, total), total)
        replay.machine.start(now_ns)
        return replay, commands

    def _count(self, position: Position, most: int) -> int:
        """How many commands there are from a position on, up to a number."""
        assert self.stream is not None
        found = 0
        walk = Walk(self.stream.directory, start=position, block_bytes=_READ_BYTES)
        try:
            while found < most and (block := walk.next_block()) is not None:
                found += block.last - block.first
        finally:
            walk.close()
        return min(found, most)

    def _open(self) -> Appender:
        assert self.stream is not None
        appender = self.stream.appender(**self._options, spare=True, timeout=0)  # type: ignore[arg-type]
        # One batch is written at a time, so nobody else ever uses this queue.
        self._lone = appender.lone_writer(BoundedQueue(1, 1), appender.append, "append_many")
        return appender

    def write(self, records: list[bytes], notes: Sequence[tuple[int, bytes]] = ()) -> int | Positions:
        """Append commands with one write, and notes, each with the number of the command that it goes with.
        Returns the commands' positions once all are as durable as the policy says, or 0 if there is no log, or
        no command."""
        if self.stream is None or self.annex is None:
            return 0
        if self._appender is None:
            raise AppenderClosed(f"{self.stream.path} is not open: nothing was written")
        if not self.annex.is_settled:
            self.annex.settle()
            if self._appender.position.offset >= self._segment_bytes:
                self.annex.confirm()
        if notes:
            self.annex.write(notes, self._appender.position, len(records))
            if not records:
                return 0
        found = self._lone.append_many(records) if self.waits and self._lone is not None else None
        positions = self._appender.append_many(records) if found is None else Positions(*found)
        if self.waits and found is None:
            self._appender.sync()
        self._last = positions
        if notes:
            self.annex.commands_written()
        return positions

    @property
    def end(self) -> Position:
        """Where the log ends."""
        return Position(0, 0) if self._appender is None else self._appender.position

    def roll(self) -> None:
        """Finish the current segment."""
        if self._appender is not None and self.annex is not None:
            self.annex.confirm()
            self._appender.roll()

    def read(self, segment: int, offset: int, job_id: bytes) -> Command:
        """Read the command about a job at a place in the log. A cleaning may move it meanwhile, but not drop
        it."""
        assert self.stream is not None
        for tries in range(_READ_TRIES):
            walk = Walk(
                self.stream.directory, start=Position(segment, offset), block_bytes=_READ_BYTES, block_rows=1
            )
            try:
                block = walk.next_block()
                if block is not None and (block.segment, block.offsets[block.first]) == (segment, offset):
                    command = decode(block.buffer[block.scan.starts[block.first] : block.scan.ends[block.first]])
                    if command.id == job_id:
                        return command
            except (OSError, ForelogError):
                if tries == _READ_TRIES - 1:
                    raise
            finally:
                walk.close()
            time.sleep(0.01 * tries)
        raise LogNotFound(f"{self.stream.path} has no record of the job at {Position(segment, offset)}")

    @property
    def failed(self) -> bool:
        """Whether the log has to be reopened before anything can be written."""
        if self.stream is None or self.annex is None:
            return False
        return self._appender is None or self._appender.failed is not None or self.annex.failed

    def reopen(self) -> Late:
        """Open the log again after a failed sync, with recovery.

        Returns what is in it although its write had failed: commands with their positions and times, and notes.
        That is for `adopt`.
        """
        if self.stream is None or self.annex is None:
            return [], []
        notes: list[Note] = []
        self._let_go()
        self._appender = self._open()
        known = self._start if self._last is None else self._last[-1]
        try:
            self.annex.reopen(notes.append, self._count)
            commands = [
                (position, time_ns, command)
                for position, time_ns, command in read_commands(self.stream, start=known)
                if not isinstance(command, BadCommand) and (self._last is None or position != known)
            ]
            return commands, notes
        except BaseException:
            self._let_go()  # until this is done, it counts as failed
            raise

    def adopt(self, late: Late, machine: Machine, now_ns: int) -> None:
        """Let the machine take in what is in the log although its write had failed."""
        if self._appender is None:
            return
        commands, notes = late
        replay = Replay(now_ns, machine=machine)
        for note in notes:
            machine.notebook.remember(note)
        for (segment, offset), time_ns, command in commands:
            if isinstance(command, Add | Schedule):
                new = replay.new_job(command)
                machine.adopt_job(new, now_ns)
                if machine.jobs.get(command.id) is new:
                    machine.ledger.place(new, segment, offset, frame_bytes(len(encode(command))))
            elif (job := machine.jobs.get(command.id)) is not None:
                result = command.result if isinstance(command, Complete | Fail) else b""
                machine.adopt(job, command.type, result, time_ns, now_ns)
                if isinstance(command, Complete | Fail) and job.is_processed() and not job.result_segment:
                    machine.ledger.place_result(job, segment, offset, frame_bytes(len(encode(command))))
        machine.adopt_notes(now_ns)
        self._start, self._last = self._appender.position, None

    def _let_go(self) -> None:
        """Close the log, even if that fails."""
        appender, self._appender = self._appender, None
        if self.annex is not None:
            self.annex.let_go()
        if appender is not None:
            with contextlib.suppress(OSError, ForelogError):
                appender.close()

    def close(self) -> None:
        """Sync and close. Raises if the sync fails."""
        try:
            if self.annex is not None:
                self.annex.close()
        finally:
            if self._appender is not None:
                appender, self._appender = self._appender, None
                appender.close()
