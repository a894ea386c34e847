"""A copy of a log, byte for byte and position for position, that grows as the log does.

::

    bank/
      identity            whose log it is, and the highest epoch that has written to it
      a/                  two slots, each with a copy: one is whole, the other is being made, or empty
        000000007.log       segments, as the log has them
        append.synced       how far they were synced, as the log has it too
        snapshot            where its last whole generation begins and ends: only a whole copy has this
      b/

What arrives is checked record by record before it is written. A copy that has missed something begins again in
the other slot; the old one stays what a restore reads until the new one is whole, and only then is emptied. A
crash leaves at most a torn tail in the last segment, because a segment is synced before the next is made: opening
cuts it off, and the log sends it again. Where synced bytes are damaged nothing is cut: the copy is left as it is,
and made anew in the other slot.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
from typing import NamedTuple

from chiplog.errors import BadFrame, LockTimeout, ReplicaError, Superseded
from chiplog.files import File, Files, OSFiles, write_all
from chiplog.formats import Captain
from chiplog.log.position import Position
from chiplog.log.segments import READ_LOCK, Directory, read_exactly
from chiplog.log.stream import Stream
from chiplog.log.walk import BLOCK_ROWS, LOG_START
from chiplog.log.watermark import NAME as MARK
from chiplog.log.watermark import Watermark, read_mark
from chiplog.state.identity import Identity

__all__ = ["FORMAT", "SLOTS", "TAIL_BYTES", "Copies", "Mirror", "Resume", "Snapshot", "tail_before", "whole_slot"]

logger = logging.getLogger("chiplog")

FORMAT = Captain(magic=0x63707374, version=1)  # "cpst"
TAIL_BYTES = 64  # before a position: enough to tell that two logs have been the same up to there
SLOTS = ("a", "b")
_SNAPSHOT = "snapshot"
_IDENTITY = "identity"
_CHECK_BYTES = 4 << 20
_EMPTY_SECONDS = 5.0  # to wait for who reads a copy that is to go


class Snapshot(NamedTuple):
    """Where a whole generation begins, and the position after its commit."""

    begin: Position
    end: Position


class Resume(NamedTuple):
    """Up to where a copy has everything, and the last bytes before that."""

    position: Position
    tail: bytes


class Mirror:
    """One copy, open to be written to."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._file: File | None = None
        self._number = self._size = self._synced = 0
        self.snapshot: Snapshot | None = None
        """Of a whole copy. What isn't whole is nothing to restore from."""
        self.sequence = 0
        self.damaged = False
        """Whether it has lost what it had: then nothing can be added to it."""
        self._watermark: Watermark | None = None
        self.before: Position | None = None
        """Where what came before its last generation has ended, if that is known."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """Its directory, which is a log like any other."""
        return self._directory.path

    @property
    def position(self) -> Position | None:
        """The end of it, or None while it has nothing."""
        return Position(self._number, self._size) if self._file is not None else None

    def resume(self) -> Resume | None:
        """From where the log may go on sending."""
        if self._file is None:
            return None
        return Resume(Position(self._number, self._size), tail_before(self._file, self._size))

    def stream(self) -> Stream:
        """To read it."""
        return Stream(self.path, format=self._directory.format, files=self._directory.files)

    # -- opening

    def _open(self) -> None:
        files = self._directory.files
        files.make_dir(self.path)
        self.snapshot, self.sequence = _read_snapshot(files, self.path)
        self.damaged = False
        numbers = self._directory.numbers()
        if self.snapshot is not None:
            self._remove([number for number in numbers if number < self.snapshot.begin.segment])
            numbers = [number for number in numbers if number >= self.snapshot.begin.segment]
        mark = read_mark(files, self.path)
        synced = LOG_START if mark is None else Position(mark.segment, mark.offset)
        while numbers and self._file is None and not self.damaged:
            number = numbers.pop()
            end = self._valid_end(number)
            if Position(number, end) < synced:
                self.damaged = True
                logger.error("%s: synced bytes are damaged at %d:%d: a new copy is needed", self.path, number, end)
            elif end == self._directory.format.header_bytes:
                self._remove([number])
            else:
                self._go_on(number, end)
        if self.snapshot is not None and not self.damaged and (self.position or LOG_START) < self.snapshot.end:
            self.damaged = True
            logger.error("%s: its last generation isn't all there: a new copy is needed", self.path)

    def _valid_end(self, number: int) -> int:
        """Up to where a segment has whole, right records."""
        fmt = self._directory.format
        file = self._directory.open_segment(number)
        try:
            size, at = file.size(), fmt.header_bytes
            if fmt.header_defect(read_exactly(file, min(size, at), 0)) is not None:
                return at
            while at < size:
                window = read_exactly(file, min(_CHECK_BYTES, size - at), at)
                scan = fmt.scan(window, 0, len(window), 0, BLOCK_ROWS)
                if not scan.offsets and len(window) < scan.need <= size - at:
                    window = read_exactly(file, scan.need, at)
                    scan = fmt.scan(window, 0, len(window), 0, BLOCK_ROWS)
                if not scan.offsets:
                    break
                at += scan.end
            return at
        finally:
            file.close()

    def _go_on(self, number: int, end: int) -> None:
        """Write after what a segment has, without its torn tail."""
        file = self._directory.open_segment(number, append=True)
        try:
            if (size := file.size()) > end:
                logger.warning("%s: cut at %d of %d bytes, as a crash leaves it", self.path, end, size)
                file.truncate(end)
            file.sync()
            self._mark().begin(number, end)
        except BaseException:
            file.close()
            raise
        self._file, self._number, self._size, self._synced = file, number, end, end

    def _mark(self) -> Watermark:
        if self._watermark is None:
            self._watermark = Watermark(self._directory.files, self.path)
        return self._watermark

    # -- writing

    def write(self, position: Position, data: bytes | memoryview) -> None:
        """Whole records, right after those that it has, or the first of the next segment."""
        if self.damaged:
            raise BadFrame(f"{self.path} is damaged: nothing can be added to it, it has to be made anew")
        fmt = self._directory.format
        self._check(position, data)
        try:
            if self._file is None or position.segment != self._number:
                self._start(position.segment)
            assert self._file is not None
            write_all(self._file, data)
        except OSError:
            self._undo()
            raise
        self._size = max(position.offset, fmt.header_bytes) + len(data)

    def _check(self, position: Position, data: bytes | memoryview) -> None:
        expected = self.position
        follows = expected is None or position == expected
        next_one = expected is not None and position.segment > expected.segment
        if not follows and not next_one:
            raise BadFrame(f"records for {position} don't follow {expected}, which is what this copy has")
        if (next_one or expected is None) and position.offset != self._directory.format.header_bytes:
            raise BadFrame(f"the first records of segment {position.segment} are for {position}")
        if not 0 < position.segment <= self._directory.format.segment_number_max:
            raise BadFrame(f"{position} is in no segment that a log may have")
        at = 0
        while at < len(data):
            scan = self._directory.format.scan(data, at, len(data), 0, BLOCK_ROWS)
            if not scan.offsets:
                raise BadFrame(f"what came for {position} isn't whole, right records: byte {at} of {len(data)}")
            at = scan.end

    def _start(self, number: int) -> None:
        """Make the next segment, once the one before it is safe."""
        self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None
        file = self._directory.open_segment(number, append=True)
        try:
            file.truncate(0)
            header = self._directory.format.header()
            write_all(file, header)
            self._directory.sync()
            if self._watermark is None:
                self._mark().begin(number, len(header))
        except BaseException:
            file.close()
            raise
        self._file, self._number, self._size, self._synced = file, number, len(header), len(header)

    def _undo(self) -> None:
        """After a failed write: back to whole records, or look again at what is there."""
        if self._file is not None:
            try:
                self._file.truncate(self._size)
                if self._size > self._directory.format.header_bytes:
                    return
            except OSError as error:
                logger.warning("%s: a failed write couldn't be undone: %s", self.path, error)
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):  # the next opening looks again
            self._open()

    def sync(self) -> None:
        """Return when everything written is safe. What a failed sync was to save is cut off: it comes again."""
        if self._file is None or self._synced == self._size:
            return
        try:
            self._file.sync()
        except OSError:
            self._size = self._synced
            self._undo()
            raise
        self._synced = self._size
        if self._watermark is not None:
            with contextlib.suppress(OSError):  # a mark that is too low is still a true one
                self._watermark.note(self._number, self._size)

    def commit(self, snapshot: Snapshot, sequence: int) -> None:
        """A generation is whole: remember that, then forget what came before it."""
        if self.position is None or self.position < snapshot.end:
            raise BadFrame(f"a generation ends at {snapshot.end}, but this copy at {self.position}")
        self.sync()
        text = json.dumps({"begin": str(snapshot.begin), "end": str(snapshot.end), "sequence": sequence})
        _replace_file(self._directory.files, self.path, _SNAPSHOT, text.encode())
        found = self._directory.files.stat(self._directory.segment_path(snapshot.begin.segment - 1))
        self.before = None if found is None else Position(snapshot.begin.segment - 1, found[0])
        self.snapshot, self.sequence = snapshot, sequence
        self._remove([number for number in self._directory.numbers() if number < snapshot.begin.segment])

    def empty(self) -> None:
        """Forget everything."""
        self.close()
        files = self._directory.files
        self.snapshot, self.before, self.damaged = None, None, False
        files.remove(f"{self.path}/{_SNAPSHOT}")
        self._directory.sync()  # first of all: what goes now isn't whole
        files.remove(f"{self.path}/{MARK}")
        self._remove(self._directory.numbers(), patience=_EMPTY_SECONDS)
        left = self._directory.numbers()
        if left:
            raise ReplicaError(f"{self.path} can't be made anew while somebody reads segment {left[0]} of it")

    def _remove(self, numbers: list[int], patience: float = 0.2) -> None:
        """Segments go, with what lies beside them; if somebody reads for too long, another time."""
        gone = set(numbers)
        if not gone:
            return
        files = self._directory.files
        try:
            lock = files.lock(f"{self.path}/{READ_LOCK}", exclusive=True, timeout=patience)
        except LockTimeout:
            return
        try:
            for name in self._directory.names():
                number = self._directory.format.segment_number(name)
                if (self._directory.owner(name) if number is None else number) in gone:
                    files.remove(f"{self.path}/{name}")
            self._directory.sync()
        finally:
            lock.release()

    def close(self) -> None:
        """Let go of the files. What wasn't synced is not."""
        if self._watermark is not None:
            with contextlib.suppress(OSError):
                if self._file is not None and self._synced == self._size:
                    self._watermark.note(self._number, self._size, closed=True)
            self._watermark.close()
            self._watermark = None
        if self._file is not None:
            self._file.close()
            self._file = None


class Copies:
    """The copies of one log in a directory, of which at most one is whole."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self.path = path
        self._files = files or OSFiles()
        self._files.make_dir(path)
        self._lock = self._files.lock(f"{path}/append.lock", exclusive=True, timeout=0)
        self._mirrors: list[Mirror] = []
        try:
            self.identity = self._read_identity()
            for slot in SLOTS:
                self._mirrors.append(Mirror(Directory(self._files, f"{path}/{slot}", FORMAT)))
        except BaseException:
            self._close()
            raise
        whole = [mirror for mirror in self._mirrors if mirror.snapshot is not None]
        self.whole = max(whole, key=lambda mirror: mirror.sequence) if whole else None
        for mirror in whole:
            if mirror is not self.whole:
                mirror.empty()
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
            return Identity.decode(_read_file(self._files, path))
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
            _replace_file(self._files, self.path, _IDENTITY, identity.encode())
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

    def commit(self, snapshot: Snapshot) -> None:
        """What is being written has a whole generation: it is the copy from now on."""
        replaced = self.whole if self.whole is not self.growing else None
        sequence = self.growing.sequence if replaced is None else replaced.sequence + 1
        self.growing.commit(snapshot, max(sequence, 1))
        self.whole = self.growing
        if replaced is not None:
            replaced.empty()

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
    found = {f"{path}/{slot}": _read_snapshot(files, f"{path}/{slot}") for slot in SLOTS}
    whole = [(sequence, slot) for slot, (snapshot, sequence) in found.items() if snapshot is not None]
    return max(whole)[1] if whole else None


def _read_snapshot(files: Files, folder: str) -> tuple[Snapshot | None, int]:
    """What a copy's snapshot file says, and its number among those of the log."""
    path = f"{folder}/{_SNAPSHOT}"
    if files.stat(path) is None:
        return None, 0
    try:
        found = json.loads(_read_file(files, path))
        return Snapshot(Position.parse(found["begin"]), Position.parse(found["end"])), int(found["sequence"])
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s is damaged (%s): the copy counts as not whole, and is made again", path, error)
        return None, 0


def tail_before(file: File, offset: int) -> bytes:
    """The last bytes before an offset."""
    count = min(TAIL_BYTES, offset)
    return read_exactly(file, count, offset - count)


def _read_file(files: Files, path: str) -> bytes:
    file = files.open_read(path)
    try:
        return read_exactly(file, min(file.size(), 4096), 0)
    finally:
        file.close()


def _replace_file(files: Files, folder: str, name: str, data: bytes) -> None:
    """A small file, all of it or as it was."""
    new = f"{folder}/{name}.new"
    files.remove(new)
    file = files.open_append(new)
    try:
        write_all(file, data)
        file.sync()
    finally:
        file.close()
    files.rename(new, f"{folder}/{name}")
    files.sync_dir(folder)
