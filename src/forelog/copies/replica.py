"""A copy of a log in a directory, with the same bytes at the same positions, which grows as the log grows.

::

    a/
      000000007.log       segments, as in the log
      append.synced       how far they were synced, as in the log
      snapshot            where the last whole generation is; only a whole replica has this file (snapshot.py)
      snapshot.old        the same of a replica that was replaced, until it has been emptied

Every record is checked before it is written. A segment is synced before the next one is made, so a crash leaves at
most a torn tail in the last segment: opening cuts it off, and the log sends it again. If synced bytes are damaged,
nothing is cut: the replica stays as it is, and a new one is made in the other slot (slots.py).
"""

from __future__ import annotations

import contextlib
import logging

from forelog.copies.snapshot import REPLACED, SNAPSHOT, Resume, Snapshot, Whole, read_snapshot, write_snapshot
from forelog.errors import BadFrame, LockTimeout, ReplicaError
from forelog.files import BLOCK_BYTES, File, write_all
from forelog.log.damage import BLOCK_ROWS
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import EndMark
from forelog.log.directory.place import read_exactly, tail_before
from forelog.log.directory.watermark import NAME as MARK
from forelog.log.directory.watermark import Watermark, read_mark
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import LOG_START

logger = logging.getLogger("forelog")

_CHECK_BYTES = 4 << 20
_PATIENCE_SECONDS = 0.2  # to wait for readers of what is removed, where it can be removed later ...
_EMPTY_SECONDS = 5.0  # ... and where it can't


class Replica:
    """A replica that is open to be written to."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._file: File | None = None
        self._number = self._size = self._synced = 0
        self.snapshot: Snapshot | None = None
        """The snapshot; None while the replica isn't whole, and nothing can be restored from it."""
        self.sequence = 0
        """The number of the replica: the highest one of a log is the newest."""
        self.term = 0
        """The term whose history it has."""
        self.damaged = False
        """Whether it has lost records: then nothing can be added to it."""
        self._watermark: Watermark | None = None
        self._end: EndMark | None = None
        self.byte_count = 0
        """The disk space that it takes, in whole blocks."""
        self.before: Position | None = None
        """Where the generation before its snapshot ended; None if unknown."""
        try:
            self._open()
            self._measure()
        except BaseException:
            self.close()
            raise

    def _measure(self) -> None:
        found = map(self._directory.segment_bytes, self._directory.numbers())
        self.byte_count = sum(max(size, BLOCK_BYTES) for size in found if size is not None)

    @property
    def path(self) -> str:
        """The directory of the copy, which can be read as a log."""
        return self._directory.path

    @property
    def position(self) -> Position | None:
        """Where the copy ends; None while it is empty."""
        return Position(self._number, self._size) if self._file is not None else None

    def resume(self) -> Resume | None:
        """Where the log can resume sending; None while it is empty."""
        if self._file is None:
            return None
        return Resume(Position(self._number, self._size), tail_before(self._file, self._size))

    def end(self) -> Resume | None:
        """Where a restore from it ends. If it is damaged, at least the end of its snapshot."""
        if self.damaged and self.snapshot is not None:
            return Resume(self.snapshot.end, b"")
        return self.resume()

    def stream(self) -> Stream:
        """A Stream that reads it."""
        return Stream(self.path, format=self._directory.format, files=self._directory.files)

    # -- opening

    def _open(self) -> None:
        files = self._directory.files
        self._directory.make()
        self._note(read_snapshot(files, self.path))
        self.damaged = False
        if self.snapshot is None and files.stat(f"{self.path}/{REPLACED}") is not None:
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
            logger.error("%s: parts of its last generation are missing: a new copy is needed", self.path)

    def _note(self, whole: Whole | None) -> None:
        self.snapshot, self.sequence, self.term = (None, 0, 0) if whole is None else whole

    def _has(self, snapshot: Snapshot) -> bool:
        """Whether it has the beginning and the end of a generation."""
        end = self.position or LOG_START
        return end >= snapshot.end and snapshot.begin.segment in self._directory.numbers()

    def _valid_end(self, number: int) -> int:
        """Where the valid records of a segment end."""
        fmt = self._directory.format
        with contextlib.closing(self._directory.open_segment(number)) as file:
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

    def _go_on(self, number: int, end: int) -> None:
        """Cut off the torn tail of a segment, and continue after it."""
        file = self._directory.open_segment(number, append=True)
        try:
            if (size := file.size()) > end:
                logger.warning("%s: cut to %d of %d bytes: a crash has left a torn tail", self.path, end, size)
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
        """Append whole records: right after the last ones, or the first of a later segment."""
        if self.damaged:
            raise BadFrame(f"{self.path} is damaged: nothing can be added to it, and a new copy is needed")
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
        """Let readers see a segment up to this size, where a whole record ends."""
        if self._end is None:
            self._end = EndMark(self._directory)
        self._end.move(number, size)

    def _check(self, position: Position, data: bytes | memoryview) -> None:
        expected = self.position
        follows = expected is None or position == expected
        next_one = expected is not None and position.segment > expected.segment
        if not follows and not next_one:
            raise BadFrame(f"records for {position} don't follow {expected}, where this copy ends")
        if (next_one or expected is None) and position.offset != self._directory.format.header_bytes:
            raise BadFrame(f"the first records of segment {position.segment} can't begin at {position}")
        if not 0 < position.segment <= self._directory.format.segment_number_max:
            raise BadFrame(f"{position} is in a segment with an impossible number")
        at = 0
        while at < len(data):
            scan = self._directory.format.scan(data, at, len(data), 0, BLOCK_ROWS)
            if not scan.offsets:
                raise BadFrame(f"the records for {position} are not valid at byte {at} of {len(data)}")
            at = scan.end

    def _start(self, number: int) -> None:
        """Sync the current segment, and make the next one."""
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
        self.byte_count += BLOCK_BYTES  # so that many small segments count too
        self._publish(number, len(header))

    def _undo(self) -> None:
        """After a failed write: cut back to whole records, or else open it again."""
        if self._file is not None:
            try:
                self._file.truncate(self._size)
                if self._size > self._directory.format.header_bytes:
                    return
            except OSError as error:
                logger.warning("%s: a failed write couldn't be undone: %s", self.path, error)
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):  # the next opening tries again
            self._open()

    def sync(self) -> None:
        """Sync what was written. If that fails, cut it off: the log sends it again."""
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
            with contextlib.suppress(OSError):  # a mark that is too low is still true
                self._watermark.note(self._number, self._size)

    def is_gone(self) -> bool:
        """Whether the current segment was removed, or replaced by another file."""
        if self._file is None:
            return False
        found = self._directory.files.stat(self._directory.segment_path(self._number))
        return found is None or found[1] != self._file.identity()

    def commit(self, snapshot: Snapshot, sequence: int, term: int) -> None:
        """Note that a generation is whole, then remove what came before it."""
        if snapshot.begin.offset != self._directory.format.header_bytes or snapshot.end < snapshot.begin:
            raise BadFrame(f"no generation begins at {snapshot.begin} and ends at {snapshot.end}")
        if self.position is None or self.position < snapshot.end:
            raise BadFrame(f"a generation ends at {snapshot.end}, but this copy at {self.position}")
        numbers = self._directory.numbers()
        if snapshot.begin.segment not in numbers:
            self._give_up()
            raise BadFrame(
                f"a generation begins in segment {snapshot.begin.segment}, which {self.path} doesn't have: "
                "a new copy is needed"
            )
        self.sync()
        whole = Whole(snapshot, sequence, term)
        write_snapshot(self._directory.files, self.path, whole)
        found = self._directory.segment_bytes(snapshot.begin.segment - 1)
        self.before = None if found is None else Position(snapshot.begin.segment - 1, found)
        self._note(whole)
        # The oldest first: a reader ignores a generation that has lost its beginning.
        self._remove([number for number in numbers if number < snapshot.begin.segment])

    def stamp(self, term: int) -> None:
        """Note that it has the history of a newer term."""
        if self.snapshot is not None and self.term != term:
            self.term = term
            write_snapshot(self._directory.files, self.path, Whole(self.snapshot, self.sequence, term))

    def _give_up(self) -> None:
        """Have the log send everything again. A whole replica stays until there is another one."""
        self.close()
        self.damaged = True
        if self.snapshot is None:
            self.try_to_empty()

    def try_to_empty(self) -> None:
        """Remove everything, or leave it for later: until then nothing can be added to it."""
        try:
            self.empty(_PATIENCE_SECONDS)
        except (OSError, ReplicaError) as error:
            logger.warning("%s: a replaced copy can't be removed yet: %s", self.path, error)

    def empty(self, patience: float = _EMPTY_SECONDS) -> None:
        """Remove everything, in an order that is safe if a crash comes between any two steps.

        1. Rename the snapshot file. Before this step the replica is whole. After it, opening it removes the rest.
        2. Remove the segments, the newest first. What is left never has a hole: an unfinished replica that loses
           its end looks like one that has received less.
        3. Remove the mark of what was synced. While it is there, opening notices that synced segments are missing,
           and adds nothing to the rest.
        """
        self.close()
        files = self._directory.files
        self.damaged = True  # until nothing is left of it
        self._note(None)
        self.before = None
        if files.stat(f"{self.path}/{SNAPSHOT}") is not None:
            files.rename(f"{self.path}/{SNAPSHOT}", f"{self.path}/{REPLACED}")
            self._directory.sync()
        self._remove(self._directory.numbers()[::-1], patience)
        left = self._directory.numbers()
        if left:
            raise ReplicaError(f"{self.path} can't be emptied while a reader holds segment {left[0]}")
        files.remove(f"{self.path}/{MARK}")
        files.remove(f"{self.path}/{REPLACED}")
        self._directory.sync()
        self.damaged = False

    def _remove(self, numbers: list[int], patience: float = _PATIENCE_SECONDS) -> None:
        """Remove segments and the files beside them. If a reader holds them for too long, leave them for later.

        Each removal is synced before the next one, so a crash leaves only segments from the end of the list.
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
        """Close the files, without a sync."""
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
