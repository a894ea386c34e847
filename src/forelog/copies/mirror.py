"""A copy of a log, byte for byte and position for position, that grows as the log does.

::

    a/
      000000007.log       segments, as the log has them
      append.synced       how far they were synced, as the log has it too
      snapshot            where its last whole generation begins and ends, and the term of the log that it is a
                          copy of: only a whole copy has this
      snapshot.old        the same of one that was replaced, until it has been emptied

What arrives is checked record by record before it is written. A crash leaves at most a torn tail in the last
segment, because a segment is synced before the next is made: opening cuts it off, and the log sends it again.
Where synced bytes are damaged nothing is cut: the copy is left as it is, and made anew elsewhere (copies.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import NamedTuple

from forelog.errors import BadFrame, LockTimeout, ReplicaError
from forelog.files import BLOCK_BYTES, File, Files, removed_on_failure, write_all
from forelog.formats import Captain
from forelog.log.damage import BLOCK_ROWS
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import EndMark
from forelog.log.directory.place import TAIL_BYTES, read_exactly, tail_before
from forelog.log.directory.watermark import NAME as MARK
from forelog.log.directory.watermark import Watermark, read_mark
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import LOG_START

__all__ = [
    "FORMAT",
    "TAIL_BYTES",
    "Mirror",
    "Resume",
    "Snapshot",
    "Whole",
    "read_file",
    "read_snapshot",
    "replace_file",
    "stamp_snapshot",
    "tail_before",
]

logger = logging.getLogger("forelog")

FORMAT = Captain(magic=0x63707374, version=1)  # "cpst"
_SNAPSHOT = "snapshot"
_REPLACED = "snapshot.old"
_CHECK_BYTES = 4 << 20
_PATIENCE_SECONDS = 0.2  # to wait for who reads what is to go, where that can be another time ...
_EMPTY_SECONDS = 5.0  # ... and where it can't


class Snapshot(NamedTuple):
    """Where a whole generation begins, and the position after its commit."""

    begin: Position
    end: Position


class Whole(NamedTuple):
    """What a snapshot file says."""

    snapshot: Snapshot
    sequence: int
    """The copy's number among those of the log: the highest one is the newest."""
    term: int
    """The term whose history it is."""


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
        self.term = 0
        """The term whose history it is."""
        self.damaged = False
        """Whether it has lost what it had, or some of it: then nothing can be added to it."""
        self._watermark: Watermark | None = None
        self._end: EndMark | None = None
        self.byte_count = 0
        """What it takes up on the disk, counting whole blocks."""
        self.before: Position | None = None
        """Where what came before its last generation has ended, if that is known."""
        try:
            self._open()
            self._measure()
        except BaseException:
            self.close()
            raise

    def _measure(self) -> None:
        found = (self._directory.files.stat(self._directory.segment_path(n)) for n in self._directory.numbers())
        self.byte_count = sum(max(one[0], BLOCK_BYTES) for one in found if one is not None)

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

    def end(self) -> Resume | None:
        """Up to where a restore from it gets everything; what is known of that if it is damaged."""
        if self.damaged and self.snapshot is not None:
            return Resume(self.snapshot.end, b"")
        return self.resume()

    def stream(self) -> Stream:
        """To read it."""
        return Stream(self.path, format=self._directory.format, files=self._directory.files)

    # -- opening

    def _open(self) -> None:
        files = self._directory.files
        self._directory.make()
        self._note(read_snapshot(files, self.path))
        self.damaged = False
        if self.snapshot is None and files.stat(f"{self.path}/{_REPLACED}") is not None:
            self.try_to_empty()
            return
        numbers = self._directory.numbers()
        if self.snapshot is not None:
            self._remove([number for number in numbers if number < self.snapshot.begin.segment])
            numbers = [number for number in numbers if number >= self.snapshot.begin.segment]
        mark = read_mark(self._directory)
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
        if self.snapshot is not None and not self.damaged and not self._has(self.snapshot):
            self.close()
            self.damaged = True
            logger.error("%s: its last generation isn't all there: a new copy is needed", self.path)

    def _note(self, whole: Whole | None) -> None:
        self.snapshot, self.sequence, self.term = (None, 0, 0) if whole is None else whole

    def _has(self, snapshot: Snapshot) -> bool:
        """Whether a generation's beginning and end are here."""
        end = self.position or LOG_START
        return end >= snapshot.end and snapshot.begin.segment in self._directory.numbers()

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
        self._publish(number, end)

    def _mark(self) -> Watermark:
        if self._watermark is None:
            self._watermark = Watermark(self._directory)
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
            if self._end is not None:
                self._end.intend(self._size + len(data))
            write_all(self._file, data)
        except OSError:
            self._undo()
            raise
        self._size = max(position.offset, fmt.header_bytes) + len(data)
        self.byte_count += len(data)
        self._publish(self._number, self._size)

    def _publish(self, number: int, size: int) -> None:
        """Let readers see a segment up to this size: whole records, none of which a failed write leaves behind."""
        if self._end is None:
            self._end = EndMark(self._directory)
        self._end.move(number, size)

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
        self.byte_count += BLOCK_BYTES  # so that many small segments count, too
        self._publish(number, len(header))

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
            self._publish(self._number, self._size)
            self._undo()
            raise
        self._synced = self._size
        if self._watermark is not None:
            with contextlib.suppress(OSError):  # a mark that is too low is still a true one
                self._watermark.note(self._number, self._size)

    def is_gone(self) -> bool:
        """Whether the segment that is written to was removed, or replaced by another file."""
        if self._file is None:
            return False
        found = self._directory.files.stat(self._directory.segment_path(self._number))
        return found is None or found[1] != self._file.identity()

    def commit(self, snapshot: Snapshot, sequence: int, term: int) -> None:
        """A generation is whole: remember that, then forget what came before it."""
        if snapshot.begin.offset != self._directory.format.header_bytes or snapshot.end < snapshot.begin:
            raise BadFrame(f"no generation begins at {snapshot.begin} and ends at {snapshot.end}")
        if self.position is None or self.position < snapshot.end:
            raise BadFrame(f"a generation ends at {snapshot.end}, but this copy at {self.position}")
        numbers = self._directory.numbers()
        if snapshot.begin.segment not in numbers:
            self._give_up()
            raise BadFrame(
                f"a generation begins in segment {snapshot.begin.segment}, which {self.path} doesn't have: "
                "it has to be made anew"
            )
        self.sync()
        whole = Whole(snapshot, sequence, term)
        _write_snapshot(self._directory.files, self.path, whole)
        found = self._directory.files.stat(self._directory.segment_path(snapshot.begin.segment - 1))
        self.before = None if found is None else Position(snapshot.begin.segment - 1, found[0])
        self._note(whole)
        # The oldest first: who reads meanwhile, or after a crash, passes over what has lost its beginning.
        self._remove([number for number in numbers if number < snapshot.begin.segment])

    def stamp(self, term: int) -> None:
        """It is the history of this term, too."""
        if self.snapshot is not None and self.term != term:
            self.term = term
            _write_snapshot(self._directory.files, self.path, Whole(self.snapshot, self.sequence, term))

    def _give_up(self) -> None:
        """See to it that the log sends everything again. A copy that was whole stays until there is another."""
        self.close()
        self.damaged = True
        if self.snapshot is None:
            self.try_to_empty()

    def try_to_empty(self) -> None:
        """Forget everything, or else leave it to another time: until then nothing can be added to it."""
        try:
            self.empty(_PATIENCE_SECONDS)
        except (OSError, ReplicaError) as error:
            logger.warning("%s: a copy that was replaced takes up room for a while longer: %s", self.path, error)

    def empty(self, patience: float = _EMPTY_SECONDS) -> None:
        """Forget everything.

        A crash between any two steps leaves nothing that could pass for more than it is:

        1. The snapshot file gets another name. Before that the copy is whole, and after it neither whole nor one
           that is being made, but to be emptied, whatever is left of it.
        2. The segments go, the newest first. What is left of a copy that was being made has no hole: it is as one
           that hasn't got so far.
        3. The mark goes after them. With it, what had been synced and has gone is missed when the copy is opened,
           so that nobody goes on with the rest.
        """
        self.close()
        files = self._directory.files
        self.damaged = True  # until nothing is left of it
        self._note(None)
        self.before = None
        if files.stat(f"{self.path}/{_SNAPSHOT}") is not None:
            files.rename(f"{self.path}/{_SNAPSHOT}", f"{self.path}/{_REPLACED}")
            self._directory.sync()
        self._remove(self._directory.numbers()[::-1], patience)
        left = self._directory.numbers()
        if left:
            raise ReplicaError(f"{self.path} can't be made anew while somebody reads segment {left[0]} of it")
        files.remove(f"{self.path}/{MARK}")
        files.remove(f"{self.path}/{_REPLACED}")
        self._directory.sync()
        self.damaged = False

    def _remove(self, numbers: list[int], patience: float = _PATIENCE_SECONDS) -> None:
        """Segments go, with what lies beside them; if somebody reads for too long, another time.

        Each is gone for good before the next one goes: after a crash those that are left are the last ones here.
        """
        if not numbers:
            return
        files = self._directory.files
        try:
            lock = self._directory.read_lock(exclusive=True, timeout=patience)
        except LockTimeout:
            return
        try:
            names = self._directory.names()
            for number in numbers:
                for name in names:
                    if number in (self._directory.format.segment_number(name), self._directory.owner(name)):
                        files.remove(f"{self.path}/{name}")
                self._directory.sync()
            self._measure()
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
        if self._end is not None:
            self._end.close(in_order=self._file is None or self._synced == self._size)
            self._end = None
        if self._file is not None:
            self._file.close()
            self._file = None


def read_snapshot(files: Files, folder: str) -> Whole | None:
    """What a copy's snapshot file says; None if it isn't whole."""
    path = f"{folder}/{_SNAPSHOT}"
    if files.stat(path) is None:
        return None
    try:
        found = json.loads(read_file(files, path))
        snapshot = Snapshot(Position.parse(found["begin"]), Position.parse(found["end"]))
        return Whole(snapshot, int(found["sequence"]), int(found["term"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        logger.warning("%s is damaged (%s): the copy counts as not whole, and is made again", path, error)
        return None


def stamp_snapshot(files: Files, folder: str, term: int) -> None:
    """A whole copy that isn't open is the history of this term from now on."""
    found = read_snapshot(files, folder)
    if found is not None and found.term != term:
        _write_snapshot(files, folder, found._replace(term=term))


def _write_snapshot(files: Files, folder: str, whole: Whole) -> None:
    (begin, end), sequence, term = whole
    text = json.dumps({"begin": str(begin), "end": str(end), "sequence": sequence, "term": term})
    replace_file(files, folder, _SNAPSHOT, text.encode())


def read_file(files: Files, path: str) -> bytes:
    """All of a small file."""
    file = files.open_read(path)
    try:
        return read_exactly(file, min(file.size(), 4096), 0)
    finally:
        file.close()


def replace_file(files: Files, folder: str, name: str, data: bytes) -> None:
    """A small file, all of it or as it was."""
    new = f"{folder}/{name}.new"
    files.remove(new)
    with removed_on_failure(files, new):
        with contextlib.closing(files.open_append(new)) as file:
            write_all(file, data)
            file.sync()
        files.rename(new, f"{folder}/{name}")
    files.sync_dir(folder)
