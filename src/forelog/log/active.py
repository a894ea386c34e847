"""The segment that is appended to: written, synced, sealed, and replaced by the next.

There are three locks, taken in this order. A writer holds the core, the appender's lock. The sync lock is held to
sync or close a segment, and the tail lock to read or replace the tail together with its offset. A signal handler
may interrupt a sync of its own thread and sync again: the core refuses that, the other two locks can be taken
twice.

The core itself syncs too, for a writer without company (kernel.LoneWriter), with the core and the sync lock
held. So the core has the figures that both need: how far the segment was synced, and what was noted of that.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from array import array
from typing import NoReturn

from forelog.errors import AppenderFailed, WriteFailed
from forelog.files import File
from forelog.kernel import AppendCore
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import EndMark
from forelog.log.directory.index import MARK_BYTES, IndexBuilder, write_index
from forelog.log.directory.journal import Journal, open_journal
from forelog.log.directory.place import read_exactly
from forelog.log.directory.spare import Spare, spare_path
from forelog.log.directory.tail import HalfMadeSegment, Tail, check_number, create_segment
from forelog.log.directory.watermark import Watermark
from forelog.log.metrics import Metrics

logger = logging.getLogger("forelog")

_HEAD_BYTES = 16  # what a record's time is in


class ActiveSegment:
    """The tail of a log that is open to append, and those before it that are being sealed."""

    def __init__(
        self,
        directory: Directory,
        metrics: Metrics,
        core: AppendCore,
        watermark: Watermark,
        end: EndMark,
        tail: Tail,
        *,
        waits: bool,
        segment_bytes: int,
        journal_bytes: int,
        spare: bool,
    ) -> None:
        self._directory = directory
        self._metrics = metrics
        self._core = core
        self._watermark = watermark
        self._end = end
        self._waits = waits
        self._segment_bytes = segment_bytes
        self._sync_lock = core.sync_lock
        self._tail_lock = threading.RLock()
        self._sealing: int | None = None
        self._records_before = 0
        self._bytes_before = 0
        self.error: AppenderFailed | None = None
        """Why nothing more can be appended, once that is so."""
        self.told = True
        """Whether a caller has received the error."""
        self.was_cut = False
        """Whether a write was cut off: then nothing more goes into this segment."""
        core.mark_bytes = MARK_BYTES
        self._use(tail)
        core.share_end(end.shared, waits)
        core.share_mark(*watermark.place())
        core.note = self._note_mark
        core.fail = self._sync_failed
        core.timing = metrics.timing("sync")
        core.one_timing, core.many_timing = metrics.timing("append"), metrics.timing("append_many")
        self._journal: Journal | None = open_journal(directory, journal_bytes) if journal_bytes else None
        if self._journal is not None:
            core.cover = self._cover
            core.restart = self._journal.begin
        self.spare = Spare(directory) if spare else None
        """What keeps the next segment open, if asked to."""
        metrics.add_source(self.counts)
        core.alone = True

    def _use(self, tail: Tail) -> None:
        core = self._core
        with self._tail_lock:
            self.tail = tail
            self.encoder = self._directory.format.encoder(tail.number)
            core.begin(tail.number, tail.offset, tail.index.marks, tail.index.next_mark)
            core.time_ns = tail.time_ns
            if self._directory.format.numbered_by_time:
                core.time_ns = max(tail.time_ns, tail.number - 1)  # no record before a segment's number
            core.records = 0
            core.write = tail.file.write
            core.sync = tail.file.sync
            core.descriptor = tail.file.descriptor()
            self.was_cut = False
            core.rest_at = self.next_rest()
            self._end.move(tail.number, tail.offset)

    def next_rest(self) -> int:
        """The offset up to which the core appends alone, without this class."""
        fmt = self._directory.format
        if fmt.encode is None or self.was_cut:
            return -1
        if fmt.numbered_by_time and self._core.offset <= fmt.header_bytes:
            return -1  # the first record decides the segment's number
        return self._segment_bytes

    @property
    def path(self) -> str:
        return self._directory.segment_path(self.tail.number)

    def paths(self) -> list[str]:
        """The segments that are being written or sealed, in order."""
        with self._tail_lock:
            numbers = [self.tail.number] if self._sealing is None else [self._sealing, self.tail.number]
        return [self._directory.segment_path(number) for number in numbers]

    def unsynced_bytes(self) -> int:
        with self._tail_lock:
            return self._core.offset - self._core.synced

    def counts(self) -> dict[str, int]:
        return {
            "records_appended": self._records_before + self._core.records,
            "bytes_appended": self._bytes_before + self._core.offset - self.tail.offset,
            "syncs": self._core.syncs,
            "journal_syncs": self._core.journal_syncs,
        }

    # -- failing and closing

    def check(self) -> None:
        """Raise if it has failed."""
        if self.error is None and self._core.sync_error is not None:  # an interrupt came before it was noted
            self._note_failure(self._core.sync_error, f"{self.path}: sync failed")
        if self.error is not None:
            self.told = True
            raise AppenderFailed(*self.error.args) from self.error

    def fail(self, error: OSError, what: str) -> NoReturn:
        """Record an error that ends the appender: nothing more can be appended."""
        raise self._note_failure(error, what) from error

    def _note_failure(self, error: OSError, what: str) -> AppenderFailed:
        self.error = AppenderFailed(
            error.errno,
            f"{what} ({error.strerror or error}). What is on disk is unknown: nothing more is appended "
            "until the log is reopened, which recovers what is really there",
        )
        self._core.end()
        logger.error("%s", self.error)
        return self.error

    def _sync_failed(self, error: OSError) -> NoReturn:
        """Record a failed sync. The core knows of it already, in case an interrupt comes first."""
        if self.error is None:
            self._metrics.add(syncs_failed=1)
            self.fail(error, f"{self.path}: sync failed")
        self.check()
        raise self.error

    def disown(self, error: AppenderFailed) -> None:
        """In a forked child, leave everything to the parent: the threads exist only there."""
        self.error = error
        self._core.disown()
        self.spare = None

    def close(self, *, in_order: bool) -> None:
        """Release the files. `in_order` says that everything has been synced."""
        if in_order:
            with contextlib.suppress(OSError):  # a mark that is too low is still a true one
                self._watermark.note(self.tail.number, self._core.offset, closed=True)
        if self.spare is not None:
            self.spare.close()
        if self._journal is not None:
            with contextlib.suppress(OSError):  # one that stays behind has nothing that the segment lacks
                self._journal.close(remove=in_order)
        self._metrics.remove_source(self.counts)
        self._core.descriptor = -1
        self._core.unshare()
        self._end.close(in_order=in_order)
        self.tail.file.close()
        self._watermark.close()

    # -- writing, with the core held

    def write(self, data: bytes | memoryview, starts: array[int], first_ns: int, last_ns: int) -> int:
        """Write encoded records, all or none. Returns where they start."""
        core, encoder = self._core, self.encoder
        size, offset, index = len(data), core.offset, self.tail.index
        # From here until it is counted, or cut off again, an interrupt leaves it to the next append to cut.
        core.rest_at, core.torn = -1, True
        core.intend(offset + size)
        try:
            written = core.write(data)
        except OSError as error:
            self.undo(data, 0, error)
        else:
            if written != size:
                self.undo(data, written, None)
        encoder.accept()
        core.advance(size, len(starts), last_ns)
        if core.offset > core.mark_at:
            if first_ns == last_ns:
                core.mark_batch(starts, offset, first_ns)
            else:
                exact_time, index.next_mark = self._directory.format.exact_time, core.mark_at
                index.mark_rows(starts, offset, lambda start: exact_time(bytes(data[start : start + _HEAD_BYTES])))
                core.mark_at = index.next_mark
        core.rest_at = self.next_rest()
        return offset

    def undo(self, data: bytes | memoryview, written: int, error: OSError | None) -> None:
        """Complete a short write. If that fails, cut off what was written, and raise."""
        view = memoryview(data)
        while error is None and written < len(view):
            try:
                count = self._core.write(view[written:])
            except OSError as failure:
                error = failure
            else:
                written += count
                if count == 0:
                    error = OSError(errno.EIO, "the disk takes no more bytes")
        if error is None:
            return
        self._metrics.add(writes_failed=1)
        self.cut_back(self._core.offset, f"a failed write ({error.strerror or error})")
        raise WriteFailed(
            error.errno,
            f"{error.strerror or error}: nothing was appended, the log is as before",
            self.path,
        ) from error

    # -- cutting and syncing

    def cut_back(self, offset: int, why: str) -> None:
        """Cut off what was written past `offset`, if anything was, and sync that.

        The next record begins a new segment, unless this one is empty. Another program may have read what was
        cut off, so its positions must not get another meaning.
        """
        try:
            with self._sync_lock:
                if self.tail.file.size() != offset:
                    self.tail.file.truncate(offset)
                    self.tail.file.sync()  # or a crash could bring back what the caller knows as failed
                    self.was_cut = offset > self._directory.format.header_bytes
                self._core.torn = False
                self._core.rest_at = self.next_rest()
        except OSError as error:
            self.fail(error, f"{self.path}: {why} couldn't be undone")

    def sync_to(self, segment: int, offset: int, *, settle: bool = False) -> None:
        """Return when everything up to there is synced, by this thread or another. Only one syncs at a time.

        `settle` also syncs it in the segment itself. Then the journal isn't needed for it.
        """
        while not self._try_sync_to(segment, offset, settle):
            pass

    def _try_sync_to(self, segment: int, offset: int, settle: bool) -> bool:
        """Do what sync_to() does, or return False if the segment was swapped meanwhile."""
        if self.spare is not None:
            self.spare.wait_named()  # nothing is safe before what came before it is
        with self._sync_lock:
            with self._tail_lock:
                tail, synced = self.tail, self._core.synced
                done = self._core.settled if settle else synced
                end = self._core.offset  # what has been written meanwhile is covered too
                if self.spare is not None and not self.spare.named:
                    return False
            self.check()
            if (tail.number, done) >= (segment, offset):
                return True
            try:
                with self._metrics.timed("sync"):
                    settled = settle or not self._cover(tail.number, synced, end)
                    if settled:
                        tail.file.sync()
            except OSError as error:
                self._core.fail_sync(error)
                self._sync_failed(error)
            if settled and self._journal is not None:
                self._journal.begin(tail.number)
            self._core.finish_sync(tail.number, end, settled)
            return True

    def _cover(self, number: int, start: int, end: int) -> bool:
        """Sync what was written since the last sync in the journal, if there is one and it has room."""
        return self._journal is not None and self._journal.cover(self.tail.file, number, start, end)

    def _note_mark(self, number: int, offset: int) -> None:
        """Write a mark, where the core can't do so by itself."""
        with contextlib.suppress(OSError):  # a mark that is too low is still a true one
            self._watermark.note(number, offset)

    def wait_sealed(self, timeout: float | None) -> bool:
        """Wait until all earlier segments are sealed and the tail has its name. Returns False after `timeout`."""
        if self.spare is not None and not self.spare.wait_named(timeout):
            return False
        self.check()
        return True

    def wait_ready(self, timeout: float | None) -> bool:
        """Wait until a roll wouldn't wait for anything. Returns False after `timeout`."""
        return self.spare is None or self.spare.wait_idle(timeout)

    # -- the next segment; with the core held

    def start_over(self) -> None:
        """Continue in an empty segment, with a new encoder."""
        if self._core.offset > self._directory.format.header_bytes:
            self.roll()
        else:
            self.encoder = self._directory.format.encoder(self.tail.number)

    def roll(self, time_ns: int | None = None) -> None:
        """Continue in the next segment. `time_ns` is the time of its first record, if that is known already."""
        if time_ns is None:
            time_ns = self._core.stamp() if self._directory.format.numbered_by_time else 0
        number = self._directory.format.next_number(self._core.segment, time_ns)
        if self._waits and self.unsynced_bytes():
            # What counts of a segment that has a successor is all of it.
            self.sync_to(self._core.segment, self._core.offset)
        with self._metrics.timed("roll"):
            file = self.spare.take() if self.spare is not None else None
            self.check()  # what was waited for may have failed
            if file is not None:
                self._swap(file, number)
            else:
                self._start_segment(number)
                if self.spare is not None:
                    self.spare.renew()
            self._metrics.add(rolls=1)

    def renumber(self, number: int) -> None:
        """Replace an empty segment by one with the number that its first record requires."""
        if self.spare is not None:
            self.spare.wait_named()
        self.check()
        tail = self._create(number)
        with self._sync_lock:
            old = self.tail
            self._use(tail)
            self._core.note_synced(tail.number, tail.offset)
            old.file.close()
        # Not renamed: a reader of the old one would take what comes for records of the old number.
        with contextlib.suppress(OSError):  # one that is empty and stays behind does no harm
            self._directory.files.remove(self._directory.segment_path(old.number))

    def _start_segment(self, number: int) -> None:
        """Seal the segment and create the next, one after the other."""
        self.sync_to(self._core.segment, self._core.offset, settle=True)
        tail = self._create(number)
        with self._sync_lock:
            old = self.tail
            self._write_index(old, self._finish_index())
            self._use(tail)
            self._core.note_synced(tail.number, tail.offset)
            old.file.close()

    def _create(self, number: int) -> Tail:
        try:
            return create_segment(self._directory, number, self._core.time_ns)
        except HalfMadeSegment as error:
            self.fail(error, f"{self._directory.path}: starting a segment failed halfway")
        except OSError as error:
            raise WriteFailed(
                error.errno,
                f"{error.strerror or error}: couldn't start a segment, nothing was appended",
                self._directory.segment_path(number),
            ) from error

    def _swap(self, file: File, number: int) -> None:
        """Continue in the spare at once. The segment before it is sealed in the background."""
        core, old = self._core, self.tail
        core.alone = False  # nothing is safe before what came before it is
        check_number(self._directory, number)
        index = self._finish_index()
        tail = Tail(number, file, self._directory.format.header_bytes, IndexBuilder(number), 0, core.time_ns)
        assert self.spare is not None
        try:
            self._sealing = old.number
            self.spare.begin(lambda: self._seal_behind(old, index, tail))
            self._use(tail)
        except BaseException as error:
            self._note_failure(OSError(errno.EINTR, "interrupted"), f"{self._directory.path}: starting a segment")
            self.spare.give_up()
            raise error

    def _seal_behind(self, old: Tail, index: IndexBuilder, tail: Tail) -> None:
        """Sync the old segment, and then give the new one its name. Runs on the spare's thread."""
        directory = self._directory
        try:
            with self._metrics.timed("sync"):
                old.file.sync()
            self._metrics.add(syncs=1)
            directory.files.rename(spare_path(directory), directory.segment_path(tail.number))
            directory.sync()
        except OSError as error:
            self._note_failure(error, f"{directory.segment_path(old.number)}: sealing failed")
        else:
            with self._sync_lock:
                self._core.note_synced(tail.number, tail.offset)
            self._core.alone = True
            self._write_index(old, index)
        with self._sync_lock:
            old.file.close()
        self._sealing = None

    def _finish_index(self) -> IndexBuilder:
        tail, core = self.tail, self._core
        index = tail.index
        index.records = tail.records + core.records
        if not tail.records and index.marks:  # else the earliest of those that were there
            index.first_time = index.marks[1]  # its first mark is the first record's
        if core.records:  # or it has only what it had when it was opened, and may end before an earlier one
            index.last_time = max(index.last_time, core.time_ns) if tail.records else core.time_ns
        index.end = core.offset
        counts = self.counts()
        self._records_before, self._bytes_before = counts["records_appended"], counts["bytes_appended"]
        return index

    def _write_index(self, tail: Tail, index: IndexBuilder) -> None:
        """Write an index beside a finished segment. Without an index everything works, only more slowly."""
        try:
            last_bytes = read_exactly(tail.file, 4, index.end - 4)
            path = self._directory.index_path(tail.number, index.end)
            write_index(self._directory.files, path, index.build(index.end, index.end, last_bytes), sync=False)
        except OSError as error:
            logger.warning("%s: no index for segment %d: %s", self._directory.path, tail.number, error)
